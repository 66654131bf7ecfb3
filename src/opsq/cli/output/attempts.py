"""Shows the history of chunks as a table or as lines.

It must not fetch it, nor decide which events are meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsq.cli.caller import Caller
from opsq.documents.readable import brief
from opsq.documents.submission_text import ended, nth
from opsq.documents.submissions import ranges
from opsq.wire.messages import HistoryEvent

COLUMNS = ("at", "event", "chunk", "attempt", "consumer", "waited", "ran", "ended", "reason")
NUMBERS = frozenset({"attempt", "waited", "ran"})
_SHOWN = ("chunk", "event", "attempt", "consumer", "began", "ended", "status", "reason")


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
