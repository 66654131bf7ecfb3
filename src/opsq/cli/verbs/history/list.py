"""The verb history list: events of chunks."""

from __future__ import annotations

from collections.abc import Iterator

from opsq.cli.caller import Caller
from opsq.cli.output import attempts
from opsq.cli.output.event_export import Known
from opsq.cli.output.long_list import DEFAULT_TEXT, Listing, print_list
from opsq.cli.shard_options import are_sharded
from opsq.cli.stopped_queue import asked
from opsq.content.manifest import InputRange
from opsq.documents.asking import Asked, events
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.submissions import EventShape, HistoryDocument
from opsq.options.conditions import SUBJECT, EventConditions
from opsq.options.option import COUNT, Whole, option, options
from opsq.wire.messages import HistoryEvent, HistoryFilter

_PAGE_ROWS = 1000

_Described = tuple[HistoryEvent, dict[str, int | str], InputRange | None, str | None]
"""An event, the metadata of its submission, the input of its first chunk, and the title of the submission."""


def list_(
    caller: Caller,
    conditions: EventConditions = options(EventConditions),
    subject: str | None = SUBJECT,
    limit: int | None = option("-n, --limit N", f"List at most N rows; {DEFAULT_TEXT}.", COUNT),
    oldest_first: bool = option("--oldest-first", "Start with the oldest instead of the newest."),
    after: int | None = option("--after SEQ", "Continue after this row, in the order shown (paging).", Whole(0)),
) -> None:
    """List events, newest first: time, event, chunks, attempt, consumer, waited, ran (seconds), exit status or
    signal, reason.
    """
    where = conditions.as_filter(subject)
    count = _PAGE_ROWS if limit is None else min(limit + 1, _PAGE_ROWS)
    with asked(caller) as daemon:
        inputs = ChunkInputs(daemon) if caller.is_json else None
        pages = _pages(daemon, where, after, count, inputs, newest_first=not oldest_first)
        print_list(caller, pages, _listing(caller, where.submission_id), limit)


def _pages(
    daemon: Asked,
    where: HistoryFilter,
    after: int | None,
    count: int,
    inputs: ChunkInputs | None,
    *,
    newest_first: bool,
) -> Iterator[list[_Described]]:
    for page in events(daemon, where, after=after, newest_first=newest_first, limit=count):
        known = Known(page.metadata, {} if inputs is None else inputs.of_events(page.rows), page.titles)
        yield [(event, *known.of(event)) for event in page.rows]


def _listing(caller: Caller, submission_id: int | None) -> Listing[_Described]:
    """On a terminal events of one submission have its id above, and indexes alone."""
    is_alone = caller.is_rich and submission_id is not None
    is_of_several = submission_id is None and are_sharded(caller)  # each with numbers of its own
    return Listing(
        document=HistoryDocument,
        columns=attempts.COLUMNS,
        right=attempts.NUMBERS,
        shape=lambda item: EventShape.from_event(*item),
        row=lambda caller, item: attempts.row(caller, item[0], is_alone=is_alone),
        instant="at",
        next_of=lambda item: None if is_of_several else item[0].seq,
        going_on="--after",
        title=f"Submission {submission_id}" if is_alone else "",
    )
