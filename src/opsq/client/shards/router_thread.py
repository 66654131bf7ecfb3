"""The thread in which the routers of this process run, each at one end of a pair of sockets; a client has the other.

It owns the thread and the sockets. What a router does is in `router`; here its client greets it, and hears of every
shard once the first has answered and the others have had a moment.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
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
from opsq.errors import Bug, OpsqError, ProtocolError
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
LEFT_OUT_S = 30.0
"""After how long a shard that does not fit to the others is looked at again."""
FULL_S = 0.1
"""How often it is looked whether a shard that takes no more is away."""
CLOSED_S = 0.02
"""How long it waits for this to be read; a client that has not closed its end by then leaves it open."""
REPLY_LIMIT_BYTES = 16 << 20


def local_socket(address: ShardedAddress) -> socket.socket:
    """The client's end of a new pair of sockets, with a router for `address` at the other.

    Raises:
        OSError: this process can make no socket now.
    """
    thread = _process.router_thread()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    thread.serve(theirs, address)
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


class _Process:
    """What this process has of it; one that was forked begins anew, whatever the other did at that moment."""

    def __init__(self) -> None:
        self.starting = threading.Lock()
        self.thread: _RouterThread | None = None
        os.register_at_fork(after_in_child=self._begin_anew)

    def router_thread(self) -> _RouterThread:
        """The thread, which is started when it is needed."""
        with self.starting:
            if self.thread is None:
                self.thread = _RouterThread()
            return self.thread

    def _begin_anew(self) -> None:
        self.starting = threading.Lock()
        self.thread = None


_process = _Process()


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
        self._timers: set[asyncio.TimerHandle] = set()
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
                self._take_safely(request)
        except ProtocolError as error:
            self._end_with(ErrorReply.of(0, error))
        self._hold_back()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_left.set()
        for timer in self._timers:
            timer.cancel()
        if self._router is not None:
            self._router.end()
        self._spawn(self._leave())

    def _take_safely(self, request: Request | ImpossibleRequest) -> None:
        try:
            self._take(request)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets an answer, and the others go on
            self._say(ErrorReply.of(getattr(request, "id", 0) or 0, _bug(error)))

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
        """Take nothing more from the client while a shard does not take what it has said, unless that is away."""
        if self._transport is not None and self._full() and not self._is_holding:
            self._is_holding = True
            self._transport.pause_reading()
            self._spawn(self._go_on())

    def _full(self) -> list[Shard]:
        """The shards that take no more, and are still there."""
        return [one for one in self._shards or () if not one.link.is_writable and not one.is_away]

    async def _go_on(self) -> None:
        while full := self._full():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FULL_S):
                    await full[0].link.drained()
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
        self._later(GREETING_S, self._welcome)
        if self._address.file:
            self._later(FILE_S, self._look_at_file)

    def _changed(self, shard: Shard) -> None:
        if self._router is not None:
            if self._shards is not None and not shard.is_away and (problem := self._shards.problem()) is not None:
                logging.getLogger("opsq").warning("%s is left out. %s", shard.name, problem)
                self._spawn(self._leave_out(shard))
                return
            self._router.changed(shard)
        elif self._shards is not None:
            shards = list(self._shards)
            if all(one.number is not None or one.problem is not None for one in shards):
                self._welcome()
            elif any(not one.is_away for one in shards):
                self._later(LATECOMERS_S, self._welcome)

    def _welcome(self) -> None:
        """Begin, with the shards that have answered."""
        if self._router is not None or self._hello is None or self._shards is None:
            return
        if (problem := self._shards.greeting_problem()) is not None:
            self._end_with(ErrorReply.of(self._hello.id, problem))
            self._hello = None
            return
        welcomes = [shard.welcome for shard in self._shards.present if shard.welcome is not None]
        later = asyncio.get_running_loop().call_later
        self._router = Router(self._shards, self._say, lambda: time.time_ns() // 1_000_000, later)
        self._say(joint_welcome(self._hello.id, welcomes))
        self._router.begin()
        early, self._early = self._early, []
        for request in early:
            self._take(request)

    async def _leave_out(self, shard: Shard) -> None:
        """Do without a shard that came later and does not fit to the others."""
        if self._shards is None or self._router is None:
            return
        self._shards.leave_out(shard)
        self._router.chosen_anew()
        shard.give_up()
        self._later(LEFT_OUT_S, self._shards.admit_again)
        await shard.close()

    def _pushed(self, shard: Shard, push: Revoked | Draining) -> None:
        if self._router is not None:
            self._router.pushed(shard, push)

    def _look_at_file(self) -> None:
        if self._shards is None or self._transport is None:
            return
        with contextlib.suppress(OpsqError):  # half written, or a mistake: the addresses stay as they were
            if self._shards.read_again() and self._router is not None:
                self._router.chosen_anew()
        for shard in self._shards.take_idle():
            shard.give_up()
            self._spawn(shard.close())
        self._later(FILE_S, self._look_at_file)

    # --- the end ---

    def _end_with(self, reply: ErrorReply) -> None:
        """Close the connection to the client, and let it read why."""
        self._unsaid.append(reply)
        self._write()
        if self._transport is not None:
            self._transport.close()

    async def _leave(self) -> None:
        """Close the connections to all shards; what was said before is sent."""
        if self._shards is not None:
            await asyncio.gather(*[shard.close() for shard in self._shards.take_all()])
        self.is_closed.set()
        self._on_end(self)

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(delay_s, run)
        self._timers.add(timer)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bug(error: Exception) -> OpsqError:
    logging.getLogger("opsq").error("internal error (bug):", exc_info=error)
    return Bug("The router met an internal error (bug).")
