"""Which shards a client has, and whether they are one queue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from opsq.client.core.address import ShardedAddress, parse_target, read_addresses
from opsq.client.shards.shard import WORK_S
from opsq.client.shards.shard_set import ShardSet, joint_welcome
from opsq.errors import InputUnreadable, NameTaken, NotPermitted, Unreachable, UsageError
from unit.client.shards.fake_shards import WELCOME, FakeShard, submission_id


class Made(FakeShard):
    """A shard at an address, which has not answered yet."""

    def __init__(self, address: Any) -> None:
        super().__init__(0)
        self.address = address
        self.number = None  # type: ignore[assignment]
        self.name = str(address)
        self.store = ""
        self.is_away = True
        self.is_idle = True
        self.away_s = 0.0
        self.problem: Exception | None = None

    def answer_hello(self, number: int | None, store: str = "mark") -> None:
        self.number, self.store, self.is_away = number, store, False  # type: ignore[assignment]


def set_of(*parts: str, served: frozenset[int] = frozenset()) -> ShardSet:
    return ShardSet(ShardedAddress(parts, served=served), Made)  # type: ignore[arg-type]


def all_of(shards: ShardSet) -> list[Any]:
    return list(shards)


def test_numbers_are_known_when_all_have_answered() -> None:
    shards = set_of("a", "b")
    first, second = all_of(shards)
    first.answer_hello(3)
    assert shards.numbers is None
    assert shards.numbered(3) is first
    assert shards.numbered(5) is None
    second.answer_hello(1)
    assert shards.numbers == [3, 1]
    assert shards.present == [second, first]
    assert shards.problem() is None


def test_id_names_the_shard_until_a_shard_says_that_it_has_moved() -> None:
    shards = set_of("a")
    assert shards.owner(submission_id(1023)) == 1023
    shards.moved(submission_id(1023), 4)
    assert shards.owner(submission_id(1023)) == 4


def test_only_chosen_shards_are_served_and_one_that_may_be_one_of_them() -> None:
    shards = set_of("a", "b", "c", served=frozenset({1}))
    first, second, third = all_of(shards)
    first.answer_hello(0)
    second.answer_hello(1)
    assert shards.served == [second, third]


@pytest.mark.parametrize(
    ("hellos", "cause"),
    [
        ([(1, "mark"), (1, "mark")], "shards_alike"),
        ([(1, "mark"), (None, "mark")], "shard_without_number"),
        ([(1, "mark"), (2, "other")], "stores_differ"),
    ],
)
def test_daemons_that_are_not_one_queue_are_refused_with_words(
    hellos: list[tuple[int | None, str]], cause: str
) -> None:
    shards = set_of("/run/a", "/run/b")
    for shard, (number, store) in zip(all_of(shards), hellos, strict=True):
        shard.answer_hello(number, store)
    problem = shards.problem()
    assert problem is not None
    assert problem.cause == cause
    assert "/run/" in problem.message
    assert problem.hint or cause == "shards_alike"


def test_shard_that_is_away_has_no_part_in_what_does_not_fit() -> None:
    shards = set_of("a", "b")
    first, second = all_of(shards)
    first.answer_hello(1)
    second.answer_hello(1)
    second.is_away = True
    assert shards.problem() is None


def test_none_that_answers_is_a_problem_and_why_one_refuses_is_said_first() -> None:
    shards = set_of("a", "b")
    first, second = all_of(shards)
    problem = shards.problem()
    assert problem is not None
    assert problem.cause == "no_shard"
    first.problem = Unreachable("Nobody is there.")
    second.problem = NotPermitted("The token is wrong.")
    assert shards.problem() is second.problem


def test_name_that_is_taken_at_one_shard_is_taken() -> None:
    """Whoever has it may serve the others too; a client that has begun is not ended by that."""
    shards = set_of("a", "b")
    first, second = all_of(shards)
    first.answer_hello(0)
    second.problem = NameTaken("Another has it.")
    assert shards.greeting_problem() is second.problem
    assert shards.problem() is None


# --- the file ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shards"
    path.write_text("# ours\n/run/a\n\n/run/b\n")
    return path


def rewrite(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_addresses_are_read_again_when_the_file_has_changed(file: Path) -> None:
    shards = ShardSet(ShardedAddress(read_addresses(str(file)), str(file)), Made)  # type: ignore[arg-type]
    kept, left = all_of(shards)
    assert not shards.read_again()
    rewrite(file, "/run/a\n/run/c\n")
    assert shards.read_again()
    assert [shard.address for shard in shards] == ["/run/a", "/run/c"]
    assert all_of(shards)[0] is kept
    assert shards.take_idle() == [left]
    assert shards.take_idle() == []
    assert len(shards.take_all()) == 2


def test_shard_that_leaves_is_kept_while_something_of_it_is_held_unless_it_is_gone(file: Path) -> None:
    shards = ShardSet(ShardedAddress(read_addresses(str(file)), str(file)), Made)  # type: ignore[arg-type]
    _, left = all_of(shards)
    left.answer_hello(7)
    left.is_idle = False
    rewrite(file, "/run/a\n")
    shards.read_again()
    assert shards.take_idle() == []
    assert shards.numbered(7) is left
    left.away_s = WORK_S
    assert shards.take_idle() == [left]


@pytest.mark.parametrize("text", ["", "# nobody\n", "/run/a\n/run/a\n", "host:notaport\n"])
def test_file_with_a_mistake_changes_nothing(file: Path, text: str) -> None:
    shards = ShardSet(ShardedAddress(read_addresses(str(file)), str(file)), Made)  # type: ignore[arg-type]
    rewrite(file, text)
    with pytest.raises(UsageError):
        shards.read_again()
    assert [shard.address for shard in shards] == ["/run/a", "/run/b"]
    rewrite(file, "/run/d\n")
    assert shards.read_again()


def test_file_that_is_gone_changes_nothing(file: Path) -> None:
    shards = ShardSet(ShardedAddress(read_addresses(str(file)), str(file)), Made)  # type: ignore[arg-type]
    os.unlink(file)
    assert not shards.read_again()
    assert len(shards) == 2
    with pytest.raises(InputUnreadable):
        read_addresses(str(file))


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


# --- the greeting ---


def test_client_is_promised_what_all_shards_promise() -> None:
    other = replace(
        WELCOME, server="other", heartbeat_s=2.0, frame_limit_bytes=1 << 16, is_operator=False, is_durable=False
    )
    joint = joint_welcome(5, [WELCOME, other])
    assert (joint.id, joint.heartbeat_s, joint.frame_limit_bytes) == (5, 2.0, 1 << 16)
    assert (joint.is_operator, joint.is_durable, joint.store_marker) == (False, False, "mark")
