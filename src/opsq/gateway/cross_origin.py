"""Lets pages of named origins use the JSON API from a browser (CORS); without names it lets none.

It must not let them use anything else, nor decide what a token permits.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

_PATHS = "/api/v1/"
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_HEADERS = ("Authorization", "Idempotency-Key", "Last-Event-ID", "Range")


class CrossOrigin:
    """Middleware that answers preflight requests, and marks the requests of pages that may come in.

    Args:
        origins: whose pages may use the JSON API.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._cors = CORSMiddleware(
            app, self._origins, _METHODS, _HEADERS, expose_headers=("Location", "Content-Range")
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through."""
        if not self._origins or scope["type"] != "http" or not scope["path"].startswith(_PATHS):
            await self._app(scope, receive, send)
            return
        scope["opsq.is_origin_allowed"] = Headers(scope=scope).get("origin", "") in self._origins
        await self._cors(scope, receive, send)
