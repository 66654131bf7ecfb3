"""Tells a person that the daemon has been away for a while, and that it is back; a restart is too short to be told.

This file only tells; who reconnects is the link.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.progress import Viewer

ABSENT_S = 5.0


class Absence:
    """Whether the daemon of one consumer is away, and who was told so.

    Args:
        viewer: is told, once when it has been away for `ABSENT_S` and once when it is back.
        consumer: has the connection.
    """

    def __init__(self, viewer: Viewer, consumer: PolledConsumer) -> None:
        self._viewer = viewer
        self._consumer = consumer
        self._tell_at: float | None = None
        self._is_told = False

    def see_to(self) -> None:
        """Look, and tell what is to be told."""
        if self._consumer.fileno() >= 0:
            if self._is_told:
                self._viewer.say("The daemon answers again.")
            self._tell_at, self._is_told = None, False
        elif self._tell_at is None:
            self._tell_at = time.monotonic() + ABSENT_S
        elif not self._is_told and time.monotonic() >= self._tell_at:
            self._is_told = True
            self._viewer.say(
                "The daemon does not answer. What runs goes on, and the daemon is tried again until it answers."
            )

    def instants(self) -> Iterator[float]:
        """When `see_to` has something to do, on the monotonic clock."""
        if self._tell_at is not None and not self._is_told:
            yield self._tell_at
