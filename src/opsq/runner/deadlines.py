"""Programs that were told to end: why, and when they are killed because they have not.

This file signals through the programs it is given, and must not judge what an end means for a chunk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from opsq.runner.feeding.programs import Child, Programs

Why = Literal["", "stop", "lost", "runtime"]
"""Why a program was told to end: it was not; we are asked to stop; its chunk is not ours any more; it ran too long."""


class _Told(NamedTuple):
    why: Why
    kill_at: float


class Endings:
    """Who was told to end, and who runs for how long.

    Args:
        programs: those that are signalled.
        max_runtime_s: how long one may run; None: without limit.
        grace_s: how long one that ran too long has between SIGTERM and SIGKILL.
    """

    def __init__(self, programs: Programs, max_runtime_s: float | None, grace_s: float) -> None:
        self._programs = programs
        self._max_runtime_s = max_runtime_s
        self._grace_s = grace_s
        self._told: dict[Child, _Told] = {}
        self._began: deque[tuple[float, Child]] = deque()
        self._running: set[Child] = set()

    def begin(self, child: Child) -> None:
        """Let the time of a program begin."""
        if self._max_runtime_s is not None:
            self._running.add(child)
            self._began.append((time.monotonic(), child))

    def tell(self, child: Child, why: Why, kill_after_s: float) -> None:
        """Tell a program to end, and kill it if it has not after a while; the first reason stays, the earlier time counts."""
        kill_at = time.monotonic() + kill_after_s
        told = self._told.get(child)
        if told is None:
            self._told[child] = _Told(why, kill_at)
            self._programs.terminate(child)
        elif kill_at < told.kill_at:
            self._told[child] = told._replace(kill_at=kill_at)

    def ended(self, child: Child) -> Why:
        """Forget a program that has ended; gives why it was told to."""
        self._running.discard(child)
        told = self._told.pop(child, None)
        return "" if told is None else told.why

    def see_to(self) -> None:
        """Tell those to end that have run too long, kill those whose time is over."""
        now = time.monotonic()
        if self._max_runtime_s is not None:
            while self._began and (
                now >= self._began[0][0] + self._max_runtime_s or self._began[0][1] not in self._running
            ):
                _, child = self._began.popleft()
                if child in self._running:
                    self.tell(child, "runtime", self._grace_s)
        for child, told in self._told.items():
            if now >= told.kill_at:
                self._programs.kill(child)

    def instants(self) -> Iterator[float]:
        """When `see_to` has something to do, on the monotonic clock."""
        for told in self._told.values():
            yield told.kill_at
        if self._max_runtime_s is not None and self._began:
            yield self._began[0][0] + self._max_runtime_s
