"""How submissions come in: validation, request keys and unique keys, and the instant at which they open.

Must not know how a submission ends.
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.clock import MonoNs, Now, after
from opsq.errors import Conflict, UsageError
from opsq.ids import SubmissionId, SubmissionIds
from opsq.queue.batch import Batch
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.rule_changes import RuleChanges, check_weight
from opsq.queue.state import EngineState
from opsq.queue.submissions.admission import Admission
from opsq.queue.submissions.dependencies import Dependencies, cancelled, check_after
from opsq.queue.submissions.keys import Keys
from opsq.queue.timers import Timers
from opsq.store import events, idempotency_keys, lanes, moved, submissions
from opsq.store.database import Database
from opsq.store.dependencies import Decided, first_state
from opsq.store.submissions import About, SubmissionRow
from opsq.strategy.arms import shuffle_of
from opsq.titles import check_title
from opsq.wire.messages import CheckCapacity, Created, NewSubmission, Submit, Submitted

CONTENT_LIMIT_BYTES = 64 << 10
ATTACHMENT_LIMIT_BYTES = 1 << 20
METADATA_LIMIT = 64
BUILT_IN_KEYS = frozenset({"submission"})
DAY_S = 86_400
DUE_LIMIT = 200
"""Scheduled submissions opened by one look at the clock."""


class Submitter:
    """Takes submissions in.

    Args:
        expire_after: has a submission expire after that many seconds.
    """

    def __init__(
        self,
        state: EngineState,
        admission: Admission,
        keys: Keys,
        rule_changes: RuleChanges,
        waiting: Dependencies,
        expire_after: Callable[[SubmissionId, float, Now], None],
    ) -> None:
        self._state = state
        self._admission = admission
        self._keys = keys
        self._rule_changes = rule_changes
        self._waiting = waiting
        self._expire_after = expire_after
        self._ids = SubmissionIds(submissions.last_id(state.reader), state.shard or 0)
        self._delays: Timers[SubmissionId] = Timers()
        self._opening: set[int] = set()
        self._is_behind = False

    def restore(self, now: Now) -> None:
        """Set the timers of delays that are still running: what remains is at least 0 and at most the whole."""
        for submission_id, state, not_before_at, delay_ms, *_ in submissions.with_durations(self._state.reader):
            if state == "scheduled" and not_before_at is not None and delay_ms is not None:
                remaining_ms = min(max(not_before_at + self._state.missed_step_ms - now.wall, 0), delay_ms)
                self._delays.add(after(now.mono, remaining_ms / 1000), submission_id)

    def submit(self, peer: Peer, request: Submit, now: Now) -> None:
        """Store submissions, all or none, as soon as there is room for them; the reply follows the commit.

        Raises:
            UsageError: one of them cannot be; nothing is stored.
            Conflict: one of them was withdrawn, or its request key has made another, or one of its keys belongs to a
                submission that is moving here.
            NoRoom: there is no room for them, and the producer does not want to wait.
            QueueDraining: one of them is new, and the daemon takes nothing new.
        """
        for new in request.submissions:
            self.check(new, now)
            self._check_active(self._known(new, now))
        most = sum(new.chunks_count for new in request.submissions)
        self._admission.enter(
            peer, request, most, lambda: self._needed(request, now), lambda now: self._submit(peer, request, now), now
        )

    def check(self, new: NewSubmission, now: Now) -> None:
        """Make sure that a submission can be made; raises as `submit`."""
        check_new(new)
        if new.ack == "replicated" and not self._state.policy.replicate_to:
            raise UsageError(cause="no_replica")
        if new.idempotency_keep_s is not None:
            _check_keep(new, new.idempotency_keep_s, self._state.policy.finished_days * DAY_S)
        self._keys.check(new)
        if new.after and self._known(new, now) is None:
            self._waiting.check(new)

    def check_follow_up(self, new: NewSubmission, now: Now) -> None:
        """Make sure that a submission can be made, or has been by one of its keys, even if it is elsewhere by now."""
        if self._state.moved_by_key(new.request_key, new.idempotency_key) is None:
            self.check(new, now)

    def expects(self, request_key: bytes) -> bool:
        """Whether a request has made a submission, or may be about to."""
        return self._keys.holder(request_key, None) is not None or self._admission.has_waiting(request_key)

    def check_capacity(self, peer: Peer, request: CheckCapacity, now: Now) -> None:
        """Answer a producer whether there is room, before it writes content; none is reserved for it.

        Raises:
            NoRoom: there is none, and the producer does not want to wait.
            UsageError, Conflict, NotFound: the submission cannot be.
        """
        state, count, key, new = self._state, request.chunks_count, request.unique_key, request.submission
        if new is not None:
            self.check(new, now)

        def known() -> SubmissionId | None:
            if new is not None:
                return self._known(new, now)
            return state.unique_keys.holder(key) if key is not None else None

        self._check_active(known())
        moved_to = self._moved_to(new) if new is not None and known() is None else None

        def needed() -> int | None:
            return count if known() is None and moved_to is None else None

        def admit(_: Now) -> None:
            self._admission.found(peer, request, known(), moved_to)

        self._admission.enter(peer, request, count, needed, admit, now)

    def _moved_to(self, new: NewSubmission) -> int | None:
        """The shard to which a submission has moved that had the unique key of this one, and may have it still."""
        if new.unique_key is None or not self._state.has_moved:
            return None
        gone = moved.by_unique_key(self._state.reader, new.unique_key)
        return None if gone is None else gone.shard

    def _submit(self, peer: Peer, request: Submit, now: Now) -> None:
        for new in request.submissions:
            self._keys.check(new)  # again: it may have waited for room
            self._check_active(self._known(new, now))
        created = [self.submit_one(peer, new, now) for new in request.submissions]
        self._state.batch.replies.append((peer, Submitted(request.id, created)))
        default = self._state.policy.ack
        if any((new.ack or default) == "replicated" for new in request.submissions):
            self._state.await_copy(peer, request.id)

    def _needed(self, request: Submit, now: Now) -> int | None:
        """How many chunks a request would add; None: all its submissions are known already."""
        new = {
            one.unique_key or one.idempotency_key or one.request_key: one
            for one in request.submissions
            if self._known(one, now) is None
        }
        return sum(one.chunks_count for one in new.values()) if new else None

    def _known(self, new: NewSubmission, now: Now) -> SubmissionId | None:
        """The submission that this request has made before, or that has one of its keys."""
        known = self._keys.known(new, now)
        if known is None and new.unique_key is not None:
            known = self._state.unique_keys.holder(new.unique_key)
        return known

    def _check_active(self, known: SubmissionId | None) -> None:
        """`Conflict` if the submission that has a key is on its way here, and may not come, or does not come after all.

        Follow-ups are not checked: without them the work that they come with could not be completed.
        """
        state = self._state
        if known is None:
            return
        if known in state.arriving or known in state.staging:
            raise Conflict(cause="moving_here", submission_id=known)
        removed = state.removing.get(known)
        if removed is not None and removed.keeps_content:
            raise Conflict(cause="clearing", submission_id=known)

    def submit_one(self, peer: Peer, new: NewSubmission, now: Now) -> Created:
        """Store a submission with the batch, whether there is room for it or not."""
        state, batch = self._state, self._state.batch
        known = self._known(new, now)
        if known is None and (gone := state.moved_by_key(new.request_key, new.idempotency_key)) is not None:
            known = SubmissionId(gone.submission_id)  # only of what cannot be sent elsewhere
        if known is not None:
            return Created(known, False)
        row = self._row(peer, new, now)
        self._keys.enter(new.request_key, new.idempotency_key, new.content, row.id)
        if new.unique_key is not None and (row.state != "completed" or new.after):
            state.unique_keys.take(new.unique_key, row.id, until_start=new.unique_until_start)
        self._admission.accept(batch, new.chunks_count)
        stored, decided = row, list[Decided]()
        about = About(new.title or None, peer.user, peer.place)

        def write(database: Database, batch: Batch) -> None:
            nonlocal stored, decided
            stored, lane_ids = self._insert(new, row, about, database, batch)
            if stored.state in submissions.FINAL_STATES:
                batch.events.append(events.new(now.wall, stored.state, row.id, stored.reason))
                if stored.state == "cancelled":
                    batch.history.append(cancelled(row.id, stored.reason, now))
                decided = self._waiting.ended(database, batch, row.id, stored.state, lane_ids, now)

        def settle(now: Now) -> None:
            self._settle_stored(new, stored, now)
            self._waiting.settle(decided, now)

        batch.add(settle, lambda _: self._forget_keys(new, row), write)
        for key, weight in new.weights.items():
            self._rule_changes.put_weight(key, new.metadata[key], weight, by_submission=True)
        return Created(row.id, True)

    def _row(self, peer: Peer, new: NewSubmission, now: Now) -> SubmissionRow:
        policy = self._state.policy
        backoff = new.backoff or policy.backoff
        not_before_at, delay_ms = _instant(now, new.not_before_at, new.delay_s)
        expires_at, expires_ms = _instant(now, new.expires_at, new.expires_s)
        state = first_state(new.chunks_count, not_before_at, now.wall)
        submission_id = self._ids.next(now.wall)
        return SubmissionRow(
            id=submission_id,
            state=state,
            chunks_total=new.chunks_count,
            chunks_completed=0,
            chunks_dead=0,
            chunks_skipped=0,
            chunks_dropped=0,
            frontier=0,
            priority=new.priority,
            shuffle=shuffle_of(submission_id),
            reservation_s=new.reservation_s or policy.reservation_s,
            max_attempts=new.max_attempts or policy.max_attempts,
            max_lost=new.max_lost or policy.max_lost,
            backoff_base_s=backoff.base_s,
            backoff_factor=backoff.factor,
            backoff_max_s=backoff.max_s,
            keep_on_dead=int(new.keep_on_dead),
            submitted_at=now.wall,
            not_before_at=not_before_at,
            delay_ms=delay_ms,
            expires_at=expires_at,
            expires_ms=expires_ms,
            finished_at=now.wall if state == "completed" else None,
            revived_at=None,
            request_key=new.request_key,
            unique_key=new.unique_key,
            unique_until=submissions.UNTIL_START if new.unique_until_start else submissions.UNTIL_DONE,
            reason="",
            submitter=peer.uid,
            lanes=b"",
            has_failed=0,
            first_block=None,
            first_pending=None,
            has_attachment=int(new.attachment is not None),
            short_content=new.content if len(new.content) <= submissions.SHORT_CONTENT_BYTES else None,
        )

    def _insert(
        self, new: NewSubmission, row: SubmissionRow, about: About, database: Database, batch: Batch
    ) -> tuple[SubmissionRow, list[int]]:
        """Insert the rows of a submission; the row itself as it was stored, and its lanes."""
        writer = database.writer
        found = {key: (lanes.find_or_make(writer, key, value), value) for key, value in new.metadata.items()}
        lane_ids = [lane for lane, _ in found.values()]
        row = row._replace(lanes=lanes.encode(found))
        if new.after:
            row = self._waiting.add(writer, new, row, lane_ids)
        submissions.insert(writer, row, new.content, new.attachment, about)
        if new.idempotency_key is not None:
            idempotency_keys.keep(writer, new.idempotency_key, row.id)
        if self._state.has_moved:
            moved.release(writer, new.idempotency_key, new.unique_key)
        lanes.attach(writer, row.id, lane_ids)
        if row.state == "open":
            lanes.enter(writer, row.id, row.shuffle, row.priority, lane_ids)
        elif row.state not in submissions.FINAL_STATES:
            lanes.announce(writer, row.id, lane_ids)
        batch.count(frozenset(lane_ids), (1, row.chunks_total, 0, 0, row.chunks_skipped))
        return row, lane_ids

    def _settle_stored(self, new: NewSubmission, row: SubmissionRow, now: Now) -> None:
        self._forget_keys(new, row)
        state = self._state
        state.states[row.state] += 1
        state.fronts.note_new_lanes()
        if row.state == "open":
            # A walk may have met its row between the COMMIT and now, and handed out of it.
            known = state.live.get(row.id)
            state.became_free(known or state.keep(LiveSubmission(row, state.lane_sets.of(row.lanes))))
        elif row.state == "scheduled" and row.delay_ms is not None:
            self._delays.add(after(now.mono, row.delay_ms / 1000), row.id)
        if row.expires_ms is not None and row.state not in submissions.FINAL_STATES:
            self._expire_after(row.id, row.expires_ms / 1000, now)

    def wait_for_date(self, row: SubmissionRow, now: Now) -> None:
        """A submission is not blocked any more: open it when the rest of its delay is over.

        `--at` is looked at in any case.
        """
        if row.delay_ms is not None and row.not_before_at is not None:
            remaining_ms = min(max(row.not_before_at - now.wall, 0), row.delay_ms)
            self._delays.add(after(now.mono, remaining_ms / 1000), row.id)

    def _forget_keys(self, new: NewSubmission, row: SubmissionRow) -> None:
        self._keys.leave(new.request_key, new.idempotency_key)
        self._state.unique_keys.release(new.unique_key, row.id)

    def tick(self, now: Now) -> None:
        """Open what is due: delays by the monotonic clock, `--at` by the wall clock."""
        for submission_id in self._delays.take(now.mono):
            self._open(submission_id, now)
        if self._state.states["scheduled"]:
            due = submissions.due(self._state.reader, now.wall, DUE_LIMIT)
            self._is_behind = len(due) == DUE_LIMIT
            for submission_id in due:
                self._open(submission_id, now)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to open.

        `--at` is looked at each second in any case, and at once while more of them are due.
        """
        return MonoNs(0) if self._is_behind and not self._opening else self._delays.next_due()

    def _open(self, submission_id: SubmissionId, now: Now) -> None:
        submission = self._state.submission(submission_id)
        if submission is None or submission.state != "scheduled" or submission_id in self._opening:
            return
        if submission.is_closing:
            self._try_again(submission, now)  # in case that the end does not come about
            return
        self._opening.add(submission_id)
        submission.pins += 1
        self._state.batch.add(
            lambda _: self._settle_opened(submission),
            lambda now: self._cancel_opened(submission, now),
            lambda database, _: submissions.set_open(database.writer, submission.row, submission.lanes),
        )

    def _settle_opened(self, submission: LiveSubmission) -> None:
        self._opening.discard(submission.id)
        submission.pins -= 1
        if submission.state == "scheduled":
            self._state.set_state(submission, "open")
            self._state.became_free(submission)

    def _cancel_opened(self, submission: LiveSubmission, now: Now) -> None:
        """The batch of an opening is gone: try again."""
        self._opening.discard(submission.id)
        submission.pins -= 1
        self._try_again(submission, now)

    def _try_again(self, submission: LiveSubmission, now: Now) -> None:
        if submission.row.delay_ms is not None:
            self._delays.add(after(now.mono, 1.0), submission.id)


def check_new(new: NewSubmission) -> None:
    """`UsageError` unless a submission can be made of it."""
    if new.title is not None:
        check_title(new.title)
    for key in new.metadata:
        if key in BUILT_IN_KEYS:
            raise UsageError(cause="built_in_key", key=key)
    for key, weight in new.weights.items():
        check_weight(weight)
        if key not in new.metadata:
            raise UsageError(cause="weight_without_pair", key=key)
    if len(new.metadata) > METADATA_LIMIT:
        raise UsageError(cause="too_many_pairs", count=len(new.metadata), limit=METADATA_LIMIT)
    if new.delay_s is not None and new.not_before_at is not None:
        raise UsageError(cause="delay_and_start")
    if new.unique_until_start and new.unique_key is None:
        raise UsageError(cause="until_start_without_key")
    if new.expires_s is not None and new.expires_at is not None:
        raise UsageError(cause="two_expiries")
    check_after(new)
    if len(new.content) > CONTENT_LIMIT_BYTES:
        raise UsageError(cause="long_content", size_bytes=len(new.content), limit_bytes=CONTENT_LIMIT_BYTES)
    if new.attachment is not None and len(new.attachment) > ATTACHMENT_LIMIT_BYTES:
        raise UsageError(cause="long_attachment", size_bytes=len(new.attachment), limit_bytes=ATTACHMENT_LIMIT_BYTES)


def _check_keep(new: NewSubmission, keep_s: float, known_s: float) -> None:
    """`UsageError` unless a submission is known for as long as its idempotency key is to be kept."""
    if new.idempotency_key is None:
        raise UsageError(cause="keep_without_key")
    if keep_s > known_s:
        raise UsageError(cause="keep_too_long", keep_s=keep_s, known_s=known_s)


def _instant(now: Now, at: int | None, duration_s: float | None) -> tuple[int | None, int | None]:
    """(wall instant, full length in ms if it was given as a duration)."""
    if duration_s is not None:
        return now.wall + int(duration_s * 1000), int(duration_s * 1000)
    return at, None
