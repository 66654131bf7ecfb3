"""What producers of Opsqueue call, over HTTP; it must not know how a submission is mapped (`submissions` does)."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from opsq.client.aio.queue import AsyncQueue
from opsq.errors import NotFound
from opsq.gateway.bodies import whole_body
from opsq.gateway.context import Context
from opsq.gateway.opsqueue import messages
from opsq.gateway.opsqueue.submissions import IN_PROGRESS, Submissions, insert
from opsq.ids import parse_submission_id
from opsq.strategy.tree import KEY
from opsq.wire.messages import DaemonState, Status

BODY_LIMIT_BYTES = 16 << 20
MATCHES_LIMIT = 100_000
TRACE_LIMIT_BYTES = 8192
_TRACE_HEADERS = ("traceparent", "tracestate", "baggage")


class Producer:
    """The calls of producers.

    Args:
        submissions: shared with consumers.
    """

    def __init__(self, context: Context, submissions: Submissions) -> None:
        self._context = context
        self._submissions = submissions

    async def version(self, _: Request) -> Response:
        """The version that clients compare with their own."""
        return PlainTextResponse(messages.VERSION)

    async def insert(self, request: Request) -> Response:
        """Hand over a submission."""
        try:
            queue = await self._context.queue(request)  # nobody else's body is read
            given = messages.read_insert(await whole_body(request, BODY_LIMIT_BYTES))
            trace = {name: text for name in _TRACE_HEADERS if (text := request.headers.get(name))}
            trace = {name: text for name, text in trace.items() if len(text) <= TRACE_LIMIT_BYTES}
            return _json(await insert(queue, given, trace))
        except messages.BadMessage as error:
            raise HTTPException(400, str(error)) from error

    async def status(self, request: Request) -> Response:
        """The state of a submission; `null`: it is not known (any more)."""
        submission_id = _id(request)
        if submission_id is None:
            return _json(None)
        return _json(await self._submissions.status(await self._context.queue(request), submission_id))

    async def find(self, request: Request) -> Response:
        """The id of the submission with a prefix, or `null`."""
        prefix = request.path_params["prefix"]
        if not 0 < len(prefix) <= messages.PREFIX_LIMIT:
            return _json(None)
        found = await (await self._context.queue(request)).find(prefix)
        return _json(None if found is None else found.id)

    async def count(self, request: Request) -> Response:
        """How many submissions are in progress."""
        states = await self._states(request)
        return _json(sum(states.get(state, 0) for state in IN_PROGRESS))

    async def count_completed(self, request: Request) -> Response:
        """How many submissions are completed and known."""
        return _json((await self._states(request)).get("completed", 0))

    async def cancel(self, request: Request) -> Response:
        """Cancel a submission; of one that has ended, how it ended."""
        queue, submission_id = await self._context.queue(request), _id(request)
        try:
            if submission_id is None:
                raise NotFound("It is no id.")
            if await queue.submission(submission_id).cancel():
                return Response()
        except NotFound:
            return _json(submission_id, 404)
        return _json(await self._submissions.status(queue, submission_id), 409)

    async def find_by_metadata(self, request: Request) -> Response:
        """The ids of the submissions in progress that have all pairs, ascending."""
        queue: AsyncQueue = await self._context.queue(request)
        try:
            pairs = messages.read_pairs(await whole_body(request, BODY_LIMIT_BYTES))
        except messages.BadMessage as error:
            raise HTTPException(400, str(error)) from error
        found: list[int] = []
        if not all(KEY.fullmatch(key) for key in pairs):
            return _json(found)
        async for state in queue.submissions(states=IN_PROGRESS, metadata=pairs):
            found.append(state.submission_id)
            if len(found) > MATCHES_LIMIT:
                return _json(MATCHES_LIMIT, 400)
        return _json(found[::-1])

    async def _states(self, request: Request) -> dict[str, int]:
        link = (await self._context.queue(request)).link
        return (await link.call(Status(link.next_id()), DaemonState)).states


def _id(request: Request) -> int | None:
    try:
        return parse_submission_id(request.path_params["id"])
    except NotFound:
        return None


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
