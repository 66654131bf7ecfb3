"""Connections in number: all are gone at once and come back, thousands of calls wait, and most are of the worst kind.

A witness of its own process works meanwhile, and must be served as if it were alone. `make soak` has ten thousand
connections and a hundred thousand calls; OPSQ_TEST_CONNECTIONS and OPSQ_TEST_PARKED choose other numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from crowds import SPAWN, ask_each, fleet, held, hold, next_of, wait_for_room, witness
from daemons import DEADLINE_S, Client, connected, holder, log_with, running, state_of, whole_log
from opsq.settings import Settings
from opsq.wire.frames import encode
from opsq.wire.messages import (
    Alive,
    CancelWait,
    Check,
    Checked,
    ChunkMask,
    Complete,
    Completed,
    Completion,
    GetAttachment,
    Heartbeat,
    NewSubmission,
    Reserve,
    Reserved,
    Show,
    Shown,
    Started,
    Submit,
    Submitted,
)
from waiting import wait_until

CONNECTIONS = int(os.environ.get("OPSQ_TEST_CONNECTIONS", "400"))
PARKED = int(os.environ.get("OPSQ_TEST_PARKED", "4000"))
STRATEGIES = [f"SelectOnly(kind={number})" for number in range(50)]


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """As many as there may be, here and in what is started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2 * CONNECTIONS + 1000), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def crowded(runtime_dir: Path, **flags: str) -> Iterator[Settings]:
    """A daemon for many; in the end it is the process that it was, and what it has stored is whole."""
    with running(runtime_dir / "state", **{"connection_limit": str(CONNECTIONS + 100), **flags}) as settings:
        pid = holder(settings)
        yield settings
        assert holder(settings) == pid
        with connected(settings) as client:
            assert client.ask(Check(2)) == Checked(2, [])
        assert "Traceback" not in whole_log(settings)


def gone(settings: Settings, hold: Callable[[str, int, Pipe], None]) -> None:
    """A crowd is there, and then its process is killed. One other connection stays."""
    ours, theirs = SPAWN.Pipe()
    crowd = SPAWN.Process(target=hold, args=(settings.socket, CONNECTIONS, theirs), daemon=True)
    crowd.start()
    assert ours.recv() == "ready"
    assert state_of(settings).connections_count == CONNECTIONS + 2
    crowd.kill()
    crowd.join()
    wait_until(lambda: connections_count(settings) == 2, DEADLINE_S, "all are gone")
    wait_until(lambda: state_of(settings).parked_count == 0, DEADLINE_S, "no call waits")
    wait_until(lambda: state_of(settings).room_waiting_count == 0, DEADLINE_S, "nobody waits for room")


def connections_count(settings: Settings) -> int:
    """How many there are, with one for the question; 0: too many come at this moment to ask."""
    try:
        return state_of(settings).connections_count
    except BlockingIOError:
        return 0


# --- gone at once -----------------------------------------------------------------------------------------------------


def test_connections_that_are_all_gone_at_once_leave_nothing_and_come_back(runtime_dir: Path) -> None:
    """Their process is killed: the kernel closes all. Their chunks are free for the next ones."""
    chunks_count = CONNECTIONS // 2
    with crowded(runtime_dir, heartbeat_s="600") as settings:
        with connected(settings) as client:
            reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), chunks_count, metadata={"kind": "work"})]))
            assert isinstance(reply, Submitted)
            submission_id = reply.created[0].submission_id
        with witness(settings, f"{CONNECTIONS} connections go at once and come back"):
            for _ in range(3):
                gone(settings, hold)
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(client) for client in fleet(settings.socket, chunks_count)]
                for client in clients:
                    client.send(Reserve(2, 1, "SelectOnly(kind=work)", wait_s=None))
                for client in clients:
                    reserved = next_of(client, Reserved)
                    assert isinstance(reserved, Reserved)
                    client.send(Complete(3, [Completion(held(reserved))]))
                assert not any(next_of(client, Completed).refusals for client in clients)  # type: ignore[attr-defined]
        with connected(settings) as client:
            shown = client.ask(Show(2, submission_id))
            assert isinstance(shown, Shown)
            assert (shown.submission.state, shown.submission.completed_count) == ("completed", chunks_count)


def test_those_that_wait_for_room_and_are_gone_at_once_leave_it_to_others(runtime_dir: Path) -> None:
    with crowded(runtime_dir, max_backlog_chunks="3", heartbeat_s="600") as settings, connected(settings) as client:
        assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), 2)])), Submitted)
        gone(settings, wait_for_room)
        assert isinstance(client.ask(Submit(3, [NewSubmission(os.urandom(16), 1)])), Submitted)


def test_chunks_that_many_had_begun_are_lost_together_and_handed_out_again(runtime_dir: Path) -> None:
    with crowded(runtime_dir, backoff_base_s="0", heartbeat_s="600") as settings, connected(settings) as client:
        assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), CONNECTIONS)])), Submitted)
        clients = fleet(settings.socket, CONNECTIONS)
        for number, each in enumerate(clients):
            each.send(Reserve(2, 1, "OldestFirst"))
            reserved = next_of(each, Reserved)
            assert isinstance(reserved, Reserved)
            [grant] = reserved.grants
            if number % 2:
                each.send(Started([ChunkMask(grant.submission_id, grant.block, grant.mask)]))
        ask_each(clients)
        for each in clients:
            each.close()
        left = CONNECTIONS
        attempts = []
        for number in itertools.count(3):
            reserved = client.ask(Reserve(number, left, "OldestFirst", wait_s=1.0))
            assert isinstance(reserved, Reserved)
            for grant in reserved.grants:
                left -= grant.mask.bit_count()
                attempts += [grant.attempt] * grant.mask.bit_count()
            if not left:
                break
        assert sorted(attempts) == [0] * (CONNECTIONS - CONNECTIONS // 2) + [1] * (CONNECTIONS // 2)


# --- many that wait ---------------------------------------------------------------------------------------------------


def test_each_of_many_waiting_calls_is_answered_and_none_twice(runtime_dir: Path) -> None:
    """A third is given up by its caller, and the rest gets a chunk each."""
    with crowded(runtime_dir, heartbeat_s="600") as settings, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client) for client in fleet(settings.socket, max(8, CONNECTIONS // 40))]
        waiting: list[set[int]] = [set() for _ in clients]
        for number in range(PARKED):
            place = number % len(clients)
            clients[place].send(Reserve(number + 100, 1, STRATEGIES[number % 50], wait_s=None))
            waiting[place].add(number + 100)
        ask_each(clients)
        assert state_of(settings).parked_count == PARKED
        with witness(settings, f"{PARKED} calls wait, and are answered"):
            for number in range(0, PARKED, 3):
                place = number % len(clients)
                clients[place].send(CancelWait(number + 100))
                waiting[place].discard(number + 100)
            for client, others in zip(clients, waiting, strict=True):
                client.send(Heartbeat(99))
                while not isinstance(reply := client.receive(), Alive):
                    assert isinstance(reply, Reserved)
                    assert not reply.grants
                    assert reply.id not in others
            wanted = [sum(number % 50 == kind and number % 3 != 0 for number in range(PARKED)) for kind in range(50)]
            with connected(settings) as producer:
                news = [
                    NewSubmission(os.urandom(16), count, metadata={"kind": kind}) for kind, count in enumerate(wanted)
                ]
                assert isinstance(producer.ask(Submit(2, news)), Submitted)
            for client, others in zip(clients, waiting, strict=True):
                while others:
                    reply = next_of(client, Reserved)
                    assert isinstance(reply, Reserved)
                    assert [grant.mask.bit_count() for grant in reply.grants] == [1]
                    others.remove(reply.id)
        assert state_of(settings).parked_count == 0


# --- the worst kinds --------------------------------------------------------------------------------------------------


def test_peers_that_are_silent_deaf_or_never_greet_cost_others_nothing(runtime_dir: Path) -> None:
    """Each ends by itself, and the daemon gives back what it took for them."""
    quarter = CONNECTIONS // 4
    with crowded(runtime_dir, heartbeat_s="1s") as settings, contextlib.ExitStack() as stack:
        with connected(settings) as client:
            reply = client.ask(Submit(2, [NewSubmission(os.urandom(16), 0, attachment=bytes(1 << 20))]))
            assert isinstance(reply, Submitted)
        with witness(settings, f"{CONNECTIONS} silent, deaf, broken or without a hello"):
            silent = [stack.enter_context(client) for client in fleet(settings.socket, quarter)]
            deaf = [stack.enter_context(client) for client in fleet(settings.socket, quarter)]
            broken = [stack.enter_context(client) for client in fleet(settings.socket, quarter)]
            requests = encode([GetAttachment(number, reply.created[0].submission_id) for number in range(2, 10)])
            for client in deaf:
                client.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    client.socket.sendall(requests)
            for client in broken:
                with contextlib.suppress(ConnectionError):
                    client.socket.sendall(encode([Submit(2, [NewSubmission(os.urandom(16), 1)])])[:-1])
            for _ in range(quarter):
                with contextlib.suppress(ConnectionError, BlockingIOError):  # too many to be accepted
                    stranger = stack.enter_context(Client(settings.socket))
                    stranger.socket.sendall(b"\0")
            wait_until(lambda: connections_count(settings) == 2, DEADLINE_S, "all were cut off")
        assert all(client.is_closed() for client in silent)
        log_with(settings, "has missed its heartbeats")
        log_with(settings, "has not read its replies", "of replies unread")
