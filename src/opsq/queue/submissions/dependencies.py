"""Submissions that wait for others: what they wait for when they come, and what becomes of them when that ends.

The store decides, inside the transaction; memory follows when that is settled. Of those who wait for one end, the first
are told in its own batch and the others in slices, each a batch; the file says who is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import apsw

from opsq.clock import MonoNs, Now
from opsq.errors import Conflict, NotFound, UsageError
from opsq.queue.batch import Batch
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.state import EngineState
from opsq.store import dependencies, events, history, lanes, submissions
from opsq.store.database import Database
from opsq.store.dependencies import Decided, Wait
from opsq.store.history import HistoryRow
from opsq.store.submissions import SubmissionRow
from opsq.wire.messages import Dependency, NewSubmission

SLICE_WAITING = 64
"""How many of those who wait are told in one batch: about 4 ms."""


class Dependencies:
    """Tells those who wait.

    Args:
        on_ended: notified of submissions that have ended by that.
        on_scheduled: notified of those that wait for their date from now on.
    """

    def __init__(
        self,
        state: EngineState,
        on_ended: Callable[[LiveSubmission], None],
        on_scheduled: Callable[[SubmissionRow, Now], None],
    ) -> None:
        self._state = state
        self._on_ended = on_ended
        self._on_scheduled = on_scheduled
        self._is_telling = self._has_told = False

    # --- those that come ---

    def check(self, new: NewSubmission) -> None:
        """`NotFound` unless what a submission is to wait for is there; that is looked at again when it is written."""
        for one in new.after:
            if one.submission_id is not None and not submissions.is_there(self._state.reader, one.submission_id):
                raise self._state.missing(one.submission_id)

    def add(
        self, writer: apsw.Connection, new: NewSubmission, row: SubmissionRow, lane_ids: list[int]
    ) -> SubmissionRow:
        """Store what a new submission waits for; its row as that makes it.

        Raises:
            NotFound: what it waits for is there no more.
            Conflict: it would wait for itself, or for too many to know.
        """
        waits: dict[int, str] = {}
        for one in new.after:
            target, needs = self._wait(writer, one)
            if waits.get(target) != "completed":
                waits[target] = needs
        state, failed = dependencies.add(writer, row.id, waits.items(), new.on_failed_dependency)
        if state == "cancelled":
            return row._replace(
                state=state,
                finished_at=row.submitted_at,
                chunks_skipped=row.chunks_total,
                reason=dependencies.reason_of(*failed),
            )
        if state == "blocked":
            circle = dependencies.closes_circle(writer, row.id, lane_ids)
            if circle is None:
                raise Conflict(cause="waits_for_too_many", limit=dependencies.CIRCLE_ROWS)
            if circle:
                raise Conflict(cause="waits_for_itself")
            return row._replace(state=state, finished_at=None)
        return row

    @staticmethod
    def _wait(writer: apsw.Connection, one: Dependency) -> Wait:
        if one.key is not None and one.value is not None:
            return ~lanes.find_or_make(writer, one.key, one.value), "ended"
        submission_id = one.submission_id or 0
        if not submissions.is_there(writer, submission_id):
            raise NotFound(cause="unknown_submission", submission_id=submission_id)
        return submission_id, one.needs

    # --- those that end ---

    def ended(
        self, database: Database, batch: Batch, submission_id: int, state: str, lane_ids: Iterable[int], now: Now
    ) -> list[Decided]:
        """A submission ends in this batch: tell those who wait for it, as many as one batch may.

        Returns:
            What waits no more; `settle` takes it.

        Cost: one look-up where nobody uses dependencies.
        """
        if not dependencies.is_used(database.writer):
            return []
        dependencies.note_end(database.writer, submission_id, state, lane_ids)
        decided = self._tell(database, batch, now)
        self._has_told = self._has_told or bool(decided) or dependencies.has_due(database.writer)
        return decided

    def _tell(self, database: Database, batch: Batch, now: Now) -> list[Decided]:
        limit = self._state.slice_of(SLICE_WAITING) - batch.told_count
        if limit <= 0:
            return []
        decided, told_count = dependencies.tell(database.writer, limit, now.wall)
        batch.told_count += told_count
        for one in decided:
            if one.state in submissions.FINAL_STATES:
                batch.events.append(events.new(now.wall, one.state, one.submission_id, one.reason))
            if one.state == "cancelled":
                batch.count(frozenset(one.lanes), (0, 0, 0, 0, one.chunks_total))
                batch.history.append(cancelled(one.submission_id, one.reason, now))
        return decided

    def settle(self, decided: Iterable[Decided], now: Now) -> None:
        """Have memory say what was committed."""
        state = self._state
        if self._has_told:
            self._has_told = False
            state.has_untold = dependencies.has_due(state.reader)
            state.note_news()
        for one in decided:
            state.states["blocked"] -= 1
            state.states[one.state] += 1
            known = state.live.get(one.submission_id)
            if known is not None and known.is_plain:
                del state.live[one.submission_id]  # only the file has its instants after a step of the clock
            submission = state.submission(one.submission_id)
            if submission is None:
                continue
            submission.state = one.state
            if one.state == "open":
                state.became_free(submission)
            elif one.state == "scheduled":
                self._on_scheduled(submission.row, now)
                state.forget_if_over(submission)
            else:
                self._settle_ended(submission, one, now)

    def _settle_ended(self, submission: LiveSubmission, one: Decided, now: Now) -> None:
        submission.row = submission.row._replace(
            state=one.state,
            finished_at=now.wall,
            reason=one.reason,
            chunks_skipped=one.chunks_total if one.state == "cancelled" else 0,
        )
        submission.unfinished = 0
        self._state.note_news()
        self._on_ended(submission)
        self._state.forget_if_over(submission)

    # --- slices ---

    def tick(self, now: Now) -> None:
        """Have the batch tell the next of those who wait."""
        if not self._state.has_untold or self._is_telling:
            return
        self._is_telling = True
        decided: list[Decided] = []

        def write(database: Database, batch: Batch) -> None:
            decided[:] = self._tell(database, batch, now)

        def settle(now: Now) -> None:
            self._is_telling, self._has_told = False, True
            self.settle(decided, now)

        self._state.batch.add(settle, self._try_again, write)

    def _try_again(self, _: Now) -> None:
        self._is_telling = False

    def next_due(self) -> MonoNs | None:
        """When `tick` has somebody to tell."""
        return MonoNs(0) if self._state.has_untold and not self._is_telling else None


def cancelled(submission_id: int, reason: str, now: Now) -> HistoryRow:
    """What the history says of a submission that is cancelled since what it waited for has failed."""
    return HistoryRow(now.wall, history.CANCELLED, submission_id, 0, 0, reason=reason)


def check_after(new: NewSubmission) -> None:
    """`UsageError` unless each thing that a submission waits for is one."""
    for one in new.after:
        is_pair = one.key is not None and one.value is not None
        if is_pair == (one.submission_id is not None) or (one.key is None) != (one.value is None):
            raise UsageError(cause="bad_dependency")
