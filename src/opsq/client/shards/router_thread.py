"""The thread in which the routers of this process run, each at one end of a pair of sockets; a client has the other.

It owns the thread and the sockets. What a router does is in `router`; here its client greets it, and hears of every
shard once the first has answered and the others have had a moment.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import cast

from opsq.client.core.address import ShardedAddress
from opsq.client.shards.router import Router
from opsq.client.shards.shard import Shard
from opsq.client.shards.shard_set import ShardSet, joint_welcome
from opsq.errors import OpsqError, ProtocolError
from opsq.wire.frames import ImpossibleRequest, request_reader
from opsq.wire.messages import Draining, ErrorReply, Hello, Reply, Request, Revoked
from opsq.wire.reply_frames import write_replies

LATECOMERS_S = 1.0
"""How long a client waits for the other shards when one has answered."""
GREETING_S = 8.0
"""How long it waits for the first."""
FILE_S = 1.0
"""How often a file with addresses is looked at."""
FAREWELL_S = 2.0
"""How long the end of the process waits for what a client has said last to be sent."""
CLOSED_S = 0.02
"""How long it waits for this to be read; a client that has not closed its end by then leaves it open."""
REPLY_LIMIT_BYTES = 16 << 20


def local_socket(address: ShardedAddress) -> socket.socket:
    """The client's end of a new pair of sockets, with a router for `address` at the other."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _thread_of_process().serve(theirs, address)
    return ours


class _RouterThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        import uvloop

        self.pid = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._ends: set[_RouterEnd] = set()
        threading.Thread(target=self._loop.run_forever, name="opsq-router", daemon=True).start()
        atexit.register(self._say_farewell)

    def serve(self, peer: socket.socket, address: ShardedAddress) -> None:
        """Run a router for one client, until that closes its end."""
        asyncio.run_coroutine_threadsafe(self._serve(peer, address), self._loop)

    async def _serve(self, peer: socket.socket, address: ShardedAddress) -> None:
        end = _RouterEnd(address, self._ends.discard)
        self._ends.add(end)
        await self._loop.create_unix_connection(lambda: end, sock=peer)

    def _say_farewell(self) -> None:
        """Before the process ends, have sent what clients have said before they closed their ends."""
        if self.pid == os.getpid():
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result(FAREWELL_S)

    async def _ended(self) -> None:
        if self._ends:
            await asyncio.wait([self._loop.create_task(end.is_left.wait()) for end in self._ends], timeout=CLOSED_S)
        await asyncio.gather(*[end.is_closed.wait() for end in self._ends if end.is_left.is_set()])


_threads: list[_RouterThread] = []
_starting = threading.Lock()


def _thread_of_process() -> _RouterThread:
    """The thread; a process that was forked starts its own."""
    with _starting:
        if not _threads or _threads[-1].pid != os.getpid():
            _threads[:] = [_RouterThread()]
        return _threads[-1]


class _RouterEnd(asyncio.Protocol):
    """The router's end of the pair."""

    def __init__(self, address: ShardedAddress, on_end: Callable[[_RouterEnd], None]) -> None:
        self._address = address
        self._on_end = on_end
        self._reader = request_reader(1 << 62)
        self._transport: asyncio.Transport | None = None
        self._hello: Hello | None = None
        self._shards: ShardSet | None = None
        self._router: Router | None = None
        self._early: list[Request | ImpossibleRequest] = []
        self._unsaid: list[Reply] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self.is_left = asyncio.Event()
        """The client has closed its end."""
        self.is_closed = asyncio.Event()
        """All that it has said is on its way."""
        self._is_holding = False

    # --- the client ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for request in self._reader.feed(data):
                self._take(request)
        except ProtocolError as error:
            self._say(ErrorReply.of(0, error))
            self._close()
        self._hold_back()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_left.set()
        for timer in self._timers:
            timer.cancel()
        self._spawn(self._leave())

    def _take(self, request: Request | ImpossibleRequest) -> None:
        if isinstance(request, ImpossibleRequest):
            if request.id is not None:
                self._say(ErrorReply.of(request.id, request.error))
        elif self._router is not None:
            self._router.take(request)
        elif isinstance(request, Hello) and self._hello is None:
            self._greet(request)
        else:
            self._early.append(request)

    def _say(self, reply: Reply) -> None:
        """Write a reply with all others of this turn."""
        if not self._unsaid:
            asyncio.get_running_loop().call_soon(self._write)
        self._unsaid.append(reply)

    def _write(self) -> None:
        replies, self._unsaid = self._unsaid, []
        if self._transport is not None and not self._transport.is_closing():
            write_replies(self._transport, replies, REPLY_LIMIT_BYTES, _bug)

    def _hold_back(self) -> None:
        """Take nothing more from the client while a shard does not take what it has said."""
        if self._transport is not None and self._shards is not None and not self._is_holding:
            full = [shard for shard in self._shards if not shard.link.is_writable]
            if full:
                self._transport.pause_reading()
                self._spawn(self._go_on(full))

    async def _go_on(self, full: list[Shard]) -> None:
        self._is_holding = True
        for shard in full:
            await shard.link.drained()
        self._is_holding = False
        if self._transport is not None:
            self._transport.resume_reading()

    # --- the shards ---

    def _greet(self, hello: Hello) -> None:
        self._hello = hello
        self._shards = ShardSet(
            self._address,
            lambda address: Shard(address, hello, on_change=self._changed, on_push=self._pushed),
        )
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(GREETING_S, self._welcome))
        if self._address.file:
            self._timers.append(loop.call_later(FILE_S, self._look_at_file))

    def _changed(self, shard: Shard) -> None:
        if self._router is not None:
            if not shard.is_away and (problem := self._problem()) is not None:
                self._say(ErrorReply.of(0, problem))
                self._close()
                return
            self._router.changed(shard)
        elif self._shards is not None:
            shards = list(self._shards)
            if all(one.number is not None or one.problem is not None for one in shards):
                self._welcome()
            elif any(not one.is_away for one in shards):
                self._timers.append(asyncio.get_running_loop().call_later(LATECOMERS_S, self._welcome))

    def _problem(self) -> OpsqError | None:
        return self._shards.problem() if self._shards is not None else None

    def _welcome(self) -> None:
        """Begin, with the shards that have answered."""
        if self._router is not None or self._hello is None or self._shards is None:
            return
        if (problem := self._problem()) is not None:
            self._say(ErrorReply.of(self._hello.id, problem))
            self._hello = None
            self._write()
            self._close()
            return
        welcomes = [shard.welcome for shard in self._shards.present if shard.welcome is not None]
        later = asyncio.get_running_loop().call_later
        self._router = Router(self._shards, self._say, lambda: time.time_ns() // 1_000_000, later)
        self._say(joint_welcome(self._hello.id, welcomes))
        for shard in self._shards.present:
            self._router.changed(shard)
        early, self._early = self._early, []
        for request in early:
            self._take(request)

    def _pushed(self, shard: Shard, push: Revoked | Draining) -> None:
        if self._router is not None:
            self._router.pushed(shard, push)

    def _look_at_file(self) -> None:
        if self._shards is None or self._transport is None:
            return
        with contextlib.suppress(OpsqError):  # half written, or a mistake: the addresses stay as they were
            self._shards.read_again()
        for shard in self._shards.take_idle():
            self._spawn(shard.close())
        self._timers = [asyncio.get_running_loop().call_later(FILE_S, self._look_at_file)]

    # --- the end ---

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _leave(self) -> None:
        """Close the connections to all shards; what was said before is sent."""
        if self._shards is not None:
            await asyncio.gather(*[shard.close() for shard in self._shards.take_all()])
        self.is_closed.set()
        self._on_end(self)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bug(error: Exception) -> OpsqError:
    import logging

    from opsq.errors import Bug

    logging.getLogger("opsq").error("internal error (bug):", exc_info=error)
    return Bug("The router met an internal error (bug).")
