"""Fetches the history of chunks page by page, and shows it as a table or as lines.

It must not decide which events are meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from opsq.cli.caller import Caller
from opsq.cli.output.readable import brief
from opsq.documents.submissions import ranges
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


def nth(before_count: int) -> int:
    """Which attempt it is, as people count: from 1. JSON, variables and Python have how many there were before."""
    return before_count + 1


def ended(exit_status: int | None, signal: int | None) -> str:
    """How a program ended, in a word."""
    if signal is not None:
        return signal_name(signal)
    return "" if exit_status is None else f"exit {exit_status}"


def row(caller: Caller, event: HistoryEvent, *, is_alone: bool) -> list[object]:
    """An event as a row of `COLUMNS`."""
    is_attempt = bool(event.consumer)
    return [
        caller.instant(event.at),
        event.event,
        _chunks(event, is_alone=is_alone),
        nth(event.attempt) if is_attempt else None,
        event.consumer,
        f"{event.wait_s:.3f}" if is_attempt else None,
        f"{event.run_s:.3f}" if is_attempt else None,
        ended(event.exit_status, event.signal),
        brief(event.reason) if caller.is_rich else event.reason,
    ]


def show(caller: Caller, events: Sequence[HistoryEvent], *, title: str) -> None:
    """Print events: a table on a terminal, else for each a line of `attempt`, a tab and the event."""
    if not events:
        return
    if caller.is_rich:
        columns = [caller.heading(name) if name == "began" else name for name in _SHOWN]
        rows = [[*_shown(caller, event)[:-1], brief(event.reason)] for event in events]
        caller.table(columns, rows, title=title, right=NUMBERS)
    else:
        lines = (
            " ".join("-" if value in (None, "") else str(value) for value in _shown(caller, event)) for event in events
        )
        caller.table(("", ""), [("attempt", line) for line in lines])


def _shown(caller: Caller, event: HistoryEvent) -> list[object]:
    began = event.started_at
    return [
        _chunks(event, is_alone=caller.is_rich),
        event.event,
        nth(event.attempt) if event.consumer else None,
        event.consumer,
        None if began is None else caller.instant(began),
        caller.instant(event.at),
        ended(event.exit_status, event.signal),
        event.reason,
    ]


def _chunks(event: HistoryEvent, *, is_alone: bool) -> str:
    """Which chunks, by index; with the id of their submission unless that is above them."""
    chunks = ranges(event.block * 64, event.mask)
    if is_alone:
        return chunks
    return f"{event.submission_id}/{chunks}" if chunks else str(event.submission_id)
