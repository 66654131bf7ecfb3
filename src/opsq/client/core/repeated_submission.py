"""Whether a submission that an idempotency key has made is the one that is submitted again under this key.

It must not read the content of chunks: their number and size tell, and the chunks themselves where they are inline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.content.manifest import Content, decode
from opsq.errors import Conflict
from opsq.wire.messages import Describe, Described, NewSubmission, Show, Shown, SubmissionState

if TYPE_CHECKING:
    from opsq.client.core.administration import Caller
    from opsq.content.input_chunks import Plan


def check_same(daemon: Caller, submission_id: int, new: NewSubmission, content: Content | Plan) -> None:
    """Compare what was to be submitted, or is planned, with the submission that has its idempotency key already.

    Raises:
        Conflict: its content or options differ.
    """
    state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
    described = daemon.call(Describe(daemon.next_id(), [submission_id]), Described).submissions
    known = [decode(one.content) for one in described]  # none, if it was removed just now
    differences = [
        *(d for one in known for d in _content_differences(one, content)),
        *_option_differences(state, new),
    ]
    if differences:
        raise Conflict(
            f"The idempotency key {new.idempotency_key} belongs to submission {submission_id}, which has other "
            f"{', '.join(differences)}. Nothing was submitted.",
            hint=f"Use another key, or `opsq rm {submission_id}` once it has ended.",
        )


def _content_differences(known: Content, content: Content | Plan) -> list[str]:
    is_same = (known.chunks_count, known.total_bytes) == (content.chunks_count, content.total_bytes)
    is_same = is_same and (not isinstance(content, Content) or known.inline == content.inline)
    return [] if is_same else ["content"]


def _option_differences(state: SubmissionState, new: NewSubmission) -> list[str]:
    """Of options that were left to the daemon nothing is known."""
    found = {
        "metadata": state.metadata != new.metadata,
        "priority": state.priority != new.priority,
        "--on-dead": state.keep_on_dead != new.keep_on_dead,
        "--max-attempts": new.max_attempts not in (None, state.max_attempts),
        "--max-lost": new.max_lost not in (None, state.max_lost),
        "--backoff": new.backoff not in (None, state.backoff),
    }
    return [name for name, differs in found.items() if differs]
