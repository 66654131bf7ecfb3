"""What a shell's job control means for a consumer: Ctrl-Z stops it with its programs, `fg` and `bg` continue all.

A program that is stopped by itself is reported; one that shares our terminal takes us with it. This file must not start
or end programs, and must be used from the main thread, which alone may set handlers.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

from opsq.runner.deadlines import Deadlines
from opsq.runner.feeding.programs import Child, Programs
from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import ProgressViewer
from opsq.units import signal_name


class JobControl:
    """While it is entered, SIGTSTP is noted instead of obeyed, unless our caller ignores it.

    Args:
        viewer: gets a sentence for each program that was stopped, and leaves the terminal while we are.
        consumer: has what is reserved.
        programs: stop and go on with us.
        deadlines: do not count the time for which we were stopped.
        name: of the chunk of a child; "": none is known.
    """

    def __init__(
        self,
        viewer: ProgressViewer,
        consumer: PolledConsumer,
        programs: Programs,
        deadlines: Deadlines,
        name: Callable[[Child], str],
    ) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._programs = programs
        self._deadlines = deadlines
        self._name = name
        self._is_asked = False
        self._is_handling = False
        programs.heed_stops(self._stopped)

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._heard)
            self._is_handling = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_handling:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            self._is_handling = False

    def tick(self) -> None:
        """Stop, with all programs, if that was asked for; returns when we were continued.

        What is not at work is given back, and the reservations of what is are renewed before.
        """
        if not self._is_asked:
            return
        self._consumer.rest()
        self._programs.suspend()
        self._viewer.suspended()
        self._deadlines.postpone(self._stop())
        self._viewer.resumed()
        self._programs.resume()

    def _stop(self) -> float:
        """Stop until SIGCONT comes, and return after how many seconds that was.

        Not at all where nobody could continue it: the system stops no process that no shell watches.
        """
        began_at = time.monotonic()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._heard)
        self._is_asked = False
        return time.monotonic() - began_at

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True

    def _stopped(self, child: Child, number: int) -> None:
        if self._programs.shares_terminal and number != signal.SIGSTOP:
            self._is_asked = True  # Ctrl-Z, or it wants the terminal that a shell has
            return
        name = self._name(child)
        self._viewer.say(
            f"The program{name and f' of chunk {name}'} was stopped by {signal_name(number)}, and its chunk waits;"
            f" `kill -CONT -- -{child.pid}` lets it go on."
        )
