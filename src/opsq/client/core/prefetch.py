"""How many chunks to reserve at once: enough that waiting for the daemon costs little, no more than is soon worked off.

This file measures and decides; it does no I/O.
"""

from __future__ import annotations

import time

AHEAD_S = 0.25
"""A reserve brings about so much work."""
BATCH_LIMIT_COUNT = 1000
AHEAD_FROM_COUNT = 4
"""Below this, nothing is reserved ahead: a chunk that takes long must not wait behind another one."""


class Pace:
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

    def count(self) -> None:
        """Take note that a chunk was handed out."""
        self._taken_count += 1

    def is_ahead_due(self, ready_count: int) -> bool:
        """Whether the next reserve is to be sent although `ready_count` chunks wait."""
        if self._batch is not None and self._batch < AHEAD_FROM_COUNT:
            return False
        return self._asked_count >= AHEAD_FROM_COUNT and ready_count * 2 <= self._asked_count
