"""Answers that come in pieces; to HEAD, which has no body, the headers alone: nothing is waited for.

It must not know what the pieces are.
"""

from __future__ import annotations

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Stream(StreamingResponse):
    """An answer that comes in pieces, perhaps without end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if scope["method"] != "HEAD":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b""})
