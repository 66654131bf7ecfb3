"""Looks after those who wait for long: whether nothing that waits is for them, or something is and was not given.

The latter would be a mistake of ours. It only looks, a bounded number of rows at a time, and never while a batch is
being committed; it must not hand anything out.
"""

from __future__ import annotations

from typing import NamedTuple

from opsq.clock import MonoNs, Now
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.state import EngineState
from opsq.queue.views.dry_run import DryRun

LOOK_NS = 5_000_000_000
"""Who has waited this long is looked after; then again as often."""
NAMED_COUNT = 10
"""Consumers that are named for one strategy."""
LOOK_ROWS = 200
"""Rows visited for one strategy: well below a millisecond."""


class Waiting(NamedTuple):
    """What was found about the consumers that wait with one strategy."""

    strategy: str
    consumers: list[str]
    is_overlooked: bool
    """Something is free for them, and was for `LOOK_NS`; else nothing that waits is for them."""
    plan: str
    """Arms and fronts, in one line."""


class Watchdog:
    """Looks after waiting calls."""

    def __init__(self, state: EngineState, reserve_calls: ReserveCalls) -> None:
        self._state = state
        self._reserve_calls = reserve_calls
        self._looked: dict[str, MonoNs] = {}
        """When each strategy was looked after; who waits now only."""
        self._suspected: set[str] = set()
        """Strategies for which something was free at the last look."""
        self.unmatched: dict[str, None] = {}
        """Strategies with which somebody waits although nothing that waits is for them."""

    def look(self, now: Now) -> Waiting | None:
        """Look after the strategy that has waited longest for it; what was found, the first time.

        Cost: `LOOK_ROWS` rows for one strategy.
        """
        lines = self._reserve_calls.waiting_since()
        for known in (self._looked, self.unmatched):
            for text in [text for text in known if text not in lines]:
                del known[text]
        self._suspected &= lines.keys()
        due = [
            (at, text)
            for text, since in lines.items()
            if now.mono - (at := max(self._looked.get(text, since), since)) >= LOOK_NS
        ]
        if not due:
            return None
        _, text = min(due)
        self._looked[text] = now.mono
        consumers = self._reserve_calls.waiting_with(text, NAMED_COUNT)
        if self._is_free(text):
            self.unmatched.pop(text, None)
            if text not in self._suspected:
                self._suspected.add(text)
                return None
            self._suspected.discard(text)
            return Waiting(text, consumers, True, self._plan(text))
        self._suspected.discard(text)
        was_unmatched = text in self.unmatched
        if self._is_unmatched(text):
            self.unmatched[text] = None
            return None if was_unmatched else Waiting(text, consumers, False, self._plan(text))
        self.unmatched.pop(text, None)
        return None

    def _is_free(self, text: str) -> bool:
        """Whether a new walk finds a free chunk that the strategy allows now."""
        arms = self._reserve_calls.plan(text).arms
        with DryRun(self._state, arms, LOOK_ROWS, is_new=True) as trial:
            while (found := trial.next()) is not None:
                if trial.chunk(found) is not None:
                    return True
                trial.take(found, 0, has_more=False)
        return False

    def _is_unmatched(self, text: str) -> bool:
        """Whether no open submission passes the filters, though some are open; a pause may hold what does."""
        state = self._state
        if not state.states["open"] or state.rules.pauses:
            return False
        state.rows_left = LOOK_ROWS
        return state.until_empty.can_still_yield(self._reserve_calls.plan(text).arms) is False

    def _plan(self, text: str) -> str:
        fronts = self._state.fronts
        return "; ".join(
            f"{name}: {front.describe() if (front := fronts.front_in_use(name)) is not None else 'no front'}"
            for name, _ in self._reserve_calls.plan(text).arms
        )
