"""WebSockets that can also send a pong that nobody asked for; it must not know what is said over them."""

from __future__ import annotations

from collections.abc import Callable

from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_EXTENSION = "opsq.pong"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's own, whose applications can send pongs."""

    async def run_asgi(self) -> None:
        """Serve a connection."""
        self.scope["extensions"][_EXTENSION] = self._send_pong  # type: ignore[assignment]  # ASGI has values of any type here
        await super().run_asgi()

    def _send_pong(self) -> None:
        if self.handshake_complete and not (self.close_sent or self.transport.is_closing()):
            self.conn.send_pong(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))


def pong_sender(websocket: WebSocket) -> Callable[[], None]:
    """What sends an empty pong, where the server can.

    It carries an acknowledgement at once to a client that waits for one before it sends more.
    """
    send: Callable[[], None] = websocket.scope.get("extensions", {}).get(_EXTENSION, lambda: None)
    return send
