"""What `opsq doctor` makes of the state that a daemon reports, and of the room on the disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsq.daemon import doctor
from opsq.filesystem import Space
from opsq.settings import load
from opsq.wire.messages import UNREACHABLE, ReplicaState, ShardState


def test_log_that_a_foreign_reader_keeps_is_wrong_and_says_how_to_find_it() -> None:
    state: Any = SimpleNamespace(
        shards=[],
        pid=1,
        server="0.1.0",
        state="running",
        consumers=[],
        wal_bytes=150 << 20,
        wal_kept_s=200.0,
        replica=None,
    )
    settings: Any = SimpleNamespace(database_path="/queue/opsq.sqlite")
    found = {fact.check: fact for fact in doctor._daemon(settings, state)}
    assert not found["log"].is_ok
    assert "150.0 MiB" in found["log"].detail
    assert "200s" in found["log"].detail
    assert "fuser /queue/opsq.sqlite" in found["log"].advice


@pytest.mark.parametrize(
    ("found", "is_enough"),
    [
        (Space(100 << 20, 6 << 20), True),  # a twentieth of a small disk
        (Space(100 << 20, 4 << 20), False),
        (Space(1 << 40, 65 << 20), True),
        (Space(1 << 40, 63 << 20), False),
        (Space(1 << 40, 1 << 40, has_inodes=False), False),
    ],
)
def test_room_is_wrong_when_the_daemon_accepts_no_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Space, is_enough: bool
) -> None:
    monkeypatch.setattr(doctor, "space", lambda path: found)
    [room] = [fact for fact in doctor._disk(load({"state_dir": str(tmp_path)})) if fact.check == "room"]
    assert room.is_ok is is_enough
    assert bool(room.advice) is not is_enough


def test_each_shard_is_a_fact_of_its_own() -> None:
    shards = [ShardState(0, "/a", "running", "0.1.0"), ShardState(1, "/b", "full"), ShardState(None, "/c", UNREACHABLE)]
    facts = list(map(doctor._shard, shards))
    assert [(fact.check, fact.is_ok) for fact in facts] == [("shard 0", True), ("shard 1", False), ("shard", False)]
    assert all(fact.advice for fact in facts[1:])
    assert "/c does not answer" in facts[2].detail


@pytest.mark.parametrize(
    ("lag_s", "is_owner", "error", "is_well"),
    [
        (0.4, True, "", True),
        (90.0, True, "", False),
        (0.4, True, "no answer", False),
        (0.4, False, "", False),
    ],
)
def test_replica_is_well_if_it_is_written_by_its_owner(lag_s: float, is_owner: bool, error: str, is_well: bool) -> None:
    fact = doctor._replica(ReplicaState("s3://bucket/queue", "running", lag_s, is_owner, 1, 0, error))
    assert fact.is_ok is is_well
    assert error in fact.detail
    assert is_well or fact.advice
