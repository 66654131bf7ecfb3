"""The verb schedule edit: changes what is given, and nothing else."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import find, remark_next
from opsq.cli.upload import read_whole
from opsq.client.core.schedules import edited
from opsq.options.option import argument, option, options
from opsq.options.schedule_options import OF_ONE_SUBMISSION, Timing
from opsq.options.submission_options import Rules
from opsq.wire.messages import Changed, PutSchedule


def edit(
    caller: Caller,
    name: str = argument("NAME", "As `opsq schedule list` lists it."),
    when: str | None = option("--when WHEN", "A new time, as for `opsq schedule add`."),
    content: str | None = option("--content FILE|-", "New content for the chunk."),
    timing: Timing = options(Timing),
    rules: Rules = options(Rules, *OF_ONE_SUBMISSION),
) -> None:
    """Change a schedule: options that are not given keep their values, and submissions already made are not affected.

    Metadata given with -m is added.
    """
    chunk = None if content is None else read_whole(content)
    with caller.connect() as daemon:
        before = find(daemon, name).schedule
        schedule = edited(before, when, chunk, timing.as_fields(), rules.as_fields())
        daemon.call(PutSchedule(daemon.next_id(), schedule, True, before), Changed)
        state = find(daemon, name)
    caller.changed(1)
    remark_next(caller, state)
