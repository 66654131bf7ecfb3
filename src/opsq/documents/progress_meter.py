"""Estimates how fast chunks end and how long the rest will take, from counts over time; the one estimator of all verbs.

It must not ask for counts, nor print.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from opsq.units import format_rate, format_span
from opsq.wire.messages import Counts, HistoryEvent, SubmissionState

_RATE_S, _RATE_COUNT = 15.0, 8
"""The period over which the rate is measured: so many seconds, or longer, until so many chunks have ended in it."""


class ProgressMeter:
    """The progress of all consumers together, and their rate."""

    def __init__(self) -> None:
        self.done_count = 0
        self.total_count = 0
        self._before_count: int | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, counts: Counts | None, now: float) -> None:
        """Record the counts of the daemon."""
        if counts is None:
            return
        finished_count = counts.completed_count + counts.dead_count + counts.skipped_count
        left_count = counts.backlog_count
        if self._before_count is None or finished_count < self._before_count:  # finished submissions may be removed
            self._before_count = 0 if counts.submissions_count == 1 else finished_count
            self._seen.clear()
        self.done_count = finished_count - self._before_count
        self.total_count = self.done_count + left_count
        seen = self._seen
        if not left_count and seen and seen[-1][1] == finished_count:
            seen.clear()  # a rest is no slow work
        elif len(seen) > 1 and seen[-1][1] == seen[-2][1] == finished_count:
            seen.pop()
        seen.append((now, finished_count))
        while len(seen) > 2 and seen[1][0] <= now - _RATE_S and finished_count - seen[1][1] >= _RATE_COUNT:
            seen.popleft()

    def recall(self, state: SubmissionState, ends: Sequence[HistoryEvent], now: float) -> None:
        """Record the counts that a submission had, by the events, oldest first, in which its last chunks ended."""
        counts = state.counts
        after_count = sum(event.mask.bit_count() for event in ends)
        for number, event in enumerate(ends):
            if not number:
                self.note(_earlier(counts, after_count), event.at / 1000 - event.run_max_s)
            after_count -= event.mask.bit_count()
            self.note(_earlier(counts, after_count), event.at / 1000)
        self.note(counts, max(now, ends[-1].at / 1000) if ends else now)

    @property
    def rate_per_s(self) -> float:
        """Chunks per second, lately."""
        if len(self._seen) < 2:
            return 0.0
        (then, before_count), (now, now_count) = self._seen[0], self._seen[-1]
        return max(now_count - before_count, 0) / (now - then) if now > then else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until everything has ended at this rate; None: unknown."""
        left_count = self.total_count - self.done_count
        return left_count / self.rate_per_s if left_count and self.rate_per_s else None

    def rate_text(self) -> str:
        """The rate in words; empty while unknown."""
        return format_rate(self.rate_per_s, digits=3) if self.rate_per_s else ""

    def left_text(self) -> str:
        """The time left at this rate; empty while unknown."""
        left_s = self.left_s
        return "" if left_s is None else f"{format_span(left_s)} left"


def _earlier(counts: Counts, count: int) -> Counts:
    """Counts as they were before so many of the chunks ended."""
    return replace(counts, waiting_count=counts.waiting_count + count, completed_count=counts.completed_count - count)
