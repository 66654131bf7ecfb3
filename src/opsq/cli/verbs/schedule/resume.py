"""The verb schedule resume: paused schedules continue."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import find, remark_next
from opsq.options.option import argument
from opsq.wire.messages import Changed, ResumeSchedule


def resume(caller: Caller, names: list[str] = argument("NAME...", "As `opsq schedule list` lists them.")) -> None:
    """Resume paused schedules from now on; `opsq schedule backfill` makes up for what they missed."""
    with caller.connect() as daemon:
        count = sum(daemon.call(ResumeSchedule(daemon.next_id(), name), Changed).count for name in names)
        found = [find(daemon, name) for name in names]
    caller.changed(count)
    for state in found:
        remark_next(caller, state)
