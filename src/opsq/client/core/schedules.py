"""Schedules for programs: adds and changes what comes by the clock, and tells what came of it.

This file makes the requests; who sends them, blocking or awaited, is another matter.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack

from msgspec.structs import replace

from opsq.client.core.administration import AsyncCaller, Caller, caller_name
from opsq.client.core.new_submission import Moment, SubmitOptions, new_request_key, new_submission, to_ms
from opsq.errors import UsageError
from opsq.units import counted
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import (
    BackfillSchedule,
    Changed,
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

CHUNK_LIMIT_BYTES = 60_000
"""A schedule is one row of the database; what is larger belongs into a file."""


class ScheduleOptions(TypedDict, total=False):
    """When the submissions of a schedule come, and what happens between them: see opsq-schedule(1)."""

    zone: str
    jitter_s: float
    overlap: Literal["skip", "queue", "allow", "cancel"]
    catch_up: Literal["none", "last", "all"]
    catch_up_s: float | None
    from_at: Moment | None
    until_at: Moment | None
    pauses_on_failure: bool


def new_schedule(
    name: str, when: str, chunk: bytes | None, timing: ScheduleOptions, **options: Unpack[SubmitOptions]
) -> Schedule:
    """A schedule whose submissions have one chunk; without one, the chunk says which instant it is for.

    Raises:
        UsageError: a value is out of its range, or the chunk is too large for a row.
    """
    key = new_request_key()
    template = new_submission(key, b"" if chunk is None else one_chunk(chunk, key), int(chunk is not None), **options)
    fields = {**timing}
    for bound in ("from_at", "until_at"):
        moment = timing.get(bound)
        if moment is not None:
            fields[bound] = to_ms(moment)  # type: ignore[arg-type]
    return checked(Schedule(name, when, template, **fields))  # type: ignore[arg-type]


def one_chunk(chunk: bytes, request_key: bytes) -> bytes:
    """The content of a template.

    Raises:
        UsageError: the chunk is too large for a row.
    """
    from opsq.content.manifest import Content, encode

    if len(chunk) > CHUNK_LIMIT_BYTES:
        raise UsageError(
            f"The chunk has {counted(len(chunk), 'byte')}; a schedule keeps at most {CHUNK_LIMIT_BYTES}.",
            hint="Schedule the name of a file, and have the program read it.",
        )
    return encode(Content(request_key.hex(), 1, len(chunk), inline=[chunk]))


def edited(
    schedule: Schedule, when: str | None, chunk: bytes | None, timing: dict[str, Any], fields: dict[str, Any]
) -> Schedule:
    """A schedule with other values, whose metadata is added to what there was; None: as it was.

    Args:
        schedule: with the content of its template.
        timing: fields of the schedule.
        fields: of its template.

    Raises:
        UsageError: a value is out of its range, or the chunk is too large for a row.
    """
    template = schedule.template
    fields = fields | {"metadata": template.metadata | fields.get("metadata", {})}
    if chunk is not None:
        fields |= {"content": one_chunk(chunk, template.request_key), "chunks_count": 1}
    changes = timing if when is None else timing | {"when": when}
    return checked(replace(schedule, template=replace(template, **fields), **changes))


class ScheduleCalls:
    """The schedules of a queue."""

    link: Caller

    def add_schedule(
        self,
        name: str,
        when: str,
        chunk: bytes | None = None,
        *,
        timing: ScheduleOptions | None = None,
        replaces: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> None:
        """Have the daemon make a submission of one chunk at each planned instant, once, also over restarts and crashes.

        Args:
            name: its submissions have it as the value of `schedule`, and the planned instant as that of `planned`.
            when: five fields as in cron(8), six with seconds in front, `@daily` and the like, or `every 15m`.
            chunk: at most 60,000 bytes; None: a JSON object with `schedule` and `at`.
            timing: the zone of `when` and the rest, as `ScheduleOptions` names them; UTC, overlaps skipped, and the
                last missed instant made up for by default.
            replaces: take the place of the one of this name.
            options: as for `submit`, without keys and instants, which would hold for one submission only.

        Raises:
            UsageError: it never comes, or its submissions cannot be.
            Conflict: there is one of its name.
            NotFound: there is none to replace.
        """
        schedule = new_schedule(name, when, chunk, timing or {}, **options)
        self.link.call(PutSchedule(self.link.next_id(), schedule, replaces), Changed)

    def schedules(self, *, after: str = "", limit: int = 1000) -> list[ScheduleState]:
        """Schedules by name, those behind `after`, without the content of their templates.

        Raises:
            UsageError: the limit is out of its range.
        """
        return self.link.call(ShowSchedules(self.link.next_id(), None, after, limit), Schedules).schedules

    def schedule(self, name: str, *, upcoming: int = 3) -> ScheduleState:
        """One schedule, with its next instants in milliseconds since 1970 UTC.

        Raises:
            NotFound: there is none of this name.
        """
        return self.link.call(ShowSchedules(self.link.next_id(), name, upcoming=upcoming), Schedules).schedules[0]

    def pause_schedule(self, name: str, note: str = "") -> bool:
        """Pass over its instants; False if it was paused already.

        Raises:
            NotFound: there is none of this name.
        """
        return bool(self.link.call(PauseSchedule(self.link.next_id(), name, caller_name(), note), Changed).count)

    def resume_schedule(self, name: str) -> bool:
        """Go on from now; False if it was not paused.

        Raises:
            NotFound: there is none of this name.
        """
        return bool(self.link.call(ResumeSchedule(self.link.next_id(), name), Changed).count)

    def trigger_schedule(self, name: str) -> int:
        """Make a submission now, whatever else of it runs; its id.

        Raises:
            NotFound: there is none of this name.
            NoRoom, StorageFull: there is no room for it.
        """
        return self.link.call(TriggerSchedule(self.link.next_id(), name), Submitted).created[0].submission_id

    def backfill_schedule(self, name: str, from_at: Moment, to_at: Moment) -> list[int]:
        """Make the submissions of planned instants from one to before another that have none; their ids.

        Args:
            name: of the schedule.
            from_at: an aware datetime, or milliseconds since 1970 UTC.
            to_at: the same; this instant is not one of them.

        Raises:
            NotFound: there is none of this name.
            UsageError: these are more than 1000 instants.
            NoRoom, StorageFull: there is no room for all that are missing; none is made.
        """
        request = BackfillSchedule(self.link.next_id(), name, to_ms(from_at), to_ms(to_at))
        return [one.submission_id for one in self.link.call(request, Submitted).created if one.is_new]

    def remove_schedule(self, name: str) -> None:
        """Forget a schedule; its submissions stay.

        Raises:
            NotFound: there is none of this name.
        """
        self.link.call(RemoveSchedule(self.link.next_id(), name), Changed)


class AsyncScheduleCalls:
    """The same, awaited; see `ScheduleCalls`."""

    link: AsyncCaller

    async def add_schedule(
        self,
        name: str,
        when: str,
        chunk: bytes | None = None,
        *,
        timing: ScheduleOptions | None = None,
        replaces: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> None:
        """Add a schedule; see `ScheduleCalls.add_schedule`."""
        schedule = new_schedule(name, when, chunk, timing or {}, **options)
        await self.link.call(PutSchedule(self.link.next_id(), schedule, replaces), Changed)

    async def schedules(self, *, after: str = "", limit: int = 1000) -> list[ScheduleState]:
        """Schedules by name; see `ScheduleCalls.schedules`."""
        return (await self.link.call(ShowSchedules(self.link.next_id(), None, after, limit), Schedules)).schedules

    async def schedule(self, name: str, *, upcoming: int = 3) -> ScheduleState:
        """One schedule; see `ScheduleCalls.schedule`."""
        request = ShowSchedules(self.link.next_id(), name, upcoming=upcoming)
        return (await self.link.call(request, Schedules)).schedules[0]

    async def pause_schedule(self, name: str, note: str = "") -> bool:
        """Pass over its instants; see `ScheduleCalls.pause_schedule`."""
        request = PauseSchedule(self.link.next_id(), name, caller_name(), note)
        return bool((await self.link.call(request, Changed)).count)

    async def resume_schedule(self, name: str) -> bool:
        """Go on from now; see `ScheduleCalls.resume_schedule`."""
        return bool((await self.link.call(ResumeSchedule(self.link.next_id(), name), Changed)).count)

    async def trigger_schedule(self, name: str) -> int:
        """Make a submission now; see `ScheduleCalls.trigger_schedule`."""
        request = TriggerSchedule(self.link.next_id(), name)
        return (await self.link.call(request, Submitted)).created[0].submission_id

    async def backfill_schedule(self, name: str, from_at: Moment, to_at: Moment) -> list[int]:
        """Make what is missing; see `ScheduleCalls.backfill_schedule`."""
        request = BackfillSchedule(self.link.next_id(), name, to_ms(from_at), to_ms(to_at))
        return [one.submission_id for one in (await self.link.call(request, Submitted)).created if one.is_new]

    async def remove_schedule(self, name: str) -> None:
        """Forget a schedule; see `ScheduleCalls.remove_schedule`."""
        await self.link.call(RemoveSchedule(self.link.next_id(), name), Changed)
