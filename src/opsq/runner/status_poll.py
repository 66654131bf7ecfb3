"""When somebody is shown how things stand: the daemon is asked for its counts first, and shown is what it says.

This file must not show anything; a daemon that does not answer delays it by no more than a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import View, Viewer

_PATIENCE_S = 0.5


class Looking:
    """The looks of one viewer.

    Args:
        viewer: who looks, if he does.
        consumer: asks the daemon.
        submission_id: whose counts are shown; None: of all, or of those with `pair`.
        pair: metadata of the submissions whose counts are shown.
        view: how things stand here.
    """

    def __init__(
        self,
        viewer: Viewer,
        consumer: PolledConsumer,
        submission_id: int | None,
        view: Callable[[], View],
        pair: tuple[str, str] | None = None,
    ) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._submission_id = submission_id
        self._pair = pair
        self._view = view
        self._ask_at = time.monotonic()
        self._look_at: float | None = None

    def see_to(self) -> None:
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
            self._viewer.look(self._view())

    def instants(self) -> Iterator[float]:
        """When `see_to` has something to do, on the monotonic clock."""
        if self._viewer.look_s is not None:
            yield self._ask_at if self._look_at is None else self._look_at
