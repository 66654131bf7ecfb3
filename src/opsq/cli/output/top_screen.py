"""The terminal under `opsq top`: its keys, its size, and that it is left as it was found, whatever ends or stops us.

It must not know what is drawn.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live

from opsq.runner.stop_signals import StopSignals

_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)")
"""What keys such as the arrows send."""


class LiveScreen:
    """The whole screen, while it is entered; keys come from stdin, if that is the terminal, too.

    Signals that would end this process end it after the screen was given back; Ctrl-Z gives it back and stops, and `fg`
    takes it again.
    """

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, screen=True)
        self._keys_fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._modes: list[Any] = []
        self._stops = StopSignals()
        self._before: dict[int, Any] = {}
        self._is_stopping = False
        self._is_taken = False
        self.has_ended = False
        """A signal wants us to end, or the terminal is gone."""

    def __enter__(self) -> Self:
        self._stops.__enter__()
        # They have to be heard in order to wake us up.
        self._before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop_soon)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            self._give_back()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._stops.__exit__()
        if self._stops.last == signal.SIGINT:
            raise KeyboardInterrupt
        if self._stops.last:
            signal.signal(self._stops.last, signal.SIG_DFL)
            signal.raise_signal(self._stops.last)

    def draw(self, frame: RenderableType) -> None:
        """Show a frame in place of the one before."""
        self._live.update(frame, refresh=True)

    @property
    def height(self) -> int:
        """How many lines there are now."""
        return self._live.console.height

    def keys(self, wait_s: float) -> Iterator[str]:
        """The keys that are pressed next; none when the time is over, the size has changed, or it `has_ended`."""
        poll = select.poll()
        poll.register(self._stops.fileno, select.POLLIN)
        if self._keys_fd is not None:
            poll.register(self._keys_fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(max(wait_s, 0.0) * 1000)]
        self._stops.drain()
        self.has_ended = self._stops.count > 0
        if self._is_stopping:
            self._stop()
        elif self._keys_fd in ready:
            pressed = self._read()
            self.has_ended = self.has_ended or not pressed
            yield from _SEQUENCE.sub("", pressed)

    def _read(self) -> str:
        try:
            return os.read(self._keys_fd or 0, 1024).decode(errors="ignore")
        except OSError:  # hung up
            return ""

    def _stop_soon(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True

    def _stop(self) -> None:
        self._is_stopping = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # returns once we are continued
        signal.signal(signal.SIGTSTP, self._stop_soon)
        self._take()

    def _take(self) -> None:
        if self._keys_fd is not None:
            self._modes = termios.tcgetattr(self._keys_fd)
            while not self._is_taken:
                try:
                    tty.setcbreak(self._keys_fd)  # in the background we are stopped here, until `fg` or a signal
                except termios.error as error:
                    if error.args[0] != errno.EINTR:
                        raise
                    if self._stops.count:
                        self.has_ended = True
                        return
                else:
                    self._is_taken = True
        self._is_taken = True
        self._live.start(refresh=False)

    def _give_back(self) -> None:
        if not self._is_taken:
            return
        self._is_taken = False
        try:
            self._live.stop()
        finally:
            if self._keys_fd is not None:
                termios.tcsetattr(self._keys_fd, termios.TCSADRAIN, self._modes)
