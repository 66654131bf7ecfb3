"""What `opsq top` shows: asks the daemon for it, and remembers what one answer alone does not tell.

It must not draw, nor touch the terminal.
"""

from __future__ import annotations

import time
from itertools import islice

import msgspec

from opsq.documents.asking import Asked, events, running
from opsq.documents.progress_meter import ProgressMeter
from opsq.documents.submission_text import description_of
from opsq.documents.submissions import RunningShape
from opsq.wire.messages import DaemonState, HistoryEvent, HistoryFilter, Status

STATES = ("", "running", "failed", "lost", "dead")
"""Of chunks, to be shown alone; the first: all."""
ORDERS = {
    "longest": lambda chunk: -chunk.run_s,
    "chunk": lambda chunk: (int(chunk.submission_id), chunk.index),
    "consumer": lambda chunk: (chunk.consumer, -chunk.run_s),
    "attempts": lambda chunk: (-chunk.attempt, -chunk.run_s),
}
"""Of the chunks that run."""
RUNNING_ASKED = 300
FAILURES_KEPT = 100
_PAGES = 5
"""Pages of the history that are searched for failures at first, and for those since the last look."""


class Sight(msgspec.Struct):
    """What a person wants to see of it."""

    metadata: dict[str, int | str] = {}
    text: str = ""
    state: str = STATES[0]
    order: str = next(iter(ORDERS))


class TopView(msgspec.Struct):
    """One look: what the daemon answered, as far as it is in sight."""

    state: DaemonState
    meter: ProgressMeter
    running: list[RunningShape]
    has_more_running: bool
    failures: list[HistoryEvent]
    """The newest first."""


class TopWatch:
    """Looks again and again."""

    def __init__(self) -> None:
        self.meter = ProgressMeter()
        self._failures: list[HistoryEvent] = []
        self._metadata: dict[str, int | str] = {}

    def look(self, daemon: Asked, sight: Sight) -> TopView:
        """Ask for everything. Raises what the daemon answers with, or `Unreachable`."""
        state = daemon.call(Status(daemon.next_id(), None, ""), DaemonState)
        self.meter.note(state.total, time.monotonic())
        chunks = list(islice(running(daemon, None, sight.metadata, RUNNING_ASKED), RUNNING_ASKED))
        return TopView(
            state,
            self.meter,
            sorted((each for each in chunks if _is_in_sight(sight, *_texts(each))), key=ORDERS[sight.order]),
            len(chunks) == RUNNING_ASKED,
            [each for each in self._newest(daemon, sight) if _is_in_sight(sight, *_event_texts(each))],
        )

    def _newest(self, daemon: Asked, sight: Sight) -> list[HistoryEvent]:
        """The last failures, losses and deaths; those of the last look need not be found again."""
        if sight.metadata != self._metadata:
            self._failures, self._metadata = [], sight.metadata
        known = frozenset(self._failures)
        seen_at = self._failures[0].at if self._failures else -1
        where = HistoryFilter(events=[*filter(None, STATES[2:])], metadata=sight.metadata)
        found: list[HistoryEvent] = []
        for page in islice(events(daemon, where, newest_first=True, limit=FAILURES_KEPT), _PAGES):
            new = [event for event in page.rows if event not in known]
            found += new
            is_back = len(new) < len(page.rows) or (page.reached_at is not None and page.reached_at < seen_at)
            if len(found) >= FAILURES_KEPT or is_back:
                break
        self._failures = [*found, *self._failures][:FAILURES_KEPT]
        return [event for event in self._failures if sight.state in ("", event.event)]


def _is_in_sight(sight: Sight, *texts: str) -> bool:
    return not sight.text or any(sight.text.casefold() in text.casefold() for text in texts)


def _texts(chunk: RunningShape) -> tuple[str, ...]:
    return f"{chunk.submission_id}/{chunk.index}", chunk.consumer, chunk.host, description_of(chunk)


def _event_texts(event: HistoryEvent) -> tuple[str, ...]:
    return str(event.submission_id), event.event, event.consumer, event.reason
