"""Which dead chunks a command line means, and how they are listed, requeued or dropped.

What the verbs of `opsq dead` share.

It must not read options: `options.conditions` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.long_list import Listing, print_list
from opsq.cli.stopped_queue import asked
from opsq.client.core.result_pages import request_parts
from opsq.content.manifest import InputRange
from opsq.documents.asking import Asked
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.readable import brief
from opsq.documents.submission_text import ended
from opsq.documents.submissions import DeadDocument, DeadShape, input_fields
from opsq.errors import UsageError
from opsq.ids import SubmissionId
from opsq.options.conditions import chunk_name
from opsq.options.option import argument, option
from opsq.wire.messages import Dead, DeadChunk, DeadChunks, DeadFilter, Drop, Requeue

NAMES = argument("[ID...]", "Submissions, for all their dead chunks, or single chunks as SUBMISSION/INDEX.")
ALL = option("--all", "Every dead chunk; if no ID and no condition is given, --all is required.")
DRY_RUN = option("--dry-run", "Change nothing; list the chunks that would change.")

_NO_CONDITION = DeadFilter()

_Found = tuple[DeadChunk, InputRange | None]
"""A dead chunk and its input."""


class DeadChoice(NamedTuple):
    """Dead chunks that one request names: of one submission or of any, some by index, or all that meet conditions."""

    submission_id: SubmissionId | None
    indexes: list[int] | None
    where: DeadFilter


def change_dead(
    caller: Caller,
    kind: Callable[[int, SubmissionId | None, list[int] | None, DeadFilter], Requeue | Drop],
    names: Sequence[str],
    where: DeadFilter,
    *,
    is_all: bool,
    is_dry_run: bool,
) -> int | None:
    """Requeue or drop dead chunks; returns how many, None if they were only listed."""
    chosen = _chosen(names, where, is_all=is_all)
    if is_dry_run:
        print_dead(caller, chosen, None)
        return None
    with LastingConnection(caller) as daemon:
        count = sum(
            daemon.change(kind(daemon.next_id(), choice.submission_id, part, choice.where), partial(_rest, daemon))
            for choice in chosen
            for part in request_parts(choice.indexes)
        )
        daemon.warn_of_restarts(caller)
    caller.changed(count)
    return count


def _rest(daemon: Asked, request: Requeue | Drop) -> Requeue | Drop | None:
    """What is left of a request that a daemon may have served in part: a chunk that is not dead is refused by index."""
    if request.indexes is None or request.submission_id is None:
        return request
    choice = DeadChoice(SubmissionId(request.submission_id), request.indexes, request.where)
    left = [chunk.index for page in _dead(daemon, choice) for chunk in page]
    return replace(request, indexes=left) if left else None


def _chosen(names: Sequence[str], where: DeadFilter, *, is_all: bool) -> list[DeadChoice]:
    """What a command line means, which must be explicit."""
    if is_all and (names or where != _NO_CONDITION):
        raise UsageError("--all means every dead chunk: give no names or conditions with it.")
    if not names:
        if not is_all and where == _NO_CONDITION:
            raise UsageError("No dead chunks were selected.", hint="Name some, give a condition, or --all.")
        return [DeadChoice(None, None, where)]
    found: dict[SubmissionId, list[int] | None] = {}
    for name in names:
        submission_id, index = chunk_name(name)
        if index is None:
            found[submission_id] = None
        elif where != _NO_CONDITION:
            raise UsageError(
                f"{name} is a single chunk and cannot be combined with conditions.",
                hint="Name its submission, or leave out the conditions.",
            )
        elif (indexes := found.setdefault(submission_id, [])) is not None:
            indexes.append(index)
    return [DeadChoice(submission_id, indexes, where) for submission_id, indexes in found.items()]


def print_dead(caller: Caller, chosen: Sequence[DeadChoice], limit: int | None) -> None:
    """Print the chosen chunks; at most `limit`."""
    with asked(caller) as daemon:
        inputs = ChunkInputs(daemon)
        print_list(caller, (page for choice in chosen for page in _pages(daemon, choice, inputs)), _LISTING, limit)


def _pages(daemon: Asked, choice: DeadChoice, inputs: ChunkInputs) -> Iterator[list[_Found]]:
    """The chunks of a choice with their inputs, page by page."""
    for chunks in _dead(daemon, choice):
        inputs.look_up(chunk.submission_id for chunk in chunks)
        yield [(chunk, inputs.of(chunk.submission_id, chunk.index)) for chunk in chunks]


def _dead(daemon: Asked, choice: DeadChoice) -> Iterator[list[DeadChunk]]:
    """The chunks of a choice, by submission and index: each that is dead all the time once, and none twice."""
    wanted = None if choice.indexes is None else set(choice.indexes)
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        page = daemon.call(Dead(daemon.next_id(), choice.submission_id, after, where=choice.where), DeadChunks)
        yield [chunk for chunk in page.chunks if wanted is None or chunk.index in wanted]
        after = page.next_after


def _row(caller: Caller, found: _Found) -> list[object]:
    chunk, input_range = found
    came_from = "" if input_range is None else input_range.text
    row: list[object] = [
        f"{chunk.submission_id}/{chunk.index}",
        chunk.attempts,
        chunk.lost,
        caller.instant(chunk.dead_at),
        ended(chunk.exit_status, chunk.signal),
    ]
    if caller.is_rich:
        return [*row, f"{brief(chunk.reason)}\n{came_from}".rstrip("\n")]
    return [*row, chunk.reason, came_from]


_LISTING: Listing[_Found] = Listing(
    document=DeadDocument,
    columns=("chunk", "attempts", "lost", "died", "ended", "reason"),
    right=frozenset({"attempts", "lost"}),
    shape=lambda found: DeadShape.from_message(found[0], **input_fields(found[1])),
    row=_row,
    instant="died",
)
