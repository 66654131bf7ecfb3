"""What the engine tells about itself: states, lists, counts, dead letters.

Reads only, and from counters: it must never scan the backlog.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from operator import attrgetter

from opsq.clock import Now
from opsq.errors import UsageError
from opsq.queue.chunk_counters import ChunkCounters
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.folding import Folding
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.submissions.admission import Admission
from opsq.queue.views.dependency_graph import edges_around
from opsq.queue.views.held_back import HeldBack
from opsq.queue.views.watchdog import Watchdog
from opsq.store import arriving, lanes, moved, submissions
from opsq.strategy.arms import SUBMISSION_KEY, Arm, Filter
from opsq.wire.messages import (
    ArrivingState,
    Attachment,
    Backoff,
    ConsumerState,
    Counts,
    DaemonState,
    Describe,
    Described,
    GetAttachment,
    List,
    Listed,
    Measures,
    Show,
    Shown,
    Status,
    SubmissionState,
)

CONSUMERS_SHOWN = 1_000
OLDEST_ROWS = 1_000
"""Submissions looked at for the oldest with a waiting chunk: a millisecond."""
_numbers = attrgetter(*Counts.__struct_fields__[1:])
_NOTHING = (0,) * 7
"""Submissions; chunks in all, completed, dead, skipped, reserved, delayed."""


class Reports:
    """Answers questions."""

    def __init__(
        self,
        state: EngineState,
        folding: Folding,
        reservations: Reservations,
        reserve_calls: ReserveCalls,
        admission: Admission,
        watchdog: Watchdog,
        held_back: HeldBack,
        counters: ChunkCounters,
    ) -> None:
        self._counters = counters
        self._watchdog = watchdog
        self._held_back = held_back
        self._state = state
        self._folding = folding
        self._reservations = reservations
        self._reserve_calls = reserve_calls
        self._admission = admission

    def show(self, peer: Peer, request: Show) -> None:
        """Answer with the state of a submission."""
        submission = self._state.find(request.submission_id)
        held_back = self._held_back.of_submission(submission)
        reader = self._state.reader
        about = submissions.about(reader, submission.id)
        edges = edges_around(reader, submission.id, submission.lanes)
        self._state.reply(peer, Shown(request.id, submission_state(submission, about), held_back, edges))

    def list(self, peer: Peer, request: List) -> None:
        """Answer with a page of submissions.

        Cost: the rows of the page, and those that the state condition passes over.
        """
        state = self._state
        unknown = sorted(set(request.states) - set(submissions.STATES))
        if unknown:
            raise UsageError(cause="unknown_state", name=unknown[0], names=", ".join(submissions.STATES))
        lane_ids = lanes.find_all(state.reader, request.metadata)
        if lane_ids is None:
            state.reply(peer, Listed(request.id, [], None))
            return
        rows = list(submissions.listed(state.reader, request.states, lane_ids, request.before, request.limit))
        states = []
        for row, about in rows:
            submission = state.live.get(row.id) or (state.submission(row.id) if row.id in state.unfolded_done else None)
            states.append(submission_state(submission or LiveSubmission(row), about))
        state.reply(peer, Listed(request.id, states, rows[-1][0].id if len(rows) == request.limit else None))

    def describe(self, peer: Peer, request: Describe) -> None:
        """Answer with the content of submissions, as many of the first as fit into a reply."""
        described = self._reserve_calls.descriptions.first(request.submission_ids)
        self._state.reply(peer, Described(request.id, described))

    def attachment(self, peer: Peer, request: GetAttachment) -> None:
        """Answer with the attachment of a submission."""
        self._state.find(request.submission_id)
        self._state.reply(
            peer, Attachment(request.id, submissions.attachment(self._state.reader, request.submission_id))
        )

    # --- status ---

    def status(self, peer: Peer, request: Status, now: Now) -> None:
        """Answer with counts and consumers; what only the daemon knows is left empty."""
        state = self._state
        total = next(self._counts(""))
        oldest = self._reservations.oldest()
        state.reply(
            peer,
            DaemonState(
                id=request.id,
                server="",
                pid=0,
                state="full" if state.is_full else "draining" if state.is_draining else "running",
                uptime_s=(now.mono - state.now.mono) / 1e9,
                total=total,
                by=self._by_value(request.by, total) if request.by is not None else [],
                states=dict(state.states),
                consumers=self._consumers(now),
                parked_count=len(self._reserve_calls),
                connections_count=0,
                oldest_reservation_s=(now.mono - oldest.granted_at.mono) / 1e9 if oldest is not None else 0.0,
                unfolded_count=len(self._folding),
                file_bytes=state.database.file_bytes(),
                free_bytes=state.database.free_bytes(),
                wal_bytes=state.database.log.bytes,
                settings={},
                unmatched_count=self._unmatched(total.waiting_count),
                backlog_limit=self._admission.limit,
                room_waiting_count=len(self._admission),
                disk_free_bytes=self._admission.disk_free_bytes(),
                wal_kept_s=state.database.log.kept_s(),
                removable=state.removable() if state.is_full else {},
                held_back=[] if request.strategy is None else self._held_back.of_strategy(request.strategy, now),
                measures=self._measures(total.waiting_count, now) if request.measures else None,
                takes_new=state.takes_new,
                departed_count=moved.unconfirmed_count(state.reader) if state.has_moved else 0,
                arriving_count=len(state.arriving),
                arriving_from=[ArrivingState(*row) for row in arriving.counts(state.reader)],
            ),
        )

    def _measures(self, waiting: int, now: Now) -> Measures:
        """What is measured for monitoring; the daemon adds what only it knows."""
        counters = self._counters
        counters.count()
        return Measures(
            self._oldest_waiting_s(now) if waiting else 0.0,
            len(self._state.consumers),
            dict(counters.events),
            counters.waits.durations(),
            counters.runs.durations(),
        )

    def _oldest_waiting_s(self, now: Now) -> float:
        """How long ago the oldest submission with a waiting chunk could first be handed out.

        Cost: the older ones, all of whose chunks are being worked on or wait for a retry; at most `OLDEST_ROWS`, and
        then it is the age of the last of them, which is more.
        """
        state, age_s = self._state, 0.0
        ids = lanes.open_ids(state.reader, lanes.ALL, -1, OLDEST_ROWS)
        for submission_id in ids:
            submission = state.submission(submission_id)
            if submission is None or not submission.is_offered:
                continue
            row = submission.row
            since = max(row.submitted_at, row.not_before_at or 0, row.revived_at or 0)
            age_s = max(now.wall - since, 0) / 1000
            if submission.counts.waiting:
                return age_s
        return age_s if len(ids) == OLDEST_ROWS else 0.0

    def _by_value(self, key: str, total: Counts) -> builtins.list[Counts]:
        """The counters of each value of a key, and last, with None for a value, of the submissions that lack the key.

        A submission has one value of a key at most, so those are the rest of all.
        """
        found = list(self._counts(key))
        sums = [sum(column) for column in zip(*map(_numbers, found), strict=True)] if found else []
        rest = (
            Counts(None, *(count - known for count, known in zip(_numbers(total), sums, strict=True))) if sums else None
        )
        return [*found, rest] if rest is not None and rest.submissions_count else found

    def _counts(self, key: str) -> Iterator[Counts]:
        """The counters of each value of a key ("": of everything), with what memory knows on top.

        Cost: the values of the key, and the submissions with work in memory or being removed.
        """
        state = self._state
        beside: dict[int, builtins.list[int]] = {}

        def add(lane_ids: Iterable[int], *counts: int) -> None:
            for lane_id in lane_ids if key else (lanes.ALL,):
                known = beside.get(lane_id, _NOTHING)
                beside[lane_id] = [one + other for one, other in zip(known, counts, strict=True)]

        for submission_id in list(state.unfolded_done) if key else ():
            state.submission(submission_id)
        if state.unfolded_completed and not key:
            add((), 0, 0, sum(state.unfolded_completed.values()), 0, 0, 0, 0)
        for submission in state.live.values():
            completed = submission.completed - submission.folded
            if completed or submission.reserved_count or submission.delayed_count:
                add(submission.lanes, 0, 0, completed, 0, 0, submission.reserved_count, submission.delayed_count)
        for gone in (*state.removing.values(), *state.arriving.values()):
            lane_ids = (lane_id for lane_id, _ in lanes.decode(gone.lanes).values())
            add(lane_ids, -1, -gone.total, -gone.completed, -gone.dead, -gone.skipped, 0, 0)
        for lane_id, (value, *stored) in lanes.counts(state.reader, key):
            numbers = (*stored, 0, 0)
            if lane_id in beside:
                numbers = tuple(map(sum, zip(numbers, beside[lane_id], strict=True)))
            submissions_count, total, completed, dead, skipped, reserved, delayed = numbers
            if submissions_count or not key:
                waiting = total - completed - dead - skipped - reserved - delayed
                yield Counts(
                    value if key else None, submissions_count, waiting, delayed, reserved, completed, dead, skipped
                )

    def _unmatched(self, waiting: int) -> int | None:
        """Waiting chunks that no strategy of a connected consumer takes.

        None: nobody is connected, or counters alone cannot tell.

        They can where every strategy selects values of one and the same key: lanes of one key have no submission in
        common.
        """
        state = self._state
        if not state.consumers:
            return None
        wanted = {
            filters
            for text in set(state.consumers.values())
            for _, arm in self._reserve_calls.plan(text).arms
            for filters in _selects(arm)
        }
        keys = {entry.key for filters in wanted for entry in filters}
        if any(not filters for filters in wanted):
            return 0
        if len(keys) != 1 or SUBMISSION_KEY in keys or any(len(filters) > 1 for filters in wanted):
            return None
        (key,) = keys
        taken = {(type(entry.value), entry.value) for filters in wanted for entry in filters}
        matched = sum(
            counts.waiting_count for counts in self._counts(key) if (type(counts.value), counts.value) in taken
        )
        return max(waiting - matched, 0)

    def _consumers(self, now: Now) -> builtins.list[ConsumerState]:
        waiting = self._reserve_calls.waiting()
        held: dict[str, tuple[bool, int, float]] = {}
        for reservation in self._reservations.all():
            count = sum(part.mask.bit_count() for part in reservation.parts.values())
            age_s = (now.mono - reservation.granted_at.mono) / 1e9
            is_connected, known, oldest_s = held.get(reservation.consumer, (False, 0, 0.0))
            is_connected = is_connected or (reservation.peer is not None and not reservation.is_lease)
            held[reservation.consumer] = (is_connected, known + count, max(oldest_s, age_s))
        names = sorted(held.keys() | waiting.keys())[:CONSUMERS_SHOWN]
        return [
            ConsumerState(
                name,
                held.get(name, (True, 0, 0.0))[0] or name in waiting,
                held.get(name, (True, 0, 0.0))[1],
                held.get(name, (True, 0, 0.0))[2],
                waiting.get(name),
                waiting.get(name) in self._watchdog.unmatched,
            )
            for name in names
        ]


def _selects(arm: Arm) -> Iterator[tuple[Filter, ...]]:
    """The filters under which an arm, or an arm inside it, serves anything."""
    if arm.is_impossible:
        return
    if not arm.inner:
        yield arm.filters
    for inner in arm.inner:
        yield from _selects(inner.within(arm.filters, ()))


def submission_state(submission: LiveSubmission, about: submissions.About) -> SubmissionState:
    """The state of a submission in memory, as clients see it, with what memory does not have."""
    row, counts = submission.row, submission.counts
    return SubmissionState(
        submission_id=row.id,
        state=submission.state,
        chunks_count=row.chunks_total,
        completed_count=counts.completed,
        dead_count=counts.dead,
        skipped_count=counts.skipped,
        reserved_count=counts.reserved,
        delayed_count=counts.delayed,
        metadata={key: value for key, (_, value) in lanes.decode(row.lanes).items()},
        priority=row.priority,
        max_attempts=row.max_attempts,
        max_lost=row.max_lost,
        backoff=Backoff(row.backoff_base_s, row.backoff_factor, row.backoff_max_s),
        keep_on_dead=bool(row.keep_on_dead),
        reservation_s=row.reservation_s,
        submitted_at=row.submitted_at,
        not_before_at=row.not_before_at,
        expires_at=row.expires_at,
        finished_at=row.finished_at,
        unique_key=row.unique_key,
        has_attachment=bool(row.has_attachment),
        reason=row.reason,
        unique_until_start=row.unique_until != submissions.UNTIL_DONE,
        holds_unique_key=row.unique_key is not None
        and row.unique_until != submissions.STARTED
        and submission.state not in submissions.FINAL_STATES,
        title=about.title,
        submitted_by=about.submitted_by,
        submitted_from=about.submitted_from,
    )
