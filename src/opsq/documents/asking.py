"""Asks for what documents tell, page by page: events of the history, and chunks that are being worked on.

It must not decide which are meant.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol, TypeVar

from opsq.documents.shape import instant
from opsq.documents.submissions import RunningShape
from opsq.ids import mask_indexes
from opsq.wire.messages import History, HistoryEvent, HistoryFilter, HistoryRows, Request, Running, RunningChunks

R = TypeVar("R")

ATTEMPTS = ("failed", "lost")
"""The events of failed attempts; a death repeats the reason of the last."""
_PAGE_ROWS = 1000
_LEAST_ROWS = 200
"""Of a page: of one submission, a page looks at so many events, and what is asked for may be rare among them."""


class Asked(Protocol):
    """What answers requests: the daemon, or the file of one that is stopped."""

    def next_id(self) -> int:
        """An id for the next request."""

    def call(self, request: Request, kind: type[R]) -> R:
        """The answer."""


class AskedForContent(Asked, Protocol):
    """The same, and where the content of submissions is."""

    @property
    def store_url(self) -> str:
        """Of the store."""


def events(
    daemon: Asked, where: HistoryFilter, *, after: int | None = None, newest_first: bool = False, limit: int = 1000
) -> Iterator[HistoryRows]:
    """Events page by page; a page may be empty and have others behind it."""
    while True:
        page = daemon.call(History(daemon.next_id(), where, after, limit, newest_first), HistoryRows)
        yield page
        if page.next_after is None:
            return
        after = page.next_after


def newest_events(daemon: Asked, where: HistoryFilter, limit: int, pages_count: int) -> tuple[list[HistoryEvent], bool]:
    """The newest events in a bounded number of pages, oldest first; and whether there may be more."""
    found: list[HistoryEvent] = []
    rows_count = max(limit + 1, _LEAST_ROWS)
    for number, page in enumerate(events(daemon, where, newest_first=True, limit=rows_count), 1):
        found += page.rows
        if len(found) > limit or (number == pages_count and page.next_after is not None):
            return found[:limit][::-1], True
    return found[::-1], False


def running(
    daemon: Asked,
    submission_id: int | None = None,
    metadata: dict[str, int | str] | None = None,
    page_rows: int = _PAGE_ROWS,
) -> Iterator[RunningShape]:
    """The chunks that are being worked on, those first that have been for longest; asked for page by page."""
    after = None
    while True:
        request = Running(daemon.next_id(), submission_id, metadata or {}, after, page_rows)
        page = daemon.call(request, RunningChunks)
        now = time.time_ns() // 1_000_000
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
