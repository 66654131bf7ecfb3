"""Polls the daemon for its counts whenever the progress is to be shown, and shows it with what the daemon answered.

This file must not show anything; a daemon that does not answer delays it by no more than a moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import PoolProgress, ProgressViewer

_PATIENCE_S = 0.5


class StatusPoll:
    """The polls for one viewer.

    Args:
        viewer: is shown the progress, if it wants to be.
        consumer: asks the daemon.
        submission_id: whose counts are shown; None: of all, or of those with `pair`.
        pair: metadata of the submissions whose counts are shown.
        progress: how far this consumer is.
    """

    def __init__(
        self,
        viewer: ProgressViewer,
        consumer: PolledConsumer,
        submission_id: int | None,
        progress: Callable[[], PoolProgress],
        pair: tuple[str, str] | None = None,
    ) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._submission_id = submission_id
        self._pair = pair
        self._progress = progress
        self._ask_at = time.monotonic()
        self._look_at: float | None = None

    def tick(self) -> None:
        """Ask if it is time to, and show what was answered."""
        look_s = self._viewer.look_s
        if look_s is None:
            return
        now = time.monotonic()
        if self._look_at is None:
            if now >= self._ask_at:
                self._ask_at = now + look_s
                self._look_at = now + _PATIENCE_S
                self._consumer.ask_counts(self._submission_id, self._pair)
        elif now >= self._look_at or not self._consumer.is_counting:
            self._look_at = None
            self._viewer.look(self._progress())

    def next_due(self, now: float) -> float:
        """When `tick` has something to do that is not due at `now`, on the monotonic clock; infinity: never."""
        at = self._ask_at if self._look_at is None else self._look_at
        return math.inf if self._viewer.look_s is None or at <= now else at
