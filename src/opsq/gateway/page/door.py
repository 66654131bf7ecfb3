"""The pages: their paths, who may see them, and how they are sent.

It must not decide what a page shows (`views`), nor how it looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from opsq.errors import OpsqError, TimedOut, Unreachable
from opsq.gateway.access import token_of
from opsq.gateway.blocking_queue import BlockingQueue, in_thread
from opsq.gateway.context import Context
from opsq.gateway.page import views
from opsq.gateway.page.rendering import SCRIPT, STYLE, Asset, now_ms, render
from opsq.gateway.problems import status_of

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
ANSWER_S = 10.0
_QUERY_CHARACTERS = 8192

PAGES: tuple[tuple[str, str, views.View], ...] = (
    ("/", "overview", views.overview),
    ("/submissions", "submissions", views.submissions),
    ("/submissions/{id}", "submission", views.submission),
    ("/submissions/{id}/{index}", "chunk", views.chunk),
    ("/dead", "dead", views.dead),
    ("/rules", "rules", views.rules),
    ("/strategies", "strategies", views.strategies),
    ("/history", "history", views.history),
)
"""Path, template and view of each page."""


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door."""
    page = _Page(context)
    found: list[BaseRoute] = [Route(path, page.of(name, view)) for path, name, view in PAGES]
    return [*found, *(Route(f"/assets/{asset.name}", _serve(asset)) for asset in (STYLE, SCRIPT))]


class _Page:
    """What answers requests for pages."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def of(self, name: str, view: views.View) -> Callable[[Request], Any]:
        """The endpoint of a page."""

        async def answer(request: Request) -> Response:
            query = {key: value[:_QUERY_CHARACTERS] for key, value in request.query_params.items()}
            frame = {"here": request.url.path, "query": query, "now": now_ms()}
            try:
                queue = await self._context.connections.queue(token_of(request))
                daemon = BlockingQueue(queue.link, asyncio.get_running_loop(), ANSWER_S)
                look = views.Look(daemon, request.path_params, query)
                html = await in_thread(_make, name, view, look, frame)
            except TimedOut:
                error = Unreachable("No daemon answers.", hint="`opsq start` starts one.")
                return _html(render("error.html", {**frame, "error": error}), status_of(error))
            except OpsqError as error:
                return _html(render("error.html", {**frame, "error": error}), status_of(error))
            return _html(html)

        return answer


def _make(name: str, view: views.View, look: views.Look, frame: Mapping[str, object]) -> str:
    return render(f"{name}.html", {**frame, **view(look)})


def _html(text: str, status: int = 200) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-store", "Vary": "Cookie"}
    return Response(text, status, headers, "text/html; charset=utf-8")


def _serve(asset: Asset) -> Callable[[Request], Any]:
    """The endpoint of a file; browsers keep it for ever, since another content has another name."""
    headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}

    async def answer(_: Request) -> Response:
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    return answer
