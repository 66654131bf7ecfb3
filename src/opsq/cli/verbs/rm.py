"""The verb rm: removes submissions that have ended, with all that belongs to them."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.chosen_submissions import DRY_RUN, Change, change_submissions
from opsq.ids import SubmissionId
from opsq.options.conditions import FINAL, FINAL_STATE, IDS, SubmissionConditions
from opsq.options.option import option, options
from opsq.wire.messages import Remove


def rm(
    caller: Caller,
    conditions: SubmissionConditions = options(SubmissionConditions, state=FINAL_STATE),
    ids: list[SubmissionId] = IDS,
    every: bool = option("--all", "Every finished submission."),
    dry_run: bool = DRY_RUN,
) -> None:
    """Remove finished submissions, with their results and content."""
    change_submissions(
        caller, Change("rm", "removed", FINAL, Remove), ids, conditions, is_all=every, is_dry_run=dry_run
    )
