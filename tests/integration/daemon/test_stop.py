"""Stopping: reserved chunks may be finished, no more are handed out, and the rest is kept as leases."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemons import DEADLINE_S, Client, connected, end, error_of, running, settings_of, state_of
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.wire.messages import (
    Cancel,
    Changed,
    Complete,
    Completed,
    Completion,
    Draining,
    HeldChunks,
    NewSubmission,
    Reclaim,
    Reply,
    Reserve,
    Reserved,
    Show,
    Shown,
    Stop,
    Submit,
    Submitted,
)
from waiting import wait_until


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir / "state") as found:
        yield found


def submit(client: Client, chunks_count: int) -> int:
    """Store a submission without content; its id."""
    reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), chunks_count)]))
    assert isinstance(reply, Submitted), reply
    return reply.created[0].submission_id


def reserve(client: Client, count: int = 1) -> list[HeldChunks]:
    """Reserve chunks; what is held."""
    reply = client.ask(Reserve(3, count, "OldestFirst"))
    assert isinstance(reply, Reserved), reply
    return [
        HeldChunks(g.submission_id, g.block, g.mask, reply.reservation_id, g.attempt, g.mask, g.mac)
        for g in reply.grants
    ]


def complete(client: Client, held: list[HeldChunks]) -> Reply:
    return client.ask(Complete(4, [Completion(one) for one in held]))


def is_ended(settings: Settings) -> bool:
    return not lifecycle.is_locked(settings.lock_path)


def until_draining(client: Client) -> None:
    """Read until the daemon says that it drains."""
    while not isinstance(client.receive(), Draining):
        pass


Asker = Callable[[Settings], object]


def by_signal(number: int) -> Asker:
    return lambda settings: os.kill(state_of(settings).pid, number)


def by_request(settings: Settings) -> object:
    """`opsq stop` from a thread, since it returns only when the daemon has ended."""
    pool = ThreadPoolExecutor(1)
    stopping = pool.submit(lifecycle.stop, settings)
    pool.shutdown(wait=False)
    return stopping


@pytest.mark.parametrize(
    "ask", [by_signal(signal.SIGTERM), by_signal(signal.SIGINT), by_request], ids=["term", "int", "stop"]
)
def test_every_way_to_stop_drains_alike(settings: Settings, ask: Asker) -> None:
    """The reserved chunk may be finished and is stored.

    A parked and a new reserve get nothing; then the daemon ends.
    """
    with connected(settings, "worker") as worker, connected(settings, "parked") as parked:
        submission_id = submit(worker, 1)
        held = reserve(worker)
        parked.send(Reserve(5, 1, wait_s=None))
        stopping = ask(settings)
        until_draining(worker)
        assert submit(worker, 5) > submission_id
        empty = parked.receive()
        while isinstance(empty, Draining):
            empty = parked.receive()
        assert isinstance(empty, Reserved)
        assert empty.grants == []
        assert reserve(worker) == []
        assert state_of(settings).state == "draining"
        assert complete(worker, held) == Completed(4)
        assert worker.is_closed()
    wait_until(lambda: is_ended(settings), DEADLINE_S)
    assert stopping is None or stopping.result(DEADLINE_S).status == "stopped"
    assert lifecycle.start(settings).status == "started"
    with connected(settings) as client:
        shown = client.ask(Show(6, submission_id))
        assert isinstance(shown, Shown)
        assert shown.submission.state == "completed"


def test_cancel_works_while_the_daemon_drains(settings: Settings) -> None:
    with connected(settings) as worker:
        submission_id = submit(worker, 2)
        reserve(worker)
        by_signal(signal.SIGTERM)(settings)
        until_draining(worker)
        assert isinstance(worker.ask(Cancel(7, submission_id)), Changed)
    wait_until(lambda: is_ended(settings), DEADLINE_S)


def test_second_signal_ends_at_once(settings: Settings) -> None:
    """The reserved chunk is not waited for."""
    with connected(settings) as worker:
        submit(worker, 1)
        assert reserve(worker)
        pid = state_of(settings).pid
        os.kill(pid, signal.SIGTERM)
        until_draining(worker)
        os.kill(pid, signal.SIGTERM)
        assert worker.is_closed()
    wait_until(lambda: is_ended(settings), DEADLINE_S)


def test_stop_with_no_drain_is_immediate_and_counts_no_attempt(settings: Settings) -> None:
    """What the consumer held is a lease now: taken up again by who comes back, with its first attempt unspent."""
    with connected(settings, "worker") as worker:
        submission_id = submit(worker, 3)
        held = reserve(worker, 3)
        assert lifecycle.stop(settings, 0).status == "stopped"
        assert worker.is_closed()
    lifecycle.start(settings)
    with connected(settings, "other") as other:
        assert reserve(other) == []
    with connected(settings, "worker") as worker:
        assert worker.ask(Reclaim(8, held)) == Completed(8)
        assert complete(worker, held) == Completed(4)
        shown = worker.ask(Show(9, submission_id))
        assert isinstance(shown, Shown)
        assert shown.submission.state == "completed"


def test_what_nobody_takes_up_after_a_restart_is_free_again(runtime_dir: Path) -> None:
    """A consumer that does not come back holds nothing longer than `restart_lease_s`."""
    with running(runtime_dir / "state", restart_lease_s="100ms") as settings:
        with connected(settings) as worker:
            submit(worker, 1)
            assert reserve(worker)[0].attempt == 0
            assert lifecycle.restart(settings, 0).status == "started"
        with connected(settings) as other:
            reply = other.ask(Reserve(3, 1, wait_s=DEADLINE_S))
            assert isinstance(reply, Reserved)
            assert len(reply.grants) == 1


def test_rolling_restart_loses_and_fails_nothing(settings: Settings) -> None:
    """Twenty consumers leave one by one in the middle of their work.

    Every chunk is finished in the end, at its first attempt.
    """
    with connected(settings) as producer:
        submission_id = submit(producer, 200)
        for number in range(20):
            with connected(settings, f"worker-{number}") as worker:
                held = reserve(worker, 8)
                complete(worker, held[: len(held) // 2])
        while held := reserve(producer, 50):
            assert all(one.attempt == 0 for one in held)
            assert complete(producer, held) == Completed(4)
        shown = producer.ask(Show(9, submission_id))
        assert isinstance(shown, Shown)
        assert (shown.submission.state, shown.submission.completed_count) == ("completed", 200)


def test_stop_is_answered_before_the_connection_ends(settings: Settings) -> None:
    with connected(settings) as client:
        assert client.ask(Stop(5, 0.0)) == Changed(5)
        assert client.is_closed()


def test_stop_when_nothing_runs_says_so(runtime_dir: Path) -> None:
    assert lifecycle.stop(settings_of(runtime_dir / "nothing")).status == "not_running"


def test_restart_when_nothing_runs_starts(runtime_dir: Path) -> None:
    settings = settings_of(runtime_dir / "state")
    try:
        assert lifecycle.restart(settings).status == "started"
    finally:
        end(settings)


def test_client_that_sends_garbage_while_draining_does_not_stop_the_drain(settings: Settings) -> None:
    with connected(settings) as worker, connected(settings) as broken:
        submit(worker, 1)
        held = reserve(worker)
        by_signal(signal.SIGTERM)(settings)
        until_draining(worker)
        until_draining(broken)
        broken.socket.sendall(b"\x00\x00\x00\x01\xc1")
        assert error_of(broken.receive()).code == "protocol"
        assert complete(worker, held) == Completed(4)
    wait_until(lambda: is_ended(settings), DEADLINE_S)
