"""Bodies of requests: how long one may be, and how many large ones under way, so that memory has a bound.

It must not know what a body is: doors do.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opsq.errors import UsageError
from opsq.units import counted

LARGE_BYTES = 64 << 10
LARGE_LIMIT_COUNT = 256


class TooLong(UsageError):
    """The body of the request is too long."""

    code = "http"


class Bodies:
    """Middleware that refuses a body when it turns out to be large, and there are too many."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._large_count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and count what it receives."""
        received_bytes = 0
        is_large = False

        async def counted() -> Message:
            nonlocal received_bytes, is_large
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > LARGE_BYTES and not is_large:
                if self._large_count >= LARGE_LIMIT_COUNT:
                    raise HTTPException(503, f"{LARGE_LIMIT_COUNT} requests with large bodies are under way.")
                is_large = True
                self._large_count += 1
            return message

        try:
            await self._app(scope, counted if scope["type"] == "http" else receive, send)
        finally:
            self._large_count -= is_large


async def whole_body(request: Request, limit_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        TooLong: it is longer.
        ClientDisconnect: the client has gone.
    """
    body = bytearray()
    if int(request.headers.get("content-length", "0")) <= limit_bytes:  # else a client that asks first sends nothing
        async for part in request.stream():
            body += part
            if len(body) > limit_bytes:
                break
        else:
            return bytes(body)
    raise TooLong(f"The body may have at most {counted(limit_bytes, 'byte')} here.")
