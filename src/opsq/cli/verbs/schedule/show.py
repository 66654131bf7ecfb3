"""The verb schedule show: everything about one schedule."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import fields_of, find
from opsq.documents.schedules import ScheduleShape
from opsq.options.option import Whole, argument, option
from opsq.wire.messages import UPCOMING_LIMIT


def show(
    caller: Caller,
    name: str = argument("NAME", "As `opsq schedule list` lists it."),
    upcoming: int = option("--next N", "How many of the next planned instants to show.", Whole(0, UPCOMING_LIMIT), 3),
) -> None:
    """Show a schedule: its next instants, what it has made, and its options."""
    with caller.connect() as daemon:
        state = find(daemon, name, upcoming)
    caller.document(ScheduleShape.from_state(state))
    caller.table(("", ""), fields_of(caller, state))
