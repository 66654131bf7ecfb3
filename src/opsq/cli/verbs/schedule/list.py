"""The verb schedule list: all schedules, their next three instants, and how the last submission went."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import all_of, result_text
from opsq.documents.schedules import SchedulesDocument, ScheduleShape
from opsq.wire.messages import ScheduleState


def list_(caller: Caller) -> None:
    """List schedules: name, time, next instants, state of the last submission; instants made, skipped and missed."""
    with caller.connect() as daemon:
        found = list(all_of(daemon))
    caller.document(SchedulesDocument([ScheduleShape.from_state(state) for state in found]))
    if not found:
        caller.remark("There are no schedules. `opsq schedule add` adds one.")
        return
    columns = ("schedule", "when", caller.heading("next"), "last", "made", "skipped", "missed")
    caller.table(columns, [_row(caller, state) for state in found], right=frozenset({"made", "skipped", "missed"}))


def _row(caller: Caller, state: ScheduleState) -> list[object]:
    if state.paused_at is not None:
        following = "paused"
    else:
        following = ", ".join(str(caller.instant(planned)) for planned in state.upcoming) or "-"
    schedule = state.schedule
    when = schedule.when if schedule.zone == "UTC" else f"{schedule.when} {schedule.zone}"
    return [
        schedule.name,
        when,
        following,
        result_text(state),
        state.fired_count,
        state.skipped_count,
        state.missed_count,
    ]
