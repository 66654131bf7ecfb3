"""Timers in buckets: setting or removing one is O(1), and a tick takes every bucket up to now. Knows no clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from opsq.clock import MonoNs

T = TypeVar("T", bound=Hashable)

BUCKET_NS = 100_000_000
"""Due times are rounded up to 100 ms."""

TAKE_LIMIT = 2_000
"""Items given out at once, so that a tick with very many of them leaves the event loop to others in between."""


class Timers(Generic[T]):
    """Items that are due at some instant; an item is at one instant once."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._order: list[int] = []
        self._due: deque[T] = deque()

    def add(self, due: MonoNs, item: T) -> None:
        """Have `item` given out by the first `take` at or after `due`."""
        number = -(-due // BUCKET_NS)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
        bucket[item] = None

    def discard(self, due: MonoNs, item: T) -> None:
        """`item` does not wait for `due` any more.

        If it is due already it may still be given out, for its owner to recognise.
        """
        bucket = self._buckets.get(-(-due // BUCKET_NS))
        if bucket is not None:
            bucket.pop(item, None)

    def take(self, now: MonoNs) -> Iterator[T]:
        """Items that are due, in the order of their buckets, at most `TAKE_LIMIT`; the rest stays due."""
        for _ in range(TAKE_LIMIT):
            while not self._due and self._order and self._order[0] * BUCKET_NS <= now:
                self._due.extend(self._buckets.pop(heapq.heappop(self._order)))
            if not self._due:
                return
            yield self._due.popleft()

    def next_due(self) -> MonoNs | None:
        """When the next item is due, or would be if it had not been discarded; None without any."""
        if self._due:
            return MonoNs(0)
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return MonoNs(self._order[0] * BUCKET_NS) if self._order else None
