"""One connection: hello, frames in, replies out, back-pressure, heartbeats.

Every invalid message is answered with a specific error.

This file must not decide anything about chunks, nor wait for anything: requests go to the engine at once, and replies
are collected until the daemon has them written, one frame and one write per turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from opsq.clock import Now
from opsq.clock import now as read_clocks
from opsq.errors import NotPermitted, OpsqError, ProtocolError, VersionMismatch
from opsq.queue.engine import Engine, Peer
from opsq.settings import Settings
from opsq.version import __version__
from opsq.wire.frames import FrameReader, encode, request_reader
from opsq.wire.messages import (
    OPERATOR_REQUESTS,
    VERSION,
    Backup,
    Check,
    Draining,
    ErrorReply,
    Hello,
    Pause,
    Reply,
    Request,
    Resume,
    Stop,
    Vacuum,
    Welcome,
)

HELLO_LIMIT_BYTES = 8192
"""Limit of the first frame: nothing larger is buffered or decoded before the hello."""

WRITE_HIGH_BYTES = 1 << 20
"""Reading from a peer pauses while it has this much unread output."""

WRITE_LIMIT_BYTES = 128 << 20
"""A peer with this much unread output is disconnected."""

LINGER_S = 2.0
"""How long a peer may take to read the reason before its connection is closed."""

_hellos: msgspec.msgpack.Decoder[list[Hello]] = msgspec.msgpack.Decoder(list[Hello])
_ASIDE = frozenset((Hello, Pause, Resume, Stop, Backup, Vacuum, Check, *OPERATOR_REQUESTS))
"""Requests that the engine does not handle, or not for every peer."""

_log = logging.getLogger("opsq.session")


class Host(Protocol):
    """What a connection needs of the daemon that serves it."""

    settings: Settings
    engine: Engine
    store_marker: str

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""

    @property
    def drain_left_s(self) -> float:
        """How long the daemon still waits for reserved chunks."""

    def admit(self, session: Session) -> OpsqError | None:
        """Count a new connection; the error to send if there are too many."""

    def may_linger(self, session: Session) -> bool:
        """Whether one more refused connection may stay open until its peer has read the reason."""

    def forget(self, session: Session) -> None:
        """Drop a closed connection."""

    def is_operator(self, token: str) -> bool:
        """Whether a token presented over TCP permits everything; raises `NotPermitted` if it permits nothing."""

    def connect(self, session: Session, hello: Hello, now: Now) -> Peer:
        """Register a greeted connection, under the name that it claims; raises `NameTaken` if another one has it."""

    def disconnect(self, session: Session, peer: Peer) -> None:
        """Free what the peer of a lost connection held, and its name."""

    def received(self, requests_count: int) -> None:
        """Count requests that were handed to the engine, and have it run soon."""

    def operate(self, session: Session, request: Stop | Backup | Vacuum | Check) -> None:
        """Start an operator's request that the engine does not know; the reply follows when it is done."""

    def report(self, error: Exception) -> OpsqError:
        """Log an internal error; the error to send."""

    def flush_soon(self, session: Session) -> None:
        """Have `Session.flush` called once the engine has run."""


class Session(asyncio.Protocol):
    """One connection.

    Args:
        host: the daemon that serves it.
        is_tcp: a token is needed.
    """

    def __init__(self, host: Host, *, is_tcp: bool) -> None:
        self._host = host
        self._is_tcp = is_tcp
        self._transport: asyncio.Transport | None = None
        self._greeting = bytearray()
        self._reader: FrameReader[Request] = request_reader(host.settings.frame_limit_bytes)
        self._replies: list[Reply] = []
        self._is_dirty = False
        self._is_slow = False
        self._slow_since_ns = 0
        self._waiting_bytes = 0
        self.peer: Peer | None = None
        self.is_operator = False
        self.is_ending = False
        self.heard_ns = time.monotonic_ns()

    # --- what the event loop calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session, or refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        refusal = self._host.admit(self)
        if refusal is not None:
            self.end(refusal)

    def data_received(self, received: bytes) -> None:
        """Pass received requests to the engine."""
        if self.is_ending:
            return
        now = read_clocks()
        self.heard_ns = now.mono
        requests_count = 0
        try:
            if self.peer is None:
                received = self._greet(received, now)
            if self.peer is not None and received:
                for request in self._reader.feed(received):
                    requests_count += 1
                    self._handle(request, now)
        except OpsqError as error:
            self.end(error)
        self._host.received(requests_count)

    def eof_received(self) -> bool:
        """Let the transport close: a peer that sends no more is treated as gone."""
        return False

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read its replies."""
        self._is_slow = True
        self._slow_since_ns = time.monotonic_ns()
        self._waiting_bytes = 1 << 62
        if self._transport is not None and not self.is_ending:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading; the pause does not count as silence."""
        self._is_slow = False
        self.heard_ns = time.monotonic_ns()
        if self._transport is not None and not self.is_ending and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Give back what the peer held."""
        self._transport = None
        self._leave()
        self._host.forget(self)

    # --- what the daemon calls ----------------------------------------------------------------------------

    def answer(self, reply: Reply) -> None:
        """Collect a reply for the next `flush`."""
        self.collecting().append(reply)

    def collecting(self) -> list[Reply]:
        """The list of replies for the next `flush`."""
        if not self._is_dirty:
            self._is_dirty = True
            self._host.flush_soon(self)
        return self._replies

    def flush(self) -> None:
        """Write the collected replies."""
        self._is_dirty = False
        replies, self._replies = self._replies, []
        transport = self._transport
        if transport is None or transport.is_closing() or not replies:
            return
        self._write(transport, replies)
        if self._is_slow and transport.get_write_buffer_size() > WRITE_LIMIT_BYTES:
            self._cut_off("has too many unread replies")

    def check(self, now_ns: int, silence_ns: int) -> None:
        """Disconnect a peer that has sent nothing, or has read none of its replies, for `silence_ns` nanoseconds."""
        if self.is_ending or self._transport is None:
            return
        if self._is_slow:
            waiting_bytes = self._transport.get_write_buffer_size()
            if waiting_bytes < self._waiting_bytes:
                self._waiting_bytes, self._slow_since_ns = waiting_bytes, now_ns
            elif now_ns - self._slow_since_ns > silence_ns:
                self._cut_off("has not read its replies")
        elif now_ns - self.heard_ns > silence_ns:
            self._cut_off("has missed its heartbeats")

    def end(self, error: OpsqError, request_id: int = 0) -> None:
        """Send the error, then close; the peer's reservations are released at once."""
        if self.is_ending:
            return
        _log.info("%s: connection closed: %s", self.name, error.message)
        self.is_ending = True
        self._leave()
        self.answer(ErrorReply.of(request_id, error))
        self.flush()
        transport = self._transport
        if transport is None:
            return
        if self._is_slow or not self._host.may_linger(self):
            transport.close()
            return
        # Keep reading and dropping input until the peer closes: closing now could destroy the reply in transit.
        transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def close(self) -> None:
        """Close after all written data has been sent."""
        self.is_ending = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def name(self) -> str:
        """The consumer's name, for the log."""
        return repr(self.peer.consumer) if self.peer is not None else "a connection without a hello"

    # --- inside -------------------------------------------------------------------------------------------

    def _greet(self, received: bytes, now: Now) -> bytes:
        """Collect the first frame, which must hold one Hello and nothing else; returns the bytes after it."""
        greeting = self._greeting
        greeting += received
        if len(greeting) < 4:
            return b""
        end = 4 + int.from_bytes(greeting[:4], "big")
        if end > 4 + HELLO_LIMIT_BYTES:
            raise ProtocolError(
                f"The first frame must hold a Hello of at most {HELLO_LIMIT_BYTES} bytes; this one has {end - 4}."
            )
        if len(greeting) < end:
            return b""
        try:
            hellos = _hellos.decode(memoryview(greeting)[4:end])
        except msgspec.DecodeError as error:
            raise ProtocolError(f"The first frame must hold a Hello, but cannot be decoded: {error}.") from error
        if len(hellos) != 1:
            raise ProtocolError("The first frame must hold one Hello and nothing else.")
        rest = bytes(greeting[end:])
        self._greeting = bytearray()
        self._welcome(hellos[0], now)
        return rest

    def _welcome(self, hello: Hello, now: Now) -> None:
        host = self._host
        try:
            if hello.version != VERSION:
                raise VersionMismatch(
                    f"The client uses protocol version {hello.version}, the daemon ({__version__}) version {VERSION}.",
                    hint="Install the same opsq on both sides, and restart the daemon after an upgrade.",
                )
            self.is_operator = host.is_operator(hello.token) if self._is_tcp else True
            self.peer = host.connect(self, hello, now)
        except OpsqError as error:
            self.end(error, hello.id)
            return
        settings = host.settings
        self.answer(
            Welcome(
                id=hello.id,
                version=VERSION,
                server=__version__,
                consumer=self.peer.consumer,
                heartbeat_s=settings.heartbeat_s,
                frame_limit_bytes=settings.frame_limit_bytes,
                chunk_limit_bytes=settings.chunk_limit_bytes,
                is_operator=self.is_operator,
                is_durable=settings.is_durable,
                store=settings.store,
                store_marker=host.store_marker,
            )
        )
        if host.is_stopping:
            self.answer(Draining(host.drain_left_s))

    def _handle(self, request: Request, now: Now) -> None:
        peer = self.peer
        if peer is None:
            return  # an earlier message in this frame ended the session
        try:
            if type(request) in _ASIDE:
                self._handle_aside(request, peer, now)
            else:
                self._host.engine.handle(peer, request, now)
        except ProtocolError:
            raise
        except OpsqError as error:
            self._refuse(request, error)
        except Exception as error:  # noqa: BLE001  # a bug in one request must not close every connection
            self._refuse(request, self._host.report(error))

    def _handle_aside(self, request: Request, peer: Peer, now: Now) -> None:
        if isinstance(request, Hello):
            raise ProtocolError("A second Hello on one connection.")
        is_for_operators = isinstance(request, OPERATOR_REQUESTS) or (
            isinstance(request, Pause | Resume) and request.by_operator
        )
        if is_for_operators and not self.is_operator:
            raise NotPermitted(
                f"{type(request).__name__} requires the operator's token.",
                hint="This connection used the client token.",
            )
        if isinstance(request, Stop | Backup | Vacuum | Check):
            self._host.operate(self, request)
        else:
            self._host.engine.handle(peer, request, now)

    def _refuse(self, request: Request, error: OpsqError) -> None:
        request_id = getattr(request, "id", None)
        if request_id is None:
            _log.info("%s: %s was ignored: %s", self.name, type(request).__name__, error.message)
        else:
            self.answer(ErrorReply.of(request_id, error))

    def _write(self, transport: asyncio.Transport, replies: Sequence[Reply]) -> None:
        frame = encode(replies)
        limit_bytes = self._host.settings.frame_limit_bytes
        if len(frame) - 4 <= limit_bytes:
            transport.write(frame)
        elif len(replies) > 1:
            half = len(replies) // 2
            self._write(transport, replies[:half])
            self._write(transport, replies[half:])
        else:
            reply_id = getattr(replies[0], "id", 0)
            kind = type(replies[0]).__name__
            text = f"The {kind} reply of {len(frame) - 4} bytes exceeds the frame limit of {limit_bytes} bytes."
            self._write(
                transport,
                [ErrorReply(reply_id, ProtocolError.code, text, "Request less at once, or raise frame_limit_bytes.")],
            )

    def _cut_off(self, why: str) -> None:
        _log.warning("%s %s: connection closed", self.name, why)
        self.is_ending = True
        self._leave()
        self.abort()

    def _leave(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            self._host.disconnect(self, peer)
