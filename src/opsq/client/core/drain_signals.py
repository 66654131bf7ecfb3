"""The first SIGINT or SIGTERM ends work in an orderly way, the second one at once.

This file only counts signals; it touches no handler that the program has set, and none outside the main thread.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_ECHO_S = 0.02
"""A signal this soon after another one counts as the same: `timeout` signals the process, then its group."""


class DrainSignals:
    """While entered, the first signal calls `on_first`; the next raises KeyboardInterrupt, or SystemExit(143).

    Args:
        on_first: called inside the handler.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.last: int | None = None
        """The number of the signal that came; None if none did."""
        self.heard_at = 0.0
        """When the first one came, on the monotonic clock."""
        self._on_first = on_first
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) == default:
                    self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.last is None:
            self.last, self.heard_at = number, now
            self._on_first()
        elif now - self.heard_at >= _ECHO_S:
            self.last = number
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
