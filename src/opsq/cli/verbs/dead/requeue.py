"""The verb dead requeue: gives dead chunks new attempts."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.dead_chunks import ALL, DRY_RUN, NAMES, change_dead
from opsq.options.conditions import DeadConditions
from opsq.options.option import options
from opsq.units import counted
from opsq.wire.messages import Requeue


def requeue(
    caller: Caller,
    conditions: DeadConditions = options(DeadConditions),
    names: list[str] = NAMES,
    every: bool = ALL,
    dry_run: bool = DRY_RUN,
) -> None:
    """Give dead chunks new attempts; a submission that had failed, or was cancelled or expired, is open again."""
    count = change_dead(caller, Requeue, names, conditions.as_filter(), is_all=every, is_dry_run=dry_run)
    if count is not None:
        caller.remark(f"{counted(count, 'chunk')} {'has' if count == 1 else 'have'} new attempts.")
