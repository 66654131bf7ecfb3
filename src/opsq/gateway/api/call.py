"""One request to the JSON API as its handler sees it, and ways to ask the daemon for it: awaited, patiently, by thread.

It must not know any endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from starlette.requests import Request

from opsq.client.aio.queue import AsyncQueue
from opsq.gateway.blocking_queue import BlockingQueue, in_thread
from opsq.gateway.context import Context
from opsq.gateway.waiting import gone
from opsq.wire import messages
from opsq.wire.impossible_fields import checked

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Call:
    """A request, and the queue as its sender may use it."""

    context: Context
    request: Request
    queue: AsyncQueue

    def next_id(self) -> int:
        """An id for the next request to the daemon."""
        return self.queue.link.next_id()

    async def ask(self, request: messages.Request, kind: type[R]) -> R:
        """The answer of the daemon.

        Raises:
            UsageError: a field has a value that is impossible.
            OpsqError: as the daemon answers.
        """
        return await self.queue.link.call(checked(request), kind)

    async def ask_for(self, request: messages.Request, kind: type[R], wait_s: float) -> R | None:
        """As `ask`, but for so many seconds only; None if these are over, the client has gone, or the gateway ends."""
        asking = asyncio.ensure_future(self.ask(request, kind))
        try:
            await self.until(asking, wait_s)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()

    async def until(self, done: asyncio.Future[Any], wait_s: float | None) -> None:
        """Wait for something until so many seconds are over, the client has gone, or the gateway ends."""
        watches = (asyncio.ensure_future(gone(self.request)), asyncio.ensure_future(self.context.stopping.wait()))
        try:
            await asyncio.wait((done, *watches), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()

    async def compose(self, document: Callable[Concatenate[BlockingQueue, P], R], *args: P.args, **more: P.kwargs) -> R:
        """A document that takes several questions, and a look into the store: made in a thread."""
        daemon = BlockingQueue(self.queue.link, asyncio.get_running_loop())
        return await in_thread(document, daemon, *args, **more)
