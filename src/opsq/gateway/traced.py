"""What a request to the gateway submits belongs to the trace that the request names, and to no other.

It must not look at anything else of a request.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from opsq import traces

_NAMES = frozenset((b"traceparent", b"tracestate"))


class Traced:
    """The middleware. The environment of the gateway is of no account: see `traces.forget_environment`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        named = [header for header in scope.get("headers", ()) if header[0] in _NAMES]
        if not named and not traces.is_tracing():
            await self._app(scope, receive, send)
            return
        found = [(name.decode(), field.decode("latin-1")) for name, field in named]
        is_clear = sum(name == "traceparent" for name, _ in found) == 1  # of several none can be the right one
        fields = dict(found) if is_clear else {}
        with traces.given(traces.of_headers(fields)):
            await self._app(scope, receive, send)
