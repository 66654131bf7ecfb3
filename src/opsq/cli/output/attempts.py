"""Fetches the history of chunks page by page, and shows it as a table or as lines.

It must not decide which events are meant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from opsq.cli.caller import Caller
from opsq.cli.output.json_output import instant
from opsq.cli.output.readable import brief
from opsq.cli.output.submission_documents import ranges, started_at
from opsq.runner.process.process_group import signal_name
from opsq.wire.messages import History, HistoryEvent, HistoryFilter, HistoryRows, Request

R = TypeVar("R")

COLUMNS = ("at", "event", "chunk", "attempt", "consumer", "waited", "ran", "ended", "reason")
NUMBERS = frozenset({"attempt", "waited", "ran"})
ATTEMPTS = ("failed", "lost")
"""The events of failed attempts; a death repeats the reason of the last."""
_SHOWN = ("chunk", "event", "attempt", "consumer", "began", "ended", "status", "reason")


class Asked(Protocol):
    """What answers requests: the daemon, or the file of one that is stopped."""

    def next_id(self) -> int:
        """An id for the next request."""

    def call(self, request: Request, kind: type[R]) -> R:
        """The answer."""


def pages(
    daemon: Asked, where: HistoryFilter, *, after: int | None = None, newest_first: bool = False, limit: int = 1000
) -> Iterator[HistoryRows]:
    """Events page by page; a page may be empty and have others behind it."""
    while True:
        page = daemon.call(History(daemon.next_id(), where, after, limit, newest_first), HistoryRows)
        yield page
        if page.next_after is None:
            return
        after = page.next_after


def newest(daemon: Asked, where: HistoryFilter, limit: int, pages_count: int) -> tuple[list[HistoryEvent], bool]:
    """The newest events in a bounded number of pages, oldest first; and whether there may be more."""
    found: list[HistoryEvent] = []
    for number, page in enumerate(pages(daemon, where, newest_first=True, limit=limit + 1), 1):
        found += page.rows
        if len(found) > limit or (number == pages_count and page.next_after is not None):
            return found[:limit][::-1], True
    return found[::-1], False


def second(wall_ms: int) -> str:
    """A wall-clock instant for people: month, day and time, local; attempts are seldom a minute apart."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(wall_ms / 1000))


def ended(exit_status: int | None, signal: int | None) -> str:
    """How a program ended, in a word."""
    if signal is not None:
        return signal_name(signal)
    return "" if exit_status is None else f"exit {exit_status}"


def row(event: HistoryEvent, *, is_short: bool) -> list[object]:
    """An event as a row of `COLUMNS`."""
    chunks = ranges(event.block * 64, event.mask)
    is_attempt = bool(event.consumer)
    return [
        second(event.at) if is_short else instant(event.at),
        event.event,
        f"{event.submission_id}/{chunks}" if chunks else event.submission_id,
        event.attempt if is_attempt else None,
        event.consumer,
        f"{event.wait_s:.3f}" if is_attempt else None,
        f"{event.run_s:.3f}" if is_attempt else None,
        ended(event.exit_status, event.signal),
        brief(event.reason) if is_short else event.reason,
    ]


def show(caller: Caller, events: Sequence[HistoryEvent], *, title: str) -> None:
    """Print events: a table on a terminal, else for each a line of `attempt`, a tab and the event."""
    if not events:
        return
    if caller.is_rich:
        rows = [[*_shown(event, second)[:-1], brief(event.reason)] for event in events]
        caller.table(_SHOWN, rows, title=title, right=NUMBERS)
    else:
        lines = (
            " ".join("-" if value in (None, "") else str(value) for value in _shown(event, instant)) for event in events
        )
        caller.table(("", ""), [("attempt", line) for line in lines])


def _shown(event: HistoryEvent, written: Callable[[int], str | None]) -> list[object]:
    began = started_at(event)
    chunk, attempt = row(event, is_short=False)[2:4]
    return [
        chunk,
        event.event,
        attempt,
        event.consumer,
        None if began is None else written(began),
        written(event.at),
        ended(event.exit_status, event.signal),
        event.reason,
    ]
