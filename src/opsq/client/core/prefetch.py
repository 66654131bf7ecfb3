"""How many chunks to reserve at once: enough that waiting for the daemon costs little, and no more than is soon done.

This file measures and decides; it does no I/O. A consumer of single chunks is paced by when it takes them, a pool of
programs by how long they run.
"""

from __future__ import annotations

import time

from opsq.client.core.verdict_batch import FLUSH_S

AHEAD_S = 0.25
"""A reserve brings about this much work: short chunks never wait for the daemon, long ones are left to others."""
AHEAD_FROM_COUNT = 4
"""Below this, nothing is reserved ahead: a chunk that takes long must not wait behind another one."""
BATCH_LIMIT_COUNT = 1000
SLOTS_AHEAD_LIMIT_COUNT = 512
_SHORTEST_S = 1e-4


class Prefetch:
    """The size of the next reserve. It starts at 1 and at most doubles from one to the next, also up to a fixed batch.

    So a consumer that is started again and again by a chunk that kills it gets past what comes before that chunk.

    Args:
        batch: the size wanted; None: what takes `AHEAD_S` at the rate of the chunks before.
    """

    def __init__(self, batch: int | None) -> None:
        self._batch = batch
        self._asked_count = 0
        self._taken_count = 0
        self._asked_at = 0.0

    def next_count(self) -> int:
        """The size of a reserve that is sent now."""
        now = time.monotonic()
        limit = self._batch
        if limit is None:
            limit = BATCH_LIMIT_COUNT
            if self._taken_count:
                chunk_s = max((now - self._asked_at) / self._taken_count, 1e-9)
                limit = max(1, min(limit, int(AHEAD_S / chunk_s)))
        self._asked_count = max(1, min(self._asked_count * 2, limit))
        self._asked_at, self._taken_count = now, 0
        return self._asked_count

    def count_taken(self) -> None:
        """Note that a chunk was handed out."""
        self._taken_count += 1

    def is_ahead_due(self, ready_count: int) -> bool:
        """Whether the next reserve is to be sent although `ready_count` chunks wait."""
        if self._batch is not None and self._batch < AHEAD_FROM_COUNT:
            return False
        return self._asked_count >= AHEAD_FROM_COUNT and ready_count * 2 <= self._asked_count


class SlotPrefetch:
    """The size of the next reserve of a consumer that works in slots: chunks for the free ones, and some ahead.

    Args:
        jobs: how many chunks are worked on at once.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._run_s: float | None = None
        self._last_count = jobs

    def note_run(self, run_s: float) -> None:
        """Note the run time of a chunk, in seconds; the last five or so make the estimate."""
        self._run_s = run_s if self._run_s is None else 0.8 * self._run_s + 0.2 * run_s

    @property
    def is_slow(self) -> bool:
        """Whether programs start so seldom that each start may be reported in a frame of its own."""
        return self._run_s is None or self._run_s >= FLUSH_S * self._jobs

    def next_count(self, free_count: int, ready_count: int) -> int:
        """How many to order now; 0: none.

        Args:
            free_count: slots without a program.
            ready_count: chunks that are reserved and not started.
        """
        ahead_count = 0
        if self._run_s is not None:
            # At most doubled each time: the first ones say little about the rest.
            wanted = AHEAD_S * self._jobs / max(self._run_s, _SHORTEST_S)
            ahead_count = int(min(wanted, SLOTS_AHEAD_LIMIT_COUNT, self._last_count * 2))
        if free_count <= ready_count and ready_count * 2 > ahead_count:
            return 0
        count = max(free_count + ahead_count - ready_count, 0)
        self._last_count = count or self._last_count
        return count
