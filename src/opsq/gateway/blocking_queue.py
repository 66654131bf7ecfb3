"""The daemon as a thread asks it, over a connection of the event loop.

It must not know HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from opsq.client.aio.link import AsyncLink
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Request

R = TypeVar("R")


class BlockingQueue:
    """Asks, and waits for the answer; `timeout_s` None: as long as it takes."""

    def __init__(self, link: AsyncLink, loop: asyncio.AbstractEventLoop, timeout_s: float | None = None) -> None:
        self._link = link
        self._loop = loop
        self._timeout_s = timeout_s

    @property
    def store_url(self) -> str:
        """Of the daemon's store."""
        return self._link.welcome.store

    def next_id(self) -> int:
        """An id for the next request."""
        return self._link.next_id()

    def call(self, request: Request, kind: type[R]) -> R:
        """The answer.

        Raises:
            UsageError: a field has a value that is impossible.
            TimedOut: it took too long.
            OpsqError: as the daemon answers.
        """
        asked = self._link.call(checked(request), kind, self._timeout_s)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
