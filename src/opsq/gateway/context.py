"""What all doors of a gateway share: its connections, how it was started, and that it is stopping.

It must not know any door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from opsq.client.aio.queue import AsyncQueue
from opsq.gateway.access import Exposure, token_of
from opsq.gateway.connections import Connections
from opsq.gateway.lending import once_answered
from opsq.metrics import Family


@dataclass
class Context:
    """A gateway."""

    connections: Connections
    exposure: Exposure
    queues_path: str
    """The file that `opsq queue` changes."""
    metrics_by: str | None = None
    """The metadata key of which metrics count each value."""
    allow_origins: Sequence[str] = ()
    """Whose pages may use the JSON API from a browser."""
    collectors: list[Callable[[AsyncQueue], Awaitable[Iterable[Family]]]] = field(default_factory=list)
    """What doors add to the metrics, as whoever asks may see it."""
    allow_actions: bool = False
    """Whether operators may change things from the page."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the gateway begins to end: what waits for long answers now."""

    async def queue(self, connection: HTTPConnection, token: str | None = None) -> AsyncQueue:
        """The queue as whoever has made a request may use it; it stays open until the request is answered.

        Args:
            token: that which the request has shown, if not in its head.

        Raises:
            NotPermitted, Unreachable: as `Connections.queue`.
        """
        token = token_of(connection) if token is None else token
        if token is not None:  # the gateway's own stays open
            once_answered(connection, self.connections.keep_open(token))
        return await self.connections.queue(token)
