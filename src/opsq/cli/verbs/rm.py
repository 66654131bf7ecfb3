"""The verb rm: removes submissions that have ended, with all that belongs to them."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.options.conditions import IDS
from opsq.ids import SubmissionId
from opsq.wire.messages import Changed, Remove


def rm(caller: Caller, ids: list[SubmissionId] = IDS) -> None:
    """Remove finished submissions, with their results and content."""
    with caller.connect() as daemon:
        for submission_id in ids:
            daemon.call(Remove(daemon.next_id(), submission_id), Changed)
    caller.changed(len(ids))
