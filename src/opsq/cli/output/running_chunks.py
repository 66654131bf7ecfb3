"""Fetches the chunks that are being worked on, and shows them as a table or as fields.

It must not decide which are meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opsq.cli.caller import Caller
from opsq.cli.options.values import now_ms
from opsq.cli.output.attempts import Asked, nth
from opsq.cli.output.submission_text import named, pairs_text
from opsq.documents.shape import instant
from opsq.documents.submissions import RunningShape
from opsq.ids import SubmissionId, mask_indexes
from opsq.units import format_span
from opsq.wire.messages import Running, RunningChunks

PAGE_ROWS = 1_000


def running(
    daemon: Asked,
    submission_id: int | None = None,
    metadata: dict[str, int | str] | None = None,
    page_rows: int = PAGE_ROWS,
) -> Iterator[RunningShape]:
    """The chunks that are being worked on, those first that have been for longest; asked for page by page."""
    after = None
    while True:
        request = Running(daemon.next_id(), submission_id, metadata or {}, after, page_rows)
        page = daemon.call(request, RunningChunks)
        now = now_ms()
        for row in page.rows:
            for index in mask_indexes(row.block, row.mask):
                yield RunningShape(
                    submission_id=str(row.submission_id),
                    index=index,
                    attempt=row.attempt,
                    consumer=row.consumer,
                    host=row.host,
                    pid=row.pid or None,
                    since_at=instant(now - round(row.run_s * 1000)) or "",
                    run_s=round(row.run_s, 3),
                    is_at_least=row.is_at_least,
                    metadata=page.metadata.get(row.submission_id, {}),
                    title=page.titles.get(row.submission_id),
                )
        after = page.next_after
        if after is None:
            return


def draw(caller: Caller, submission_id: SubmissionId, chunks: Sequence[RunningShape]) -> None:
    """Print chunks of one submission, at least one, as a table, by index."""
    caller.table(
        ("chunk", "attempt", "consumer", "where", caller.heading("since"), "for"),
        [_drawn(caller, each) for each in chunks],
        title=f"Submission {named(submission_id, chunks[0].title)}",
        right=frozenset({"chunk", "attempt", "for"}),
    )


def host_of(chunk: RunningShape) -> str:
    """Host and process of its consumer; "" if that is unknown, or how the consumer is called anyway."""
    host = f"{chunk.host}-{chunk.pid}" if chunk.pid else chunk.host
    return "" if chunk.consumer.startswith(host) else host


def description_of(chunk: RunningShape) -> str:
    """Title and metadata of its submission."""
    return "  ".join(filter(None, (chunk.title, pairs_text(chunk.metadata))))


def span_of(chunk: RunningShape) -> str:
    """For how long it has run."""
    return f"{'≥ ' if chunk.is_at_least else ''}{format_span(chunk.run_s)}"


def _drawn(caller: Caller, chunk: RunningShape) -> list[object]:
    since = caller.instant(now_ms() - round(chunk.run_s * 1000))
    return [chunk.index, nth(chunk.attempt), chunk.consumer, host_of(chunk), since, span_of(chunk)]


def plain(chunk: RunningShape) -> list[object]:
    """A chunk as a line of fields: chunk, attempt, consumer, host, process, since, seconds."""
    name = f"{chunk.submission_id}/{chunk.index}"
    place = [chunk.host or "-", chunk.pid or "-"]
    return [name, nth(chunk.attempt), chunk.consumer, *place, chunk.since_at, f"{chunk.run_s:.3f}"]
