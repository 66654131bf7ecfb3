"""Events over HTTP: page by page with a long poll, and as a stream that goes on as they come.

It must not decide what an event is, nor keep how far a client has come: the client does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from opsq.documents.event_cursor import PATTERN, EventCursor
from opsq.documents.events import EventDocument, EventsDocument
from opsq.errors import OpsqError, Unreachable, UsageError
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import WAIT_LIMIT_S, Limit
from opsq.gateway.api.endpoint import EVENT_STREAM, Endpoint
from opsq.gateway.api.watching import HEADERS, HEARTBEAT_S, RETRY, server_sent
from opsq.gateway.problems import opsq_problem
from opsq.gateway.stream import Stream
from opsq.wire import messages as m

Cursor = Annotated[
    str, Meta(pattern=PATTERN, description="Only events behind this cursor; without it, all that are kept.")
]
Kinds = Annotated[list[m.EventKind], Meta(max_length=16, description="Only these kinds, and `lost`; repeatable.")]
_PATIENCE_S = 10.0
"""So much longer than asked for the daemon may take to say that there is nothing."""


class EventsQuery(Struct, forbid_unknown_fields=True):
    """Which events, and whether to wait for one."""

    since: Cursor | None = None
    kind: Kinds = []
    limit: Limit = 100
    wait: Annotated[
        float, Meta(ge=0, le=WAIT_LIMIT_S, description="Answer as soon as there is one, or after this many seconds.")
    ] = 0.0


class StreamQuery(Struct, forbid_unknown_fields=True):
    """Which events."""

    since: Cursor | None = None
    kind: Kinds = []


class StreamHeaders(Struct):
    """What a client that comes again has seen."""

    last_event_id: Annotated[str, Meta(max_length=64, description="The last `id` received; before `since`.")] = (
        msgspec.field(name="Last-Event-ID", default="")
    )


async def list_events(call: Call, query: EventsQuery) -> EventsDocument:
    """What has happened, oldest first: ends of submissions, dead chunks, pauses, and instants of schedules.

    A client that stores `next` once it has dealt with a page misses nothing: the next request gives it as `since`. An
    event of kind `lost` says that some behind the cursor are not kept any more.
    """
    seq, at = _parsed(query.since)
    request = m.Events(call.next_id(), seq, query.limit, query.wait, list(query.kind), at)
    page = await call.ask_for(request, m.EventRows, query.wait + _PATIENCE_S)
    if page is None and query.since is not None:
        return EventsDocument([], query.since)
    if page is None:
        raise Unreachable(
            "The daemon has not answered, or the gateway is stopping.", hint="Ask again with the same cursor."
        )
    return EventsDocument([EventDocument.of(event) for event in page.events], str(EventCursor.behind(page)))


async def follow_events(call: Call, query: StreamQuery, headers: StreamHeaders) -> Response:
    """Follow events as server-sent events, each named by its kind, with its cursor as `id`.

    A client that comes again with the last `id` goes on behind it. While nothing happens there is a comment every 15
    seconds.
    """
    if headers.last_event_id and EventCursor.parse(headers.last_event_id) is None:
        raise UsageError("Last-Event-ID is no cursor.", hint="Send the `id` of an event of this stream.")
    stream = _stream(call, _parsed(headers.last_event_id or query.since), list(query.kind))
    return Stream(stream, headers=HEADERS, media_type=EVENT_STREAM)


def _parsed(cursor: str | None) -> tuple[int | None, int | None]:
    """The number of the event that a cursor is behind, and when it was."""
    return (EventCursor.parse(cursor) if cursor else None) or (None, None)


async def _stream(call: Call, since: tuple[int | None, int | None], kinds: list[str]) -> AsyncIterator[bytes]:
    """Events until the client or the gateway ends."""
    yield RETRY
    stopping = asyncio.ensure_future(call.context.stopping.wait())
    asking: asyncio.Future[m.EventRows] | None = None
    try:
        while not stopping.done():
            seq, at = since
            request = m.Events(call.next_id(), seq, 1000, HEARTBEAT_S, kinds, at)
            asking = asyncio.ensure_future(call.ask(request, m.EventRows))
            await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return
            page = asking.result()
            for event in page.events:
                document = EventDocument.of(event)
                yield server_sent(event.kind, document, document.cursor)
            if not page.events:
                yield b": nothing new\n\n"
            since = EventCursor.behind(page)
    except OpsqError as error:
        problem = await opsq_problem(call.request, error)
        yield b"event: error\ndata: %s\n\n" % bytes(problem.body)
    finally:
        stopping.cancel()
        if asking is not None:
            asking.cancel()


ENDPOINTS = (
    Endpoint("GET", "/events", list_events, (m.Events,)),
    Endpoint("GET", "/events/stream", follow_events, (m.Events,), produces=EVENT_STREAM),
)
