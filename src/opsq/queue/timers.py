"""Timers in buckets: setting one is O(1) whatever their number, and a tick takes every bucket up to now."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

from opsq.clock import MonoNs

T = TypeVar("T")

BUCKET_NS = 100_000_000
"""Due times are rounded up to 100 ms."""


class Timers(Generic[T]):
    """Items that are due at some instant. There is no removal: an item that no longer matters is recognised by its owner when it is due."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[T]] = {}
        self._order: list[int] = []

    def add(self, due: MonoNs, item: T) -> None:
        """Have `item` given out by the first `take` at or after `due`."""
        number = -(-due // BUCKET_NS)
        bucket = self._buckets.get(number)
        if bucket is None:
            self._buckets[number] = [item]
            heapq.heappush(self._order, number)
        else:
            bucket.append(item)

    def take(self, now: MonoNs) -> Iterator[T]:
        """Every item that is due, by bucket; items added meanwhile for the past come in the same call."""
        while self._order and self._order[0] * BUCKET_NS <= now:
            yield from self._buckets.pop(heapq.heappop(self._order))

    def next_due(self) -> MonoNs | None:
        """When the next bucket is due; None without any."""
        return MonoNs(self._order[0] * BUCKET_NS) if self._order else None
