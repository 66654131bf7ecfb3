"""Says once what keeps a consumer waiting: a pause, a limit, or that nothing that waits is for its strategy.

The daemon finds that out; this file only asks it, ever more rarely, and reports.
"""

from __future__ import annotations

import math
import time

from opsq.findings import held_back
from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import ProgressViewer

ASK_S = 2.0
"""A consumer that waits this long asks for the first time."""


class HeldRemark:
    """What holds back the work of one consumer, and whether that was said.

    Args:
        viewer: gets the sentences.
        consumer: asks the daemon.
    """

    def __init__(self, viewer: ProgressViewer, consumer: PolledConsumer) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._pause_s = ASK_S
        self._ask_at = math.inf
        self._said: set[tuple[str, ...]] = set()

    def tick(self, *, is_idle: bool) -> None:
        """Ask if it is time to, or report what was answered."""
        now = time.monotonic()
        self._report()
        if not is_idle or not self._consumer.is_waiting:
            self._ask_at = math.inf
        elif self._ask_at == math.inf:
            self._ask_at = now + self._pause_s
        elif now >= self._ask_at:
            self._pause_s *= 2
            self._ask_at = now + self._pause_s
            self._consumer.ask_held()

    def conclude(self) -> None:
        """The consumer ends because nothing can be reserved: say what is left waiting."""
        self._consumer.ask_held(is_last=True)
        self._report()

    def next_due(self, now: float) -> float:
        """When `tick` has something to do that is not due at `now`, on the monotonic clock; infinity: never."""
        return math.inf if self._ask_at <= now else self._ask_at

    def _report(self) -> None:
        found, self._consumer.held_back = self._consumer.held_back, []
        # Times and counts change while the same thing holds it back.
        about = tuple(entry.code + str(entry.details.get("pairs", entry.details.get("pair", ""))) for entry in found)
        if about and about not in self._said:
            self._said.add(about)
            for sentence in held_back("Waiting work", found):
                self._viewer.remark(sentence)
