"""How many chunks to reserve: those for the free slots, and as many more as are soon worked off.

This file only computes; it must not ask anybody and reads no clock. (`Pace` of the client does the same for one chunk at a time.)
"""

from __future__ import annotations

from opsq.client.core.consumer_base import FLUSH_S

AHEAD_S = 0.25
"""So much work is reserved ahead: short chunks never wait for the daemon, long ones are not kept from others."""
AHEAD_LIMIT_COUNT = 512
_SHORTEST_S = 1e-4


class Ahead:
    """The size of the next reserve of one consumer.

    Args:
        jobs: how many chunks are worked on at once.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._run_s: float | None = None
        self._last_count = jobs

    def note(self, run_s: float) -> None:
        """Take note of the run time of a chunk; the last five or so make the estimate."""
        self._run_s = run_s if self._run_s is None else 0.8 * self._run_s + 0.2 * run_s

    @property
    def is_slow(self) -> bool:
        """Whether programs start so seldom that each start may be told in a frame of its own."""
        return self._run_s is None or self._run_s >= FLUSH_S * self._jobs

    def next_count(self, free_count: int, ready_count: int) -> int:
        """How many to order now; 0: none.

        Args:
            free_count: slots without a program.
            ready_count: chunks that are reserved and not begun.
        """
        ahead_count = 0
        if self._run_s is not None:
            # At most doubled each time: the first ones say little about the rest.
            ahead_count = int(
                min(AHEAD_S * self._jobs / max(self._run_s, _SHORTEST_S), AHEAD_LIMIT_COUNT, self._last_count * 2)
            )
        if free_count <= ready_count and ready_count * 2 > ahead_count:
            return 0
        count = max(free_count + ahead_count - ready_count, 0)
        self._last_count = count or self._last_count
        return count
