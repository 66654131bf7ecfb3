"""The verb schedule resume: paused schedules come again."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.options.option import argument
from opsq.cli.schedule_requests import find, remark_next
from opsq.wire.messages import Changed, ResumeSchedule


def resume(caller: Caller, names: list[str] = argument("NAME...", "As `opsq schedule list` lists them.")) -> None:
    """Go on with paused schedules from now; `opsq schedule backfill` makes what passed meanwhile."""
    with caller.connect() as daemon:
        count = sum(daemon.call(ResumeSchedule(daemon.next_id(), name), Changed).count for name in names)
        found = [find(daemon, name) for name in names]
    caller.changed(count)
    for state in found:
        remark_next(caller, state)
