"""The verb cancel: ends submissions before their work is done."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.options.conditions import IDS
from opsq.cli.options.option import option
from opsq.ids import SubmissionId
from opsq.wire.messages import Cancel, Changed


def cancel(
    caller: Caller,
    ids: list[SubmissionId] = IDS,
    reason: str = option("--reason TEXT", "The reason, shown by `opsq show`.", default=""),
) -> None:
    """Cancel submissions: nothing more of them is handed out, and running chunks lose their reservations."""
    with caller.connect() as daemon:
        counts = [daemon.call(Cancel(daemon.next_id(), each, reason), Changed).count for each in ids]
    caller.changed(sum(counts))
    for submission_id, count in zip(ids, counts, strict=True):
        caller.remark(f"Submission {submission_id} " + ("is cancelled." if count else "had already ended."))
