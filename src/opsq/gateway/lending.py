"""What is kept for a request, such as a connection to the daemon, is so until the request is answered.

It must not know what is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send


class Lending:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        calls: list[Callable[[], None]] = []
        scope["opsq.once_answered"] = calls
        try:
            await self._app(scope, receive, send)
        finally:
            for call in calls:
                call()


def once_answered(connection: HTTPConnection, call: Callable[[], None]) -> None:
    """Make this call, which must not raise, once the request is answered, or has failed."""
    connection.scope["opsq.once_answered"].append(call)
