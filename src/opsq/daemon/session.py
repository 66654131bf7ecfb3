"""One connection: hello, frames in, replies out, back-pressure, heartbeats.

Every invalid message is answered with a specific error.

This file must not decide anything about chunks, nor wait for anything: requests go to the engine at once, and replies
are collected until the daemon has them written, one frame and one write per turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import cast

from opsq.clock import Now
from opsq.clock import now as read_clocks
from opsq.daemon.connection_limits import (
    HELLO_S,
    LINGER_S,
    LONG_ANSWERS,
    OPERATIONS_LIMIT,
    WRITE_HIGH_BYTES,
    WRITE_LIMIT_BYTES,
)
from opsq.daemon.greeting import Greeting, check_version, welcome
from opsq.daemon.host import Host
from opsq.daemon.origin import local_user, place, token_holder, user_and_host
from opsq.daemon.permissions import LOCAL, check_permitted, straight
from opsq.errors import OpsqError, ProtocolError, Refused, TimedOut
from opsq.queue.engine import Peer
from opsq.units import format_size
from opsq.wire.frames import FrameReader, ImpossibleRequest, request_reader
from opsq.wire.messages import (
    Backup,
    Check,
    CompleteAndReserve,
    Draining,
    ErrorReply,
    Hello,
    Message,
    Reply,
    Request,
    Reserve,
    Stop,
    Vacuum,
)
from opsq.wire.reply_frames import write_replies
from opsq.wire.roles import OPERATOR

_RESERVES = frozenset({Reserve, CompleteAndReserve})

_log = logging.getLogger("opsq.session")


class Session(asyncio.Protocol):
    """One connection.

    Args:
        host: the daemon that serves it.
        is_tcp: a token is needed.
        on_open: called when the connection is there, which with TLS may be later; why it must end, if it must.
    """

    def __init__(
        self,
        host: Host[Session],
        *,
        is_tcp: bool,
        on_open: Callable[[asyncio.BaseTransport], OpsqError | None] | None = None,
    ) -> None:
        self._host = host
        self._on_open = on_open
        self.is_tcp = is_tcp
        self._transport: asyncio.Transport | None = None
        self._greeting = Greeting()
        self._reader: FrameReader[Request | ImpossibleRequest] = request_reader(host.settings.frame_limit_bytes)
        self._replies: list[Reply] = []
        self._is_dirty = False
        self._unhandled: Iterator[Request | ImpossibleRequest] | None = None
        """Requests that were received and wait for their turn; nothing is read meanwhile."""
        self._first: Request | ImpossibleRequest | None = None
        """The one before these."""
        self._hello_timer: asyncio.TimerHandle | None = None
        self.operations_count = 0
        self._is_slow = False
        self._slow_since_ns = 0
        self._waiting_bytes = 0
        self.peer: Peer | None = None
        self.access = LOCAL
        self._straight: frozenset[type[Message]] = frozenset()
        """Requests that go to the engine without a further look."""
        self.is_ending = False
        self.heard_ns = time.monotonic_ns()

    # --- what the event loop calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session, or refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        refusal = self._on_open(transport) if self._on_open is not None else None
        refusal = self._host.admit(self) or refusal
        if refusal is not None:
            self.end(refusal)
        else:
            settings = self._host.settings
            hello_s = min(HELLO_S, settings.heartbeat_s * settings.heartbeat_misses)
            self._hello_timer = asyncio.get_running_loop().call_later(hello_s, self._miss_hello)

    def data_received(self, received: bytes) -> None:
        """Pass received requests to the engine."""
        if self.is_ending:
            return
        now = read_clocks()
        self.heard_ns = now.mono
        try:
            if self.peer is None:
                received = self._greet(received, now)
        except OpsqError as error:
            self.end(error)
        if self.peer is not None and received:
            requests, backlog = self._reader.feed(received), self._host.backlog
            if self._unhandled is not None:
                self._unhandled = chain(self._unhandled, requests)
            elif share := backlog.share:
                backlog.note_arrived(self._serve(requests, now, share))
            else:
                self._unhandled = requests
                self._pace()
                self._come_back()
        else:
            self._host.received(0)

    def eof_received(self) -> bool:
        """Let the transport close: a peer that sends no more is treated as gone."""
        return False

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read its replies."""
        self._is_slow = True
        self._slow_since_ns = time.monotonic_ns()
        self._waiting_bytes = 1 << 62
        self._pace()
        self._host.unread.note(self)

    def resume_writing(self) -> None:
        """Resume reading; the pause does not count as silence."""
        self._is_slow = False
        self._host.unread.forget(self)
        self.heard_ns = time.monotonic_ns()
        self._pace()
        self._come_back()

    def connection_lost(self, error: Exception | None) -> None:
        """Give back what the peer held."""
        self._transport = None
        self._end_input()
        self._host.forget(self)

    # --- what the daemon calls ----------------------------------------------------------------------------

    def answer(self, reply: Reply) -> None:
        """Collect a reply for the next `flush`."""
        self.collecting().append(reply)

    def collecting(self) -> list[Reply]:
        """The list of replies for the next `flush`; what comes after the end is dropped."""
        if self.is_ending:
            return []
        if not self._is_dirty:
            self._is_dirty = True
            self._host.flush_soon(self)
        return self._replies

    def flush(self) -> None:
        """Write the collected replies, and have the next requests handled."""
        self._is_dirty = False
        replies, self._replies = self._replies, []
        transport = self._transport
        if self.is_ending or transport is None or transport.is_closing():
            return
        if replies:
            self._send(transport, replies)
            limit_bytes = max(WRITE_LIMIT_BYTES, 2 * self._host.settings.frame_limit_bytes)
            if self._is_slow and transport.get_write_buffer_size() > limit_bytes:
                self.end(Refused(cause="too_many_unread", limit=format_size(limit_bytes)))
            elif self._is_slow:
                self._host.unread.note(self)

    def go_on(self, most: int) -> int:
        """Handle requests that were kept, if the peer reads its replies; returns how many."""
        if self._unhandled is None or self._is_slow or self.is_ending:
            return 0
        now = read_clocks()
        self.heard_ns = now.mono
        return self._serve(self._unhandled, now, most)

    def check(self, now_ns: int, silence_ns: int) -> bool:
        """Disconnect a peer that has sent nothing, or has read none of its replies, for `silence_ns` nanoseconds.

        Returns:
            Whether it was.
        """
        if self.is_ending or self._transport is None or self.peer is None:
            return False
        if self._is_slow:
            waiting_bytes = self._transport.get_write_buffer_size()
            if waiting_bytes < self._waiting_bytes:
                self._waiting_bytes, self._slow_since_ns = waiting_bytes, now_ns
            elif now_ns - self._slow_since_ns > silence_ns:
                self.cut_off("has not read its replies")
        elif self._unhandled is None and now_ns - self.heard_ns > silence_ns:
            self.cut_off("has missed its heartbeats")
        return self.is_ending

    def end(self, error: OpsqError, request_id: int = 0) -> None:
        """Send the error, then close; the peer's reservations are released at once."""
        if self.is_ending:
            return
        self._host.note_refusal(error.code, f"{self.name}: connection closed: {error.message}")
        replies, self._replies = [*self._replies, ErrorReply.of(request_id, error)], []
        transport = self._transport
        self._end_input()
        if transport is None or transport.is_closing():
            return
        self._send(transport, replies)
        if not self._host.may_linger(self):
            is_written = not transport.get_write_buffer_size()
            transport.close()
            if is_written:
                return
        # Keep reading and dropping input until the peer closes: closing now could destroy the reply in transit.
        elif transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.abort)

    def close(self) -> None:
        """Close after all written data has been sent."""
        self.is_ending = True
        self._stop_waiting()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def cut_off(self, why: str) -> None:
        """Close at once, without a word to the peer: it would not read it."""
        _log.warning("%s %s: connection closed", self.name, why)
        self._end_input()
        self.abort()

    @property
    def unread_bytes(self) -> int:
        """What was written and the peer has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def name(self) -> str:
        """The consumer's name, for the log."""
        if self.peer is not None:
            return repr(self.peer.consumer)
        return f"a connection without a hello from {self.origin}"

    @property
    def origin(self) -> str:
        """Where the peer is: host and port, or the user of a process on this machine."""
        return place(self._transport, is_tcp=self.is_tcp)

    @property
    def who(self) -> str | int | None:
        """The token with the client's certificate, or else the id of the user, for the audit."""
        return token_holder(self.access.name, self._transport) if self.access.digest else self.uid

    @property
    def user_and_host(self) -> tuple[str | None, str | None]:
        """Who it is and where, for people to read."""
        return user_and_host(self.who, self._transport)

    @property
    def uid(self) -> int | None:
        """The user of the process at the other end, if it is on this machine and still there."""
        return None if self.is_tcp else local_user(self._transport)

    # --- inside -------------------------------------------------------------------------------------------

    def _greet(self, received: bytes, now: Now) -> bytes:
        """Collect the hello; returns the bytes after it."""
        found = self._greeting.feed(received)
        if found is None:
            return b""
        self._stop_waiting()
        self._welcome(found[0], now)
        return found[1]

    def _welcome(self, hello: Hello, now: Now) -> None:
        host = self._host
        try:
            check_version(hello)
            if self.is_tcp or hello.token:
                self.access = host.access_of(hello.token)
            self._straight = straight(self.access.roles)
            self.peer = host.connect(self, hello, now)
        except OpsqError as error:
            self.end(error, hello.id)
            return
        is_operator = OPERATOR in self.access.roles
        consumer = self.peer.consumer
        self.answer(welcome(hello, consumer, host.settings, host.store_marker, host.engine, is_operator=is_operator))
        if host.is_stopping:
            self.answer(Draining(host.drain_left_s))

    def _miss_hello(self) -> None:
        self._hello_timer = None
        if self.peer is None:
            self.end(TimedOut("The hello was not complete in time."))

    def _stop_waiting(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def _serve(self, requests: Iterator[Request | ImpossibleRequest], now: Now, most: int) -> int:
        """Handle requests; those beyond `most` are kept, and nothing is read until they had their turn."""
        requests_count, latest = 0, None
        request, self._first = self._first, None
        was_behind, self._unhandled = self._unhandled is not None, None
        try:
            while request is not None or (request := next(requests, None)) is not None:
                if type(request) in LONG_ANSWERS and not self._host.backlog.may_answer_long():
                    self._first, self._unhandled = request, requests
                    break
                requests_count += 1
                latest = type(request)
                self._handle(request, now)
                if requests_count >= most and not self.is_ending:
                    self._unhandled = requests
                    break
                request = None
        except OpsqError as error:
            self.end(error)
        except Exception as error:  # noqa: BLE001  # a bug met by one connection must not close any other
            self.end(self._host.report(error))
        if was_behind or self._unhandled is not None:
            self._pace()
            self._come_back()
        if latest in _RESERVES:
            self._host.reserves.note((time.monotonic_ns() - now.mono) / 1e9)
        self._host.received(requests_count)
        return requests_count

    def _come_back(self) -> None:
        """Have the requests that were kept handled when it is their turn, if the peer reads its replies."""
        if self._unhandled is not None and not self._is_slow and not self.is_ending:
            self._host.backlog.add(self, is_long=self._first is not None)

    def _pace(self) -> None:
        """Read from the peer only if it reads its replies and all it has sent was handled."""
        transport = self._transport
        if transport is None or self.is_ending or transport.is_closing():
            return
        if self._is_slow or self._unhandled is not None:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _handle(self, request: Request | ImpossibleRequest, now: Now) -> None:
        peer = self.peer
        if peer is None:
            return  # an earlier message in this frame ended the session
        try:
            if type(request) in self._straight:
                self._host.engine.handle(peer, request, now)  # type: ignore[arg-type]  # only requests are
            else:
                self._handle_aside(request, peer, now)
        except ProtocolError:
            raise
        except OpsqError as error:
            self._refuse(request, error)
        except Exception as error:  # noqa: BLE001  # a bug in one request must not close every connection
            self._refuse(request, self._host.report(error))

    def _handle_aside(self, request: Request | ImpossibleRequest, peer: Peer, now: Now) -> None:
        if isinstance(request, ImpossibleRequest):
            raise request.error
        if isinstance(request, Hello):
            raise ProtocolError("A second Hello on one connection.")
        check_permitted(request, self.access)
        if isinstance(request, Stop | Backup | Vacuum | Check):
            if self.operations_count >= OPERATIONS_LIMIT:
                raise Refused(cause="too_many_operations", limit=OPERATIONS_LIMIT)
            self._host.operate(self, request)
        else:
            self._host.engine.handle(peer, request, now)
        self._host.note_act(self, request)

    def _refuse(self, request: Request | ImpossibleRequest, error: OpsqError) -> None:
        request_id = getattr(request, "id", None)
        if request_id is None:
            _log.info("%s: %s was ignored: %s", self.name, type(request).__name__, error.message)
        else:
            self.answer(ErrorReply.of(request_id, error))

    def _send(self, transport: asyncio.Transport, replies: Sequence[Reply]) -> None:
        try:
            write_replies(transport, replies, self._host.settings.frame_limit_bytes, self._host.report)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must end no session but this one
            self._host.report(error)
            self.cut_off("cannot be answered")

    def _end_input(self) -> None:
        """Take nothing more from the peer, and give back what it held."""
        self.is_ending = True
        self._first = self._unhandled = None
        self._host.unread.forget(self)
        self._host.backlog.forget(self)
        self._stop_waiting()
        peer, self.peer = self.peer, None
        if peer is not None:
            self._host.disconnect(self, peer)
