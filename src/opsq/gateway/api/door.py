"""The endpoints of the JSON API, as routes: one for each path, and one for their OpenAPI document.

It must not know what an endpoint does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from opsq.gateway.api import changing, contents, following, inspecting, schedules, taking, watching
from opsq.gateway.api.endpoint import JSON, Endpoint
from opsq.gateway.api.openapi import document
from opsq.gateway.context import Context

PREFIX = "/api/v1"
ENDPOINTS: tuple[Endpoint, ...] = (
    *inspecting.ENDPOINTS,
    *watching.ENDPOINTS,
    *following.ENDPOINTS,
    *changing.ENDPOINTS,
    *schedules.ENDPOINTS,
    *taking.ENDPOINTS,
    *contents.ENDPOINTS,
)


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the JSON API."""
    return document(ENDPOINTS, PREFIX)


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    encoded = msgspec.json.encode(openapi())

    async def describe(_: Request) -> Response:
        return Response(encoded, media_type=JSON)

    return [
        Route(f"{PREFIX}/openapi.json", describe),
        *(
            Route(f"{PREFIX}{path}", _served(context, endpoints), methods=list(endpoints))
            for path, endpoints in by_path.items()
        ),
    ]


def _served(context: Context, endpoints: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method].answer(context, request)

    return serve
