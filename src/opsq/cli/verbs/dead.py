"""The verbs about dead chunks, whose attempts are used up: dead list, dead show, dead requeue, dead drop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.conditions import DeadConditions, chunk_name
from opsq.cli.output import attempts
from opsq.cli.output.chunk_page import show_chunk
from opsq.cli.output.json_output import instant
from opsq.cli.output.readable import brief
from opsq.cli.output.submission_documents import ChangedDocument, DeadDocument, DeadShape
from opsq.cli.output.submission_text import minute
from opsq.cli.stopped_queue import asked
from opsq.client.core.result_pages import request_parts
from opsq.errors import UsageError
from opsq.ids import SubmissionId
from opsq.wire.messages import Changed, Dead, DeadChunk, DeadChunks, DeadFilter, Drop, Requeue

NOTHING = DeadFilter()

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Submissions, for all their dead chunks, or single chunks as SUBMISSION/INDEX."),
]
All = Annotated[bool, typer.Option("--all", help="Every dead chunk there is: needed when nothing else says which.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; list what would be taken.")]


def dead_list(
    caller: Caller,
    conditions: DeadConditions,
    submissions: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only of these submissions.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")] = 1000,
) -> None:
    """List dead chunks: chunk, attempts, losses, instant of death, exit status or signal, reason."""
    chosen = [_Choice(_submission(text), None, conditions.as_filter()) for text in submissions or []]
    _list(caller, chosen or [_Choice(None, None, conditions.as_filter())], limit)


def dead_show(
    caller: Caller,
    chunk: Annotated[str, typer.Argument(metavar="SUBMISSION/INDEX", help="The dead chunk.")],
) -> None:
    """Show all that is known of a dead chunk: each of its attempts, and the whole of its last reason, mostly the end of stderr."""
    submission_id, index = chunk_name(chunk)
    if index is None:
        raise UsageError(
            f"{chunk} names a submission, not a chunk.", hint="Write SUBMISSION/INDEX, as `opsq dead list` prints it."
        )
    show_chunk(caller, submission_id, index, must_be_dead=True)


def dead_requeue(
    caller: Caller, conditions: DeadConditions, names: Names = None, all_: All = False, dry_run: DryRun = False
) -> None:
    """Give dead chunks new attempts; a submission that had failed, or was cancelled or expired, is open again."""
    count = _change(caller, Requeue, names, conditions.as_filter(), is_all=all_, is_dry_run=dry_run)
    if count is not None:
        caller.remark(f"{values.counted(count, 'chunk')} {'has' if count == 1 else 'have'} new attempts.")


def dead_drop(
    caller: Caller, conditions: DeadConditions, names: Names = None, all_: All = False, dry_run: DryRun = False
) -> None:
    """Give dead chunks up: they count as skipped from then on, and cannot be requeued any more."""
    count = _change(caller, Drop, names, conditions.as_filter(), is_all=all_, is_dry_run=dry_run)
    if count is not None:
        caller.remark(f"{values.counted(count, 'chunk')} {'is' if count == 1 else 'are'} given up.")


class _Choice:
    """Dead chunks that one request names: of one submission or of any, some by index, or all that fulfil conditions."""

    def __init__(self, submission_id: SubmissionId | None, indexes: list[int] | None, where: DeadFilter) -> None:
        self.submission_id = submission_id
        self.indexes = indexes
        self.where = where


def _chosen(names: Sequence[str] | None, where: DeadFilter, *, is_all: bool) -> list[_Choice]:
    """What a command line means, which must say what it means."""
    if is_all and (names or where != NOTHING):
        raise UsageError("--all stands alone: it means every dead chunk there is.")
    if not names:
        if not is_all and where == NOTHING:
            raise UsageError("Nothing says which dead chunks are meant.", hint="Name some, give a condition, or --all.")
        return [_Choice(None, None, where)]
    found: dict[SubmissionId, list[int] | None] = {}
    for name in names:
        submission_id, index = chunk_name(name)
        if index is None:
            found[submission_id] = None
        elif where != NOTHING:
            raise UsageError(
                f"{name} names a chunk, so no condition can choose it.",
                hint="Name its submission, or leave the conditions.",
            )
        elif (indexes := found.setdefault(submission_id, [])) is not None:
            indexes.append(index)
    return [_Choice(submission_id, indexes, where) for submission_id, indexes in found.items()]


def _change(
    caller: Caller,
    kind: Callable[[int, SubmissionId | None, list[int] | None, DeadFilter], Requeue | Drop],
    names: Sequence[str] | None,
    where: DeadFilter,
    *,
    is_all: bool,
    is_dry_run: bool,
) -> int | None:
    """Have dead chunks requeued or dropped; how many, None if they were only listed."""
    chosen = _chosen(names, where, is_all=is_all)
    if is_dry_run:
        _list(caller, chosen, None)
        return None
    with caller.connect() as daemon:
        count = sum(
            daemon.call(kind(daemon.next_id(), choice.submission_id, part, choice.where), Changed).count
            for choice in chosen
            for part in request_parts(choice.indexes)
        )
    caller.document(ChangedDocument(count))
    return count


def _list(caller: Caller, chosen: Sequence[_Choice], limit: int | None) -> None:
    """Print the chunks that are meant; None: however many."""
    chunks: list[DeadChunk] = []
    has_more = False
    with asked(caller) as daemon:
        for choice in chosen:
            left = None if limit is None else limit - len(chunks)
            found, is_cut = _dead(daemon, choice, left)
            chunks += found
            has_more = has_more or is_cut
    caller.document(DeadDocument([DeadShape.from_message(chunk) for chunk in chunks]))
    columns = ("chunk", "attempts", "lost", "died", "ended", "reason")
    caller.table(
        columns, [_row(chunk, is_short=caller.is_rich) for chunk in chunks], right=frozenset({"attempts", "lost"})
    )
    if has_more:
        caller.remark("There are more: give a larger --limit.")


def _dead(daemon: attempts.Asked, choice: _Choice, limit: int | None) -> tuple[list[DeadChunk], bool]:
    """The chunks of a choice, and whether there are more than `limit`."""
    wanted = None if choice.indexes is None else set(choice.indexes)
    found: list[DeadChunk] = []
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        page = daemon.call(Dead(daemon.next_id(), choice.submission_id, after, where=choice.where), DeadChunks)
        found += [chunk for chunk in page.chunks if wanted is None or chunk.index in wanted]
        after = page.next_after
        if limit is not None and len(found) > limit:
            return found[:limit], True
    return found, False


def _submission(text: str) -> SubmissionId:
    submission_id, index = chunk_name(text)
    if index is not None:
        raise UsageError(f"{text} names a chunk.", hint=f"`opsq dead show {text}` shows it.")
    return submission_id


def _row(chunk: DeadChunk, *, is_short: bool) -> list[object]:
    return [
        f"{chunk.submission_id}/{chunk.index}",
        chunk.attempts,
        chunk.lost,
        minute(chunk.dead_at) if is_short else instant(chunk.dead_at),
        attempts.ended(chunk.exit_status, chunk.signal),
        brief(chunk.reason) if is_short else chunk.reason,
    ]
