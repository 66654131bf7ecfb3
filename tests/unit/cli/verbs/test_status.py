"""The state of a queue of several shards, as a terminal, a pipe and a program get it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.verbs.status import status
from opsq.wire.messages import UNREACHABLE, ArrivingState, Counts, DaemonState, ShardState

COUNTS = Counts(None, 2, 90, 1, 9, 100, 2, 0)
STATE = DaemonState(1, "1.0", 4711, "running", 7200.0, COUNTS, [], {}, [], 0, 2, 0.0, 0, 1, 0, 0, {})
SHARDED = replace(
    STATE,
    pid=0,
    shards=[
        ShardState(0, "shard-a.cluster.example.org:7400", "running", "1.0", COUNTS, 7200.0, takes_new=False),
        ShardState(1023, "shard-b.cluster.example.org:7400", UNREACHABLE),
        ShardState(None, "shard-c.cluster.example.org:7400", UNREACHABLE),
    ],
)


class OfState(Caller):
    """A caller whose daemon is in this state."""

    def __init__(self, state: DaemonState, **options: Any) -> None:
        super().__init__(options, frozenset())
        self.state = state

    def connect(self, **_: Any) -> Any:
        return self

    def next_id(self) -> int:
        return 1

    def call(self, request: Any, kind: type[Any]) -> Any:
        return self.state

    def close(self) -> None:
        pass


def test_terminal_of_80_columns_has_a_table_of_shards(capsys: pytest.CaptureFixture[str]) -> None:
    status(OfState(SHARDED).drawn(), watch=False, by=None, interval_s=1.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("running  3 shards, 2 of them unreachable, up 2h")
    assert max(map(len, lines)) <= 80
    [reachable] = [line for line in lines if "shard-a.cluster" in line]
    assert reachable.split()[:6] == ["0", "shard-a.cluster.example.org:7400", "running,", "drained", "90", "9"]
    [unreachable] = [line for line in lines if "shard-b.cluster" in line]
    assert unreachable.split() == ["1023", "shard-b.cluster.example.org:7400", "unreachable"]


def test_pipe_has_a_line_for_each_shard(capsys: pytest.CaptureFixture[str]) -> None:
    status(OfState(SHARDED), watch=False, by=None, interval_s=1.0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("shard\t")]
    assert lines == [
        "shard\t0 shard-a.cluster.example.org:7400 running, drained",
        "shard\t1023 shard-b.cluster.example.org:7400 unreachable",
        "shard\t- shard-c.cluster.example.org:7400 unreachable",
    ]


def test_program_has_what_is_known_of_each_shard(capsys: pytest.CaptureFixture[str]) -> None:
    status(OfState(SHARDED, json=True), watch=False, by=None, interval_s=1.0)
    reachable, unreachable, unknown = json.loads(capsys.readouterr().out)["shards"]
    assert (reachable["shard"], reachable["server"], reachable["total"]["waiting"]) == (0, "1.0", 90)
    assert unreachable == {
        "shard": 1023,
        "address": "shard-b.cluster.example.org:7400",
        "state": "unreachable",
        "server": None,
        "uptime_s": None,
        "total": None,
        "takes_new": None,
    }
    assert unknown["shard"] is None


def test_one_daemon_alone_has_no_shards(capsys: pytest.CaptureFixture[str]) -> None:
    status(OfState(STATE).drawn(), watch=False, by=None, interval_s=1.0)
    text = capsys.readouterr().out
    assert "pid 4711" in text
    assert "shard" not in text


def test_what_arrives_is_told_by_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    state = replace(STATE, arriving_count=3, arriving_from=[ArrivingState(bytes(15) + b"\1", 3, 2, "b:7400")])
    source = "0" * 31 + "1"
    status(OfState(state), watch=False, by=None, interval_s=1.0)
    assert f"arriving_from\t{source} submissions=3 complete=2 b:7400" in capsys.readouterr().out.splitlines()
    status(OfState(state, json=True), watch=False, by=None, interval_s=1.0)
    assert json.loads(capsys.readouterr().out)["arriving_from"] == [
        {"source": source, "submissions": 3, "complete": 2, "address": "b:7400"}
    ]
    status(OfState(state).drawn(), watch=False, by=None, interval_s=1.0)
    drawn = " ".join(capsys.readouterr().out.split())
    assert f"3 arriving from b:7400, 2 complete (source {source};" in drawn
    assert "--give-up" not in drawn  # every move that goes well is shown, too
