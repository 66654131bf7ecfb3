"""When a pool is to stop: to start nothing more, to ask its programs to end, to leave them behind.

This file must not do any of that; the pool looks here and does it.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable

from opsq.runner.process.supervisor import LEAVE_AFTER_S
from opsq.runner.stop_signals import ECHO_S, STOP_SIGNALS, StopSignals

KILL_AFTER_S = 5.0
"""The longest time between SIGTERM and SIGKILL when we are to stop, whatever the grace."""


class Stopping:
    """How far one pool is on its way to its end.

    Args:
        signals: a first one lets programs go on for the grace, a second ends everything.
        grace_s: how long programs may continue after the first.
        stop_after_s: start nothing more after this long; None: go on.
        shares_terminal: Ctrl-C reaches the program in the foreground alone, and is meant for us as well.
    """

    def __init__(
        self, signals: StopSignals, grace_s: float, stop_after_s: float | None, *, shares_terminal: bool = False
    ) -> None:
        self.signal = 0
        """The signal that ends everything at once; 0: none does."""
        self.kill_after_s = min(grace_s, KILL_AFTER_S)
        """How long a program has between SIGTERM and SIGKILL."""
        self._signals = signals
        self._grace_s = grace_s
        self._shares_terminal = shares_terminal
        self._drain_at = math.inf if stop_after_s is None else time.monotonic() + stop_after_s
        self._terminate_at = math.inf

    def heed(self) -> bool:
        """Note the signals that have come; returns whether everything is to end at once."""
        if self._signals.count and not self.is_asked:
            self._drain_at = now = time.monotonic()
            self._terminate_at = now + self._grace_s
        if self._signals.count > 1:
            self.signal = self._signals.last
        return self._signals.count > 1

    def await_echo(self, ends: Iterable[int | None]) -> None:
        """Let a signal that ended one of our programs reach us before that end is judged.

        A process group gets a signal one by one.
        """
        ends = list(ends)
        if self._shares_terminal and signal.SIGINT in ends:
            self._signals.hear(signal.SIGINT)
        if any(number in STOP_SIGNALS and number not in self._signals.numbers for number in ends):
            self._signals.wait(ECHO_S)

    @property
    def is_asked(self) -> bool:
        """Whether a signal came."""
        return self._terminate_at < math.inf

    @property
    def is_draining(self) -> bool:
        """Whether nothing more is to be started."""
        return time.monotonic() >= self._drain_at

    @property
    def is_terminating(self) -> bool:
        """Whether programs are to be asked to end."""
        return time.monotonic() >= self._terminate_at

    @property
    def is_over(self) -> bool:
        """Whether what still runs cannot be ended."""
        return time.monotonic() > self._terminate_at + self.kill_after_s + LEAVE_AFTER_S

    def next_due(self, now: float) -> float:
        """When something changes here that is not due at `now`, on the monotonic clock; infinity: never."""
        due_at = (self._drain_at, self._terminate_at, self._terminate_at + self.kill_after_s + LEAVE_AFTER_S)
        return min((at for at in due_at if at > now), default=math.inf)
