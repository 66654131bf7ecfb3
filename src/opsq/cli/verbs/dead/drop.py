"""The verb dead drop: gives dead chunks up for good."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.dead_chunks import ALL, DRY_RUN, NAMES, change_dead
from opsq.options.conditions import DeadConditions
from opsq.options.option import options
from opsq.units import counted
from opsq.wire.messages import Drop


def drop(
    caller: Caller,
    conditions: DeadConditions = options(DeadConditions),
    names: list[str] = NAMES,
    every: bool = ALL,
    dry_run: bool = DRY_RUN,
) -> None:
    """Give up on dead chunks: they count as skipped from then on and can no longer be requeued."""
    count = change_dead(caller, Drop, names, conditions.as_filter(), is_all=every, is_dry_run=dry_run)
    if count is not None:
        caller.remark(f"{counted(count, 'chunk')} {'is' if count == 1 else 'are'} given up.")
