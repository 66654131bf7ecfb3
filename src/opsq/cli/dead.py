"""The verbs about dead chunks, whose attempts are used up: dead list, dead requeue."""

from __future__ import annotations

from typing import Annotated

import typer

from opsq.cli import values
from opsq.cli.caller import Caller
from opsq.cli.json_documents import dead_shape, instant, minute
from opsq.cli.json_shapes import ChangedDocument, DeadDocument
from opsq.errors import UsageError
from opsq.ids import SubmissionId, parse_submission_id
from opsq.wire.messages import Changed, Dead, DeadChunk, DeadChunks, Requeue

HELP = "List dead chunks, or give them new attempts."


def dead_list(
    caller: Caller,
    submission: Annotated[str | None, typer.Argument(metavar="ID", help="Only of this submission.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")] = 1000,
) -> None:
    """List dead chunks: chunk, attempts, losses, instant of death, exit status or signal, reason."""
    submission_id = parse_submission_id(submission) if submission else None
    chunks: list[DeadChunk] = []
    after: tuple[int, int] | None = (0, -1)
    with caller.connect() as daemon:
        while after is not None and len(chunks) < limit:
            wanted = min(limit - len(chunks), 10_000)
            reply = daemon.call(Dead(daemon.next_id(), submission_id, after, wanted), DeadChunks)
            chunks += reply.chunks
            after = reply.next_after
    caller.document(DeadDocument([dead_shape(chunk) for chunk in chunks]))
    columns = ("chunk", "attempts", "lost", "died", "ended", "reason")
    caller.table(columns, [_row(chunk, is_short=caller.is_rich) for chunk in chunks], right=frozenset({"attempts", "lost"}))
    if after is not None:
        caller.remark("There are more: give a larger --limit.")


def dead_requeue(
    caller: Caller,
    chunks: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="A submission, for all its dead chunks, or single chunks as SUBMISSION/INDEX."),
    ],
) -> None:
    """Give dead chunks new attempts; a submission that had failed, or was cancelled or expired, is open again."""
    wanted: dict[SubmissionId, list[int] | None] = {}
    for text in chunks:
        submission_text, slash, index_text = text.partition("/")
        submission_id = parse_submission_id(submission_text)
        if not slash:
            wanted[submission_id] = None
        elif not (index_text.isascii() and index_text.isdigit()):
            raise UsageError(f"{text!r} names no chunk: write SUBMISSION/INDEX, as `opsq dead list` prints it.")
        elif (indexes := wanted.setdefault(submission_id, [])) is not None:
            indexes.append(int(index_text))
    with caller.connect() as daemon:
        count = sum(daemon.call(Requeue(daemon.next_id(), i, indexes), Changed).count for i, indexes in wanted.items())
    caller.document(ChangedDocument(count))
    caller.remark(f"{values.counted(count, 'chunk')} {'has' if count == 1 else 'have'} new attempts.")


def _row(chunk: DeadChunk, *, is_short: bool) -> list[object]:
    ended = "" if chunk.exit_status is None else f"exit {chunk.exit_status}"
    if chunk.signal is not None:
        ended = _signal_name(chunk.signal)
    return [
        f"{chunk.submission_id}/{chunk.index}",
        chunk.attempts,
        chunk.lost,
        minute(chunk.dead_at) if is_short else instant(chunk.dead_at),
        ended,
        chunk.reason,
    ]


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
