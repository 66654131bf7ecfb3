"""What the verbs of schedules ask of the daemon, and how they show a schedule.

It must not read options.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsq.cli.caller import Caller
from opsq.cli.upload import read_whole
from opsq.client.core.schedules import one_chunk
from opsq.client.sync.connection import Connection
from opsq.documents.schedules import FiredDocument
from opsq.documents.submission_text import pairs_text
from opsq.units import format_duration
from opsq.wire.messages import Schedules, ScheduleState, ShowSchedules, Submitted


def content_of(path: str, request_key: bytes) -> bytes:
    """The content of a template: the file as one chunk.

    Raises:
        InputUnreadable: it cannot be read.
        UsageError: it is too large for a schedule.
    """
    return one_chunk(read_whole(path), request_key)


def find(daemon: Connection, name: str, upcoming: int = 3) -> ScheduleState:
    """One schedule, with the content of its template; `NotFound` if there is none."""
    return daemon.call(ShowSchedules(daemon.next_id(), name, upcoming=upcoming), Schedules).schedules[0]


def all_of(daemon: Connection) -> Iterator[ScheduleState]:
    """Every schedule, by name."""
    after = ""
    while True:
        page = daemon.call(ShowSchedules(daemon.next_id(), after=after), Schedules)
        yield from page.schedules
        if not page.has_more:
            return
        after = page.schedules[-1].schedule.name


def print_fired(caller: Caller, reply: Submitted) -> None:
    """The submissions that were made."""
    ids = [str(one.submission_id) for one in reply.created if one.is_new]
    caller.document(FiredDocument(ids))
    caller.lines(ids)


def remark_next(caller: Caller, state: ScheduleState) -> None:
    """Tell the next planned instant of a schedule."""
    if state.paused_at is not None:
        caller.remark(f"{state.schedule.name} is paused.")
    elif state.upcoming:
        caller.remark(f"Next planned instant of {state.schedule.name}: {caller.named_instant(state.upcoming[0])}.")
    else:
        caller.remark(f"No further instant of {state.schedule.name} is planned.")


def result_text(state: ScheduleState) -> str:
    """How the last submission of a schedule is."""
    if state.last_submission_id is None:
        return "-"
    return state.last_state or "removed"


def fields_of(caller: Caller, state: ScheduleState) -> list[tuple[str, object]]:
    """Each thing that is known of a schedule, with its name, as people read them."""
    schedule = state.schedule
    catch_up = schedule.catch_up + (
        "" if schedule.catch_up_s is None else f", of the last {format_duration(schedule.catch_up_s)}"
    )
    found: list[tuple[str, object]] = [
        ("schedule", schedule.name),
        ("when", f"{schedule.when} ({schedule.zone})"),
        ("next", ", ".join(str(caller.named_instant(planned)) for planned in state.upcoming) or "-"),
        ("last", "-" if state.last_planned_at is None else caller.named_instant(state.last_planned_at)),
        ("submission", state.last_submission_id),
        ("result", result_text(state)),
        ("made", state.fired_count),
        ("skipped", state.skipped_count),
        ("missed", state.missed_count),
        ("not ended", state.open_count),
        ("waiting", len(state.waiting)),
        ("overlap", schedule.overlap),
        ("catch-up", catch_up),
        ("on failure", "pause" if schedule.pauses_on_failure else "continue"),
        ("metadata", pairs_text(schedule.template.metadata)),
        ("title", schedule.template.title),
        ("jitter", format_duration(schedule.jitter_s) if schedule.jitter_s else None),
        ("from", caller.named_instant(schedule.from_at)),
        ("until", caller.named_instant(schedule.until_at)),
        ("added", caller.named_instant(state.created_at)),
        ("by", state.created_by),
        ("paused", caller.named_instant(state.paused_at)),
        ("paused by", state.paused_by),
        ("note", state.note),
    ]
    return [(name, value) for name, value in found if value not in (None, "")]
