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
        returns: list[Callable[[], None]] = []
        scope["opsq.returns"] = returns
        try:
            await self._app(scope, receive, send)
        finally:
            for give_back in returns:
                give_back()


def until_answered(connection: HTTPConnection, give_back: Callable[[], None]) -> None:
    """Call `give_back`, which must not raise, once this request is answered."""
    connection.scope["opsq.returns"].append(give_back)
