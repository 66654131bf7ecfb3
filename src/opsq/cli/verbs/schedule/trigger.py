"""The verb schedule trigger: one submission now."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import print_fired
from opsq.options.option import argument
from opsq.wire.messages import Submitted, TriggerSchedule


def trigger(caller: Caller, name: str = argument("NAME", "As `opsq schedule list` lists it.")) -> None:
    """Make a submission of a schedule now, even if it is paused or another is unfinished; prints its id."""
    with caller.connect() as daemon:
        reply = daemon.call(TriggerSchedule(daemon.next_id(), name), Submitted)
    print_fired(caller, reply)
