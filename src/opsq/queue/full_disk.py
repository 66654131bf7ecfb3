"""A full disk: what may still use the room that is spare, and when there is room again.

Owns `EngineState.is_full`; must not write anything itself. While the disk is full, nothing comes in and nothing is
handed out, and the log has room of its own for what removes something. Other requests make the database larger, so they
have what copies of the log can do without. To cancel removes nothing: it only permits to.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from opsq.clock import MonoNs, Now
from opsq.errors import OpsqError
from opsq.queue.batch import Batch, request_id
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire import messages as m

RETRY_NS = 1_000_000_000
_ROW_BYTES = 256
"""What a row takes beside its texts, generously."""
_FAILURE_ROWS = 3
"""Of a chunk that dies: its failure, its death and its dead letter, each with the reason."""
_SHRINK_SHARE = 0.25
"""While less is spare, free pages stay in the file."""
_REMOVAL_BYTES = 16 * 4096
"""What a removal or cancellation writes in one batch: the pages that it touches, roughly."""
_KEPT_SHARE = 4
"""The part of the ballast that completions leave for copies of what removals write; cancellations leave half of it."""
_REMOVES = (m.Remove, m.Drop)
_RULES = (m.Limit, m.Pause, m.Weight, m.PutRules)
_SCHEDULES = (m.PutSchedule, m.PauseSchedule, m.ResumeSchedule)
_WEIGHED = (m.Cancel, m.Complete, m.CompleteAndReserve, m.Fail, m.Requeue, m.Extend, *_RULES, *_SCHEDULES)


class FullDisk:
    """Knows whether there is room."""

    def __init__(self, state: EngineState, now: Now) -> None:
        self._state = state
        self._log = state.database.log
        self._retry: MonoNs = now.mono
        self._look: MonoNs = now.mono
        self._is_noted = False

    def is_waiting(self, now: Now) -> bool:
        """Whether a write has failed just now, so that the next one waits."""
        return self._state.is_full and now.mono < self._retry

    def weigh(self, request: m.Request) -> None:
        """Raises `StorageFull` if there is too little room for a request, on a full disk."""
        if not isinstance(request, _WEIGHED):
            return
        size_bytes, kept_share = _ROW_BYTES, _KEPT_SHARE
        if isinstance(request, m.Cancel):
            size_bytes, kept_share = _REMOVAL_BYTES, 2 * _KEPT_SHARE
        elif isinstance(request, m.Fail):
            size_bytes += sum(
                one.held.mask.bit_count() * _FAILURE_ROWS * (_ROW_BYTES + len(one.reason)) for one in request.failures
            )
        elif isinstance(request, m.Complete | m.CompleteAndReserve):
            size_bytes += sum(_ROW_BYTES + len(one.results) for one in request.completions)
        elif isinstance(request, m.PutRules):
            size_bytes *= 1 + len(request.pauses) + len(request.limits) + len(request.weights)
        elif isinstance(request, m.PutSchedule):
            size_bytes += len(msgspec.msgpack.encode(request.schedule))
        batch = self._state.batch
        if self._log.room_for_growth_bytes(kept_share) < batch.spare_bytes + size_bytes:
            raise self._state.no_room()
        batch.spare_bytes += size_bytes

    def fits(self, request: m.Request) -> bool:
        """Whether what removes something fits into the batch beside others like it; the first always does."""
        if not isinstance(request, _REMOVES):
            return True
        batch = self._state.batch
        if batch.spare_bytes and batch.spare_bytes + _REMOVAL_BYTES > self._log.spare_bytes() // 2:
            return False
        batch.spare_bytes += _REMOVAL_BYTES
        return True

    def postpone(self, handle: Callable[[Peer, m.Request, Now], None], peer: Peer, request: m.Request, _: Now) -> None:
        """Handle a request when the present batch is committed."""

        def again(now: Now) -> None:
            self._state.attempt(peer, request_id(request), lambda: handle(peer, request, now))

        def refuse(error: OpsqError) -> None:
            self._state.reply(peer, m.ErrorReply.of(request_id(request), error))

        self._state.batch.after.append(again)
        self._state.batch.on_failed.append(refuse)

    def note(self, now: Now, *, has_failed: bool = False) -> None:
        """From now on there is room only for what frees some. The writer is free.

        Args:
            has_failed: a write has; the next is to wait a little.
        """
        self._is_noted = False
        self._state.is_full = True
        self._state.removable_found = None
        self._look = MonoNs(now.mono + RETRY_NS)
        if has_failed:
            self._retry = self._look
        self._log.give_up_room()

    def note_soon(self) -> None:
        """The same when the batch that is under way has ended."""
        self._is_noted = True

    def committed(self, batch: Batch, now: Now) -> None:
        """A batch was committed: perhaps there is room again."""
        state = self._state
        if self._is_noted:
            self.note(now)
        elif state.is_full and batch.has_rows and self._log.regain_room():
            state.is_full = False
            state.note_news()

    def tick(self, now: Now) -> None:
        """Give back what is free in the file, and write something as soon as there is room. No batch is under way."""
        state = self._state
        if state.batch or now.mono < max(self._retry, self._look):
            return
        self._look = MonoNs(now.mono + RETRY_NS)
        if self._log.regain_room():
            state.batch.statements.append(lambda database, _: database.probe())
        elif state.database.free_bytes() and self._log.spare_share() > _SHRINK_SHARE:
            state.batch.statements.append(lambda *_: self._log.shrink())
            self._look = now.mono
