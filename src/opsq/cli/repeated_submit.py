"""Whether a submission that an idempotency key has made is the one that is submitted again under this key.

It must not read the content of chunks: their number and size tell, and the chunks themselves where they are inline.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.content.manifest import Content, decode
from opsq.errors import Conflict
from opsq.ids import SubmissionId
from opsq.wire.messages import Describe, Described, NewSubmission, Show, Shown, SubmissionState


def check_same(caller: Caller, submission_id: SubmissionId, rules: NewSubmission, content: Content) -> None:
    """Tell a person that nothing was submitted, since this submission has the idempotency key already.

    Raises:
        Conflict: its content or options differ from those that were to be submitted.
    """
    with caller.connect() as daemon:
        state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
        described = daemon.call(Describe(daemon.next_id(), [submission_id]), Described).submissions
    known = [decode(one.content) for one in described]  # none, if it was removed just now
    differences = [
        *(d for one in known for d in _content_differences(one, content)),
        *_option_differences(state, rules),
    ]
    if differences:
        raise Conflict(
            f"The idempotency key {rules.idempotency_key} belongs to submission {submission_id}, which has other "
            f"{', '.join(differences)}. Nothing was submitted.",
            hint=f"Use another key, or `opsq rm {submission_id}` once it has ended.",
        )
    caller.remark(f"Submission {submission_id} has this key already; nothing was submitted.")


def _content_differences(known: Content, content: Content) -> list[str]:
    is_same = (known.chunks_count, known.total_bytes) == (content.chunks_count, content.total_bytes)
    return [] if is_same and known.inline == content.inline else ["content"]


def _option_differences(state: SubmissionState, rules: NewSubmission) -> list[str]:
    """Of options that were left to the daemon nothing is known."""
    found = {
        "metadata": state.metadata != rules.metadata,
        "priority": state.priority != rules.priority,
        "--on-dead": state.keep_on_dead != rules.keep_on_dead,
        "--max-attempts": rules.max_attempts not in (None, state.max_attempts),
        "--max-lost": rules.max_lost not in (None, state.max_lost),
        "--backoff": rules.backoff not in (None, state.backoff),
    }
    return [name for name, differs in found.items() if differs]
