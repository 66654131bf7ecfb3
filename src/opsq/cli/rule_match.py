"""Whether the pairs of a rule match a submission that is known now: if not, they may be a typing error.

It must not change a rule; a rule holds for later submissions too.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.client.sync.connection import Connection
from opsq.documents.submission_text import pairs_text
from opsq.wire.messages import List, Listed


def warn_of_unmatched(caller: Caller, daemon: Connection, metadata: dict[str, int | str]) -> None:
    """Tell, scripts too, that no submission has all these pairs now."""
    pairs = dict(metadata)
    submission_id = pairs.pop("submission", None)
    before = None
    if submission_id is not None:
        if not isinstance(submission_id, int) or not 0 <= submission_id < (1 << 63) - 1:
            return
        before = submission_id + 1
    found = daemon.call(List(daemon.next_id(), metadata=pairs, before=before, limit=1), Listed).submissions
    if not found or submission_id not in (None, found[0].submission_id):
        warn(caller, pairs_text(metadata))


def warn(caller: Caller, what: str) -> None:
    """Tell, scripts too, that no submission has this pair or key now."""
    caller.warn(f"No submission matches {what} now; the rule holds for later ones.")
