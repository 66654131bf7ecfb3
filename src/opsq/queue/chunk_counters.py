"""Counts for monitoring since this process started: what became of chunks, how long they waited and ran.

It is told of each row of history once, after its commit; it must not know anything else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from opsq.store import history
from opsq.store.history import HistoryRow
from opsq.wire.messages import Durations

_CHUNKS_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0)
_AT_ONCE = 32
"""Rows that are counted together. More of them would push what is worked on out of the processor's caches."""
_ATTEMPTS = frozenset({history.COMPLETED, history.FAILED, history.LOST})
_COUNTED = _ATTEMPTS | {history.DEAD, history.REQUEUED, history.DROPPED}


class Histogram:
    """Durations by size.

    Args:
        bounds_s: the longest duration of each class, ascending; one class more has all beyond.
    """

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def note(self, duration_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    def durations(self) -> Durations:
        """As messages have it."""
        return Durations(list(self.bounds_s), list(self.counts), self.sum_s)


class ChunkCounters:
    """What became of chunks."""

    def __init__(self) -> None:
        self.events = dict.fromkeys((event for event in history.EVENTS if event in _COUNTED), 0)
        """Chunks by event; the last failure of one that dies counts as failed too."""
        self.waits = Histogram(_CHUNKS_S)
        """Per chunk, how long those waited that were handed out with it: the longest of them."""
        self.runs = Histogram(_CHUNKS_S)
        """Per chunk, the mean of those that ended with it."""
        self._noted: list[HistoryRow] = []

    def note(self, rows: list[HistoryRow]) -> None:
        """Rows were committed; they are counted when there are some, which costs half of one by one."""
        self._noted += rows
        if len(self._noted) >= _AT_ONCE:
            self.count()

    def count(self) -> None:
        """Count what was noted. Cost: a microsecond a row; one that is as the one before, a quarter of that."""
        if not self._noted:
            return
        rows, self._noted = self._noted, []
        first, alike_count = rows[0], 0
        for row in rows:
            if (
                row.mask == first.mask
                and row.wait_s == first.wait_s
                and row.run_s == first.run_s
                and row.event == first.event
            ):
                alike_count += 1
            else:
                self._count(first, alike_count)
                first, alike_count = row, 1
        self._count(first, alike_count)

    def _count(self, row: HistoryRow, rows_count: int) -> None:
        """Count so many rows that are alike: blocks that were worked on together."""
        if row.event not in self.events:
            return
        of_row = row.mask.bit_count()
        count = of_row * rows_count
        self.events[row.event] += count
        if row.event in _ATTEMPTS:
            self.waits.counts[bisect_left(_CHUNKS_S, row.wait_s)] += count
            self.waits.sum_s += row.wait_s * count
            self.runs.counts[bisect_left(_CHUNKS_S, row.run_s / of_row)] += count
            self.runs.sum_s += row.run_s * rows_count
