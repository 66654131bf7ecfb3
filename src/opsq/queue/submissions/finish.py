"""How submissions end: completed, failed, cancelled, expired; and how they are removed. How they begin again is said in `letters`.

An end is one row that flips, whatever the size; what it leaves behind is folded or deleted in slices later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.clock import MonoNs, Now, after
from opsq.errors import Conflict, NotFinished, NotFound
from opsq.ids import SubmissionId
from opsq.queue.batch import Batch
from opsq.queue.chunks.live_submission import Supply
from opsq.queue.state import Core, Peer
from opsq.store import history, submissions
from opsq.store.database import Database
from opsq.store.history import HistoryRow
from opsq.store.lanes import GoneLane
from opsq.wire.messages import Cancel, Changed, Remove

if TYPE_CHECKING:
    from opsq.queue.chunks.reservations import Reservations

DUE_LIMIT = 200


class Endings:
    """Ends submissions, revives them, forgets them."""

    def __init__(self, core: Core, reservations: Reservations) -> None:
        self._core = core
        self._reservations = reservations
        self._ending_count = 0
        self._is_behind = False
        self.removing: dict[int, bytes] = {}
        self.removed_content: list[str] = []

    def restore(self, now: Now) -> None:
        """Set the timers of running times to live, and go on with removals that a crash interrupted."""
        for submission_id, _, _, _, expires_at, expires_ms in submissions.with_durations(self._core.reader):
            if expires_at is not None and expires_ms is not None:
                remaining_ms = min(max(expires_at + self._core.missed_step_ms - now.wall, 0), expires_ms)
                self._core.expiries.add(after(now.mono, remaining_ms / 1000), submission_id)
        self.removing = dict(submissions.hidden(self._core.reader))

    # --- ends ---------------------------------------------------------------------------------------------------------------------

    def end(self, supply: Supply, state: str, reason: str, now: Now) -> None:
        """Flip a submission into a final state with the batch; nothing of it is handed out or accepted from now on."""
        batch = self._core.batch
        skipped = supply.unfinished
        supply.is_closing = True
        self._ending_count += 1
        batch.unleased += [
            part.row_key for work in supply.blocks.values() for part in work.parts if part.reservation.is_lease
        ]
        batch.statements.append(
            lambda database, _: submissions.set_final(
                database.writer, supply.id, supply.lanes, state, now.wall, skipped, reason
            )
        )
        batch.count(supply.lanes, (0, 0, 0, 0, skipped))
        batch.entries.append(_Ended(self, supply, state, reason, skipped, now.wall))

    def settle_ended(self, supply: Supply, state: str, reason: str, skipped: int, finished_at: int) -> None:
        """The end of a submission was committed."""
        core = self._core
        self._ending_count -= 1
        core.states[supply.state] -= 1
        core.states[state] += 1
        supply.state, supply.is_closing, supply.unfinished = state, False, 0
        supply.row = supply.row._replace(
            state=state, finished_at=finished_at, reason=reason, chunks_skipped=supply.row.chunks_skipped + skipped
        )
        code = "cancelled" if state == "cancelled" else "reservation_lost"
        for work in list(supply.blocks.values()):
            if work.parts:
                self._reservations.take_from_holders(supply, work, work.reserved, code=code)
            work.delayed = 0
            work.is_returned = False
            supply.forget_if_plain(work)
        supply.delayed_count = 0
        core.gates.slot_freed(
            supply
        )  # a front that keeps it aside for its delayed chunks must not do so when it is requeued
        supply.returned.clear()
        core.has_news = True
        core.watched.ended(supply)
        core.forget_if_over(supply)

    def not_ended(self, supply: Supply, state: str, now: Now) -> None:
        """The batch of an end is gone."""
        self._ending_count -= 1
        if state == "expired" and supply.row.expires_ms is not None:
            self._core.expiries.add(after(now.mono, 1.0), supply.id)
        self.still_open(supply)

    def still_open(self, supply: Supply) -> None:
        """What would have changed the state of a submission is gone."""
        supply.is_closing = False
        self._core.became_free(supply)

    def cancel(self, peer: Peer, request: Cancel, now: Now) -> None:
        """Cancel a submission; what runs loses its reservation. Cancelling what is final changes nothing."""
        supply = self.find(request.submission_id)
        is_running = supply.state in {"open", "scheduled"} and not supply.is_closing
        if is_running:
            self._record(supply, history.CANCELLED, 0, 0, request.reason, now)
            self.end(supply, "cancelled", request.reason, now)
        self._core.batch.replies.append((peer, Changed(request.id, int(is_running))))

    def tick(self, now: Now) -> None:
        """Let submissions expire whose time is over."""
        core = self._core
        due = list(core.expiries.take(now.mono))
        if core.states["open"] or core.states["scheduled"]:
            expired = submissions.expired(core.reader, now.wall, DUE_LIMIT)
            self._is_behind = len(expired) == DUE_LIMIT
            due += expired
        for submission_id in due:
            supply = core.supply(submission_id)
            if supply is None or supply.state not in {"open", "scheduled"} or supply.row.expires_at is None:
                continue
            if supply.is_closing:
                if supply.row.expires_ms is not None:
                    core.expiries.add(after(now.mono, 1.0), submission_id)  # in case that the end does not come about
                continue
            self._record(supply, history.EXPIRED, 0, 0, "", now)
            self.end(supply, "expired", "Its time to live was over before all of it was done.", now)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to end; wall-clock expiry is looked at each second, and at once while more is due."""
        return MonoNs(0) if self._is_behind and not self._ending_count else self._core.expiries.next_due()

    def _record(self, supply: Supply, event: str, block: int, mask: int, reason: str, now: Now) -> None:
        self._core.batch.history.append(
            HistoryRow(now.wall, event, supply.id, block, mask, 0, 0, "", 0.0, 0.0, 0.0, None, None, reason)
        )

    def find(self, submission_id: int) -> Supply:
        """A submission; `NotFound` if there is none."""
        supply = self._core.supply(submission_id)
        if supply is None:
            raise NotFound(f"Submission {submission_id} is not known.", hint="`opsq list` shows those that are.")
        return supply

    # --- gone ---------------------------------------------------------------------------------------------------------------------

    def remove(self, peer: Peer, request: Remove, now: Now) -> None:
        """Forget a final submission.

        Raises:
            NotFinished: it may still be worked on.
            Conflict: a requeue or another removal of it is being committed.
        """
        supply = self.find(request.submission_id)
        if supply.state not in submissions.FINAL_STATES:
            raise NotFinished(f"Submission {supply.id} is {supply.state}.", hint=f"`opsq cancel {supply.id}` first.")
        if supply.is_closing:
            raise Conflict(f"Submission {supply.id} is just being requeued or removed.", hint="Try again.")
        self.hide(supply)
        self._core.batch.replies.append((peer, Changed(request.id, 1)))

    def hide(self, supply: Supply) -> None:
        """Begin the removal of a final submission."""
        supply.is_closing = True
        self._core.batch.statements.append(lambda database, _: submissions.hide(database.writer, supply.id))
        self._core.batch.entries.append(_Hidden(self, supply))

    def settle_hidden(self, supply: Supply) -> None:
        """The removal of a submission has begun."""
        self._core.states[supply.state] -= 1
        supply.state = "removed"
        self._core.supplies.pop(supply.id, None)
        self.removing[supply.id] = supply.row.request_key

    def settle_removed(self, submission_id: SubmissionId, request_key: bytes, gone: list[GoneLane]) -> None:
        """Nothing is left of a removed submission."""
        self.removing.pop(submission_id, None)
        self._core.unfolded_done.pop(submission_id, None)
        self._core.unfolded_completed.pop(submission_id, None)
        self.removed_content.append(request_key.hex())
        self._core.forget_lanes(gone)

    def remove_slice(self) -> None:
        """Delete a slice of a removed submission with the batch."""
        submission_id, request_key = next(iter(self.removing.items()))
        entry = _Slice(self, SubmissionId(submission_id), request_key)
        self._core.batch.statements.append(entry.write)
        self._core.batch.entries.append(entry)


class _Ended:
    __slots__ = ("_endings", "_finished_at", "_reason", "_skipped", "_state", "_supply")

    def __init__(
        self, endings: Endings, supply: Supply, state: str, reason: str, skipped: int, finished_at: int
    ) -> None:
        self._endings = endings
        self._supply = supply
        self._state = state
        self._reason = reason
        self._skipped = skipped
        self._finished_at = finished_at

    def settle(self, now: Now) -> None:
        self._endings.settle_ended(self._supply, self._state, self._reason, self._skipped, self._finished_at)

    def cancel(self, now: Now) -> None:
        self._endings.not_ended(self._supply, self._state, now)


class _Hidden:
    __slots__ = ("_endings", "_supply")

    def __init__(self, endings: Endings, supply: Supply) -> None:
        self._endings = endings
        self._supply = supply

    def settle(self, now: Now) -> None:
        self._endings.settle_hidden(self._supply)

    def cancel(self, now: Now) -> None:
        self._supply.is_closing = False


class _Slice:
    __slots__ = ("_endings", "_gone", "_id", "_request_key")

    def __init__(self, endings: Endings, submission_id: SubmissionId, request_key: bytes) -> None:
        self._endings = endings
        self._id = submission_id
        self._request_key = request_key
        self._gone: list[GoneLane] | None = None

    def write(self, database: Database, batch: Batch) -> None:
        self._gone = submissions.remove_slice(database.writer, self._id)

    def settle(self, now: Now) -> None:
        if self._gone is not None:
            self._endings.settle_removed(self._id, self._request_key, self._gone)

    def cancel(self, now: Now) -> None:
        """Nothing to undo: the slice comes again."""
