"""The verb cancel: ends submissions before their work is done."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.chosen_submissions import DRY_RUN, Change, change_submissions
from opsq.ids import SubmissionId
from opsq.options.conditions import IDS, UNFINISHED, UNFINISHED_STATE, SubmissionConditions
from opsq.options.option import option, options
from opsq.wire.messages import Cancel


def cancel(
    caller: Caller,
    conditions: SubmissionConditions = options(SubmissionConditions, state=UNFINISHED_STATE),
    ids: list[SubmissionId] = IDS,
    every: bool = option("--all", "Every unfinished submission."),
    dry_run: bool = DRY_RUN,
    reason: str = option("--reason TEXT", "The reason, shown by `opsq show`.", default=""),
) -> None:
    """Cancel submissions: nothing more of them is handed out, and running chunks lose their reservations."""
    change = Change("cancel", "cancelled", UNFINISHED, lambda number, each: Cancel(number, each, reason))
    change_submissions(caller, change, ids, conditions, is_all=every, is_dry_run=dry_run)
