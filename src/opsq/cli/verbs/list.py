"""The verb list: submissions, newest first, page by page."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.conditions import STATE, submission
from opsq.cli.options.option import Whole, option
from opsq.cli.output.json_output import instant
from opsq.cli.output.submission_documents import ListDocument, SubmissionShape
from opsq.cli.output.submission_text import minute, pairs_text
from opsq.ids import SubmissionId
from opsq.wire.messages import List, Listed, SubmissionState


def list_(
    caller: Caller,
    state: list[str] = STATE,
    metadata: list[str] = option("-m, --metadata KEY=VALUE...", "Only submissions with this metadata."),
    limit: int = option("-n, --limit N", "List at most N submissions, up to 10000.", Whole(1, 10_000), 100),
    before: SubmissionId | None = option("--before ID", "Only submissions older than this (paging).", submission),
) -> None:
    """List submissions, newest first: id, state, chunks, completed, dead, submitted, metadata."""
    with caller.connect() as daemon:
        request = List(daemon.next_id(), states=state, metadata=values.metadata(metadata), before=before, limit=limit)
        reply = daemon.call(request, Listed)
    following = None if reply.next_before is None else str(reply.next_before)
    caller.document(ListDocument([SubmissionShape.from_state(item) for item in reply.submissions], following))
    columns = ("id", "state", "chunks", "done", "dead", "submitted", "metadata")
    rows = [_row(item, is_short=caller.is_rich) for item in reply.submissions]
    caller.table(columns, rows, right=frozenset({"chunks", "done", "dead"}))
    if following:
        caller.remark(f"There are more: `opsq list --before {following}`.")


def _row(state: SubmissionState, *, is_short: bool) -> list[object]:
    return [
        state.submission_id,
        state.state,
        state.chunks_count,
        state.completed_count,
        state.dead_count,
        minute(state.submitted_at) if is_short else instant(state.submitted_at),
        pairs_text(state.metadata),
    ]
