"""The process of a gateway: opens its socket, serves until a signal, and lets what is under way end.

It must not know what is served.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from opsq.client.core.address import Address
from opsq.daemon.sockets import ListeningSocket, bind_tcp, bind_unix, take_inherited
from opsq.gateway.access import Exposure, is_loopback
from opsq.gateway.app import make_app
from opsq.gateway.connections import Connections
from opsq.gateway.context import Context
from opsq.gateway.http_protocol import BoundedHttp

DRAIN_S = 10
"""How long what is under way may take after a signal."""
SOCKET_MODE = 0o600


class _Server(uvicorn.Server):
    """A server that says when it is ready and when it begins to end, and that ends with 0 after a signal."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
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


def serve(
    listening: ListeningSocket,
    address: Address,
    token: str,
    on_ready: Callable[[], None],
    *,
    queues_path: str,
    metrics_by: str | None = None,
    allow_origins: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT; a second SIGINT ends at once what is under way.

    Args:
        address: of the daemon.
        token: with which the gateway greets it; "" over its Unix socket.
        on_ready: called when requests are answered.
        queues_path: the file that `opsq queue` changes.
        metrics_by: the metadata key of which metrics count each value.
        allow_origins: whose pages may use the JSON API from a browser.
    """
    connections = Connections(address, name=f"gateway-{os.getpid()}", token=token)
    context = Context(connections, exposure_of(listening), queues_path, metrics_by, allow_origins)
    config = uvicorn.Config(
        make_app(context),
        loop="uvloop",
        http=BoundedHttp,
        lifespan="on",
        log_config=None,
        log_level="error",  # garbage of a client is its own fault
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    try:
        _Server(config, on_ready, context.stopping.set).run(sockets=[listening.socket])
    finally:
        listening.close()
