"""The shards of a client, and the file that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opsq.client.core.address import parse_target
from opsq.client.shards.shard_set import ShardSet
from unit.client.shards.fake_shards import FakeShard


def test_shard_is_found_by_its_number_also_while_it_leaves_and_then_the_one_in_its_place(tmp_path: Path) -> None:
    names = tmp_path / "shards"
    names.write_text("/old.sock\n")
    opened: list[FakeShard] = []

    def open_shard(_: object) -> Any:
        opened.append(FakeShard(7))
        return opened[-1]

    shards: Any = ShardSet(parse_target(f"@{names}"), open_shard)  # type: ignore[arg-type]  # one of several
    [old] = opened
    assert shards.numbered(7) is old
    assert shards.numbered(8) is None
    names.write_text("/new.sock\n/other.sock\n")
    assert shards.read_again()
    _, new, other = opened
    new.number, other.number = None, 8  # type: ignore[assignment]  # nobody has reached it yet
    assert shards.numbered(7) is old
    new.number = 7
    assert shards.numbered(7) is new
    assert shards.numbered(8) is other
    new.number = 9
    assert shards.numbered(7) is old
    old.is_idle = True  # type: ignore[attr-defined]
    assert shards.take_idle() == [old]
    assert shards.numbered(7) is None
    assert shards.numbered(9) is new
