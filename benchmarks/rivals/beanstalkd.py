"""beanstalkd, served over a Unix socket as ours is, and a client of it on plain sockets that pipelines.

The client knows `put`, `reserve` and `delete` of empty bodies, no more (protocol.txt of beanstalkd 1.12).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rivals.programs import BEANSTALKD
from rivals.servers import connect_when_ready

_PUT = b"put 0 0 3600 0\r\n\r\n"
_RESERVE = b"reserve\r\n"
_PUT_BATCH = 1000


@contextlib.contextmanager
def serving(folder: Path, *, fsync_ms: int) -> Iterator[Client]:
    """Run a server with its log in `folder`, and give a client of it.

    Args:
        folder: an empty folder; holds log and socket.
        fsync_ms: 0 syncs each write (`-f0`); 50 is beanstalkd's default, which loses up to 50 ms of acknowledged work.
    """
    path = folder / "s"
    server = subprocess.Popen([BEANSTALKD.find(), "-b", str(folder), f"-f{fsync_ms}", "-l", f"unix:{path}"])
    try:
        with Client(connect_when_ready(path, server)) as client:
            yield client
    finally:
        server.terminate()
        server.wait()


class Client:
    """One connection. Every method returns when all replies to its commands are there."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def put(self, jobs_count: int) -> float:
        """Put empty jobs, 1000 in flight, and return the seconds it took."""
        started = time.perf_counter()
        left = jobs_count
        while left:
            batch = min(left, _PUT_BATCH)
            self._connection.sendall(_PUT * batch)
            answered = 0
            while answered < batch:
                for line in self._lines():
                    if not line.startswith(b"INSERTED "):
                        raise RuntimeError(f"beanstalkd answered a put with {line!r}")
                    answered += 1
            left -= batch
        return time.perf_counter() - started

    def another(self) -> Client:
        """One more connection to the same server."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._connection.getpeername())
        return Client(connection)

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._connection.fileno()

    def reserve_and_delete(self, jobs_count: int, *, in_flight: int) -> float:
        """Reserve and delete jobs, `in_flight` at a time, and return the seconds it took.

        A delete and the reserve that takes its place travel in one write, as `CompleteAndReserve` does for us.
        """
        work = _Work(jobs_count)
        started = time.perf_counter()
        self._connection.sendall(work.first_calls(in_flight))
        while not work.is_over:
            self._go_on(work)
        return time.perf_counter() - started

    def _go_on(self, work: _Work) -> None:
        if answers := work.answers(self._lines()):
            self._connection.sendall(answers)

    def _lines(self) -> list[bytes]:
        received = self._connection.recv(1 << 16)
        if not received:
            raise RuntimeError("beanstalkd closed the connection")
        *lines, self._rest = (self._rest + received).split(b"\r\n")
        return lines


def reserve_and_delete_on_all(clients: Sequence[Client], jobs_count: int) -> float:
    """As `Client.reserve_and_delete`, with one job in flight on each of these connections."""
    work = _Work(jobs_count)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
        started = time.perf_counter()
        for client in clients:
            client._connection.sendall(work.first_calls(1))
        while not work.is_over:
            for key, _ in selector.select():
                key.data._go_on(work)
        return time.perf_counter() - started


class _Work:
    """Jobs that are still to be reserved, and those that are not deleted yet."""

    def __init__(self, jobs_count: int) -> None:
        self._left = self._unasked = jobs_count

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def first_calls(self, calls_count: int) -> bytes:
        calls_count = min(calls_count, self._unasked)
        self._unasked -= calls_count
        return _RESERVE * calls_count

    def answers(self, lines: Sequence[bytes]) -> bytes:
        answers: list[bytes] = []
        for line in lines:
            if line.startswith(b"RESERVED "):
                answers.append(b"delete %b\r\n" % line.split(b" ", 2)[1])
                if self._unasked:
                    self._unasked -= 1
                    answers.append(_RESERVE)
            elif line == b"DELETED":
                self._left -= 1
            elif line:
                raise RuntimeError(f"beanstalkd answered {line!r}")
        return b"".join(answers)
