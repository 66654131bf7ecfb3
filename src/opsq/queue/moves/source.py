"""The side from which submissions move: chooses them, gives their rows, and gives them away in one commit.

Must not hold them back itself (`holds` does), nor remove what is left of them (`retention` does).
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.clock import Now, after
from opsq.errors import Conflict, NotFound
from opsq.queue.batch import Batch, nothing_to_undo
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.moves.holds import Hold, Holds, Stage
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import lanes, meta, move_units, moved, removals, transfer
from opsq.store.database import Database
from opsq.store.moved import Target
from opsq.wire.messages import (
    CancelMove,
    Changed,
    CommitMove,
    ConfirmMoved,
    DriveMoves,
    Driving,
    ExportedSlice,
    ExportSlice,
    HeldForMove,
    HoldForMove,
)

_DRIVER = "move_driver"
"""The number of the last mover, in `meta`."""
LOOK_ROWS = 3_000
"""After how many rows a look for what moves next ends: some milliseconds. The mover asks for more at once."""


class MoveSource:
    """Gives submissions away.

    Args:
        on_moved: notified of each that is another daemon's from now on.
    """

    def __init__(self, state: EngineState, holds: Holds, on_moved: Callable[[LiveSubmission], None]) -> None:
        self._state = state
        self._holds = holds
        self._on_moved = on_moved
        self._driver = meta.get_int(state.reader, _DRIVER)
        self._units = move_units.Units(state.reader)

    def drive(self, peer: Peer, request: DriveMoves, _: Now) -> None:
        """Have this mover be the only one; answered when all that others have given away before is committed.

        Raises:
            Conflict: it was the only one, and asks for a higher number, but another one has begun since.
        """
        if request.above:
            self._holds.check_driver(peer)
        self._driver = max(self._driver, request.above) + 1
        number, batch = self._driver, self._state.batch
        self._holds.drive(peer)
        batch.add(nothing_to_undo, nothing_to_undo, lambda database, _: meta.put(database.writer, _DRIVER, number))
        batch.replies.append((peer, Driving(request.id, moved.identity(self._state.reader), number)))
        self._state.await_copy(peer, request.id)

    def hold(self, peer: Peer, request: HoldForMove, now: Now) -> None:
        """Hold back the next submissions, with those that must move with them; answered when they are at rest.

        It looks at no more than a bounded part of all there is, and may find nothing in that.

        Raises:
            Conflict: another mover is the only one.
        """
        self._holds.check_driver(peer)
        state, units = self._state, self._units
        if request.after == 0:
            units.forget()
        rows_before = units.rows_count
        chosen: dict[int, LiveSubmission] = {}
        left: list[int] = []
        busy: list[int] = []
        found, next_after = move_units.candidates(state.reader, request.after, with_final=request.with_final)
        seen = request.after
        for submission_id, _ in found:
            if len(chosen) >= request.limit or units.rows_count - rows_before >= LOOK_ROWS:
                next_after = seen
                break
            seen = submission_id
            if submission_id not in chosen and not units.stays(submission_id):
                unit = units.unit_of(submission_id)
                if unit is None:
                    left.append(submission_id)
                elif loaded := self._loaded([one for one in unit if one not in chosen]):
                    chosen |= loaded
                else:
                    busy.append(submission_id)
        reply = HeldForMove(request.id, state.rng.randbytes(16), [], next_after, left, busy)
        if not chosen:
            state.reply(peer, reply)
            return
        held, is_unit = list(chosen.values()), request.limit == 1
        deadline = after(now.mono, request.wait_s)
        self._holds.begin(Hold(peer, reply.move, held, deadline, reply, request.with_final, is_unit))
        self._holds.tick(now)

    def _loaded(self, unit: list[int]) -> dict[int, LiveSubmission]:
        """The submissions of a unit, pinned; none if one of them cannot be held now."""
        loaded: dict[int, LiveSubmission] = {}
        for submission_id in unit:
            submission = self._state.submission(submission_id)
            if submission is None or submission.is_held or submission.is_closing:
                for one in loaded.values():
                    one.pins -= 1
                return {}
            submission.pins += 1  # at once: those that are loaded next may push out what is not
            loaded[submission_id] = submission
        return loaded

    def export(self, peer: Peer, request: ExportSlice, now: Now) -> None:
        """Answer with rows of a held submission.

        Raises:
            Conflict: this connection does not hold it.
        """
        reader, submission_id = self._state.reader, request.submission_id
        if self._holds.ready_of(peer, submission_id) is None:
            raise Conflict(cause="not_held", submission_id=submission_id)
        if request.after is None:
            header = transfer.header(reader, submission_id, now.wall)
            if header is None:
                raise NotFound(cause="unknown_submission", submission_id=submission_id)
            following = transfer.START if transfer.has_rows(reader, submission_id) else None
            reply = ExportedSlice(request.id, transfer.encode(header), following)
        else:
            found, following = transfer.read(reader, submission_id, request.after, now.wall)
            reply = ExportedSlice(request.id, transfer.encode(found), following)
        self._state.reply(peer, reply)

    def cancel(self, peer: Peer, request: CancelMove, _: Now) -> None:
        """Free what is held; if that is a unit, it is not found again before a mover begins anew."""
        hold = self._holds.get(request.move, peer)
        if hold is not None and hold.is_unit and len(hold.submissions) > 1:
            self._units.stay(submission.id for submission in hold.submissions)
        self._state.reply(peer, Changed(request.id, self._holds.cancel(request.move, peer)))

    def commit(self, peer: Peer, request: CommitMove, now: Now) -> None:
        """Give held submissions away: from this commit on they are the target's.

        Raises:
            Conflict: they are not held any more, or another mover is the only one, or by now another submission must
                move with them, or what one of them waited for has ended.
        """
        self._holds.check_driver(peer)
        state, hold = self._state, self._holds.get(request.move, peer)
        if hold is None or any(state.live.get(one.id) is not one for one in hold.submissions):
            raise Conflict(cause="not_held_any_more")
        hold.stage = Stage.LEAVING
        target = Target(request.identity, request.shard, request.address)
        ids = [submission.id for submission in hold.submissions]
        batch = state.batch

        def write(database: Database, _: Batch) -> None:
            writer = database.writer
            other = move_units.outsider(writer, ids)
            if other is not None:
                raise Conflict(cause="move_awaited", other_id=other)
            if move_units.open_waits_count(writer, ids) != hold.open_waits_count:
                raise Conflict(cause="move_outdated")
            for submission in hold.submissions:
                moved.put(writer, submission.id, target, now.wall)
                move_units.leave(writer, submission.id)
                lanes.leave(writer, submission.id, submission.lanes)
                removals.hide(writer, submission.id)

        batch.hidden_count += sum(submission.unfinished for submission in hold.submissions)
        batch.add(lambda _: self._settle_moved(hold), lambda _: self._holds.stay(hold), write)
        batch.replies.append((peer, Changed(request.id, len(ids))))
        state.await_copy(peer, request.id)

    def _settle_moved(self, hold: Hold) -> None:
        state = self._state
        state.has_moved = True
        for submission in hold.submissions:
            submission.pins -= 1
            submission.is_held = False
            state.set_state(submission, "removed")
            state.live.pop(submission.id, None)
            if submission.delayed_count:
                submission.delayed_count = 0
                state.gates.slot_freed(submission)
            row = submission.row
            state.removing[submission.id] = removals.Removed(
                row.request_key,
                row.lanes,
                submission.total,
                submission.folded,
                submission.dead,
                row.chunks_skipped,
                keeps_content=True,
            )
            self._on_moved(submission)
        state.note_news()
        self._holds.gone(hold)

    def confirm(self, peer: Peer, request: ConfirmMoved, _: Now) -> None:
        """The target hands them out."""
        ids = list(request.submission_ids)
        self._state.batch.add(nothing_to_undo, nothing_to_undo, lambda database, _: moved.confirm(database.writer, ids))
        self._state.batch.replies.append((peer, Changed(request.id, len(ids))))
