"""Shards that are killed, restarted and emptied in turn, while consumers in other processes work everything off.

`OPSQ_TEST_SHARD_CHUNKS` says how many chunks, `OPSQ_TEST_SHARD_CONSUMERS` by how many consumers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import opsq
from fleets import Fleet, fleet_in
from opsq.daemon import lifecycle
from opsq.ids import shard_of
from waiting import wait_until

SHARDS = 3
CHUNKS = int(os.environ.get("OPSQ_TEST_SHARD_CHUNKS", "40000"))
CONSUMERS = int(os.environ.get("OPSQ_TEST_SHARD_CONSUMERS", "4"))
LEAST_ENDS = 4
"""A kill, a move, a kill and a restart."""
SUBMISSION_CHUNKS = max(min(CHUNKS // (2 * SHARDS), 100_000), 1)
DEADLINE_S = 60 + CHUNKS / 500

PROGRAM = Path(sys.executable).with_name("opsq")

CONSUMER = """
import sys, opsq
with opsq.connect(sys.argv[1], reconnect_s=None) as queue, queue.consumer(sys.argv[2]) as consumer:
    print("ready", flush=True)
    for reservation in consumer.reservations(32, until_empty=False):
        reservation.complete([b"%d" % (int(data) * 2) for data in reservation.read()])
"""


@contextlib.contextmanager
def consumers(fleet: Fleet, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that work until they are killed."""
    strategies = ["Random", "OldestFirst", "NewestFirst", "Fair(part)"]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(fleet.folder / "consumers.log", "a"))
        started = []
        for number in range(count):
            command = [sys.executable, "-c", CONSUMER, fleet.address, strategies[number % len(strategies)]]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started


def submit_round(queue: opsq.Queue, number: int) -> list[opsq.Submission]:
    """Submit the next `CHUNKS` chunks; the data of each is its place among those of all rounds."""
    first, end = number * CHUNKS, (number + 1) * CHUNKS
    return [
        queue.submit([b"%d" % place for place in range(at, min(at + SUBMISSION_CHUNKS, end))], metadata={"part": at})
        for at in range(first, end, SUBMISSION_CHUNKS)
    ]


def empty(fleet: Fleet, number: int) -> None:
    """Move all that a shard has to the next one, then let it take new work again."""
    place = ["drain", "--socket", fleet.settings[number].socket]
    target = fleet.settings[(number + 1) % SHARDS].socket
    subprocess.run([PROGRAM, *place, "--to", target, "--patience", "2"], check=True)
    subprocess.run([PROGRAM, *place, "--undo"], check=True)


def test_shards_killed_and_emptied_in_turn_lose_nothing_and_keep_nothing_twice(tmp_path: Path) -> None:
    with fleet_in(tmp_path, SHARDS) as fleet:
        with opsq.connect(fleet.address, reconnect_s=None) as queue:
            submissions = submit_round(queue, 0)
            rounds = 1
            began = time.monotonic()
            ends = moves = 0
            with consumers(fleet, CONSUMERS) as processes:
                while (total := queue.status().total).backlog_count or ends < LEAST_ENDS:
                    if not total.backlog_count:  # a quick machine is done before every kind of end was seen
                        submissions += submit_round(queue, rounds)
                        rounds += 1
                    before = total.completed_count
                    wait_until(lambda before=before: _has_gone_on(queue, before), DEADLINE_S, "chunks are completed")
                    if ends % 4 == 1:
                        empty(fleet, ends % SHARDS)
                        moves += 1
                    elif ends % 4 == 3:
                        lifecycle.restart(fleet.settings[ends % SHARDS], drain_s=2)
                    else:
                        fleet.kill(ends % SHARDS)
                        fleet.start(ends % SHARDS)
                    ends += 1
                    wait_until(lambda: _all_answer(queue), DEADLINE_S, "all shards answer")
                assert [process.poll() for process in processes] == [None] * CONSUMERS, "no consumer has ended"
            took_s = time.monotonic() - began
            number = 0
            for submission in submissions:
                assert submission.wait(DEADLINE_S).state == "completed"
                for result in submission.results():
                    assert result == b"%d" % (2 * number)
                    number += 1
            assert number == rounds * CHUNKS
            total = queue.status().total
            assert (total.completed_count, total.reserved_count, total.dead_count) == (number, 0, 0)
            assert len({shard_of(submission.id) for submission in submissions}) > 1
        assert moves
        assert fleet.problems() == []
    print(
        json.dumps(
            {"chunks": number, "consumers": CONSUMERS, "ends": ends, "moves": moves, "seconds": round(took_s, 1)}
        )
    )


def _has_gone_on(queue: opsq.Queue, before: int) -> bool:
    total = queue.status().total
    return total.completed_count > before or not total.backlog_count


def _all_answer(queue: opsq.Queue) -> bool:
    return all(shard.state == "running" for shard in queue.status().shards)
