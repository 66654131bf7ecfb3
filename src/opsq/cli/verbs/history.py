"""The verbs about what has happened: history list, history export, history prune."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.conditions import EventConditions
from opsq.cli.output import attempts, event_export
from opsq.cli.output.submission_documents import ChangedDocument, EventShape, ExportDocument, HistoryDocument
from opsq.cli.stopped_queue import asked
from opsq.errors import UsageError
from opsq.wire.messages import Changed, HistoryEvent, Prune

Subject = Annotated[
    str | None, typer.Argument(metavar="ID", help="Only of this submission, or of a chunk of it as SUBMISSION/INDEX.")
]


def history_list(
    caller: Caller,
    conditions: EventConditions,
    subject: Subject = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")] = 100,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="Begin with the oldest instead of the newest.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", min=0, metavar="SEQ", help="Go on behind this row, in the order shown, to turn the page."
        ),
    ] = None,
) -> None:
    """List events, newest first: instant, event, chunks, attempt, consumer, waited, ran (seconds), exit status or signal, reason."""
    found: list[HistoryEvent] = []
    metadata: dict[int, dict[str, int | str]] = {}
    where = conditions.as_filter(subject)
    following: int | None = None
    with asked(caller) as daemon:
        for page in attempts.pages(daemon, where, after=after, newest_first=not oldest_first, limit=min(limit, 1000)):
            found += page.rows
            metadata |= page.metadata
            following = page.next_after
            if len(found) >= limit:
                following = found[limit - 1].seq if len(found) > limit else following
                break
    found = found[:limit]
    shapes = [EventShape.from_event(event, metadata.get(event.submission_id, {})) for event in found]
    caller.document(HistoryDocument(shapes, None if following is None else str(following)))
    caller.table(
        attempts.COLUMNS, [attempts.row(event, is_short=caller.is_rich) for event in found], right=attempts.NUMBERS
    )
    if following is not None:
        caller.remark(f"There may be more: --after {following}, or a larger --limit.")


def history_export(
    caller: Caller,
    conditions: EventConditions,
    subject: Subject = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE|FOLDER|-", help="Where to: a file, a folder that is there, or stdout."
        ),
    ] = "-",
    format_: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        typer.Option(
            "--format", help="JSON lines, CSV or Parquet; by default what the name of the file says, else JSON lines."
        ),
    ] = None,
    rotate: Annotated[
        int | None,
        typer.Option("--rotate", min=1, metavar="N", help="Begin a new file in the folder after so many rows."),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, metavar="SEQ", help="Only rows behind this one.")
    ] = None,
    after_last: Annotated[
        bool, typer.Option("--after-last", help="Only rows behind the last one in the folder's files.")
    ] = False,
) -> None:
    """Write events, oldest first, to a file, to stdout, or to files in a folder that name the range of rows they hold.

    Files are written beside and then renamed, so that who reads the folder never meets half of one.
    """
    values.exclude(after=after, after_last=after_last)
    where = conditions.as_filter(subject)
    target = event_export.target(output, format_, rotate, is_going_on=after_last)
    if caller.is_json and target.is_stdout:
        raise UsageError("--json and an export to stdout exclude each other.", hint="Give --output.")
    with asked(caller) as daemon, caller.progress("rows") as progress, target:
        task = progress.add_task("exporting", total=None) if progress else None
        for page in attempts.pages(daemon, where, after=target.last_seq if after_last else after):
            target.write(page.rows, page.metadata)
            if progress:
                progress.update(task, completed=target.rows_count)
    if not target.is_stdout:
        caller.document(ExportDocument(target.rows_count, target.files, target.last_seq))
        caller.remark(f"{values.counted(target.rows_count, 'row')} in {values.counted(len(target.files), 'file')}.")


def history_prune(
    caller: Caller,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="D", help="Forget what is older than this.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=0, metavar="N", help="Forget all but the newest N rows.")
    ] = None,
) -> None:
    """Forget old history now, in small steps between other work; it goes by itself after history_days, or beyond history_rows."""
    if older_than is None and keep is None:
        raise UsageError("Nothing says what is to be forgotten.", hint="Give --older-than or --keep.")
    with caller.connect() as daemon:
        count = daemon.call(Prune(daemon.next_id(), values.duration("--older-than", older_than), keep), Changed).count
    caller.document(ChangedDocument(count))
    caller.remark(f"{values.counted(count, 'row')} {'is' if count == 1 else 'are'} forgotten.")
