"""Messages about events: what people want to be told of, as it comes.

This file must not define what the history tells of chunks (`inspection` does).
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from opsq.wire.messages.fields import ChunksCount, Count, Duration, Id, Int64, Message, Record

EventKind = Literal[
    "completed", "failed", "cancelled", "expired", "dead", "paused", "resumed", "fired", "missed", "lost"
]
EVENT_KINDS = get_args(EventKind)
"""Of events; later daemons may know more."""


class Event(Record):
    """Something that has happened.

    `submission_id` has ended (completed, failed, cancelled, expired), has chunks that died (dead), or was made by
    `schedule` for the instant `planned_at` (fired); of `schedule`, `count` instants from `planned_at` on were missed;
    a pause of `metadata`, or of `schedule`, was set or ended (paused, resumed). `chunk` is the first that died, `count`
    how many of the submission are dead by then. `metadata` and `title` are otherwise those of the submission, as long
    as that is kept. A submission that runs on tells of its first deaths one by one, and then each time that the dead
    are twice as many.

    `lost` is told to who asks for what is not kept any more: `count` events, up to the instant `at`. Without a count,
    the cursor is of no event that this queue has had: it was put back to an older state, and the oldest that it has
    follows.
    """

    seq: Id
    at: Int64
    kind: str
    submission_id: Id | None
    schedule: str
    metadata: dict[str, int | str]
    title: str | None
    chunk: ChunksCount | None
    count: Count | None
    planned_at: Int64 | None
    by_name: str
    reason: str


class Events(Message):
    """Ask for events behind `since`, the `next_since` of an answer; None: from the oldest that is kept. → EventRows.

    `wait_s` parks the call until there is one (None: without limit). `kinds`: only these, and lost; empty: all.
    `since_at`: when the event at `since` was, the `next_at` of that answer; None: not compared.
    """

    id: Id
    since: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    wait_s: Duration | None = 0.0
    kinds: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] = []
    since_at: Int64 | None = None


class EventRows(Message):
    """Events in their order. There are others to ask for while `next_since` is below `last_seq`.

    `next_at`: when the event at `next_since` was; None: it is not kept any more, or there was none yet.
    """

    id: Id
    events: list[Event]
    next_since: Id
    last_seq: Id
    next_at: Int64 | None = None
