"""Deadlines of programs: the end of --max-runtime, and the kill when one that was asked to end has not.

This file signals through the programs it is given, and must not judge what an end means for a chunk.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from opsq.runner.feeding.programs import Child, Programs

Why = Literal["", "stop", "lost", "runtime"]
"""Why a program was asked to end: it was not; we stop; the reservation of its chunk was lost; it ran too long."""


class _Ending(NamedTuple):
    why: Why
    kill_at: float


class Deadlines:
    """Which programs were asked to end, and how long the others have run.

    Args:
        programs: those that are signalled.
        max_runtime_s: how long one may run; None: without limit.
        grace_s: how long one that ran too long has between SIGTERM and SIGKILL.
    """

    def __init__(self, programs: Programs, max_runtime_s: float | None, grace_s: float) -> None:
        self._programs = programs
        self._max_runtime_s = max_runtime_s
        self._grace_s = grace_s
        self._endings: dict[Child, _Ending] = {}
        self._started: deque[tuple[float, Child]] = deque()
        self._running: set[Child] = set()

    def start(self, child: Child) -> None:
        """Start to measure the run time of a program."""
        if self._max_runtime_s is not None:
            self._running.add(child)
            self._started.append((time.monotonic(), child))

    def end(self, child: Child, why: Why, kill_after_s: float) -> None:
        """Ask a program to end, and kill it if it has not after `kill_after_s`; first reason and earlier kill hold."""
        kill_at = time.monotonic() + kill_after_s
        ending = self._endings.get(child)
        if ending is None:
            self._endings[child] = _Ending(why, kill_at)
            self._programs.terminate(child)
        elif kill_at < ending.kill_at:
            self._endings[child] = ending._replace(kill_at=kill_at)

    def ended(self, child: Child) -> Why:
        """Forget a program that has ended; returns why it was asked to."""
        self._running.discard(child)
        ending = self._endings.pop(child, None)
        return "" if ending is None else ending.why

    def tick(self) -> None:
        """Ask those to end that have run too long, kill those whose time is over."""
        now = time.monotonic()
        while self._started and (now >= self._overdue_at() or self._started[0][1] not in self._running):
            _, child = self._started.popleft()
            if child in self._running:
                self.end(child, "runtime", self._grace_s)
        for child, ending in self._endings.items():
            if now >= ending.kill_at:
                self._programs.kill(child)

    def postpone(self, delay_s: float) -> None:
        """Let everything be due that much later: programs and we were stopped for so long."""
        self._started = deque((at + delay_s, child) for at, child in self._started)
        self._endings = {
            child: ending._replace(kill_at=ending.kill_at + delay_s) for child, ending in self._endings.items()
        }

    def next_due(self, now: float) -> float:
        """When `tick` has something to do that is not due at `now`, on the monotonic clock; infinity: never."""
        due_at = [ending.kill_at for ending in self._endings.values()]
        if self._started:
            due_at.append(self._overdue_at())
        return min((at for at in due_at if at > now), default=math.inf)

    def _overdue_at(self) -> float:
        return self._started[0][0] + (self._max_runtime_s or 0.0)
