"""The verb list: submissions, newest first."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.chosen_submissions import print_submissions
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.long_list import DEFAULT_TEXT
from opsq.ids import SubmissionId
from opsq.options.conditions import SubmissionConditions, submission
from opsq.options.option import COUNT, option, options


def list_(
    caller: Caller,
    conditions: SubmissionConditions = options(SubmissionConditions),
    limit: int | None = option("-n, --limit N", f"List at most N submissions; {DEFAULT_TEXT}.", COUNT),
    before: SubmissionId | None = option("--before ID", "Only submissions older than this (paging).", submission),
) -> None:
    """List submissions, newest first: id, state, chunks, completed, dead, submitted, metadata, title."""
    with LastingConnection(caller) as daemon:
        print_submissions(caller, daemon, conditions, limit, before)
