"""Connections of clients: bounds on what one may cost, in bytes and in time, where uvicorn and its parser have none.

What cannot be one well-formed request is refused here, so that nothing behind reads it otherwise than a proxy in front
has. It must not know what is served.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NoReturn

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from opsq.gateway.problems import problem
from opsq.units import counted

HEAD_LIMIT_BYTES = 64 << 10
"""The target and all headers."""
_TOO_LONG = (431, f"The head of a request may have {HEAD_LIMIT_BYTES} bytes.")
PATIENCE_S = 20
"""So long may a client take for the head of a request, and so far fall behind `BODY_RATE` with its body."""
BODY_RATE = 512
"""Bytes a second that a body has to bring on average."""
LINGER_S = 5
"""What was answered early has so long to end; closing at once would take the answer from a client that still sends."""
STALL_S = 60
"""How long a client may read nothing of an answer."""
PIPELINE_LIMIT_COUNT = 32
"""Requests that wait behind the one that is being answered."""

_BEGUN = itertools.count()


class ClientConnection(HttpToolsProtocol):
    """The connection of a client; `tick` is to be called about once a second."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limit_concurrency = None  # uvicorn would count requests only, and refuse any
        self._limit_count = config.limit_concurrency or 0
        self._is_receiving = True
        """A head or a body is to arrive. Between requests, which it is not, the time-out of uvicorn holds."""
        self._is_body = False
        self._is_over = False
        """Nothing more is read."""
        self._begun = 0
        """Which of all requests is the last that has begun here: the lower, the longer ago."""
        self._patience_s = 0.0
        """How much longer the client may take."""
        self._head_bytes = self._unparsed_bytes = self._body_bytes = 0
        self._unsent_bytes = 0
        self._stalled_s = 0.0
        self._reason: tuple[int, str] = (400, "This is not a request of HTTP/1.1.")
        self._begin()

    @property
    def is_answered(self) -> bool:
        """Whether nothing that has arrived waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def tick(self, passed_s: float) -> None:
        """End the connection if its client takes too long."""
        unsent_bytes = self.transport.get_write_buffer_size()
        self._stalled_s = self._stalled_s + passed_s if unsent_bytes and unsent_bytes >= self._unsent_bytes else 0.0
        self._unsent_bytes = unsent_bytes
        if self._stalled_s > STALL_S:
            self.transport.abort()
        is_asked_to_wait = self._is_body and self.cycle.waiting_for_100_continue
        if not self._is_receiving or self.flow.read_paused or is_asked_to_wait:
            return
        self._patience_s = min(self._patience_s + self._body_bytes / BODY_RATE, PATIENCE_S) - passed_s
        self._body_bytes = 0
        if self._patience_s > 0:
            return
        is_begun = self._is_body or self._head_bytes or self._unparsed_bytes
        if self._is_over or not is_begun or (self._is_body and self.is_answered):
            self.transport.abort()
        else:
            self._refuse(408, "The request takes too long to arrive.")

    # --- what arrives -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """A client has connected."""
        super().connection_made(transport)
        if len(self.connections) > self._limit_count:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._is_over:
            if not self.is_answered:
                self.flow.pause_reading()  # which whoever waits for the end of the connection has resumed
            return
        if not self._is_receiving:
            self._begin()
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._is_receiving and self._unparsed_bytes > HEAD_LIMIT_BYTES:
            self._refuse(*_TOO_LONG)

    def on_message_begin(self) -> None:
        """The parser has met a request."""
        super().on_message_begin()
        self._begin()

    def on_url(self, url: bytes) -> None:
        """The parser has met a part of a target."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser has met a header, or a trailer, which would pass for a header that a proxy has not seen."""
        if not self._is_body:
            super().on_header(name, value)
            self._count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """The parser has met the end of a head."""
        names = [name for name, _ in self.headers]
        hosts_count, is_old = names.count(b"host"), self.parser.get_http_version() == "1.0"
        if hosts_count > 1 or not (hosts_count or is_old):
            self._reject(400, "A request names one host.")
        if is_old and b"transfer-encoding" in names:
            self._reject(400, "HTTP/1.0 has no Transfer-Encoding.")
        if self.parser.should_upgrade() and (b"content-length" in names or b"transfer-encoding" in names):
            self._reject(400, "A request with Upgrade has no body.")
        if len(self.pipeline) >= PIPELINE_LIMIT_COUNT:
            self._reject(429, f"{PIPELINE_LIMIT_COUNT} requests wait for answers.")
        self._is_body, self._patience_s, self._unparsed_bytes = True, float(PATIENCE_S), 0
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """The parser has met a chunk of a body."""
        self._unparsed_bytes = 0

    def on_body(self, body: bytes) -> None:
        """The parser has met a part of a body."""
        self._unparsed_bytes = 0
        super().on_body(body)
        if not self.is_answered:
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        """The parser has met the end of a request."""
        self._is_receiving = self._is_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is sent."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        if self._is_body and self.is_answered:
            self._patience_s = min(self._patience_s, LINGER_S)

    def _begin(self) -> None:
        """A request begins to arrive."""
        self._is_receiving, self._is_body = True, False
        self._begun = next(_BEGUN)
        self._patience_s = float(PATIENCE_S)
        self._head_bytes = self._unparsed_bytes = self._body_bytes = 0

    # --- upgrades -----------------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        """Whether a request becomes a WebSocket: nothing before it may still be to be answered."""
        is_plain = self.scope["method"] == "GET" and self.scope["http_version"] == "1.1"
        return is_plain and self.is_answered and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        self._end_after_answers()  # the parser reads nothing more

    # --- refusals -----------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser, or a method that it has called, has refused."""
        self._refuse(*self._reason)

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES:
            self._reject(*_TOO_LONG)

    def _reject(self, status: int, detail: str) -> NoReturn:
        """Have the parser stop, and then `send_400_response` called."""
        self._reason = status, detail
        raise ValueError(detail)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer what is arriving with a problem, if that is the next answer, and read nothing more."""
        if self._is_over or self.transport.is_closing():
            return
        if self._is_body and not self.is_answered:
            if self.pipeline or self.cycle.response_started:
                self.transport.close()
                return
            self.cycle.disconnected = self.cycle.response_complete = True
            self.cycle.message_event.set()
        elif not self.is_answered:
            self._end_after_answers()
            return
        refusal = problem(status, "http", detail, headers={"Connection": "close"})
        headers = [*self.server_state.default_headers, *refusal.raw_headers]
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", refusal.body]))
        self.transport.write_eof()
        self._is_over = self._is_receiving = True
        self._patience_s = LINGER_S

    def _end_after_answers(self) -> None:
        """Read nothing more, and end the connection when what has arrived is answered."""
        self._is_over, self._is_receiving = True, False
        self.cycle.keep_alive = False

    def _make_room(self) -> None:
        """End the connection that has waited longest for its client; if there is none, refuse this one."""
        waiting = [
            each
            for each in self.connections
            if isinstance(each, ClientConnection) and each.is_answered and not each.transport.is_closing()
        ]
        oldest = min(waiting, key=lambda each: each._begun)
        if oldest is self:
            self._refuse(503, f"{counted(self._limit_count, 'connection')} wait for answers.")
        else:
            oldest.transport.abort()
