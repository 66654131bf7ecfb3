"""The verb schedule pause: planned instants pass without a submission."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.client.core.administration import caller_name
from opsq.options.option import argument, option
from opsq.wire.messages import Changed, PauseSchedule


def pause(
    caller: Caller,
    names: list[str] = argument("NAME...", "As `opsq schedule list` lists them."),
    note: str = option("--note TEXT", "Why; shown by `opsq schedule show`.", default=""),
) -> None:
    """Pause schedules: planned instants pass without a submission until they are resumed; running work continues."""
    with caller.connect() as daemon:
        count = sum(
            daemon.call(PauseSchedule(daemon.next_id(), name, caller_name(), note), Changed).count for name in names
        )
    caller.changed(count)
