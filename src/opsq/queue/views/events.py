"""Who waits for the next event, and what each is answered. Must not decide what is an event.

Cost: nothing for a batch without events; else a page read for each call that waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from opsq.clock import MonoNs, Now, after
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.timers import Timers
from opsq.store import events, lanes, submissions
from opsq.store.events import EventRow
from opsq.wire.messages import Event, EventRows, Events

PAGE_BYTES = 4 << 20
"""A page ends with the event in which its texts become longer."""


class EventStream:
    """Answers calls for events."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._parked: dict[Peer, dict[int, tuple[Events, MonoNs | None]]] = {}
        self._deadlines: Timers[tuple[Peer, int]] = Timers()

    def events(self, peer: Peer, request: Events, now: Now) -> None:
        """Answer with events, as soon as there are any."""
        rows = self._rows(request)
        if rows.events or rows.next_since < rows.last_seq or request.wait_s == 0:
            self._state.reply(peer, rows)
            return
        peer.check_parked(request.id)
        peer.parked_ids.add(request.id)
        due = None if request.wait_s is None else after(now.mono, request.wait_s)
        self._parked.setdefault(peer, {})[request.id] = (replace(request, since=rows.next_since, since_at=None), due)
        if due is not None:
            self._deadlines.add(due, (peer, request.id))

    def note(self, rows: Sequence[EventRow]) -> None:
        """Events were committed: answer those who wait for one of them."""
        kinds = {row.kind for row in rows if row.is_told}
        waiting = [request for parked in self._parked.values() for request, _ in parked.values()] if kinds else []
        if not waiting:
            return
        _, last = events.ends(self._state.reader)
        for peer, parked in list(self._parked.items()):
            for request, due in list(parked.values()):
                if not request.kinds or kinds & set(request.kinds):
                    self._answer(peer, request.id)
                else:
                    parked[request.id] = (replace(request, since=last), due)

    def cancel_wait(self, peer: Peer, request_id: int) -> None:
        """Stop waiting; the call gets what there is now."""
        self._answer(peer, request_id)

    def disconnect(self, peer: Peer) -> None:
        """Forget what a connection waited for."""
        for request_id in list(self._parked.get(peer, ())):
            self._take(peer, request_id)

    def tick(self, now: Now) -> None:
        """Answer those whose time is over."""
        for peer, request_id in self._deadlines.take(now.mono):
            self._answer(peer, request_id)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to do."""
        return self._deadlines.next_due()

    def _answer(self, peer: Peer, request_id: int) -> None:
        request = self._take(peer, request_id)
        if request is not None:
            self._state.attempt(peer, request_id, partial(self._reply, peer, request))

    def _reply(self, peer: Peer, request: Events) -> None:
        self._state.reply(peer, self._rows(request))

    def _take(self, peer: Peer, request_id: int) -> Events | None:
        """Take a waiting call out."""
        parked = self._parked.get(peer, {})
        request, due = parked.pop(request_id, (None, None))
        if request is not None:
            peer.parked_ids.remove(request_id)
            if due is not None:
                self._deadlines.discard(due, (peer, request_id))
            if not parked:
                del self._parked[peer]
        return request

    def _rows(self, request: Events) -> EventRows:
        reader = self._state.reader
        first, last = events.ends(reader)
        oldest = max(first - 1, 0)
        since = oldest if request.since is None else request.since
        told: list[Event] = []
        was_at = 0 if request.since_at is None else events.at(reader, since)
        if not oldest <= since <= last or (was_at and was_at != request.since_at):
            count = oldest - since if since < oldest else None
            since = oldest
            told.append(Event(since, events.at(reader, first), "lost", None, "", {}, None, None, count, None, "", ""))
        found, next_since = events.page(reader, since, request.kinds, request.limit, last)
        named = {row.submission_id for _, row in found if row.submission_id is not None}
        titles = submissions.titles(reader, named)
        metadata = lanes.metadata(reader, named)
        size_bytes = 0
        for seq, row in found:
            if size_bytes > PAGE_BYTES:
                next_since = told[-1].seq
                break
            told.append(_event(seq, row, titles, metadata))
            size_bytes += len(row.detail.reason) + sum(len(key) + len(str(v)) for key, v in told[-1].metadata.items())
        return EventRows(request.id, told, next_since, last, events.at(reader, next_since) or None)


def _event(seq: int, row: EventRow, titles: dict[int, str], metadata: dict[int, dict[str, int | str]]) -> Event:
    detail, submission_id = row.detail, row.submission_id
    return Event(
        seq,
        row.at,
        row.kind,
        submission_id,
        detail.schedule,
        detail.metadata if submission_id is None else metadata[submission_id],
        None if submission_id is None else titles.get(submission_id),
        detail.chunk,
        detail.count,
        detail.planned_at,
        detail.by_name,
        detail.reason,
    )
