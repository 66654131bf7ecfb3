"""The verbs about submissions that exist: show, list, cancel, rm."""

from __future__ import annotations

from typing import Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.conditions import chunk_name
from opsq.cli.output import attempts
from opsq.cli.output.json_output import instant
from opsq.cli.output.submission_documents import ChangedDocument, EventShape, ListDocument, SubmissionShape
from opsq.cli.output.submission_text import minute, pairs_text
from opsq.errors import UsageError
from opsq.ids import parse_submission_id
from opsq.wire.messages import Cancel, Changed, HistoryFilter, List, Listed, Remove, Show, Shown, SubmissionState

ATTEMPTS_SHOWN = 20
ATTEMPTS_PAGES = 50
"""So many pages of the history are looked through for them; a submission with millions of events is not searched whole."""
STATES = ("scheduled", "open", "completed", "failed", "cancelled", "expired")

Ids = Annotated[
    list[str], typer.Argument(metavar="ID", help="Submissions, as `opsq submit` and `opsq list` print them.")
]


def show(
    caller: Caller,
    subject: Annotated[str, typer.Argument(metavar="ID", help="The submission, or a chunk of it as SUBMISSION/INDEX.")],
) -> None:
    """Show one submission: its state, counts, metadata and rules, and what has failed of late; or all that has happened to a chunk."""
    submission_id, index = chunk_name(subject)
    if index is not None:
        from opsq.cli.output.chunk_page import show_chunk

        show_chunk(caller, submission_id, index)
        return
    where = HistoryFilter(submission_id, events=list(attempts.ATTEMPTS))
    with caller.connect() as daemon:
        state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
        failed, has_more = attempts.newest(daemon, where, ATTEMPTS_SHOWN, ATTEMPTS_PAGES)
    shape = SubmissionShape.from_state(state)
    shape.attempts = [EventShape.from_event(event, {}) for event in failed]
    shape.has_more_attempts = has_more
    caller.document(shape)
    caller.table(("", ""), _details(shape))
    attempts.show(caller, failed, title="What has failed of late")
    if has_more:
        caller.remark(f"There may be more: `opsq history list {submission_id} --event failed`.")


def list_(
    caller: Caller,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only these states: {', '.join(STATES)}.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="Only submissions with this metadata."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, metavar="N", help="How many at most.")
    ] = 100,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Only older ones than this, to turn the page.")
    ] = None,
) -> None:
    """List submissions, newest first: id, state, chunks, completed, dead, submitted, metadata."""
    for name in state or []:
        if name not in STATES:
            raise UsageError(f"--state {name}: there is no such state.", hint=f"States are {', '.join(STATES)}.")
    with caller.connect() as daemon:
        request = List(
            daemon.next_id(),
            states=state or [],
            metadata=values.metadata(metadata or []),
            before=parse_submission_id(before) if before else None,
            limit=limit,
        )
        reply = daemon.call(request, Listed)
    following = None if reply.next_before is None else str(reply.next_before)
    caller.document(ListDocument([SubmissionShape.from_state(item) for item in reply.submissions], following))
    columns = ("id", "state", "chunks", "done", "dead", "submitted", "metadata")
    rows = [_row(item, is_short=caller.is_rich) for item in reply.submissions]
    caller.table(columns, rows, right=frozenset({"chunks", "done", "dead"}))
    if following:
        caller.remark(f"There are more: `opsq list --before {following}`.")


def cancel(
    caller: Caller,
    ids: Ids,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; `opsq show` tells it.")] = "",
) -> None:
    """Cancel submissions: nothing more of them is handed out, and what runs loses its reservation."""
    submission_ids = [parse_submission_id(text) for text in ids]
    with caller.connect() as daemon:
        counts = [daemon.call(Cancel(daemon.next_id(), i, reason), Changed).count for i in submission_ids]
    caller.document(ChangedDocument(sum(counts)))
    for submission_id, count in zip(submission_ids, counts, strict=True):
        caller.remark(f"Submission {submission_id} " + ("is cancelled." if count else "had ended before."))


def rm(caller: Caller, ids: Ids) -> None:
    """Forget finished submissions, with their results and content."""
    submission_ids = [parse_submission_id(text) for text in ids]
    with caller.connect() as daemon:
        for submission_id in submission_ids:
            daemon.call(Remove(daemon.next_id(), submission_id), Changed)
    caller.document(ChangedDocument(len(submission_ids)))


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


def _unique_text(shape: SubmissionShape) -> str | None:
    """The unique key, until when it is held, and whether it is."""
    if shape.unique is None:
        return None
    held = "" if shape.unique_held else ", free again"
    return f"{shape.unique} (until {'the start' if shape.unique_until == 'start' else 'the end'}{held})"


def _details(shape: SubmissionShape) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), getattr(shape, name))
        for name in (
            "submission_id",
            "state",
            "reason",
            "chunks",
            "completed",
            "waiting",
            "delayed",
            "reserved",
            "dead",
            "skipped",
        )
    ]
    backoff = shape.backoff
    rows += [
        ("metadata", pairs_text(shape.metadata)),
        ("priority", shape.priority),
        ("max attempts", shape.max_attempts),
        ("max lost", shape.max_lost),
        ("back-off", f"{backoff.base_s:g}s × {backoff.factor:g} up to {backoff.max_s:g}s"),
        ("on dead", shape.on_dead),
        ("reservation", f"{shape.reservation_s:g}s"),
        ("submitted", shape.submitted_at),
        ("not before", shape.not_before_at),
        ("expires", shape.expires_at),
        ("finished", shape.finished_at),
        ("unique", _unique_text(shape)),
        ("attachment", "yes" if shape.has_attachment else "no"),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]
