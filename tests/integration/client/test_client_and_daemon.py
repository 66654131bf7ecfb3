"""The blocking client against a real daemon: restarts, killed consumers, late completions, TCP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from daemons import holder, kill, running, state_of
from opsq.client.core.held_block import Lost
from opsq.daemon import lifecycle
from opsq.errors import NotPermitted, Unreachable
from opsq.runner.polled_consumer import PolledConsumer
from opsq.settings import Settings
from opsq.users import user_name
from opsq.wire.messages import Complete, Completed, Completion, HeldChunks, History, HistoryRows
from waiting import wait_until
from worker_functions import hold, wait_four_seconds


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir, heartbeat_s="0.3") as settings:
        yield settings


@pytest.fixture
def queue(settings: Settings) -> Iterator[opsq.Queue]:
    with opsq.connect(settings.socket) as queue:
        yield queue


def restart(settings: Settings) -> None:
    """Kill the daemon and start it again."""
    kill(settings)
    assert lifecycle.start(settings).status == "started"


def held_of(chunk: opsq.Chunk) -> HeldChunks:
    """A chunk as another process names it by its handle."""
    handle = chunk.handle
    return HeldChunks(handle.submission_id, handle.block, handle.mask, *handle.token)


def test_the_whole_way_of_a_submission(queue: opsq.Queue) -> None:
    submission = queue.submit([b"a\n", b"b\n"], metadata={"tenant": "x"}, title="Two letters")
    for chunk in queue.consume("OldestFirst"):
        chunk.complete(chunk.data.upper())
    ended = submission.wait(180)
    assert (ended.state, ended.title) == ("completed", "Two letters")
    assert (ended.submitted_by, ended.submitted_from) == (user_name(os.geteuid()), socket.gethostname())
    assert list(submission.results()) == [b"A\n", b"B\n"]


def test_the_address_follows_from_the_state_folder_and_from_the_environment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opsq.connect(state_dir=settings.state_dir) as queue:
        assert queue.status().pid == holder(settings)
    monkeypatch.setenv("OPSQ_STATE_DIR", settings.state_dir)
    with opsq.connect() as queue:
        assert queue.status().pid == holder(settings)


def test_nobody_there_is_unreachable(runtime_dir: Path) -> None:
    with pytest.raises(Unreachable, match="opsq start"):
        opsq.connect(state_dir=runtime_dir)


def test_over_tcp_the_token_decides(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(runtime_dir, listen="127.0.0.1:0") as settings:
        port = int(state_of(settings).settings["listen"].rpartition(":")[2])
        token = Path(settings.token_file).read_text().strip()
        with opsq.connect(f"127.0.0.1:{port}", token=token) as queue:
            assert queue.submit([]).state().state == "completed"
        with pytest.raises(NotPermitted):
            opsq.connect(("127.0.0.1", port), token="x" * 64)
        monkeypatch.setenv("OPSQ_TOKEN", token)
        opsq.connect(("127.0.0.1", port)).close()


def test_work_goes_on_over_a_killed_daemon_and_nothing_is_done_twice(settings: Settings, queue: opsq.Queue) -> None:
    """A completion that could not be sent is sent again; one that was acknowledged is never offered again."""
    submission = queue.submit(b"%d" % number for number in range(300))
    seen: list[int] = []
    for chunk in queue.consume("OldestFirst", batch=16):
        seen.append(chunk.index)
        if len(seen) in {50, 150}:
            restart(settings)
        chunk.complete(chunk.data)
    assert list(submission.results()) == [b"%d" % number for number in range(300)]
    assert sorted(set(seen)) == list(range(300))


def test_a_wait_outlives_the_daemon(settings: Settings, queue: opsq.Queue) -> None:
    submission = queue.submit([b"x"])
    states: list[str] = []
    waiter = threading.Thread(target=lambda: states.append(submission.wait(180).state))
    waiter.start()
    restart(settings)
    for chunk in queue.consume():
        chunk.complete()
    waiter.join(180)
    assert states == ["completed"]


WORKER = """
import os, sys, opsq
with opsq.connect(sys.argv[1], name="worker") as queue:
    for chunk in queue.consume("OldestFirst", batch=10):
        print(chunk.index, chunk.attempt, flush=True)
        sys.stdin.readline()
        chunk.complete(b"by the worker")
"""


def start_worker(settings: Settings) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, settings.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def hear(worker: subprocess.Popen[str]) -> tuple[int, int]:
    """Which chunk the worker has begun, and how many attempts were before."""
    assert worker.stdout is not None
    index, attempt = worker.stdout.readline().split()
    return int(index), int(attempt)


def end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.communicate()


def test_chunks_of_a_killed_consumer_are_back(settings: Settings, queue: opsq.Queue) -> None:
    """What it had begun counts as one loss."""
    queue.submit([b"x"] * 5)
    worker = start_worker(settings)
    assert hear(worker) == (0, 0)
    end(worker)
    attempts = {}
    for chunk in queue.consume():
        attempts[chunk.index] = chunk.attempt
        chunk.complete()
    assert attempts == {0: 1, 1: 0, 2: 0, 3: 0, 4: 0}


def test_chunks_of_a_frozen_consumer_are_back(settings: Settings, queue: opsq.Queue) -> None:
    """Its connection stays open, as when a machine is gone: missed heartbeats alone decide."""
    queue.submit([b"x"])
    worker = start_worker(settings)
    assert hear(worker) == (0, 0)
    worker.send_signal(signal.SIGSTOP)
    attempts = []
    for chunk in queue.consume():
        attempts.append(chunk.attempt)
        chunk.complete()
    assert attempts == [1]
    end(worker)


def test_a_consumer_that_starts_again_under_its_name_strands_nothing(settings: Settings, queue: opsq.Queue) -> None:
    """Ids have a random part, so the second one does not stand in for what the first one held."""
    submission = queue.submit([b"x"] * 3)
    first = start_worker(settings)
    hear(first)
    second = start_worker(settings)

    def ids_count() -> int:
        return len({state.consumer for state in queue.status().consumers if state.consumer.startswith("worker")})

    wait_until(lambda: ids_count() == 2, 180, "both are connected")
    first.send_signal(signal.SIGSTOP)
    hear(second)
    end(first)
    for chunk in queue.consume(until_idle=True):
        chunk.complete()
    end(second)
    for chunk in queue.consume():
        chunk.complete()
    assert submission.wait(180).state == "completed"


def test_a_late_completion_is_accepted_while_the_chunk_is_unfinished(settings: Settings, queue: opsq.Queue) -> None:
    """And the consumer that has it now is told; the second completion is refused by name."""
    submission = queue.submit([b"x"], reservation_s=0.2)
    with queue.consumer(lease_s=0.2) as early:
        first = next(early.chunks())
        token = held_of(first)
    lost: list[Lost] = []
    with queue.consumer(on_lost=lost.append) as late:
        chunks = late.chunks()
        second = next(chunks)
        link = queue.link
        assert link.call(Complete(link.next_id(), [Completion(token)]), Completed).refusals == []
        wait_until(lambda: second.is_revoked, what="the second consumer is told")
        second.complete(b"too late")
        assert list(chunks) == []
        (refusal,) = link.call(Complete(link.next_id(), [Completion(held_of(second))]), Completed).refusals
        assert refusal.code == "already_finished"
    assert [(found.index, found.code) for found in lost] == [(0, "already_finished")]
    assert submission.wait(180).state == "completed"


@pytest.mark.parametrize("kind", ["sync", "polled", "threads", "processes", "aio"])
def test_consumer_keeps_a_reservation_shorter_than_the_heartbeat_of_the_daemon(runtime_dir: Path, kind: str) -> None:
    """The work takes several reservations' time, and the heartbeats that the daemon asks for come every 5 s."""
    with running(runtime_dir) as settings, opsq.connect(settings.socket) as queue:
        submission = queue.submit([settings.socket.encode()], reservation_s=1.5)
        if kind == "sync":
            for chunk in queue.consume():
                hold(chunk)
                chunk.complete()
        elif kind == "polled":
            with (
                queue.consumer() as other,
                PolledConsumer(other._link._open_wire, "Random", "empty", pytest.fail) as it,
            ):
                it.order(1)
                while (taken := it.take()) is None:
                    it.poll()
                while queue.status().oldest_reservation_s < 4:
                    it.poll()
                    time.sleep(min(it.next_poll_s(), 0.2))
                taken.complete()
                it.flush()
        elif kind == "aio":
            asyncio.run(_consume_slowly(settings))
        else:
            with queue.consumer() as consumer:
                assert consumer.run_each_chunk(hold, mode=kind).completed_count == 1  # type: ignore[arg-type]
        assert submission.wait(180).state == "completed"
        events = queue.link.call(History(queue.link.next_id()), HistoryRows).rows
        assert [event.event for event in events] == ["completed"]


async def _consume_slowly(settings: Settings) -> None:
    async with opsq.connect_async(settings.socket) as queue, queue.consumer() as consumer:
        async for chunk in consumer.chunks():
            await asyncio.to_thread(wait_four_seconds, settings.socket)
            await chunk.complete()


def test_bulk_work_over_the_socket_keeps_results_in_order(queue: opsq.Queue) -> None:
    count = 20_000
    submission = queue.submit(b"%d" % number for number in range(count))
    with queue.consumer("OldestFirst") as consumer:
        for reservation in consumer.reservations(1000, ahead=3):
            reservation.complete([chunk[::-1] for chunk in reservation.read()])
    assert list(submission.results()) == [(b"%d" % number)[::-1] for number in range(count)]
