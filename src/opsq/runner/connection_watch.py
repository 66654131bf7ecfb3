"""Notices that something has come from the daemon, whatever connection there is at the moment.

This file must not read what has come.
"""

from __future__ import annotations

from opsq.runner.feeding.programs import Programs
from opsq.runner.polled_consumer import PolledConsumer


class ConnectionWatch:
    """Whether the daemon has sent something.

    Args:
        consumer: has the connection.
        programs: wait for it together with their own ends.
    """

    def __init__(self, consumer: PolledConsumer, programs: Programs) -> None:
        self.has_arrived = False
        """Who reads what has arrived resets it."""
        self._consumer = consumer
        self._programs = programs
        self._fd = -1

    def renew(self) -> None:
        """Watch the descriptor that the connection has now. Its number may belong to a child once one is started."""
        fd = self._consumer.fileno()
        if fd == self._fd:
            return
        if self._fd >= 0:
            self._programs.unwatch(self._fd)
        if fd >= 0:
            self._programs.watch(fd, self._arrived)
        self._fd = fd

    def _arrived(self) -> None:
        self.has_arrived = True
