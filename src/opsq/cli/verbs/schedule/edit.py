"""The verb schedule edit: changes what is given, and nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.schedule_requests import content_of, find, remark_next
from opsq.options.option import argument, option, options
from opsq.options.schedule_options import Timing
from opsq.options.submission_options import Rules
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Changed, PutSchedule


def edit(
    caller: Caller,
    name: str = argument("NAME", "As `opsq schedule list` lists it."),
    when: str | None = option("--when WHEN", "A new time, as for `opsq schedule add`."),
    content: str | None = option("--content FILE|-", "New content for the chunk."),
    timing: Timing = options(Timing),
    rules: Rules = options(Rules),
) -> None:
    """Change a schedule: options that are not given keep their values, and submissions already made are not affected.

    Metadata given with -m is added.
    """
    fields = rules.as_fields()
    with caller.connect() as daemon:
        schedule = find(daemon, name).schedule
        template = schedule.template
        fields["metadata"] = template.metadata | fields.get("metadata", {})
        if content is not None:
            fields |= {"content": content_of(content, template.request_key), "chunks_count": 1}
        changes = timing.as_fields() | ({} if when is None else {"when": when})
        schedule = checked(replace(schedule, template=replace(template, **fields), **changes))
        daemon.call(PutSchedule(daemon.next_id(), schedule, True), Changed)
        state = find(daemon, name)
    caller.changed(1)
    remark_next(caller, state)
