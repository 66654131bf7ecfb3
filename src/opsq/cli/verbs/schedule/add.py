"""The verb schedule add: submissions that come by the clock."""

from __future__ import annotations

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import content_of, find, remark_next
from opsq.cli.submission_template import Template
from opsq.options.option import argument, options
from opsq.options.schedule_options import OF_ONE_SUBMISSION, Timing
from opsq.options.submission_options import Rules
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Changed, PutSchedule, Schedule


def add(
    caller: Caller,
    name: str = argument("NAME", "The name of the schedule; its submissions get the metadata schedule=NAME."),
    when: str = argument("WHEN", "A cron expression such as '30 2 * * *', @daily and the like, or 'every 15m'."),
    file: str | None = argument(
        "[FILE]",
        "The content of the chunk; - is stdin. By default the chunk names the schedule and the planned instant.",
    ),
    timing: Timing = options(Timing),
    rules: Rules = options(Rules, *OF_ONE_SUBMISSION),
) -> None:
    """Add a schedule: the daemon makes one submission of one chunk for each planned instant, despite restarts."""
    template = Template().rules(**rules.as_fields())
    if file is not None:
        template = replace(template, content=content_of(file, template.request_key), chunks_count=1)
    schedule = checked(Schedule(name, when, template, **timing.as_fields()))
    with caller.connect() as daemon:
        daemon.call(PutSchedule(daemon.next_id(), schedule), Changed)
        state = find(daemon, name)
    caller.changed(1)
    remark_next(caller, state)
