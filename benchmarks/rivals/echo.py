"""The floor under every request: an empty round trip over a Unix socket to another process that runs uvloop.

Run as a program it is the server, which answers each frame of one known size with a frame of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop

from rivals.servers import connect_when_ready

_HERE = Path(__file__).parent.parent


@contextlib.contextmanager
def serving(folder: Path, *, request_bytes: int, reply_bytes: int) -> Iterator[Client]:
    """Run an echo server in a process of its own, and give a client of it. Sizes are those of whole frames."""
    path = folder / "echo"
    server = subprocess.Popen(
        [sys.executable, "-m", "rivals.echo", str(path), str(request_bytes), str(reply_bytes)], cwd=_HERE
    )
    try:
        connection = connect_when_ready(path, server)
        with connection:
            yield Client(connection, request_bytes, reply_bytes)
    finally:
        server.terminate()
        server.wait()


class Client:
    """A blocking client that sends a frame and waits for its answer."""

    def __init__(self, connection: socket.socket, request_bytes: int, reply_bytes: int) -> None:
        self._connection = connection
        self._request = bytes(request_bytes)
        self._reply_bytes = reply_bytes

    def seconds(self, trips_count: int) -> list[float]:
        """Make round trips one after the other and return the seconds of each."""
        taken = []
        for _ in range(trips_count):
            started = time.perf_counter()
            self._connection.sendall(self._request)
            left = self._reply_bytes
            while left:
                left -= len(self._connection.recv(left)) or _closed()
            taken.append(time.perf_counter() - started)
        return taken


def _closed() -> int:
    raise RuntimeError("the echo server closed the connection")


class _Echo(asyncio.Protocol):
    def __init__(self, request_bytes: int, reply_bytes: int) -> None:
        self._request_bytes = request_bytes
        self._reply = bytes(reply_bytes)
        self._received = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        frames, self._received = divmod(self._received + len(data), self._request_bytes)
        if frames:
            self._transport.write(self._reply * frames)


async def _serve(path: str, request_bytes: int, reply_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: _Echo(request_bytes, reply_bytes), path)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
