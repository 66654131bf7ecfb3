"""How many more records a queue with a limit may take: asked of the daemon's counters, and reckoned for a while.

Completions only make room, so what was counted stays a bound; it must not be relied on for longer than `FRESH_S`, since
others may fill the queue, too. Nor may a queue be called full for longer than `FULL_FRESH_S`. This file must not know
HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from opsq.gateway.connections import Connections
from opsq.gateway.records.queue_defaults import KEY, QueueDefaults
from opsq.wire.messages import DaemonState, Status

FRESH_S, FULL_FRESH_S = 1.0, 0.1
"""The second holds where there is too little room: looking for more costs the daemon a walk over its submissions."""


class Room:
    """The room in all queues.

    Args:
        connections: the gateway's own asks, for everybody.
        defaults: of a queue, by its name.
    """

    def __init__(self, connections: Connections, defaults: Callable[[str], QueueDefaults]) -> None:
        self._connections = connections
        self._defaults = defaults
        self._counted: dict[str, int] = {}
        """Unfinished records of each queue, and those that were let in since."""
        self._counted_at = -FRESH_S
        self._is_less = False

    def note_done(self) -> None:
        """A record is done: a queue that was full is counted again when more is wanted."""
        self._is_less = True

    async def take(self, name: str, wanted: int) -> int | None:
        """For how many of `wanted` records there is room, which counts as taken; None: for all, there is no limit."""
        limit = self._defaults(name).limit
        if limit is None:
            return None
        is_short = self._counted.get(name, 0) + wanted > limit
        is_stale = time.monotonic() - self._counted_at >= (FULL_FRESH_S if is_short else FRESH_S)
        if is_stale or (is_short and self._is_less):
            self._is_less = False
            link = (await self._connections.queue()).link
            state = await link.call(Status(link.next_id(), KEY), DaemonState)
            self._counted = {str(counts.value): counts.backlog_count for counts in state.by}
            self._counted_at = time.monotonic()
        there = self._counted.get(name, 0)
        room = max(min(limit - there, wanted), 0)
        self._counted[name] = there + room
        return room
