"""What is kept for a request, such as a connection to the daemon, is so until the request is answered.

It must not know what is kept.
"""

from __future__ import annotations

import contextlib

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send


class Lending:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        with contextlib.ExitStack() as scope["opsq.loans"]:
            await self._app(scope, receive, send)


def until_answered(connection: HTTPConnection, loan: contextlib.AbstractContextManager[None]) -> None:
    """Enter `loan`, and leave it once this request is answered."""
    loans: contextlib.ExitStack = connection.scope["opsq.loans"]
    loans.enter_context(loan)
