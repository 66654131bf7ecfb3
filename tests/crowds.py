"""Many connections at once for tests, in this process and in one that can be killed, and a witness beside them.

It must not judge what the daemon does with them.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from daemons import Client, connected, settings_of
from opsq.settings import Settings
from opsq.wire.messages import (
    VERSION,
    Alive,
    Complete,
    Completed,
    Completion,
    Events,
    Heartbeat,
    HeldChunks,
    Hello,
    NewSubmission,
    Reply,
    Request,
    Reserve,
    Reserved,
    Submit,
    Submitted,
    Welcome,
)

SPAWN = multiprocessing.get_context("spawn")


def fleet(socket: str, count: int) -> list[Client]:
    """Greeted connections, fewer at once than may be without a hello."""
    clients: list[Client] = []
    for number in range(count):
        clients.append(Client(socket))
        clients[-1].send(Hello(1, VERSION, f"member {number}"))
        if number % 100 == 99 or number == count - 1:
            for client in clients[number - number % 100 :]:
                assert isinstance(client.receive(), Welcome)
    return clients


def next_of(client: Client, kind: type[Reply]) -> Reply:
    """The next reply of a kind; the others are dropped."""
    while not isinstance(reply := client.receive(), kind):
        assert reply is not None
    return reply


def ask_each(clients: Sequence[Client], *requests: Request) -> None:
    """Send requests on each connection, and wait until the daemon has handled them."""
    for client in clients:
        client.send(*requests, Heartbeat(99))
    for client in clients:
        next_of(client, Alive)


def held(reserved: Reserved) -> HeldChunks:
    [grant] = reserved.grants
    return HeldChunks(
        grant.submission_id, grant.block, grant.mask, reserved.reservation_id, grant.attempt, grant.mask, grant.mac
    )


def _bear_witness(state_dir: str, pipe: Pipe) -> None:
    """Submit, reserve and complete until told to end; then say how long each request has taken."""
    numbers = itertools.count(2)
    took: list[float] = []
    with connected(settings_of(Path(state_dir)), "witness") as client:

        def asked(request: Request, kind: type[Reply]) -> Reply:
            began = time.perf_counter()
            reply = client.ask(request)
            took.append(time.perf_counter() - began)
            assert isinstance(reply, kind), reply
            return reply

        pipe.send("begun")
        while not pipe.poll():
            new = NewSubmission(os.urandom(16), 1, metadata={"of": "the witness"})
            asked(Submit(next(numbers), [new]), Submitted)
            reserved = asked(Reserve(next(numbers), 1, 'SelectOnly(of="the witness")', 0.0), Reserved)
            asked(Complete(next(numbers), [Completion(held(reserved))]), Completed)  # type: ignore[arg-type]  # it is
            asked(Heartbeat(next(numbers)), Alive)
    pipe.send(sorted(took))


@contextlib.contextmanager
def witness(settings: Settings, what: str) -> Iterator[None]:
    """Somebody who works meanwhile, and is never refused nor cut off; prints how long its requests took."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_bear_witness, args=(settings.state_dir, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "begun"
        yield
        ours.send("end")
        took = ours.recv()
        print(
            f"{what}: {len(took)} requests of another client, p50 {took[len(took) // 2] * 1e3:.1f} ms,"
            f" p99 {took[len(took) * 99 // 100] * 1e3:.1f} ms, longest {took[-1] * 1e3:.1f} ms"
        )
    finally:
        process.kill()
        process.join()


def hold(socket: str, count: int, pipe: Pipe) -> None:
    """Connections that hold a chunk each, or wait for one, or for news; until killed."""
    clients = fleet(socket, count)
    ask_each(clients, Reserve(2, 1, "SelectOnly(kind=work)", wait_s=None))
    for client in clients[: count // 2]:
        client.send(Reserve(3, 1, "SelectOnly(kind=work)", wait_s=None))
    ask_each(clients[::4], Events(5, 0, wait_s=None))
    pipe.send("ready")
    pipe.recv()


def wait_for_room(socket: str, count: int, pipe: Pipe) -> None:
    """Connections that wait until the queue has room; until killed."""
    clients = fleet(socket, count)
    ask_each(clients, Submit(2, [NewSubmission(os.urandom(16), 2)], wait_s=None))
    pipe.send("ready")
    pipe.recv()
