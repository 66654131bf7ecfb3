"""The verb wait: returns when submissions have ended."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.options.conditions import submission
from opsq.cli.options.option import argument, duration, option
from opsq.cli.output.submission_documents import SubmissionShape, WaitDocument
from opsq.cli.output.submission_text import ending
from opsq.cli.submission_end import failure_of, remark_unfinished, wait_for
from opsq.ids import SubmissionId


def wait(
    caller: Caller,
    ids: list[SubmissionId] = argument("ID...", "The submissions to wait for.", submission),
    timeout_s: float | None = option("-t, --timeout D", "Give up after this long, with exit 124.", duration),
) -> None:
    """Wait until submissions have ended; exits 1 if one failed, was cancelled or expired, 3 for an unknown id, 124 on
    timeout.
    """
    try:
        states = wait_for(caller, ids, timeout_s)
    except KeyboardInterrupt:
        remark_unfinished(caller, ids)
        raise
    failure = failure_of(states)
    document = WaitDocument([SubmissionShape.from_state(state) for state in states])
    for state in states:
        if state.state == "completed":  # the others are reported as a failure
            caller.remark(f"Submission {state.submission_id} {ending(state)}")
    caller.conclude(document, failure)
