"""The verb history list: events of chunks, page by page."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.options.conditions import SUBJECT, EventConditions
from opsq.cli.options.option import COUNT, Whole, option, options
from opsq.cli.output import attempts
from opsq.cli.output.submission_documents import EventShape, HistoryDocument
from opsq.cli.stopped_queue import asked
from opsq.wire.messages import HistoryEvent


def list_(
    caller: Caller,
    conditions: EventConditions = options(EventConditions),
    subject: str | None = SUBJECT,
    limit: int = option("-n, --limit N", "List at most N rows.", COUNT, 100),
    oldest_first: bool = option("--oldest-first", "Start with the oldest instead of the newest."),
    after: int | None = option("--after SEQ", "Continue after this row, in the order shown (paging).", Whole(0)),
) -> None:
    """List events, newest first: time, event, chunks, attempt, consumer, waited, ran (seconds), exit status or
    signal, reason.
    """
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
