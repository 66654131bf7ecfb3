"""Records over HTTP through a stream of Redis, behind the least server in the framework of ours.

Run as a program it is that server: Starlette on uvicorn, uvloop and httptools, with one connection to Redis on which
commands travel as they come. It knows no time-outs, attempts, limits or roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rivals.programs import REDIS
from rivals.servers import connect_when_ready

_HERE = Path(__file__).parent.parent
_STREAM, _GROUP = "records", "workers"


@contextlib.contextmanager
def serving(folder: Path, *, appendfsync: str) -> Iterator[str]:
    """Run Redis with its log in `folder`, and the server, and give the URL.

    Args:
        folder: an empty folder.
        appendfsync: `always` syncs before it answers, as ours does; `everysec` may lose a second of acknowledged work.
    """
    path = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--save", "", "--appendonly", "yes"]
    redis = subprocess.Popen([REDIS.find(), *options, "--appendfsync", appendfsync], stdout=subprocess.DEVNULL)
    try:
        connect_when_ready(path, redis).close()
        server = subprocess.Popen(
            [sys.executable, "-m", "rivals.redis_streams", str(path)], cwd=_HERE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait()
    finally:
        redis.terminate()
        redis.wait()


class Redis:
    """A connection that sends each command at once and gives answers in their order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._task = asyncio.ensure_future(self._read_on())

    async def call(self, *words: str) -> Any:
        """The answer to a command; bytes, numbers and lists of these."""
        parts = [word.encode() for word in words]
        self._writer.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        return await answer

    async def _read_on(self) -> None:
        while True:
            found = await self._read()
            self._waiting.popleft().set_result(found)

    async def _read(self) -> Any:
        line = (await self._reader.readuntil(b"\r\n"))[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(f"Redis answered {rest!r}")
        if kind == b"$":
            return None if rest == b"-1" else (await self._reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [await self._read() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest


def make_app(path: str) -> Starlette:
    """The application."""
    opened: list[Redis] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        opened.append(Redis(*await asyncio.open_unix_connection(path)))
        await opened[0].call("XGROUP", "CREATE", _STREAM, _GROUP, "$", "MKSTREAM")
        yield

    async def record(request: Request) -> Response:
        if request.method == "POST":
            await opened[0].call("XADD", _STREAM, "*", "p", json.loads(await request.body())["payload"])
            return Response(status_code=204)
        found = await opened[0].call("XREADGROUP", "GROUP", _GROUP, "c", "COUNT", "1", "STREAMS", _STREAM, ">")
        if not found:
            return Response(status_code=204)
        record_id, (_, payload) = found[0][1][0]
        body = {"id": record_id.decode(), "payload": payload.decode(), "attempts": 1}
        return Response(json.dumps(body, separators=(",", ":")), media_type="application/json")

    async def ack(request: Request) -> Response:
        record_id = request.path_params["id"]
        acked, _ = await asyncio.gather(
            opened[0].call("XACK", _STREAM, _GROUP, record_id), opened[0].call("XDEL", _STREAM, record_id)
        )
        return Response(status_code=200 if acked else 404)

    return Starlette(
        routes=[
            Route("/record", record, methods=["GET", "POST"]),
            Route("/ack/{id}", ack, methods=["POST"]),
        ],
        lifespan=lifespan,
    )


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"http://{host}:{port}", flush=True)


if __name__ == "__main__":
    _Server(
        uvicorn.Config(
            make_app(sys.argv[1]), port=0, loop="uvloop", http="httptools", log_level="error", access_log=False
        )
    ).run()
