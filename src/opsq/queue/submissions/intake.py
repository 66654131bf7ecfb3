"""Whether new submissions are taken: an operator has the daemon drained, and may take that back.

It must not refuse anything itself: `admission` does, and schedules wait.
"""

from __future__ import annotations

from opsq.clock import Now
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import meta
from opsq.wire.messages import Changed, Drain

DRAINING = "draining"
"""The key of `meta`: 1 while it is drained."""


class Intake:
    """Closes and opens the way in; that holds at once, over restarts, and is stored with the batch."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._read()

    def drain(self, peer: Peer, request: Drain, _: Now) -> None:
        """Take no new submissions, or take them again."""
        state = self._state
        is_changed = state.takes_new == (not request.is_undo)
        if is_changed:
            state.takes_new = request.is_undo
            state.batch.statements.append(
                lambda database, _: meta.put(database.writer, DRAINING, int(not request.is_undo))
            )
            state.batch.on_failed.append(lambda _: self._read())
        state.batch.replies.append((peer, Changed(request.id, int(is_changed))))

    def _read(self) -> None:
        """What the file says holds."""
        self._state.takes_new = not meta.get_int(self._state.reader, DRAINING)
