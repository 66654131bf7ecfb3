"""The verb schedule backfill: the submissions of past instants."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import print_fired
from opsq.options.option import argument
from opsq.options.values import instant
from opsq.units import counted
from opsq.wire.messages import BackfillSchedule, Submitted


def backfill(
    caller: Caller,
    name: str = argument("NAME", "As `opsq schedule list` lists it."),
    from_at: int = argument("FROM", "The first instant.", instant),
    to_at: int = argument("TO", "Before this one.", instant),
) -> None:
    """Make submissions for planned instants of the past that have none; prints their ids."""
    with caller.connect() as daemon:
        reply = daemon.call(BackfillSchedule(daemon.next_id(), name, from_at, to_at), Submitted)
    print_fired(caller, reply)
    if not any(one.is_new for one in reply.created):
        caller.remark(
            f"There were submissions for all of them already: {counted(len(reply.created), 'instant')}."
            if reply.created
            else "No instant is planned then."
        )
