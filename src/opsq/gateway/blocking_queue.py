"""The daemon as a thread asks it, over a connection of the event loop.

It must not know HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from opsq.client.core.async_link import AsyncLink
from opsq.errors import Unreachable
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Request

P = ParamSpec("P")
R = TypeVar("R")

_THREADS = ThreadPoolExecutor(16, thread_name_prefix="asking")
_LOOK_S = 1.0
"""How often a thread that waits looks whether the event loop has ended."""


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
        answer = asyncio.run_coroutine_threadsafe(asked, self._loop)
        while True:
            try:
                return answer.result(_LOOK_S)
            except TimeoutError:
                if self._loop.is_closed():
                    raise Unreachable("The gateway has ended.") from None


async def in_thread(work: Callable[P, R], *args: P.args, **more: P.kwargs) -> R:
    """Do work that asks a `BlockingQueue`, in a thread.

    It is none of the event loop's own: a lost connection is made again by those, whoever waits for it.
    """
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *args, **more))
