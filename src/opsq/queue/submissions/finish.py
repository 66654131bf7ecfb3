"""How submissions end (completed, failed, cancelled, expired) and how they are removed. Requeueing them is in `dead`.

An end is one row that flips, whatever the size; what it leaves behind is folded or deleted in slices later.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from opsq.clock import MonoNs, Now, after
from opsq.errors import Conflict, NotFinished
from opsq.ids import SubmissionId
from opsq.queue.batch import Batch, nothing_to_undo
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.submissions.dependencies import Dependencies
from opsq.queue.timers import Timers
from opsq.store import dependencies, events, history, removals, submissions
from opsq.store.database import Database
from opsq.store.dependencies import Decided
from opsq.store.history import HistoryRow
from opsq.store.lanes import GoneLane
from opsq.wire.messages import Cancel, Changed, Remove

DUE_LIMIT = 200


class Finisher:
    """Ends submissions, revives them, forgets them."""

    def __init__(
        self,
        state: EngineState,
        reservations: Reservations,
        waiting: Dependencies,
        on_ended: Callable[[LiveSubmission], None],
    ) -> None:
        self._state = state
        self._reservations = reservations
        self._waiting = waiting
        self._on_ended = on_ended
        self._expiries: Timers[SubmissionId] = Timers()
        self._ending_count = 0
        self._is_behind = False
        self.removed_content: list[str] = []

    def restore(self, now: Now) -> None:
        """Set the timers of running times to live, and go on with removals that a crash interrupted."""
        for submission_id, _, _, _, expires_at, expires_ms in submissions.with_durations(self._state.reader):
            if expires_at is not None and expires_ms is not None:
                remaining_ms = min(max(expires_at + self._state.missed_step_ms - now.wall, 0), expires_ms)
                self.expire_after(submission_id, remaining_ms / 1000, now)
        self._state.removing = dict(removals.hidden(self._state.reader))

    # --- ends ---

    def end(self, submission: LiveSubmission, final_state: str, reason: str, now: Now) -> None:
        """Flip a submission into a final state with the batch; nothing of it is handed out or accepted from now on."""
        batch = self._state.batch
        skipped = submission.unfinished
        submission.is_closing = True
        self._ending_count += 1
        batch.unleased += [
            part.row_key for work in submission.blocks.values() for part in work.parts if part.reservation.is_lease
        ]
        batch.count(submission.lanes, (0, 0, 0, 0, skipped))
        event = events.new(now.wall, final_state, submission.id, reason)
        decided: list[Decided] | None = None

        def write(database: Database, batch: Batch) -> None:
            nonlocal decided
            writer, lane_ids = database.writer, submission.lanes
            if not submissions.set_final(writer, submission.id, lane_ids, final_state, now.wall, skipped, reason):
                batch.count(lane_ids, (0, 0, 0, 0, -skipped))  # a batch before has ended it, as what it waited for had
                event.is_told = False
                return
            if submission.row.keep_on_dead:
                event.detail.count = submissions.dead_count(writer, submission.id) or None
            decided = self._waiting.ended(database, batch, submission.id, final_state, lane_ids, now)

        def settle(later: Now) -> None:
            if decided is None:
                self._ending_count -= 1
                self._state.stays_open(submission)
                self._state.forget_if_over(submission)
            else:
                self._settle_ended(submission, final_state, reason, skipped, now.wall)
                self._waiting.settle(decided, later)

        batch.add(settle, lambda later: self._cancel_ended(submission, final_state, later), write)
        batch.events.append(event)

    def _settle_ended(
        self, submission: LiveSubmission, final_state: str, reason: str, skipped: int, finished_at: int
    ) -> None:
        state = self._state
        self._ending_count -= 1
        state.set_state(submission, final_state)
        submission.is_closing, submission.unfinished = False, 0
        submission.row = submission.row._replace(
            state=final_state,
            finished_at=finished_at,
            reason=reason,
            chunks_skipped=submission.row.chunks_skipped + skipped,
        )
        code = "cancelled" if final_state == "cancelled" else "reservation_lost"
        for work in list(submission.blocks.values()):
            if work.parts:
                self._reservations.take_from_holders(submission, work, work.reserved, code=code)
            work.delayed = 0
            work.is_returned = False
            submission.forget_if_plain(work)
        submission.delayed_count = 0
        state.gates.slot_freed(
            submission
        )  # a front that keeps it aside for its delayed chunks must not do so when it is requeued
        submission.returned.clear()
        state.note_news()
        self._on_ended(submission)
        state.forget_if_over(submission)

    def _cancel_ended(self, submission: LiveSubmission, final_state: str, now: Now) -> None:
        self._ending_count -= 1
        if final_state == "expired" and submission.row.expires_ms is not None:
            self.expire_after(submission.id, 1.0, now)
        self._state.stays_open(submission)

    def cancel(self, peer: Peer, request: Cancel, now: Now) -> None:
        """Cancel a submission; what runs loses its reservation. Cancelling what is final changes nothing.

        Raises:
            Conflict: it is being moved to another daemon.
        """
        submission = self._state.find(request.submission_id)
        if submission.is_held and submission.is_closing:
            raise Conflict(cause="moving", submission_id=submission.id)
        is_running = self.cancel_one(submission, request.reason, now)
        self._state.batch.replies.append((peer, Changed(request.id, int(is_running))))

    def cancel_one(self, submission: LiveSubmission, reason: str, now: Now) -> bool:
        """Cancel a submission with the batch; False: it has ended, or is ending."""
        is_running = submission.state in submissions.UNFINISHED_STATES and not submission.is_closing
        if is_running:
            self._record(submission, history.CANCELLED, reason, now)
            self.end(submission, "cancelled", reason, now)
        return is_running

    def expire_after(self, submission_id: SubmissionId, length_s: float, now: Now) -> None:
        """Have a submission expire by the monotonic clock."""
        self._expiries.add(after(now.mono, length_s), submission_id)

    def tick(self, now: Now) -> None:
        """Let submissions expire whose time is over."""
        state = self._state
        due = list(self._expiries.take(now.mono))
        if any(state.states[name] for name in submissions.UNFINISHED_STATES):
            expired = submissions.expired(state.reader, now.wall, DUE_LIMIT)
            self._is_behind = len(expired) == DUE_LIMIT
            due += expired
        for submission_id in due:
            submission = state.submission(submission_id)
            if submission is None or submission.state in submissions.FINAL_STATES or submission.row.expires_at is None:
                continue
            if submission.is_closing:
                if submission.row.expires_ms is not None:
                    self.expire_after(submission_id, 1.0, now)  # in case that the end does not come about
                continue
            self._record(submission, history.EXPIRED, "", now)
            self.end(submission, "expired", "It expired before it was finished.", now)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to end.

        Wall-clock expiry is looked at each second, and at once while more is due.
        """
        return MonoNs(0) if self._is_behind and not self._ending_count else self._expiries.next_due()

    def _record(self, submission: LiveSubmission, event: str, reason: str, now: Now) -> None:
        self._state.batch.history.append(HistoryRow(now.wall, event, submission.id, 0, 0, reason=reason))

    # --- gone ---

    def remove(self, peer: Peer, request: Remove, now: Now) -> None:
        """Forget a final submission.

        Raises:
            NotFinished: it may still be worked on.
            Conflict: a requeue or another removal of it is being committed, a submission waits for it, or it moves.
        """
        submission = self._state.find(request.submission_id)
        if submission.state not in submissions.FINAL_STATES:
            raise NotFinished(cause="not_finished", submission_id=submission.id, state=submission.state)
        if submission.is_held:
            raise Conflict(cause="moving", submission_id=submission.id)
        if submission.is_closing:
            raise Conflict(cause="finalizing", submission_id=submission.id)
        _check_nobody_waits(self._state.reader, submission.id)
        self.hide(submission)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def hide(self, submission: LiveSubmission) -> None:
        """Begin the removal of a final submission."""
        submission.is_closing = True

        def write(database: Database, _: Batch) -> None:
            _check_nobody_waits(database.writer, submission.id)  # again: one may have come with this batch
            removals.hide(database.writer, submission.id)

        self._state.batch.add(
            lambda _: self._settle_hidden(submission), lambda _: self._cancel_hidden(submission), write
        )
        self._state.batch.after.append(lambda _: self._note_removed(submission))

    def _cancel_hidden(self, submission: LiveSubmission) -> None:
        submission.is_closing = False

    def _settle_hidden(self, submission: LiveSubmission) -> None:
        self._state.set_state(submission, "removed")
        self._state.live.pop(submission.id, None)

    def _note_removed(self, submission: LiveSubmission) -> None:
        """It was hidden, and what the same batch has folded of it is known."""
        row = submission.row
        self._state.removing[submission.id] = removals.Removed(
            row.request_key, row.lanes, submission.total, submission.folded, submission.dead, row.chunks_skipped
        )

    def _settle_removed(self, submission_id: SubmissionId, removed: removals.Removed, gone: list[GoneLane]) -> None:
        self._state.removing.pop(submission_id, None)
        self._state.unfolded_done.pop(submission_id, None)
        self._state.unfolded_completed.pop(submission_id, None)
        if not removed.keeps_content:
            self.removed_content.append(removed.request_key.hex())
        self._state.fronts.forget_lanes(gone)

    def remove_slice(self) -> None:
        """Delete a slice of what was removed with the batch: some of a large submission, or many small ones."""
        ended: list[tuple[SubmissionId, removals.Removed, list[GoneLane]]] = []

        def write(database: Database, _: Batch) -> None:
            rows = self._state.slice_of(removals.REMOVE_ROWS)
            for submission_id, removed in self._state.removing.items():
                gone, rows_taken = removals.remove_slice(
                    database.writer, submission_id, rows, is_elsewhere=removed.keeps_content
                )
                if gone is not None:
                    ended.append((SubmissionId(submission_id), removed, gone))
                rows -= rows_taken
                if rows <= 0:
                    break

        def settle(_: Now) -> None:
            for one in ended:
                self._settle_removed(*one)

        self._state.batch.add(settle, nothing_to_undo, write)


def _check_nobody_waits(connection: apsw.Connection, submission_id: int) -> None:
    waiting = dependencies.first_waiting(connection, submission_id)
    if waiting is not None:
        raise Conflict(cause="awaited", submission_id=submission_id, waiting_id=waiting)
