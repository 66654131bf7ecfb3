"""Signals that ask this process to stop, counted instead of obeyed, and a descriptor that wakes up who waits in `poll`.

This file must not decide what stopping means, and must be used from the main thread, which alone may set handlers.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The hang-up of a terminal is one of them: programs in their own groups do not get it and would be left behind."""


ECHO_S = 0.02
"""A signal this soon after another one counts as the same: `timeout` signals the process, then its group;
a terminal that is closed hangs up twice."""


class StopSignals:
    """While it is entered, none of `STOP_SIGNALS` ends this process.

    One that our caller ignores stays ignored (nohup).

    Args:
        on_stop: called each time `count` has grown by a signal, in its handler; for those who do not wait in `poll`.
    """

    def __init__(self, on_stop: Callable[[], None] = lambda: None) -> None:
        self._on_stop = on_stop
        self.count = 0
        """How many have come; an echo counts as nothing."""
        self.last = 0
        """The number of the last one; 0 if none has come."""
        self.numbers: set[int] = set()
        """The numbers of all that have come, echoes included."""
        self.fileno = -1
        """Becomes readable when one has come; `drain` empties it."""
        self._heard_at = 0.0
        self._write_fd = -1
        self._wakeup_before = -1
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self.fileno, self._write_fd = os.pipe()
        os.set_blocking(self.fileno, False)
        os.set_blocking(self._write_fd, False)
        # The system call goes on after a handler has returned; only the descriptor ends the wait.
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.fileno)
        os.close(self._write_fd)
        self.fileno = self._write_fd = -1

    def stop(self, number: int, *, is_urgent: bool = False) -> None:
        """Count a stop that a thread of this process asks for as that signal; an urgent one counts twice."""
        self.last = number
        self.count += 2 if is_urgent else 1
        with suppress(BlockingIOError, OSError):  # full: the loop is awake already; closed: there is none
            os.write(self._write_fd, b"\0")

    def hear(self, number: int) -> None:
        """Count a signal that a program of ours got in our place."""
        self._heard(number, None)

    def drain(self) -> None:
        """Empty the descriptor."""
        with suppress(BlockingIOError):
            os.read(self.fileno, 4096)

    def wait(self, timeout_s: float) -> None:
        """Wait until one has come, at most `timeout_s` seconds; what is in the descriptor stays there."""
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.numbers.add(number)
        now = time.monotonic()
        if self.count and (number == signal.SIGHUP or now - self._heard_at < ECHO_S):
            return
        self._heard_at = now
        self.count += 1
        self.last = number
        self._on_stop()
