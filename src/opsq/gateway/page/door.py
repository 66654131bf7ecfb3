"""The pages: their paths, who may see them, and how they are sent.

It must not decide what a page shows (`views`), nor how it looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from opsq.client.aio.queue import AsyncQueue
from opsq.errors import NotFound, NotPermitted, OpsqError, TimedOut, Unreachable
from opsq.gateway.access import Exposure
from opsq.gateway.blocking_queue import BlockingQueue, in_thread
from opsq.gateway.connections import UnknownToken
from opsq.gateway.context import Context
from opsq.gateway.page import session, views
from opsq.gateway.page.actions import ACTIONS, said
from opsq.gateway.page.live import Pulse
from opsq.gateway.page.rendering import SCRIPT, STYLE, Asset, now_ms, render
from opsq.gateway.problems import status_of
from opsq.gateway.stream import Stream
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Changed

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
    ("/schedules", "schedules", views.schedules),
    ("/rules", "rules", views.rules),
    ("/strategies", "strategies", views.strategies),
    ("/history", "history", views.history),
)
"""Path, template and view of each page."""
_FIRST_WORDS = {path.split("/")[1] for path, _, _ in PAGES if path != "/"}
_FIRST_WORDS |= {"assets", "live", "sign-in", "sign-out", "actions"}


def owns(path: str) -> bool:
    """Whether a path is of this door, which asks for a token by itself: a browser shows none in a header."""
    return path == "/" or path[1:].partition("/")[0] in _FIRST_WORDS


def routes(context: Context) -> list[BaseRoute]:
    """The routes of this door."""
    page = _Page(context)
    found: list[BaseRoute] = [Route(path, page.of(name, view)) for path, name, view in PAGES]
    found += (Route(f"/assets/{asset.name}", _serve(asset)) for asset in (STYLE, SCRIPT))
    return [
        *found,
        Route("/live", page.live),
        Route("/sign-in", page.sign_in, methods=["GET", "POST"]),
        Route("/sign-out", page.sign_out, methods=["POST"]),
        Route("/actions/{name}", page.act, methods=["POST"]),
    ]


class _Page:
    """What answers requests for pages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pulse = Pulse(context)

    def of(self, name: str, view: views.View) -> Callable[[Request], Any]:
        """The endpoint of a page."""

        async def answer(request: Request) -> Response:
            async def make(queue: AsyncQueue) -> Response:
                frame = self._frame(request, queue)
                daemon = BlockingQueue(queue.link, asyncio.get_running_loop(), ANSWER_S)
                look = views.Look(daemon, request.path_params, frame["query"])
                return _html(await in_thread(_make, name, view, look, frame))

            return await self._for_viewer(request, make)

        return answer

    async def live(self, request: Request) -> Response:
        """`GET /live`: an event whenever what pages show has changed."""

        async def follow(_: AsyncQueue) -> Response:
            self._pulse.check_room()
            headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            return Stream(self._pulse.events(), 200, headers, "text/event-stream")

        return await self._for_viewer(request, follow)

    async def sign_in(self, request: Request) -> Response:
        """`/sign-in`: the form, and what it sends."""
        if request.method != "POST":
            return _html(render("sign_in.html", {**self._frame(request), "problem": ""}))
        try:
            form = await session.form_of(request)
            token = form.get("token", "").strip()
            await self._context.queue(request, token or "-")
        except UnknownToken:
            problem = "The daemon does not know this token."
            return _html(render("sign_in.html", {**self._frame(request), "problem": problem}), 401)
        except OpsqError as error:
            return self._failed(request, error)
        answer = _see(_own_path(form.get("back", "")))
        session.sign_in(request, answer, token)
        return answer

    async def sign_out(self, request: Request) -> Response:
        """`POST /sign-out`."""
        try:
            await session.form_of(request)
        except OpsqError as error:
            return self._failed(request, error)
        answer = _see("/")
        session.sign_out(answer)
        return answer

    async def act(self, request: Request) -> Response:
        """`POST /actions/NAME`: do what a form asks for, and show the page again that it came from."""

        async def change(queue: AsyncQueue) -> Response:
            form = await session.form_of(request)
            name = request.path_params["name"]
            if name not in ACTIONS:
                raise NotFound("There is no such action.")
            if not self._may_act(request, queue):
                hint = "Start the gateway with --allow-actions, and sign in with the token of an operator."
                raise NotPermitted("This page may only be read.", hint=hint)
            asked = checked(ACTIONS[name].request(queue.link.next_id(), form))
            reply = await queue.link.call(asked, ACTIONS[name].reply)
            count = reply.count if isinstance(reply, Changed) else len(reply.created)
            path, _, query = _own_path(form.get("back", "")).partition("?")
            kept = [(key, value) for key, value in parse_qsl(query) if key != "done"]
            return _see(f"{path}?{urlencode([*kept, ('done', f'{name}:{count}')])}")

        return await self._for_viewer(request, change)

    # --- inside ---

    async def _for_viewer(self, request: Request, make: Callable[[AsyncQueue], Awaitable[Response]]) -> Response:
        """The answer to somebody who may see the page; others are asked for a token."""
        token = session.shown_token(request)
        try:
            if token is None and self._context.exposure is Exposure.NETWORK:
                return self._ask_for_token(request)
            return await make(await self._context.queue(request, token))
        except NotPermitted as error:
            if request.method != "GET" or session.cookie_token(request) is None:
                return self._failed(request, error)
            answer = self._ask_for_token(request)  # every role may read: the token was revoked
            session.sign_out(answer)
            return answer
        except TimedOut:
            return self._failed(request, Unreachable("No daemon answers.", hint="`opsq start` starts one."))
        except OpsqError as error:
            return self._failed(request, error)

    def _ask_for_token(self, request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.method == "GET" and path.startswith("/live"):
            return Response(status_code=401, headers=HEADERS)
        return _see(f"/sign-in?{urlencode({'back': path if request.method == 'GET' else '/'})}")

    def _may_act(self, request: Request, queue: AsyncQueue) -> bool:
        """Whether the browser has the token of an operator: without one, what a page makes it send does nothing."""
        has_token = session.cookie_token(request) is not None
        return self._context.allow_actions and has_token and queue.link.welcome.is_operator

    def _frame(self, request: Request, queue: AsyncQueue | None = None) -> dict[str, Any]:
        """What every page needs."""
        query = {key: value[:_QUERY_CHARACTERS] for key, value in request.query_params.items()}
        return {
            "here": request.url.path,
            "said": said(query.pop("done", "")),
            "query": query,
            "now": now_ms(),
            "mark": session.mark_of(request),
            "has_token": session.cookie_token(request) is not None,
            "allow_actions": self._context.allow_actions,
            "may_sign_in": self._context.allow_actions or self._context.exposure is Exposure.NETWORK,
            "may_act": queue is not None and self._may_act(request, queue),
        }

    def _failed(self, request: Request, error: OpsqError) -> Response:
        return _html(render("error.html", {**self._frame(request), "error": error}), status_of(error))


def _see(path: str) -> Response:
    """Have the browser load a page of this door."""
    return RedirectResponse(path, 303, {**HEADERS, "Cache-Control": "no-store"})


def _own_path(text: str) -> str:
    """A path of this door that a form has named, or the overview."""
    found = urlsplit(text)
    is_own = not found.scheme and not found.netloc and text.startswith("/") and owns(found.path)
    return text if is_own and text.isprintable() and "\\" not in text else "/"


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
