"""Follows one submission as server-sent events: each change of its state, until it has ended.

It must not decide what a submission is: documents do.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from opsq.documents.shape import Shape
from opsq.documents.submissions import SubmissionShape
from opsq.errors import NotFound, OpsqError
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import OfSubmission
from opsq.gateway.api.endpoint import EVENT_STREAM, Endpoint
from opsq.gateway.problems import opsq_problem
from opsq.gateway.stream import Stream
from opsq.ids import parse_submission_id
from opsq.wire import messages as m

HEARTBEAT_S = 15.0
RETRY = b"retry: 2000\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class WatchQuery(Struct, forbid_unknown_fields=True):
    """How often to look."""

    interval_s: Annotated[float, Meta(ge=0.2, le=60, description="How often to look for changes, in seconds.")] = 2.0


class WatchHeaders(Struct):
    """What a client that comes again has seen."""

    last_event_id: Annotated[str, Meta(max_length=64, description="The last `id` that was received.")] = msgspec.field(
        name="Last-Event-ID", default=""
    )


async def watch_submission(call: Call, path: OfSubmission, query: WatchQuery, headers: WatchHeaders) -> Response:
    """Follow a submission as server-sent events.

    Each is named `state`, or `ended` for the last, and its data is the submission as `list` has it. While nothing
    changes there is a comment every 15 seconds. A client that comes again with the `id` of the end gets 204.
    """
    submission_id = parse_submission_id(path.submission_id)
    first = await _state(call, submission_id)
    if _id(first) == headers.last_event_id and first.state not in m.UNFINISHED_STATES:
        return Response(status_code=204)
    stream = _events(call, submission_id, first, query.interval_s, headers.last_event_id)
    return Stream(stream, headers=HEADERS, media_type=EVENT_STREAM)


async def _state(call: Call, submission_id: int) -> SubmissionShape:
    return SubmissionShape.from_state((await call.ask(m.Show(call.next_id(), submission_id), m.Shown)).submission)


async def _events(
    call: Call, submission_id: int, shape: SubmissionShape, interval_s: float, seen: str
) -> AsyncIterator[bytes]:
    """The events until the submission or the gateway has ended; the end is noticed at once."""
    yield RETRY
    loop = asyncio.get_running_loop()
    ending = asyncio.ensure_future(call.ask(m.Wait(call.next_id(), submission_id), m.Shown))
    stopping = asyncio.ensure_future(call.context.stopping.wait())
    sent_at = loop.time()
    try:
        while True:
            has_ended = shape.state not in m.UNFINISHED_STATES
            if _id(shape) != seen:
                seen, sent_at = _id(shape), loop.time()
                yield server_sent("ended" if has_ended else "state", shape, seen)
            elif loop.time() - sent_at >= HEARTBEAT_S:
                sent_at = loop.time()
                yield b": nothing new\n\n"
            if has_ended or stopping.done():
                return
            await asyncio.wait((ending, stopping), timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
            shape = await _state(call, submission_id)
    except OpsqError as error:
        problem = await opsq_problem(call.request, error)
        yield b"event: error\ndata: %s\n\n" % bytes(problem.body)
    finally:
        ending.cancel()
        stopping.cancel()


def _id(shape: SubmissionShape) -> str:
    """The same for the same state."""
    return hashlib.blake2b(msgspec.json.encode(shape), digest_size=8).hexdigest()


def server_sent(name: str, shape: Shape, event_id: str) -> bytes:
    """An event of a stream."""
    return b"event: %s\nid: %s\ndata: %s\n\n" % (name.encode(), event_id.encode(), msgspec.json.encode(shape))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/submissions/{submission_id}/events",
        watch_submission,
        (m.Show, m.Wait),
        (NotFound,),
        produces=EVENT_STREAM,
        statuses=(204,),
    ),
)
