"""An endpoint of the JSON API: declared once, it checks what comes in, asks, and writes what goes out.

It must not know any endpoint, nor describe one: `openapi` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from opsq.errors import NotFound, OpsqError, UsageError
from opsq.gateway.api.call import Call
from opsq.gateway.bodies import whole_body
from opsq.gateway.context import Context
from opsq.units import counted
from opsq.wire.messages import Message

JSON, EVENT_STREAM = "application/json", "text/event-stream"
BODY_LIMIT_BYTES = 1 << 20
"""Of a body that is JSON."""

K = TypeVar("K")

_NO_STORE = {"Cache-Control": "no-store"}


@dataclass(frozen=True)
class Endpoint:
    """What one method of one path does.

    What it takes are the parameters of the handler beside the call, each a struct that says its bounds: `path`,
    `query`, `headers` (lists of the query are given by repeating a name) and `body`, which is JSON. What it answers
    with is what the handler returns: a document, or a `Response`, that has one or what `produces` names.

    Args:
        path: below `/api/v1`.
        asks: what it asks the daemon, whose roles it therefore needs.
        fails: errors beside those that every endpoint may answer with.
        consumes: the media types of a body that the handler reads by itself.
        produces: the media type of an answer that is no JSON document.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[object]]
    asks: tuple[type[Message], ...]
    fails: tuple[type[OpsqError], ...] = ()
    status: int = 200
    consumes: tuple[str, ...] = ()
    produces: str = JSON
    statuses: tuple[int, ...] = field(default=())
    """Others: of success with the same body, else with none or a problem document."""
    needs_body: bool = True
    """Whether a body that it `consumes` may not be left out."""

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of what it takes, by parameter, and of what it returns."""
        found = get_type_hints(self.handler, include_extras=True)
        kinds = get_args(found["return"])
        found["return"] = next((kind for kind in kinds if kind is not Response), found["return"])
        return {name: kind for name, kind in found.items() if name != "call"}

    @property
    def name(self) -> str:
        """Its handler's, which no other endpoint has."""
        return self.handler.__name__.strip("_")

    async def answer(self, context: Context, request: Request) -> Response:
        """Serve one request."""
        call = Call(context, request, await context.queue(request))
        given: dict[str, object] = {}
        for part, kind in self.hints.items():
            if part == "path":
                given[part] = _path(request, kind)
            elif part == "query":
                given[part] = _query(request, kind)
            elif part == "headers":
                given[part] = _headers(request, kind)
            elif part == "body":
                given[part] = await _body(request, kind)
        found = await self.handler(call, **given)
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found), self.status, _NO_STORE, JSON)


def takes_nothing(kind: type[msgspec.Struct]) -> bool:
    """Whether a body of this kind may be left out."""
    return not any(each.required for each in msgspec.structs.fields(kind))


def is_list(kind: Any) -> bool:
    """Whether a parameter may be repeated."""
    found = msgspec.inspect.type_info(kind)
    if isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    return isinstance(found, msgspec.inspect.ListType)


def _path(request: Request, kind: type[K]) -> K:
    try:
        return msgspec.convert(request.path_params, kind, strict=False)
    except msgspec.ValidationError as error:
        raise NotFound(f"There is nothing at {request.url.path}: {error}.") from error


def _query(request: Request, kind: type[K]) -> K:
    lists = {each.encode_name for each in msgspec.structs.fields(kind) if is_list(each.type)}  # type: ignore[arg-type]
    given: dict[str, object] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        if name not in lists and len(values) > 1:
            raise UsageError(f"The query gives {name:.80} {counted(len(values), 'time')}.", hint="Give it once.")
        given[name] = values if name in lists else values[0]
    return _converted("The query", given, kind)


def _headers(request: Request, kind: type[K]) -> K:
    names = [each.encode_name for each in msgspec.structs.fields(kind)]  # type: ignore[arg-type]
    given = {name: request.headers[name] for name in names if name in request.headers}
    return _converted("A header", given, kind)


def _converted(what: str, given: Mapping[str, object], kind: type[K]) -> K:
    try:
        found = msgspec.convert(given, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"{what} is wrong: {error}.") from error
    for each in msgspec.structs.fields(kind):  # type: ignore[arg-type]
        if each.encode_name in given and getattr(found, each.name) is None:
            raise UsageError(f"{what} is wrong: {each.encode_name} is null.", hint="Leave it out.")
    return found


async def _body(request: Request, kind: type[K]) -> K:
    body = await whole_body(request, BODY_LIMIT_BYTES)
    if not body and takes_nothing(kind):  # type: ignore[arg-type]
        return kind()
    check_media_type(request, JSON)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UsageError(f"The body is wrong: {error}.") from error


def check_media_type(request: Request, *allowed: str) -> str:
    """The media type of the body of a request; some of `allowed` may end in `/*`.

    Raises:
        HTTPException: it has another, with 415.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not any(given == each or (each.endswith("/*") and given.startswith(each[:-1])) for each in allowed):
        named = " or ".join(allowed)
        raise HTTPException(415, f"The body is {given[:80] or 'of no named type'}; send {named}, and say so.")
    return given
