"""Schedules at work: decides each planned instant once, and makes its submission in the commit that says so.

What is decided holds in memory at once and in the file with the batch; if that fails, the file says what holds, and the
instant is decided again. It must not know when instants are (`plan` does), nor how a submission is stored.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable

import msgspec

from opsq.clock import MonoNs, Now
from opsq.content import manifest
from opsq.errors import Conflict, NotFound, UsageError
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.schedules.plan import Plan
from opsq.queue.state import EngineState
from opsq.store import schedules, submissions
from opsq.store.database import Database
from opsq.store.schedules import ScheduleRow
from opsq.units import format_instant
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

DUE_LIMIT = 200
"""Schedules decided by one look at the clock."""
INSTANTS_LIMIT = 500
"""Instants of one schedule decided by one look: there may be years of them."""
WAITING_LIMIT = 100
"""Instants of one schedule that wait for the end of what came before; more are skipped."""
LATE_MS = 60_000
"""An instant that is decided later than this was missed, for want of a daemon or of room."""
OWN_KEYS = ("schedule", "planned")
"""The keys of the pairs that each submission of a schedule gets."""

_definition = msgspec.msgpack.Decoder(Schedule)
Submit = Callable[[Peer, NewSubmission, Now], Created]
Cancel = Callable[[LiveSubmission, str, Now], bool]


class _Known:
    """A schedule in memory."""

    __slots__ = ("due", "plan", "row", "schedule")

    def __init__(self, row: ScheduleRow) -> None:
        self.row = row
        self.schedule = _definition.decode(row.definition)
        self.plan = Plan(self.schedule.when, self.schedule.zone, _anchor(self.schedule, row.created_at))
        self.due: int | None = None
        """The wall-clock instant at which its next planned instant is to be decided."""

    def after(self, planned: int) -> int | None:
        """The next planned instant before its end."""
        found, until = self.plan.after(planned), self.schedule.until_at
        return found if found is not None and (until is None or found < until) else None

    def due_at(self, planned: int) -> int:
        """When an instant is to be decided: always the same for one, so that a restart changes nothing."""
        jitter_ms = int(self.schedule.jitter_s * 1000)
        return planned + (int.from_bytes(_digest(self.row.name, planned)[:7], "big") % (jitter_ms + 1))


class ScheduleDesk:
    """Keeps the schedules, and fires them.

    Args:
        check: whether a submission can be made from a template; raises UsageError.
        submit: makes a submission with the batch.
        cancel: ends one with the batch, if it has not ended.
    """

    def __init__(
        self, state: EngineState, check: Callable[[NewSubmission], None], submit: Submit, cancel: Cancel
    ) -> None:
        self._state = state
        self._check = check
        self._submit = submit
        self._cancel = cancel
        self._known: dict[str, _Known] = {}
        self._due: list[tuple[int, str]] = []
        self._open: dict[int, str] = {}
        """Schedule by its submission that has not ended."""
        self._ended: deque[tuple[int, str]] = deque()
        self._now = state.now
        self._is_behind = False

    def restore(self, now: Now) -> None:
        """Take up what the file says."""
        self._now = now
        for row in schedules.all_rows(self._state.reader):
            self._keep(row)
            running = schedules.running(self._state.reader, row.open_ids)
            self._ended.extend(
                (submission_id, row.name) for submission_id in row.open_ids if submission_id not in running
            )

    # --- requests ---

    def put(self, peer: Peer, request: PutSchedule, now: Now) -> None:
        """Store a schedule.

        Raises:
            UsageError: it can never come, or its template makes no submission.
            Conflict: there is one of its name.
            NotFound: there is none to replace.
        """
        schedule = request.schedule
        known = self._known.get(schedule.name)
        if request.replaces and known is None:
            raise NotFound(cause="unknown_schedule", name=schedule.name)
        if known is not None and not request.replaces:
            raise Conflict(cause="schedule_exists", name=schedule.name)
        self._check_template(schedule)
        created_at = now.wall if known is None else known.row.created_at
        Plan(schedule.when, schedule.zone, _anchor(schedule, created_at))
        definition = msgspec.msgpack.encode(schedule)
        decided_at = max(now.wall, (schedule.from_at or 0) - 1)
        if known is None:
            row = ScheduleRow(schedule.name, definition, now.wall, peer.user, peer.place, peer.uid, decided_at)
        else:
            row = known.row._replace(definition=definition, decided_at=max(decided_at, known.row.decided_at))
        self._change(row, now)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def remove(self, peer: Peer, request: RemoveSchedule, now: Now) -> None:
        """Forget a schedule; its submissions stay."""
        self._find(request.name)
        self._forget(request.name)
        self._state.batch.add(
            _nothing, lambda _: self._reload(request.name), lambda db, _: schedules.delete(db.writer, request.name)
        )
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def pause(self, peer: Peer, request: PauseSchedule, now: Now) -> None:
        """Pass over the instants of a schedule until it is resumed."""
        row = self._find(request.name).row
        if row.paused_at is None:
            self._change(row._replace(paused_at=now.wall, paused_by=request.by_name, note=request.note), now)
        self._state.batch.replies.append((peer, Changed(request.id, int(row.paused_at is None))))

    def resume(self, peer: Peer, request: ResumeSchedule, now: Now) -> None:
        """Go on, from now: what passed meanwhile was passed over."""
        row = self._find(request.name).row
        if row.paused_at is not None:
            decided_at = max(row.decided_at, now.wall)
            self._change(row._replace(paused_at=None, paused_by="", note="", decided_at=decided_at), now)
            if row.waiting and not row.open_ids:
                self._ended.append((0, row.name))
        self._state.batch.replies.append((peer, Changed(request.id, int(row.paused_at is not None))))

    def trigger(self, peer: Peer, request: TriggerSchedule, now: Now) -> None:
        """Make a submission now."""
        known = self._find(request.name)
        key = self._state.rng.randbytes(16)
        created = self._submit_one(known, now.wall, key, peer, now)
        self._change(_with_submissions(known.row, {now.wall: created}), now)
        self._state.batch.replies.append((peer, Submitted(request.id, [created])))

    def backfill(self, peer: Peer, request: BackfillSchedule, now: Now) -> None:
        """Make the submissions of past instants that have none.

        Raises:
            UsageError: these are too many.
        """
        known = self._find(request.name)
        planned: list[int] = []
        instant = known.plan.after(request.from_at - 1)
        while instant is not None and instant < request.to_at:
            planned.append(instant)
            if len(planned) > BACKFILL_LIMIT:
                raise UsageError(cause="long_backfill", limit=BACKFILL_LIMIT)
            instant = known.plan.after(instant)
        created = {instant: self._fire(known, instant, now) for instant in planned}
        self._change(_with_submissions(known.row, created), now)
        self._state.batch.replies.append((peer, Submitted(request.id, list(created.values()))))

    def show(self, peer: Peer, request: ShowSchedules) -> None:
        """Answer with schedules."""
        if request.name is not None:
            known = self._find(request.name)
            reply = Schedules(request.id, [self._shown(known, request.upcoming, with_content=True)])
        else:
            names = sorted(name for name in self._known if name > request.after)
            page = [
                self._shown(self._known[name], request.upcoming, with_content=False) for name in names[: request.limit]
            ]
            reply = Schedules(request.id, page, len(names) > request.limit)
        self._state.reply(peer, reply)

    def _shown(self, known: _Known, upcoming: int, *, with_content: bool) -> ScheduleState:
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
        name = self._open.pop(submission_id, None)
        if name is not None:
            self._ended.append((submission_id, name))

    def tick(self, now: Now) -> None:
        """Decide what is due."""
        self._now = now
        left = DUE_LIMIT
        while self._ended and left:
            left -= 1
            self._go_on(*self._ended.popleft(), now)
        while self._due and self._due[0][0] <= now.wall and left:
            left -= 1
            due, name = heapq.heappop(self._due)
            known = self._known.get(name)
            if known is not None and known.due == due:
                self._decide(known, now)
        self._is_behind = not left

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to decide, if the wall clock is not stepped; that is looked at each second."""
        if self._ended or self._is_behind:
            return MonoNs(0)
        return MonoNs(self._now.mono + (self._due[0][0] - self._now.wall) * 1_000_000) if self._due else None

    def _decide(self, known: _Known, now: Now) -> None:
        """Decide the instants that are due, or the first of them."""
        row, schedule = known.row, known.schedule
        fired: list[int] = []
        waiting, skipped, missed = list(row.waiting), 0, 0
        instant, following = row.decided_at, known.after(row.decided_at)
        for _ in range(INSTANTS_LIMIT):
            if following is None or known.due_at(following) > now.wall:
                break
            instant, following = following, known.after(following)
            is_last = following is None or known.due_at(following) > now.wall
            if _is_missed(schedule, now.wall - known.due_at(instant), is_last=is_last):
                missed += 1
            elif schedule.overlap == "allow" or not (row.open_ids or fired or waiting):
                fired.append(instant)
            elif schedule.overlap == "cancel":
                skipped += len(fired)
                fired = [instant]
            elif schedule.overlap == "queue" and len(waiting) < WAITING_LIMIT:
                waiting.append(instant)
            else:
                skipped += 1
        if fired and schedule.overlap == "cancel":
            for submission in filter(None, map(self._state.submission, row.open_ids)):
                self._cancel(submission, f"The next of schedule {row.name} is due.", now)
        created = {planned: self._fire(known, planned, now) for planned in fired}
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
        known = self._known.get(name)
        if known is None:
            return
        row = known.row._replace(open_ids=tuple(one for one in known.row.open_ids if one != submission_id))
        ended = self._state.submission(submission_id) if submission_id else None
        if known.schedule.pauses_on_failure and ended is not None and ended.state == "failed" and row.paused_at is None:
            row = row._replace(paused_at=now.wall, note=f"Submission {submission_id} failed.")
        if row.waiting and not row.open_ids and row.paused_at is None:
            planned = row.waiting[0]
            row = row._replace(waiting=row.waiting[1:], fired_count=row.fired_count + 1)
            row = _with_submissions(row, {planned: self._fire(known, planned, now)})
        self._change(row, now)

    # --- submissions ---

    def _fire(self, known: _Known, planned: int, now: Now) -> Created:
        """Make the submission of a planned instant, if it has none."""
        key = _digest(known.row.name, planned)
        made = submissions.by_request_key(self._state.reader, key)
        if made is not None:
            return Created(made, False)
        row = known.row
        creator = Peer(f"schedule {row.name}", now, row.creator)
        creator.user, creator.place = row.created_by, row.created_from
        return self._submit_one(known, planned, key, creator, now)

    def _submit_one(self, known: _Known, planned: int, key: bytes, peer: Peer, now: Now) -> Created:
        template, name = known.schedule.template, known.row.name
        at = format_instant(planned)
        content, chunks_count = template.content, template.chunks_count
        if not chunks_count:
            chunk = msgspec.json.encode({"schedule": name, "at": at}) + b"\n"
            content, chunks_count = manifest.encode(manifest.Content(key.hex(), 1, len(chunk), inline=[chunk])), 1
        new = msgspec.structs.replace(
            template,
            request_key=key,
            chunks_count=chunks_count,
            content=content,
            metadata=template.metadata | dict(zip(OWN_KEYS, (name, at), strict=True)),
        )
        return self._submit(peer, new, now)

    def _check_template(self, schedule: Schedule) -> None:
        template = schedule.template
        if own := sorted(set(OWN_KEYS) & set(template.metadata)):
            raise UsageError(cause="built_in_key", key=own[0])
        if template.unique_key or template.idempotency_key or template.not_before_at or template.expires_at:
            raise UsageError(cause="template_of_one", name=schedule.name)
        if schedule.from_at is not None and schedule.until_at is not None and schedule.until_at <= schedule.from_at:
            raise UsageError(cause="empty_schedule", name=schedule.name)
        if schedule.catch_up_s is not None and schedule.catch_up == "none":
            raise UsageError(cause="catch_up_without", name=schedule.name)
        self._check(template)

    # --- memory and file ---

    def _find(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            raise NotFound(cause="unknown_schedule", name=name)
        return known

    def _change(self, row: ScheduleRow, now: Now) -> None:
        """A schedule is as the row says, at once and in the file with the batch."""
        self._now = now
        self._keep(row)

        def write(database: Database, _: object) -> None:
            schedules.put(database.writer, row)

        self._state.batch.add(_nothing, lambda _: self._reload(row.name), write)

    def _reload(self, name: str) -> None:
        """What was to be stored is gone: what the file says holds."""
        self._forget(name)
        row = schedules.find(self._state.reader, name)
        if row is not None:
            self._keep(row)

    def _keep(self, row: ScheduleRow) -> None:
        """Hold a schedule in memory, and know when it is due."""
        known = self._known.get(row.name)
        if known is None or known.row.definition != row.definition:
            known = self._known[row.name] = _Known(row)
        known.row = row
        for submission_id in row.open_ids:
            self._open[submission_id] = row.name
        planned = None if row.paused_at is not None else known.after(row.decided_at)
        due = None if planned is None else known.due_at(planned)
        if due is not None and due != known.due:
            heapq.heappush(self._due, (due, row.name))
        known.due = due

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        for submission_id in known.row.open_ids if known is not None else ():
            self._open.pop(submission_id, None)


def _nothing(_: Now) -> None:
    """Memory knew it at once."""


def _anchor(schedule: Schedule, created_at: int) -> int:
    return created_at // 1000 * 1000 if schedule.from_at is None else schedule.from_at


def _digest(name: str, planned: int) -> bytes:
    """Names the submission of a planned instant."""
    return hashlib.blake2b(f"{name} {planned}".encode(), digest_size=16, person=b"opsq schedule").digest()


def _is_missed(schedule: Schedule, late_ms: int, *, is_last: bool) -> bool:
    """Whether an instant that is decided so late is passed over."""
    if late_ms <= LATE_MS:
        return False
    if schedule.catch_up_s is not None and late_ms > schedule.catch_up_s * 1000:
        return True
    return schedule.catch_up == "none" or (schedule.catch_up == "last" and not is_last)


def _with_submissions(row: ScheduleRow, created: dict[int, Created]) -> ScheduleRow:
    """The row, knowing submissions by their planned instants."""
    new_ids = tuple(one.submission_id for one in created.values() if one.is_new)
    if not created:
        return row
    planned, last = max(created.items())
    return row._replace(open_ids=row.open_ids + new_ids, last_planned_at=planned, last_submission_id=last.submission_id)
