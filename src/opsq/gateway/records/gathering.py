"""Calls that come while one is under way, and are made together as the next one: no timer delays the first.

This file must not know what is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Gathering(Generic[T, R]):
    """Calls of one kind.

    Args:
        perform: makes calls as one; gives the answer to each, or the exception that it raises. What `perform` itself
            raises, all of them do.
        limit_count: of how many calls it makes one, at most.
    """

    def __init__(
        self, perform: Callable[[list[T]], Awaitable[Sequence[R | Exception]]], limit_count: Callable[[], int]
    ) -> None:
        self._perform = perform
        self._limit_count = limit_count
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return self._worker is None

    async def call(self, item: T) -> R:
        """The answer to one call."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = self._limit_count()
                taken = self._waiting[:count]
                del self._waiting[:count]
                try:
                    outcomes = await self._perform([item for item, _ in taken])
                except Exception as error:  # noqa: BLE001  # each of the callers is told
                    outcomes = [error] * len(taken)
                for (_, answer), outcome in zip(taken, outcomes, strict=True):
                    if answer.done():
                        continue
                    if isinstance(outcome, Exception):
                        answer.set_exception(outcome)
                    else:
                        answer.set_result(outcome)
        finally:
            self._worker = None
