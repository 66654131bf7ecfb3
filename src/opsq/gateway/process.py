"""The process of a gateway: opens its socket, serves until a signal, and lets what is under way end.

It must not know what is served.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from opsq import traces
from opsq.client.core.address import Target
from opsq.daemon.process_setup import collect_rarely, notify, raise_descriptors
from opsq.daemon.sockets import ListeningSocket, bind_tcp, bind_unix, take_inherited
from opsq.gateway.access import Exposure, is_loopback
from opsq.gateway.app import make_app
from opsq.gateway.client_connection import ClientConnection
from opsq.gateway.connections import TOKENS_LIMIT, Connections
from opsq.gateway.context import Context
from opsq.gateway.websocket import WebSocketProtocol

DRAIN_S = 10
"""How long what is under way may take after a signal."""
SOCKET_MODE = 0o600
DESCRIPTORS_RESERVED = 128 + TOKENS_LIMIT
"""Kept for content, what refused connections linger for, and the connections to the daemon."""
TICKS_A_SECOND = 10
"""Those of uvicorn."""
TICK_LIMIT_S = 5.0
"""No client is blamed for more, however long this process was held up."""


class _Server(uvicorn.Server):
    """A server that says when it is ready and when it begins to end, and that ends with 0 after a signal."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._ticked_at = time.monotonic()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            collect_rarely()
            notify("READY=1")
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_A_SECOND == 0:
            now = time.monotonic()
            passed_s, self._ticked_at = min(now - self._ticked_at, TICK_LIMIT_S), now
            for connection in list(self.server_state.connections):
                if isinstance(connection, ClientConnection):
                    connection.tick(passed_s)
            if "WATCHDOG_USEC" in os.environ:
                notify("WATCHDOG=1")
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        self._on_stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def open_socket(listen: str, path: str) -> ListeningSocket:
    """The socket that a service manager passed, else one at `path`, else one at the address `listen`.

    Raises:
        UsageError, Conflict, NotPermitted, AlreadyRunning: as `daemon.sockets`.
    """
    inherited = take_inherited()
    if inherited is not None:
        return ListeningSocket(inherited)
    if path:
        path = os.path.abspath(path)
        return bind_unix(path, SOCKET_MODE, os.path.dirname(path))
    return bind_tcp(listen, is_forced=True)


def exposure_of(listening: ListeningSocket) -> Exposure:
    """Who can reach a socket."""
    if not listening.is_tcp:
        return Exposure.UNIX
    return Exposure.LOOPBACK if is_loopback(str(listening.socket.getsockname()[0])) else Exposure.NETWORK


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Not that an answer was left off in the middle: whoever did that has said why."""
    return "without completing response" not in str(record.msg)


def serve(
    listening: ListeningSocket,
    address: Target,
    token: str,
    on_ready: Callable[[], None],
    *,
    queues_path: str,
    connection_limit: int,
    metrics_by: str | None = None,
    allow_origins: Sequence[str] = (),
    allow_actions: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; a second SIGINT ends at once what is under way.

    Args:
        address: of the daemon.
        token: with which the gateway greets it; "" over its Unix socket.
        on_ready: called when requests are answered.
        queues_path: the file that `opsq queue` changes.
        metrics_by: the metadata key of which metrics count each value.
        allow_origins: whose pages may use the JSON API from a browser.
        allow_actions: whether operators may change things from the page.
        connection_limit: how many connections of clients there may be, as far as descriptors permit.

    Raises:
        UsageError: this process may not open enough.
    """
    connections = Connections(address, name=f"gateway-{os.getpid()}", token=token)
    context = Context(
        connections, exposure_of(listening), queues_path, metrics_by, allow_origins, allow_actions=allow_actions
    )
    traces.forget_environment()
    config = uvicorn.Config(
        make_app(context),
        loop="uvloop",
        http=ClientConnection,
        ws=WebSocketProtocol,
        lifespan="on",
        log_config=None,
        log_level="error",  # what clients do wrong, they are told
        access_log=False,
        limit_concurrency=raise_descriptors(connection_limit, DESCRIPTORS_RESERVED, "gateway"),
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_unexpected)
    try:
        _Server(config, on_ready, context.stopping.set).run(sockets=[listening.socket])
    finally:
        listening.close()
