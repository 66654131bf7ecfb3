"""Keys of submissions that were moved from one of several real daemons to another: each still makes one submission."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from fleets import Fleet, fleet_in
from opsq.client.shards.shard_order import rendezvous
from opsq.errors import Unreachable
from opsq.ids import shard_of
from waiting import wait_until

PROGRAM = Path(sys.executable).with_name("opsq")
SHARDS = 5
HOME, SECOND, _, _, FAR = rendezvous("k", range(SHARDS))
"""The first two shards of the key, and one that is not asked for it unless something says that it may have it."""
KEYS = ["idempotency_key", "unique_key"]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path, SHARDS) as fleet:
        yield fleet


def drain(fleet: Fleet, number: int, *options: str) -> None:
    subprocess.run([PROGRAM, "drain", "--socket", fleet.settings[number].socket, *options], check=True)


def moved(fleet: Fleet, **key: str) -> int:
    """A submission of the key that was moved from its first shard to one that is far behind in the order."""
    with opsq.connect(fleet.address) as queue:
        made = queue.submit([b"x"], **key).id
    assert shard_of(made) == HOME
    drain(fleet, HOME, "--to", fleet.settings[FAR].socket)
    return made


def submit_anew(address: str, **key: str) -> int:
    """The submission of the key, by a client that knows nothing of what was before."""
    with opsq.connect(address) as queue:
        return queue.submit([b"x"], **key).id


@pytest.mark.parametrize("name", KEYS)
def test_key_makes_one_submission_though_it_was_moved_and_its_shard_is_removed(
    fleet: Fleet, tmp_path: Path, name: str
) -> None:
    key = {name: "k"}
    addresses = tmp_path / "shards"
    addresses.write_text("\n".join(settings.socket for settings in fleet.settings))
    with opsq.connect(f"@{addresses}") as running:
        made = moved(fleet, **key)
        assert [running.submit([b"x"], **key).id, submit_anew(f"@{addresses}", **key)] == [made, made]
        drain(fleet, HOME, "--undo")
        assert [running.submit([b"x"], **key).id, submit_anew(f"@{addresses}", **key)] == [made, made]
        addresses.write_text("\n".join(settings.socket for settings in fleet.settings if settings.shard != HOME))
        with opsq.connect(fleet.settings[HOME].socket) as alone:
            wait_until(lambda: alone.status().connections_count == 1, what="the client has left the shard")
        fleet.kill(HOME)
        assert [running.submit([b"x"], **key).id, submit_anew(f"@{addresses}", **key)] == [made, made]
        fleet.kill(FAR)
        with pytest.raises(Unreachable, match="may have a submission with this key"):
            running.submit([b"x"], **key)


@pytest.mark.parametrize("name", KEYS)
def test_key_that_was_moved_is_free_once_its_submission_is_gone(fleet: Fleet, name: str) -> None:
    key = {name: "k"}
    made = moved(fleet, **key)
    drain(fleet, HOME, "--undo")
    with opsq.connect(fleet.address) as queue:
        queue.submission(made).cancel()
        queue.submission(made).remove()
        again = queue.submit([b"x"], **key).id
        assert shard_of(again) == (HOME if name == "unique_key" else SECOND)
        assert queue.submit([b"x"], **key).id == again
    assert submit_anew(fleet.address, **key) == again
