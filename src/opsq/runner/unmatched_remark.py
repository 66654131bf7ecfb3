"""Says once that nothing that waits in the queue is for the strategy of this consumer, which waits all the same.

The daemon finds that out; this file only asks it, ever more rarely, and reports.
"""

from __future__ import annotations

import math
import time

from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import ProgressViewer

ASK_S = 7.0
"""A consumer that waits this long asks: two seconds after the daemon looks."""


class UnmatchedRemark:
    """Whether one consumer waits for nothing, and whether that was said.

    Args:
        viewer: gets the sentence.
        consumer: asks the daemon.
    """

    def __init__(self, viewer: ProgressViewer, consumer: PolledConsumer) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._pause_s = ASK_S
        self._ask_at = math.inf

    def tick(self, *, is_idle: bool) -> None:
        """Ask if it is time to, or report what was answered."""
        now = time.monotonic()
        if self._consumer.is_unmatched:
            self._consumer.is_unmatched = False
            self._pause_s = self._ask_at = math.inf
            self._viewer.say(
                f"Chunks are waiting, but none for the strategy {self._consumer.strategy}: `opsq explain ID` says why."
            )
        elif not is_idle or not self._consumer.is_waiting:
            self._ask_at = math.inf
        elif self._ask_at == math.inf:
            self._ask_at = now + self._pause_s
        elif now >= self._ask_at:
            self._pause_s *= 2
            self._ask_at = now + self._pause_s
            self._consumer.ask_unmatched()

    def next_due(self, now: float) -> float:
        """When `tick` has something to do that is not due at `now`, on the monotonic clock; infinity: never."""
        return math.inf if self._ask_at <= now else self._ask_at
