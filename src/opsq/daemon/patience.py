"""Logs what is found about those who wait for long, one strategy each time.

This file must not decide whose mistake it is (the engine does).
"""

from __future__ import annotations

import logging

from opsq.clock import Now
from opsq.queue.engine import Engine

_WATCH_NS = 1_000_000_000
"""How often it is looked."""

_log = logging.getLogger("opsq.daemon")


class Patience:
    """Looks after those who wait for long.

    Args:
        started_ns: of the monotonic clock.
    """

    def __init__(self, engine: Engine, started_ns: int) -> None:
        self._engine = engine
        self._watched_ns = started_ns
        self.overlooked_count = 0
        """How often something was free, and who waited for it had to be helped."""

    def look(self, now: Now) -> None:
        """Look, if it is time to."""
        if now.mono - self._watched_ns < _WATCH_NS:
            return
        self._watched_ns = now.mono
        found = self._engine.watch(now)
        if found is None:
            return
        who = ", ".join(found.consumers)
        if found.is_overlooked:
            self.overlooked_count += 1
            _log.error(
                "something was free for 5 s for %s, and %s waited for it (bug; worked around); plan: %s",
                found.strategy,
                who,
                found.plan,
            )
        else:
            _log.warning("%s: %s matches nothing that waits; see `opsq explain ID`", who, found.strategy)
