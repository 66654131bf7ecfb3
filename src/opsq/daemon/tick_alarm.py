"""Rings when the engine has something to do by the clock. It must not know what that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from opsq.clock import Now
from opsq.clock import now as read_clocks

_LEAST_NS = 1_000_000
"""How often it is set at most: to ask all that is timed what is due takes a twelfth of a commit round."""


class TickAlarm:
    """One alarm, set again and again.

    Args:
        next_tick_s: in how many seconds something is due.
        ring: called then, at the earliest a millisecond after it was set.
        guarded: runs what no request waits for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        next_tick_s: Callable[[Now], float],
        ring: Callable[[], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self._loop = loop
        self._next_tick_s = next_tick_s
        self._ring = ring
        self._guarded = guarded
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._set_ns = 0
        self.at_s = 0.0
        """When it rings, or rang last, by the clock of the loop."""

    def set(self, now: Now) -> None:
        """Set it by what is due next: now, or within a millisecond if it has just been set."""
        if now.mono >= self._set_ns + _LEAST_NS:
            self._set(now)
        elif self._later is None:
            self._later = self._loop.call_later(_LEAST_NS / 1e9, self._set_later)

    def cancel(self) -> None:
        """It rings no more."""
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()

    def _set_later(self) -> None:
        self._later = None
        self._guarded(lambda: self._set(read_clocks()))

    def _set(self, now: Now) -> None:
        self._set_ns = now.mono
        at_s = self._loop.time() + max(self._next_tick_s(now), 0.001)
        if self._timer is not None:
            if self.at_s <= at_s:
                return
            self._timer.cancel()
        self.at_s = at_s
        self._timer = self._loop.call_at(at_s, self._rings)

    def _rings(self) -> None:
        self._timer = None
        self._ring()
