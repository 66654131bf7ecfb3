"""The verb history prune: deletes old history before its time."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.errors import UsageError
from opsq.options.option import Whole, duration, option
from opsq.units import counted
from opsq.wire.messages import Prune


def prune(
    caller: Caller,
    older_s: float | None = option("--older-than D", "Delete rows older than this.", duration),
    keep: int | None = option("--keep N", "Keep only the newest N rows.", Whole(0)),
) -> None:
    """Delete old history now, in small steps between other work; the daemon itself deletes by age (history_days) and
    count (history_rows).
    """
    if older_s is None and keep is None:
        raise UsageError("No events were selected.", hint="Give --older-than or --keep.")
    with LastingConnection(caller) as daemon:
        count = daemon.change(Prune(daemon.next_id(), older_s, keep))
        daemon.warn_of_restarts(caller)
    caller.changed(count)
    caller.remark(f"{counted(count, 'row')} {'was' if count == 1 else 'were'} deleted.")
