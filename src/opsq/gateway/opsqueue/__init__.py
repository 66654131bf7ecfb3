"""Opsqueue's protocol, so that its clients work unmodified: producers over HTTP and JSON, consumers over WebSockets.

`messages` has its shapes, `submissions` says what they mean to opsq. It must not know other doors.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from opsq.errors import OpsqError
from opsq.gateway.context import Context
from opsq.gateway.opsqueue import consumer
from opsq.gateway.opsqueue.producer import Producer
from opsq.gateway.opsqueue.submissions import Submissions
from opsq.wire.messages import DaemonState, Status

_ANSWER_S = 5.0


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door. A client whose URL ends in a slash begins each path with two."""
    submissions = Submissions()
    producer = Producer(context, submissions)

    async def ping(_: Request) -> Response:
        try:
            link = (await context.connections.queue()).link
            async with asyncio.timeout(_ANSWER_S):
                await link.call(Status(link.next_id()), DaemonState)
        except (OpsqError, TimeoutError):
            return PlainTextResponse("unhealthy", 503)
        return PlainTextResponse("pong")

    async def consume(websocket: WebSocket) -> None:
        await consumer.serve(context, submissions, websocket)

    found: list[BaseRoute] = []
    for slash in ("", "/"):
        base = f"{slash}/producer/submissions"
        found += [
            Route(f"{slash}/ping", ping),
            Route(f"{slash}/version", producer.version),
            Route(f"{slash}/producer/version", producer.version),
            Route(base, producer.insert, methods=["POST"]),
            Route(f"{base}/count", producer.count),
            Route(f"{base}/count_completed", producer.count_completed),
            Route(f"{base}/lookup_id_by_prefix/{{prefix:path}}", producer.find),
            Route(f"{base}/lookup_ids_by_strategic_metadata", producer.find_by_metadata, methods=["POST"]),
            Route(f"{base}/cancel/{{id}}", producer.cancel, methods=["POST"]),
            Route(f"{base}/{{id}}", producer.status),
            WebSocketRoute(f"{slash}/consumer", consume),
        ]
    return found
