"""The HTTP of records: paths, bodies and status codes as SuperQueue has them, also those of errors.

It must not decide what becomes of a record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from opsq import traces
from opsq.client.aio.queue import AsyncQueue
from opsq.errors import ChunkTooLarge, InvalidHandle, NoRoom, OpsqError
from opsq.gateway import problems
from opsq.gateway.bodies import whole_body
from opsq.gateway.context import Context
from opsq.gateway.exposition import exposed
from opsq.gateway.records.desk import Desk, NewRecord, Taken
from opsq.gateway.records.queue_defaults import DEFAULT_NAME, QueueTable, checked_name
from opsq.gateway.records.queue_metrics import QueueMetrics
from opsq.gateway.records.room import Room
from opsq.gateway.waiting import gone, is_gone
from opsq.ids import Handle, parse_handle
from opsq.units import counted

BODY_LIMIT_BYTES = 1 << 20
WAIT_LIMIT_S = 3600.0

_Delay = Annotated[float, Meta(le=1e12)] | None


class _Post(msgspec.Struct):
    """The body of `POST /record`."""

    payload: Annotated[str, Meta(min_length=1)]
    delay_ms: _Delay = None


class _Nack(msgspec.Struct):
    """The body of `POST /nack/ID`; there may be none."""

    delay_ms: _Delay = None


class _Record(msgspec.Struct):
    """The body of the answer to `GET /record`."""

    id: str
    payload: str
    attempts: int


_POST, _NACK, _WAIT = msgspec.json.Decoder(_Post), msgspec.json.Decoder(_Nack), msgspec.json.Decoder(float)
_ENCODER = msgspec.json.Encoder()
_INVALID = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What a body that is not ours raises; the last, one that is nested too deeply."""


_NOTHING, _DONE = Response(status_code=204), PlainTextResponse("")


class Records:
    """What answers the requests about records; `Door` leads there."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._table = QueueTable(context.queues_path)
        self._room = Room(context.connections, self._table.of)
        self._metrics = QueueMetrics(self._table.of)
        self._desks: WeakKeyDictionary[AsyncQueue, Desk] = WeakKeyDictionary()
        context.collectors.append(self._metrics.of_all)
        self.routes: list[BaseRoute] = [Route("/queues/{queue}/metrics", self._of_queue)]
        self.verbs = {"record": self._record, "ack": self._ack, "nack": self._nack, "touch": self._touch}

    async def _record(self, request: Request) -> Response:
        """`POST /record` and `GET /record`."""
        name = checked_name(request.path_params["queue"])
        if request.method == "POST":
            return await self._post(request, name)
        if request.method == "GET":
            return await self._get(request, name)
        return PlainTextResponse("", 405, {"Allow": "GET, POST"})  # HEAD, which Starlette takes for GET, takes nothing

    async def _of_queue(self, request: Request) -> Response:
        """`GET /queues/NAME/metrics`."""
        name = checked_name(request.path_params["queue"])
        return exposed(request, await self._metrics.of_queue(await self._context.queue(request), name))

    async def _ack(self, request: Request) -> Response:
        """`POST /ack/ID`."""
        answer = await self._judge(request, lambda desk, handle: desk.ack(handle))
        if answer.status_code == 200:
            self._room.note_done()
        return answer

    async def _nack(self, request: Request) -> Response:
        """`POST /nack/ID`."""
        try:
            body = await self._body(request)
            given = _NACK.decode(body) if body else _Nack()
        except _INVALID:
            return _invalid_body()
        delay_s = None if given.delay_ms is None else max(given.delay_ms, 0.0) / 1000
        return await self._judge(request, lambda desk, handle: desk.nack(handle, delay_s))

    async def _touch(self, request: Request) -> Response:
        """`POST /touch/ID`."""
        return await self._judge(request, lambda desk, handle: desk.touch(handle))

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _post(self, request: Request, name: str) -> Response:
        try:
            given = _POST.decode(await self._body(request))
            record = NewRecord(name, given.payload.encode(), max(given.delay_ms or 0.0, 0.0) / 1000, traces.current())
        except _INVALID:
            return _invalid_body()
        desk = await self._desk(request)
        if len(record.payload) > desk.payload_limit_bytes:
            raise ChunkTooLarge(
                f"The payload has {counted(len(record.payload), 'byte')}, and the "
                f"daemon takes {desk.payload_limit_bytes}."
            )
        try:
            await desk.post(record)
        except NoRoom as error:
            return PlainTextResponse(error.message, 409)
        self._metrics.note(name, len(record.payload))
        return _NOTHING

    async def _get(self, request: Request, name: str) -> Response:
        try:
            wait_s = _WAIT.decode(request.query_params.get("wait", "0"))
        except msgspec.MsgspecError:
            wait_s = -1.0
        if not 0 <= wait_s <= WAIT_LIMIT_S:
            return _json({"message": f"wait may be 0 to {WAIT_LIMIT_S:g} seconds"}, 400)
        desk = await self._desk(request)
        deadline = time.monotonic() + wait_s
        while taken := await desk.take(name) or await self._wait(request, desk, name, deadline):
            found = await desk.read(taken)
            if is_gone(request):  # uvicorn would write the answer to nobody
                if found:
                    await desk.give_back(taken)
                break
            if found:
                payload, trace = found
                record = _Record(str(taken.handle), payload.decode(errors="replace"), taken.attempt + 1)
                return _json(record, headers=trace.as_fields() if trace else None)
        return _NOTHING

    async def _wait(self, request: Request, desk: Desk, name: str, deadline: float) -> Taken | None:
        """Wait for a record while the client does, and the gateway is not stopping."""
        if time.monotonic() >= deadline:
            return None
        loop = asyncio.get_running_loop()
        is_over: asyncio.Future[None] = loop.create_future()

        def end(_: object) -> None:
            if not is_over.done():
                is_over.set_result(None)

        watches = [loop.create_task(gone(request)), loop.create_task(self._context.stopping.wait())]
        for watch in watches:
            watch.add_done_callback(end)
        try:
            return await desk.wait(name, deadline, is_over)
        finally:
            for watch in watches:
                watch.cancel()

    async def _judge(self, request: Request, say: Callable[[Desk, Handle], Awaitable[bool]]) -> Response:
        checked_name(request.path_params["queue"])
        try:
            handle = parse_handle(request.path_params["id"])
        except InvalidHandle:
            return PlainTextResponse("Bad record ID given", 400)
        if await say(await self._desk(request), handle):
            return _DONE
        return PlainTextResponse("Record not found", 404)

    async def _body(self, request: Request) -> bytes:
        """The body of somebody whom the daemon lets in."""
        await self._context.queue(request)
        return await whole_body(request, BODY_LIMIT_BYTES)

    async def _desk(self, request: Request) -> Desk:
        queue = await self._context.queue(request)
        desk = self._desks.get(queue)
        if desk is None:
            desk = self._desks[queue] = Desk(queue, self._table.of, self._room.take)
        return desk


class Door:
    """Middleware that answers `/record`, `/ack/ID`, `/nack/ID`, `/touch/ID`, and the same below `/queues/NAME`.

    Routes and handlers of errors, which all else passes through, took a seventh of the time of such a request.
    """

    def __init__(self, app: ASGIApp, records: Records) -> None:
        self._app = app
        self._verbs = records.verbs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request about records, and pass on any other."""
        queue, rest = DEFAULT_NAME, scope["path"][1:] if scope["type"] == "http" else ""
        if rest.startswith("queues/"):
            queue, _, rest = rest.removeprefix("queues/").partition("/")
        verb, slash, record_id = rest.partition("/")
        if verb not in self._verbs or not queue or bool(slash) == (verb == "record"):
            await self._app(scope, receive, send)
            return
        scope["path_params"] = {"queue": queue, "id": record_id}
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, verb)
        except OpsqError as error:
            answer = await problems.opsq_problem(request, error)
        except HTTPException as error:
            answer = await problems.http_problem(request, error)
        except ClientDisconnect as error:
            answer = await problems.gone(request, error)
        await answer(scope, receive, send)

    async def _answer(self, request: Request, verb: str) -> Response:
        methods = ("GET", "HEAD", "POST") if verb == "record" else ("POST",)
        if request.method not in methods:
            raise HTTPException(405, headers={"Allow": ", ".join(methods)})
        return await self._verbs[verb](request)


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_ENCODER.encode(body), status, headers, "application/json")


def _invalid_body() -> Response:
    return _json({"message": "Invalid body"}, 400)
