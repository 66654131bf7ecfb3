"""The JSON document of an event, and its sentence for people.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.documents.event_cursor import EventCursor
from opsq.documents.shape import Shape, instant
from opsq.documents.submission_text import value_text

if TYPE_CHECKING:
    from opsq.wire.messages import Event


class EventDocument(Shape):
    """A line of `opsq events`, and what programs and webhooks of `opsq notify` get. `text` is a sentence for people.

    `cursor`: `--since` goes on behind it.
    """

    # A field that is added needs a default: notify.sqlite holds older documents.

    cursor: str
    at: str
    kind: str
    subject: str
    submission_id: str | None
    schedule: str | None
    metadata: dict[str, int | str]
    title: str | None
    index: int | None
    count: int | None
    planned_at: str | None
    by: str | None
    reason: str | None
    text: str

    @classmethod
    def of(cls, event: Event) -> EventDocument:
        """An event as JSON."""
        return cls(
            cursor=str(EventCursor(event.seq, event.at)),
            at=instant(event.at) or "",
            kind=event.kind,
            subject=subject(event),
            submission_id=None if event.submission_id is None else str(event.submission_id),
            schedule=event.schedule or None,
            metadata=event.metadata,
            title=event.title,
            index=event.chunk,
            count=event.count,
            planned_at=instant(event.planned_at),
            by=event.by_name or None,
            reason=event.reason or None,
            text=sentence(event),
        )


class EventsDocument(Shape):
    """A page of `GET /api/v1/events`; `next` is the cursor of the request after it."""

    events: list[EventDocument]
    next: str


def subject(event: Event) -> str:
    """What an event is about, as one names it: events of one subject come in their order everywhere."""
    if event.schedule:
        return f"schedule {event.schedule}"
    if event.submission_id is not None:
        return f"submission {event.submission_id}"
    if event.kind == "lost":
        return "events"
    return "pause " + (" ".join(f"{key}={value_text(value)}" for key, value in event.metadata.items()) or "all")


def sentence(event: Event) -> str:
    """An event in a sentence."""
    name = subject(event)
    head = name[:1].upper() + name[1:]
    title = f" ({event.title})" if event.title else ""
    tail = f": {event.reason}" if event.reason else "."
    count = event.count or 0
    if event.kind == "dead":
        return f"{head}{title}: chunk {event.chunk} is dead, {count} in all{tail}"
    if event.kind == "fired":
        return f"{head} has made submission {event.submission_id} for {instant(event.planned_at)}."
    if event.kind == "missed":
        instants = "instant was" if count == 1 else "instants were"
        return f"{head}: {count} {instants} missed from {instant(event.planned_at)} on."
    if event.kind == "lost":
        if event.count is None:
            return "The queue was put back to an older state: events may be missing here, and some come again."
        return f"{count} {'event is' if count == 1 else 'events are'} not kept any more."
    if event.kind in {"paused", "resumed"}:
        by = f" by {event.by_name}" if event.by_name else ""
        what = head if event.schedule else f"Work of {name.removeprefix('pause ')}"
        return f"{what} was {event.kind}{by}{tail}"
    with_dead = f" with {count} dead {'chunk' if count == 1 else 'chunks'}" if count else ""
    was = {"cancelled": "was cancelled", "expired": "has expired"}.get(event.kind, f"has {event.kind}")
    return f"{head}{title} {was}{with_dead}{tail}"
