"""Lists, counts and changes over two daemons that are one queue; and what is said while one of them is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from acceptance.conftest import Opsq

COUNT = 12


@pytest.fixture
def shards(opsq: Opsq) -> Iterator[Opsq]:
    """The program as a client of two shards, each with submissions of one chunk that dies."""
    sockets = []
    for number in ("0", "1"):
        state_dir = opsq.folder / number
        opsq.ok("start", "--state-dir", str(state_dir), "--shard", number, "--store", str(opsq.folder / "content"))
        sockets.append(str(state_dir / "opsq.sock"))
    opsq.environ["OPSQ_ADDRESS"] = ",".join(sockets)
    for number in range(COUNT):
        opsq.submit_lines(1, "--max-attempts", "1", "-m", f"number={number}", "--shard-by", "number")
    opsq("consume", "--until-empty", "--", "false")
    yield opsq
    for name in ("0", "1"):
        opsq.state_dir = opsq.folder / name
        opsq.kill_daemon()


def test_lists_and_counts_are_of_both(shards: Opsq) -> None:
    listed = [line.split("\t")[0] for line in shards.ok("list").lines]
    assert len(listed) == COUNT
    assert listed == sorted(listed, key=int, reverse=True)
    assert {int(name) >> 12 & 1023 for name in listed} == {0, 1}
    status = shards.ok("status", "--json").json
    assert (status["total"]["dead"], status["pid"]) == (COUNT, 0)
    assert [(shard["shard"], shard["state"]) for shard in status["shards"]] == [(0, "running"), (1, "running")]
    events = shards.ok("history", "--json", "--event", "dead").json["events"]
    assert {event["submission_id"] for event in events} == set(listed)
    assert [event["at"] for event in events] == sorted((event["at"] for event in events), reverse=True)
    assert [line.split("/")[0] for line in shards.ok("dead", "list").lines] == listed[::-1]
    assert {event["submission_id"] for event in shards.ok("top", "--json").json["failures"]} == set(listed)
    assert shards.ok("dead", "requeue", "--all", "--json").json["count"] == COUNT
    shards.ok("check")


def test_place_in_the_history_of_one_shard_is_refused(shards: Opsq) -> None:
    assert shards.ok("history", "--limit", "1", "--json").json["next"] is None
    ran = shards("history", "--after", "7")
    assert (ran.status, "each shard counts for itself" in " ".join(ran.err.split())) == (2, True)


def test_shard_that_is_away_is_named_once_and_the_others_answer(shards: Opsq) -> None:
    shards.state_dir = shards.folder / "1"
    shards.kill_daemon()
    ran = shards("list")
    assert ran.status == 0
    assert {int(line.split("\t")[0]) >> 12 & 1023 for line in ran.lines} == {0}
    [line] = " ".join(ran.err.split()).split(" opsq: ")
    assert line == f"opsq: shard {shards.folder / '1' / 'opsq.sock'} did not answer: what it has is not shown."
    status = shards("status", "--json").json
    assert [shard["state"] for shard in status["shards"]] == ["running", "unreachable"]
    assert status["total"]["dead"] == len(ran.lines)
