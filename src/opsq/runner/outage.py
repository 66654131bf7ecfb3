"""Reports that the daemon has been away for a while, and that it is back; a restart is too short to be reported.

This file only reports; the link reconnects.
"""

from __future__ import annotations

import math
import time

from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import ProgressViewer

OUTAGE_S = 5.0


class Outage:
    """Whether the daemon of one consumer is away, and whether that was reported.

    Args:
        viewer: gets a sentence, once when it has been away for `OUTAGE_S` and once when it is back.
        consumer: has the connection.
    """

    def __init__(self, viewer: ProgressViewer, consumer: PolledConsumer) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._report_at: float | None = None
        self._is_reported = False

    def tick(self) -> None:
        """Look, and report what is due."""
        if self._consumer.fileno() >= 0:
            if self._is_reported:
                self._viewer.say("The daemon answers again.")
            self._report_at, self._is_reported = None, False
        elif self._report_at is None:
            self._report_at = time.monotonic() + OUTAGE_S
        elif not self._is_reported and time.monotonic() >= self._report_at:
            self._is_reported = True
            self._viewer.say(
                "The daemon does not answer. Running programs continue, and it is tried again until it does."
            )

    def next_due(self, now: float) -> float:
        """When `tick` has something to do that is not due at `now`, on the monotonic clock; infinity: never."""
        at = self._report_at
        return math.inf if at is None or self._is_reported or at <= now else at
