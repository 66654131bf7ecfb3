"""The verb schedule rm: schedules are gone, not what they have made."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.options.option import argument
from opsq.wire.messages import Changed, RemoveSchedule


def rm(caller: Caller, names: list[str] = argument("NAME...", "As `opsq schedule list` lists them.")) -> None:
    """Remove schedules; their submissions stay."""
    with caller.connect() as daemon:
        count = sum(daemon.call(RemoveSchedule(daemon.next_id(), name), Changed).count for name in names)
    caller.changed(count)
