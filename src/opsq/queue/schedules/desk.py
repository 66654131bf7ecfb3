"""Schedules at work: decides each planned instant once, and makes its submission in the commit that says so.

If that fails, the instant is decided again. It must not know when instants are (`plan` does), nor how schedules
(`table`) and submissions are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile

import msgspec

from opsq.clock import MonoNs, Now
from opsq.errors import Conflict, NotFound, QueueDraining, UsageError
from opsq.ids import SubmissionId
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.schedules.table import KnownSchedule, ScheduleTable, plan_of
from opsq.queue.schedules.template import check_template, submission_of
from opsq.queue.state import EngineState
from opsq.store import events, submissions
from opsq.store.schedules import ScheduleRow
from opsq.wire.messages import (
    BACKFILL_LIMIT,
    BackfillSchedule,
    Changed,
    Created,
    NewSubmission,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    Schedule,
    Schedules,
    ScheduleState,
    ShowSchedules,
    Submitted,
    TriggerSchedule,
)

LOOK_LIMIT = 400
"""Instants decided by one look at the clock, of all schedules: there may be years of them. Some 15 ms."""
FIRED_COST = 4
"""To make a submission takes as long as to decide so many instants."""
WAITING_LIMIT = 100
"""Instants of one schedule that wait for the end of what came before; more are skipped."""
LATE_MS = 60_000
"""An instant that is decided later than this was missed, for want of a daemon or of room."""

Submit = Callable[[Peer, NewSubmission, Now], Created]
Cancel = Callable[[LiveSubmission, str, Now], bool]


class ScheduleDesk:
    """Keeps the schedules, and fires them.

    Args:
        check: whether a submission can be made from a template; raises UsageError.
        check_room: whether so many chunks may come in; raises NoRoom or StorageFull.
        submit: makes a submission with the batch.
        cancel: ends one with the batch, if it has not ended.
    """

    def __init__(
        self,
        state: EngineState,
        check: Callable[[NewSubmission], None],
        check_room: Callable[[int], None],
        submit: Submit,
        cancel: Cancel,
    ) -> None:
        self._state = state
        self._check = check
        self._check_room = check_room
        self._submit = submit
        self._cancel = cancel
        self._table = ScheduleTable(state)
        self._now = state.now

    def restore(self, now: Now) -> None:
        """Take up what the file says."""
        self._now = now
        self._table.restore()

    # --- requests ---

    def put(self, peer: Peer, request: PutSchedule, now: Now) -> None:
        """Store a schedule.

        Raises:
            UsageError: it can never come, or its template makes no submission.
            Conflict: there is one of its name, or not the expected one.
            NotFound: there is none to replace.
        """
        schedule = request.schedule
        known = self._table.get(schedule.name)
        if request.replaces and known is None:
            raise NotFound(cause="unknown_schedule", name=schedule.name)
        if known is not None and not request.replaces:
            raise Conflict(cause="schedule_exists", name=schedule.name)
        if known is not None and request.expected is not None and known.schedule not in (request.expected, schedule):
            raise Conflict(cause="schedule_changed", name=schedule.name)  # not if the client has sent it again
        self._check_schedule(schedule)
        created_at = now.wall if known is None else known.row.created_at
        plan_of(schedule, created_at).check()
        definition = msgspec.msgpack.encode(schedule)
        decided_at = _beginning(schedule, now)
        if known is None:
            row = ScheduleRow(schedule.name, definition, now.wall, peer.user, peer.place, peer.uid, decided_at)
        else:
            self._decide_due(known, now)
            row = known.row._replace(definition=definition)
            has_ended = known.due is None
            if (has_ended or _timing(schedule) != _timing(known.schedule)) and not known.is_due(now.wall):
                row = _decided_until(row, decided_at)
        self._change(row, now)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def remove(self, peer: Peer, request: RemoveSchedule, now: Now) -> None:
        """Forget a schedule; its submissions stay."""
        self._table.find(request.name)
        self._table.remove(request.name)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def pause(self, peer: Peer, request: PauseSchedule, now: Now) -> None:
        """Pass over the instants of a schedule until it is resumed."""
        known = self._table.find(request.name)
        self._decide_due(known, now)
        row = known.row
        if row.paused_at is None:
            self._change(row._replace(paused_at=now.wall, paused_by=request.by_name, note=request.note), now)
            self._tell("paused", row, now, reason=request.note, by_name=request.by_name)
        self._state.batch.replies.append((peer, Changed(request.id, int(row.paused_at is None))))

    def resume(self, peer: Peer, request: ResumeSchedule, now: Now) -> None:
        """Go on, from now: what passed meanwhile was passed over.

        Also if more was decided, by a clock that was ahead: what was made then is not made again.
        """
        known = self._table.find(request.name)
        row = known.row
        was_paused = row.paused_at is not None
        if was_paused:
            row = _decided_until(row, _beginning(known.schedule, now))
            row = row._replace(paused_at=None, paused_by="", note="")
            self._change(row, now)
            self._table.note_waiting(row)
            self._tell("resumed", row, now)
        self._state.batch.replies.append((peer, Changed(request.id, int(was_paused))))

    def trigger(self, peer: Peer, request: TriggerSchedule, now: Now) -> None:
        """Make a submission now.

        Raises:
            QueueDraining: the daemon takes nothing new.
            NoRoom, StorageFull: there is no room for it.
        """
        self._check_takes_new()
        known = self._table.find(request.name)
        self._check_room(known.chunks_count)
        key = self._state.rng.randbytes(16)
        created = self._submit_one(known, now.wall, key, peer, now)
        self._change(_with_submissions(known.row, {now.wall: created}), now)
        self._tell_fired(known.row, {now.wall: created}, now)
        self._state.batch.replies.append((peer, Submitted(request.id, [created])))

    def backfill(self, peer: Peer, request: BackfillSchedule, now: Now) -> None:
        """Make the submissions of past instants that have none.

        Raises:
            UsageError: these are too many.
            QueueDraining, NoRoom, StorageFull: as `trigger`; nothing is made.
        """
        self._check_takes_new()
        known = self._table.find(request.name)
        missed = takewhile(lambda instant: instant < request.to_at, known.plan.instants(request.from_at - 1))
        planned = list(islice(missed, BACKFILL_LIMIT + 1))
        if len(planned) > BACKFILL_LIMIT:
            raise UsageError(cause="long_backfill", limit=BACKFILL_LIMIT)
        new_count = sum(self._made(known, instant) is None for instant in planned)
        if new_count:
            self._check_room(new_count * known.chunks_count)
        created = {instant: self._fire(known, instant, now) for instant in planned}
        self._change(_with_submissions(known.row, created), now)
        self._tell_fired(known.row, created, now)
        self._state.batch.replies.append((peer, Submitted(request.id, list(created.values()))))

    def show(self, peer: Peer, request: ShowSchedules) -> None:
        """Answer with schedules."""
        if request.name is not None:
            known = self._table.find(request.name)
            reply = Schedules(request.id, [self._shown(known, request.upcoming, with_content=True)])
        else:
            page, has_more = self._table.behind(request.after, request.limit)
            shown = [self._shown(known, request.upcoming, with_content=False) for known in page]
            reply = Schedules(request.id, shown, has_more)
        self._state.reply(peer, reply)

    def _shown(self, known: KnownSchedule, upcoming: int, *, with_content: bool) -> ScheduleState:
        row, schedule = known.row, known.schedule
        if not with_content:
            schedule = msgspec.structs.replace(
                schedule, template=msgspec.structs.replace(schedule.template, content=b"")
            )
        planned: list[int] = []
        instant = known.after(max(row.decided_at, self._now.wall)) if row.paused_at is None else None
        while instant is not None and len(planned) < upcoming:
            planned.append(instant)
            instant = known.after(instant)
        last = None if row.last_submission_id is None else self._state.submission(row.last_submission_id)
        return ScheduleState(
            schedule,
            row.created_at,
            row.created_by,
            planned,
            row.fired_count,
            row.skipped_count,
            row.missed_count,
            len(row.open_ids),
            list(row.waiting),
            row.last_planned_at,
            row.last_submission_id,
            None if last is None else last.state,
            row.paused_at,
            row.paused_by,
            row.note,
        )

    # --- time ---

    def note_ended(self, submission_id: int) -> None:
        """A submission has ended: if it is of a schedule, `tick` goes on with that."""
        self._table.note_ended(submission_id)

    def tick(self, now: Now) -> None:
        """Decide what is due; while the daemon is drained, as if there were none."""
        self._now = now
        if not self._state.takes_new:
            return
        left = LOOK_LIMIT
        while self._table.ended and left > 0:
            left -= FIRED_COST
            self._go_on(*self._table.ended.popleft(), now)
        due = list(islice(self._table.take_due(now.wall), max(left, 0) // (1 + FIRED_COST)))
        for known in due:  # each has its share, for one of them may have years to decide
            self._decide(known, now, left // len(due))

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to decide, if the wall clock is not stepped; that is looked at each second."""
        if not self._state.takes_new:
            return None
        if self._table.ended:
            return MonoNs(0)
        due = self._table.next_due()
        return None if due is None else MonoNs(self._now.mono + (due - self._now.wall) * 1_000_000)

    def _decide_due(self, known: KnownSchedule, now: Now) -> None:
        """What is due comes by the schedule as it was, though it is changed before the next tick."""
        if known.is_due(now.wall) and not self._state.is_full and self._state.takes_new:
            self._decide(known, now)

    def _decide(self, known: KnownSchedule, now: Now, most: int = LOOK_LIMIT) -> None:
        """Decide the instants that are due, or the first of them."""
        row, schedule = known.row, known.schedule
        fired: list[int] = []
        waiting, skipped, missed, missed_at = list(row.waiting), 0, 0, 0
        instant, following = row.decided_at, known.after(row.decided_at)
        if following is None or known.due_at(following) > now.wall:
            self._table.plan(known)
            return
        cost = 0
        while cost < most and following is not None and known.due_at(following) <= now.wall:
            cost += 1
            instant, following = following, known.after(following)
            is_last = following is None or known.due_at(following) > now.wall
            if _is_missed(schedule, now.wall - known.due_at(instant), is_last=is_last):
                missed += 1
                missed_at = missed_at or instant
            elif schedule.overlap == "allow" or not (row.open_ids or fired or waiting):
                fired.append(instant)
                cost += FIRED_COST
            elif schedule.overlap == "cancel":
                skipped += len(fired)
                fired = [instant]
            elif schedule.overlap == "queue" and len(waiting) < WAITING_LIMIT:
                waiting.append(instant)
            else:
                skipped += 1
        created = {planned: self._fire(known, planned, now) for planned in fired}
        if schedule.overlap == "cancel" and any(one.is_new for one in created.values()):
            for submission in filter(None, map(self._state.submission, row.open_ids)):
                self._cancel(submission, f"The next of schedule {row.name} is due.", now)
        if missed:
            self._tell("missed", row, now, planned_at=missed_at, count=missed)
        self._tell_fired(row, created, now)
        row = _with_submissions(row, created)._replace(
            decided_at=instant,
            fired_count=row.fired_count + len(fired),
            skipped_count=row.skipped_count + skipped,
            missed_count=row.missed_count + missed,
            waiting=tuple(waiting),
        )
        self._change(row, now)

    def _go_on(self, submission_id: int, name: str, now: Now) -> None:
        """A submission of a schedule has ended: pause it if that failed, or make what waits for it."""
        known = self._table.get(name)
        if known is None:
            return
        row = known.row._replace(open_ids=tuple(one for one in known.row.open_ids if one != submission_id))
        ended = self._state.submission(submission_id) if submission_id else None
        if known.schedule.pauses_on_failure and ended is not None and ended.state == "failed" and row.paused_at is None:
            row = row._replace(paused_at=now.wall, note=f"Submission {submission_id} failed.")
            self._tell("paused", row, now, reason=row.note)
        if row.waiting and not row.open_ids and row.paused_at is None:
            planned = row.waiting[0]
            row = row._replace(waiting=row.waiting[1:], fired_count=row.fired_count + 1)
            created = {planned: self._fire(known, planned, now)}
            self._tell_fired(row, created, now)
            row = _with_submissions(row, created)
        self._change(row, now)
        self._table.note_waiting(row)

    # --- submissions ---

    def _fire(self, known: KnownSchedule, planned: int, now: Now) -> Created:
        """Make the submission of a planned instant, if it has none."""
        made = self._made(known, planned)
        if made is not None:
            return Created(made, False)
        row = known.row
        creator = Peer(f"schedule {row.name}", now, row.creator)
        creator.user, creator.place = row.created_by, row.created_from
        return self._submit_one(known, planned, known.key_of(planned), creator, now)

    def _made(self, known: KnownSchedule, planned: int) -> SubmissionId | None:
        """The submission of a planned instant, once it is committed, wherever it is by now."""
        key = known.key_of(planned)
        gone = self._state.moved_by_key(key)
        return submissions.by_request_key(self._state.reader, key) if gone is None else SubmissionId(gone.submission_id)

    def _submit_one(self, known: KnownSchedule, planned: int, key: bytes, peer: Peer, now: Now) -> Created:
        return self._submit(peer, submission_of(known.schedule, planned, key), now)

    def _check_takes_new(self) -> None:
        if not self._state.takes_new:
            raise QueueDraining(cause="drained")

    def _check_schedule(self, schedule: Schedule) -> None:
        check_template(schedule)
        if schedule.from_at is not None and schedule.until_at is not None and schedule.until_at <= schedule.from_at:
            raise UsageError(cause="empty_schedule", name=schedule.name)
        if schedule.catch_up_s is not None and schedule.catch_up == "none":
            raise UsageError(cause="catch_up_without", name=schedule.name)
        self._check(schedule.template)

    def _tell_fired(self, row: ScheduleRow, created: dict[int, Created], now: Now) -> None:
        for planned, one in created.items():
            if one.is_new:
                self._tell("fired", row, now, one.submission_id, planned_at=planned)

    def _tell(
        self,
        kind: str,
        row: ScheduleRow,
        now: Now,
        submission_id: int | None = None,
        reason: str = "",
        **detail: object,
    ) -> None:
        event = events.new(now.wall, kind, submission_id, reason, schedule=row.name, **detail)
        self._state.batch.events.append(event)

    def _change(self, row: ScheduleRow, now: Now) -> None:
        self._now = now
        self._table.change(row)


def _timing(schedule: Schedule) -> tuple[str, str, int | None]:
    """What says which instants are planned."""
    return schedule.when, schedule.zone, schedule.from_at


def _beginning(schedule: Schedule, now: Now) -> int:
    """The instant behind which a schedule begins that is to do so from now on."""
    return max(now.wall, (schedule.from_at or 0) - 1)


def _decided_until(row: ScheduleRow, decided_at: int) -> ScheduleRow:
    """The row, decided up to this instant: what waits and is behind it will be decided again."""
    return row._replace(decided_at=decided_at, waiting=tuple(one for one in row.waiting if one <= decided_at))


def _is_missed(schedule: Schedule, late_ms: int, *, is_last: bool) -> bool:
    """Whether an instant that is decided so late is passed over."""
    if late_ms <= LATE_MS:
        return False
    if schedule.catch_up_s is not None and late_ms > schedule.catch_up_s * 1000:
        return True
    return schedule.catch_up == "none" or (schedule.catch_up == "last" and not is_last)


def _with_submissions(row: ScheduleRow, created: dict[int, Created]) -> ScheduleRow:
    """The row, knowing the submissions that are new by their planned instants; others may be elsewhere by now."""
    new = {planned: one.submission_id for planned, one in created.items() if one.is_new}
    if not new:
        return row
    planned, last = max(new.items())
    return row._replace(open_ids=(*row.open_ids, *new.values()), last_planned_at=planned, last_submission_id=last)
