"""Whether the gateway lives (`/healthz`) and can serve (`/readyz`). It must not tell more: everybody may ask."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from opsq.gateway.context import Context
from opsq.gateway.problems import problem
from opsq.wire.messages import DaemonState, Status

_ANSWER_S = 5.0


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        if context.stopping.is_set():
            return PlainTextResponse("stopping\n", 503)
        try:
            async with asyncio.timeout(_ANSWER_S):
                queue = await context.connections.queue()
                state = await queue.link.call(Status(queue.link.next_id()), DaemonState)
        except TimeoutError:
            return problem(503, "unreachable", f"The daemon has not answered within {_ANSWER_S:g} s.")
        return PlainTextResponse(f"{state.state}\n", 200 if state.state == "running" else 503)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]
