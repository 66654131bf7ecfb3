"""Messages about schedules: submissions that the daemon makes by the clock.

This file must not define what a submission is (`submissions` does).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from opsq.wire.messages.fields import Count, Duration, Id, Instant, Int64, Key, Message, Name, Reason, Record
from opsq.wire.messages.submissions import NewSubmission

BACKFILL_LIMIT = 1_000
UPCOMING_LIMIT = 100


class Schedule(Record):
    """What a schedule is: when, and which submission comes then.

    `template` may have no `unique_key`, no `idempotency_key`, and no other start than `delay_s`; without chunks, the
    chunk is the schedule's name and the planned instant, as JSON. To it come the pairs `schedule` and `planned`.
    """

    name: Key
    when: Annotated[str, Meta(max_length=256)]
    template: NewSubmission
    zone: Annotated[str, Meta(max_length=64)] = "UTC"
    jitter_s: Duration = 0.0
    """Each comes later by up to this long; always by the same for one instant."""
    overlap: Literal["skip", "queue", "allow", "cancel"] = "skip"
    """While what came before has not ended: leave the instant out, have it wait, or cancel what came before."""
    catch_up: Literal["none", "last", "all"] = "last"
    """Which of the instants come that passed while no daemon ran."""
    catch_up_s: Duration | None = None
    """None of those that are longer ago."""
    from_at: Instant | None = None
    until_at: Instant | None = None
    pauses_on_failure: bool = False


class PutSchedule(Message):
    """Store a schedule. → Changed.

    `Conflict` if there is one of its name, unless `replaces`; then what it has counted stays. `NotFound` if it
    `replaces` none, `Conflict` if that is another than `expected`.
    """

    id: Id
    schedule: Schedule
    replaces: bool = False
    expected: Schedule | None = None


class RemoveSchedule(Message):
    """Forget a schedule; its submissions stay. → Changed."""

    id: Id
    name: Key


class PauseSchedule(Message):
    """Pass over the instants of a schedule until it is resumed. → Changed (0: it was paused already)."""

    id: Id
    name: Key
    by_name: Name = ""
    note: Annotated[str, Meta(max_length=1024)] = ""


class ResumeSchedule(Message):
    """Go on with a paused schedule, from now. → Changed (0: it was not paused)."""

    id: Id
    name: Key


class TriggerSchedule(Message):
    """Make a submission of a schedule now, whatever else of it runs. → Submitted."""

    id: Id
    name: Key


class BackfillSchedule(Message):
    """Make the submissions of the planned instants from `from_at` to before `to_at` that have none. → Submitted.

    At most BACKFILL_LIMIT.
    """

    id: Id
    name: Key
    from_at: Instant
    to_at: Instant


class ScheduleState(Record):
    """A schedule, and what became of it.

    `fired_count`, `skipped_count` (something of it ran) and `missed_count` (no daemon ran) count instants, without
    those of Trigger and Backfill. `open_count`: its submissions that have not ended. `waiting`: instants that wait for
    their end. `last_state`: of `last_submission_id`, as long as that is kept.
    """

    schedule: Schedule
    created_at: Int64
    created_by: str | None
    upcoming: list[Int64]
    fired_count: Count
    skipped_count: Count
    missed_count: Count
    open_count: Count
    waiting: list[Int64]
    last_planned_at: Int64 | None
    last_submission_id: Id | None
    last_state: str | None
    paused_at: Int64 | None
    paused_by: str
    note: Reason


class ShowSchedules(Message):
    """Ask for schedules by name, behind `after`; or for the one called `name`, with the content of its template.

    → Schedules.
    """

    id: Id
    name: Key | None = None
    after: Annotated[str, Meta(max_length=64)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    upcoming: Annotated[int, Meta(ge=0, le=UPCOMING_LIMIT)] = 3


class Schedules(Message):
    """Answer to ShowSchedules; `has_more`: others follow."""

    id: Id
    schedules: list[ScheduleState]
    has_more: bool = False


Requests = (
    PutSchedule | RemoveSchedule | PauseSchedule | ResumeSchedule | TriggerSchedule | BackfillSchedule | ShowSchedules
)
