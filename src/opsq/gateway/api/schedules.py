"""The endpoints of schedules, each as the verb of `opsq schedule` does; `PUT` is `add`, or takes the place of one.

It must not decide when a submission comes: the daemon does.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from opsq.client.core.administration import caller_name
from opsq.client.core.new_submission import new_request_key
from opsq.client.core.schedules import CHUNK_LIMIT_BYTES, edited, one_chunk
from opsq.documents.schedules import FiredDocument, SchedulesDocument, ScheduleShape
from opsq.documents.submissions import ChangedDocument
from opsq.errors import Conflict, NotFound, StorageFull, UsageError
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import Limit
from opsq.gateway.api.endpoint import JSON, Endpoint, check_media_type
from opsq.gateway.api.option_query import declared, made, query_of
from opsq.gateway.bodies import whole_body
from opsq.options.option import option
from opsq.options.schedule_options import OF_ONE_SUBMISSION, Timing
from opsq.options.submission_options import Rules
from opsq.options.values import instant
from opsq.wire import messages as m
from opsq.wire.impossible_fields import checked

BODIES = ("application/octet-stream", "text/plain", JSON, "application/x-ndjson")
"""What the chunk may be: it is kept as it is."""
_WHEN = option("--when WHEN", "Fields as in cron(8), @daily and the like, or `every 15m`; needed for a new schedule.")

ScheduleQuery = query_of("ScheduleQuery", _WHEN, *declared(Timing), *declared(Rules, *OF_ONE_SUBMISSION))

InstantText = Annotated[str, Meta(max_length=64, description="Such as 2026-03-01T00:00Z.")]


class OfSchedule(Struct):
    """Which schedule."""

    name: m.Key


class SchedulesQuery(Struct, forbid_unknown_fields=True):
    """Which schedules."""

    after: Annotated[str, Meta(max_length=64, description="Only those behind this name.")] = ""
    limit: Limit = 100


class UpcomingQuery(Struct, forbid_unknown_fields=True):
    """How much of the future."""

    upcoming: Annotated[int, Meta(ge=0, le=m.UPCOMING_LIMIT, description="How many of the next instants.")] = 3


class NoteBody(Struct, forbid_unknown_fields=True):
    """Why a schedule is paused."""

    note: Annotated[str, Meta(max_length=1024)] = ""


class BackfillBody(Struct, forbid_unknown_fields=True):
    """Which planned instants: from the first to before the second."""

    from_at: InstantText
    to_at: InstantText


async def list_schedules(call: Call, query: SchedulesQuery) -> SchedulesDocument:
    """Schedules by name, with their next instants, and how the last submission of each is."""
    page = await call.ask(m.ShowSchedules(call.next_id(), None, query.after, query.limit), m.Schedules)
    shapes = [ScheduleShape.from_state(state) for state in page.schedules]
    return SchedulesDocument(shapes, shapes[-1].name if page.has_more else None)


async def show_schedule(call: Call, path: OfSchedule, query: UpcomingQuery) -> ScheduleShape:
    """One schedule: its next instants, what it has made, and its options."""
    return ScheduleShape.from_state(await _find(call, path, query.upcoming))


async def put_schedule(call: Call, path: OfSchedule, query: ScheduleQuery) -> ScheduleShape | Response:  # type: ignore[valid-type]
    """Add a schedule, or put another in place of the one of this name.

    The parameters are the options of `opsq schedule add`. The body, if there is one, is the chunk of each submission.
    200 instead of 201: there was one already; what it has counted stays.
    """
    given: Any = query
    if given.when is None:
        raise UsageError("`when` is missing.", hint="Write ?when=@daily, or what opsq-schedule(1) names.")
    chunk = await _chunk(call)
    key = new_request_key()
    content = b"" if chunk is None else one_chunk(chunk, key)
    template = m.NewSubmission(key, int(chunk is not None), content, **made(Rules, given).as_fields())
    schedule = checked(m.Schedule(path.name, given.when, template, **made(Timing, given).as_fields()))
    status = 201
    try:
        await call.ask(m.PutSchedule(call.next_id(), schedule), m.Changed)
    except Conflict as error:
        if error.cause != "schedule_exists":
            raise
        status = 200
        await call.ask(m.PutSchedule(call.next_id(), schedule, True), m.Changed)
    document = ScheduleShape.from_state(await _find(call, path))
    return Response(msgspec.json.encode(document), status, {"Location": call.request.url.path}, media_type=JSON)


async def edit_schedule(call: Call, path: OfSchedule, query: ScheduleQuery) -> ScheduleShape:  # type: ignore[valid-type]
    """Change what is given of a schedule, and nothing else; submissions already made are not affected.

    Metadata is added. The body, if there is one, takes the place of the chunk. 409: another request has changed it
    meanwhile; nothing was changed by this one.
    """
    given: Any = query
    chunk = await _chunk(call)
    before = (await _find(call, path)).schedule
    timing, rules = made(Timing, given).as_fields(), made(Rules, given).as_fields()
    changed = edited(before, given.when, chunk, timing, rules)
    await call.ask(m.PutSchedule(call.next_id(), changed, True, before), m.Changed)
    return ScheduleShape.from_state(await _find(call, path))


async def remove_schedule(call: Call, path: OfSchedule) -> ChangedDocument:
    """Remove a schedule; its submissions stay."""
    return await _change(call, m.RemoveSchedule(call.next_id(), path.name))


async def pause_schedule(call: Call, path: OfSchedule, body: NoteBody) -> ChangedDocument:
    """Have planned instants pass without a submission until the schedule is resumed.

    `count` is 0 if it was paused already.
    """
    return await _change(call, m.PauseSchedule(call.next_id(), path.name, caller_name(), body.note))


async def resume_schedule(call: Call, path: OfSchedule) -> ChangedDocument:
    """Go on with a paused schedule, from now; `count` is 0 if it was not paused."""
    return await _change(call, m.ResumeSchedule(call.next_id(), path.name))


async def trigger_schedule(call: Call, path: OfSchedule) -> FiredDocument:
    """Make a submission now, even if the schedule is paused or another is unfinished."""
    return await _fire(call, m.TriggerSchedule(call.next_id(), path.name))


async def backfill_schedule(call: Call, path: OfSchedule, body: BackfillBody) -> FiredDocument:
    """Make submissions for planned instants of the past that have none; at most 1000."""
    from_at, to_at = instant("from_at", body.from_at), instant("to_at", body.to_at)
    return await _fire(call, m.BackfillSchedule(call.next_id(), path.name, from_at, to_at))


async def _find(call: Call, path: OfSchedule, upcoming: int = 3) -> m.ScheduleState:
    return (await call.ask(m.ShowSchedules(call.next_id(), path.name, upcoming=upcoming), m.Schedules)).schedules[0]


async def _chunk(call: Call) -> bytes | None:
    """The body of a request; None if it has none."""
    body = await whole_body(call.request, CHUNK_LIMIT_BYTES)
    if body and "content-type" in call.request.headers:
        check_media_type(call.request, *BODIES)
    return body or None


async def _change(call: Call, request: m.Request) -> ChangedDocument:
    return ChangedDocument((await call.ask(request, m.Changed)).count)


async def _fire(call: Call, request: m.Request) -> FiredDocument:
    created = (await call.ask(request, m.Submitted)).created
    return FiredDocument([str(one.submission_id) for one in created if one.is_new])


_SCHEDULE = "/schedules/{name}"
_FAILS = (NotFound, StorageFull)
_PUT = (m.PutSchedule, m.ShowSchedules)

ENDPOINTS = (
    Endpoint("GET", "/schedules", list_schedules, (m.ShowSchedules,)),
    Endpoint("GET", _SCHEDULE, show_schedule, (m.ShowSchedules,), (NotFound,)),
    Endpoint("PUT", _SCHEDULE, put_schedule, _PUT, (*_FAILS, Conflict), 201, BODIES, statuses=(200,), needs_body=False),
    Endpoint("PATCH", _SCHEDULE, edit_schedule, _PUT, (*_FAILS, Conflict), consumes=BODIES, needs_body=False),
    Endpoint("DELETE", _SCHEDULE, remove_schedule, (m.RemoveSchedule,), _FAILS),
    Endpoint("POST", f"{_SCHEDULE}/pause", pause_schedule, (m.PauseSchedule,), _FAILS),
    Endpoint("POST", f"{_SCHEDULE}/resume", resume_schedule, (m.ResumeSchedule,), _FAILS),
    Endpoint("POST", f"{_SCHEDULE}/trigger", trigger_schedule, (m.TriggerSchedule,), _FAILS),
    Endpoint("POST", f"{_SCHEDULE}/backfill", backfill_schedule, (m.BackfillSchedule,), _FAILS),
)
