"""The verb notify retry: what was given up is to be delivered after all."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.notify_file import deliveries
from opsq.cli.notify_ids import ALL, IDS, chosen


def retry(caller: Caller, ids: list[int] = IDS, all_: bool = ALL) -> None:
    """Have deliveries that were given up tried again, by the opsq notify that runs or the next one."""
    wanted = chosen(ids, is_all=all_)
    with deliveries(caller.settings) as file:
        count = file.retry(wanted)
    caller.changed(count)
    caller.remark(f"{count} will be tried again.")
