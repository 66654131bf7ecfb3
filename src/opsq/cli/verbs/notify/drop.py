"""The verb notify drop: what was given up is forgotten."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.notify_file import deliveries
from opsq.cli.notify_ids import ALL, IDS, chosen


def drop(caller: Caller, ids: list[int] = IDS, all_: bool = ALL) -> None:
    """Forget deliveries that were given up."""
    wanted = chosen(ids, is_all=all_)
    with deliveries(caller.settings) as file:
        count = file.drop(wanted)
    caller.changed(count)
    caller.remark(f"{count} dropped.")
