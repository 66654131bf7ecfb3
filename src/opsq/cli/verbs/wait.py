"""The verb wait: returns when submissions have ended."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.chosen_submissions import check_choice, pages, warn_of_none
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.submission_end import failure_of, remark_unfinished, wait_for
from opsq.documents.submission_text import ending, named
from opsq.documents.submissions import SubmissionShape, WaitDocument
from opsq.ids import SubmissionId
from opsq.options.conditions import IDS, UNFINISHED, UNFINISHED_STATE, SubmissionConditions
from opsq.options.option import duration, option, options


def wait(
    caller: Caller,
    conditions: SubmissionConditions = options(SubmissionConditions, state=UNFINISHED_STATE),
    ids: list[SubmissionId] = IDS,
    every: bool = option("--all", "Every submission that is unfinished now."),
    timeout_s: float | None = option("-t, --timeout D", "Give up after this long, with exit 124.", duration),
) -> None:
    """Wait until submissions have ended; exits 1 if one failed, was cancelled or expired, 3 for an unknown id, 124 on
    timeout. Conditions select among those that are unfinished now.
    """
    check_choice("wait", ids, conditions, is_all=every)
    if not ids:
        with LastingConnection(caller) as daemon:
            where = conditions._replace(state=conditions.state or list(UNFINISHED))
            ids = [SubmissionId(item.submission_id) for page in pages(daemon, where) for item in page]
        if not ids:
            warn_of_none(caller, "wait")
    try:
        states = wait_for(caller, ids, timeout_s)
    except KeyboardInterrupt:
        remark_unfinished(caller, ids)
        raise
    failure = failure_of(caller, states)
    document = WaitDocument([SubmissionShape.from_state(state) for state in states])
    for state in states:
        if state.state == "completed":  # the others are reported as a failure
            caller.remark(f"Submission {named(state.submission_id, state.title)} {ending(state)}")
    caller.conclude(document, failure)
