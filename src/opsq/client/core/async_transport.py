"""A connection on an event loop: bytes in, messages out, and how it is made.

It must not know what is asked over it; `async_link` does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from opsq.client.core.address import ShardedAddress, Target, TlsAddress, show_address
from opsq.client.core.transport import (
    DIAL_S,
    FRAME_LIMIT_BYTES,
    REPLY_LIMIT_BYTES,
    TLS_HINT,
    frames,
    unreachable,
    with_owner,
)
from opsq.errors import OpsqError, ProtocolError, Unreachable
from opsq.wire.frames import reply_reader
from opsq.wire.messages import Reply, Request, Welcome

_FAREWELL_S = 1.0


class AsyncTransport(asyncio.Protocol):
    """One connection: bytes in, messages out."""

    def __init__(
        self, on_replies: Callable[[list[Reply]], None], on_end: Callable[[OpsqError], None], address: Target
    ) -> None:
        self._on_replies = on_replies
        self._on_end = on_end
        self._address = address
        self._reader = reply_reader()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
        self._is_ended = False
        self._has_replies = False
        self.limit_bytes = FRAME_LIMIT_BYTES

    def set_limit(self, limit_bytes: int) -> None:
        """Take the frame limit of the daemon."""
        self.limit_bytes = limit_bytes
        self._reader = reply_reader(max(limit_bytes, REPLY_LIMIT_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)  # a stream has no other kind; uvloop's derives from none

    def data_received(self, data: bytes) -> None:
        """Hand on what is complete."""
        self._has_replies = True
        try:
            self._on_replies(list(self._reader.feed(data)))
        except ProtocolError as error:
            self.abort()
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say why it has ended."""
        self._closed.set()
        if isinstance(self._address, TlsAddress) and isinstance(exc, OSError) and not isinstance(exc, ConnectionError):
            from opsq.client.core.tls import tls_failure

            self._end(tls_failure(self._address, exc))
        else:
            is_early = isinstance(self._address, TlsAddress) and not self._has_replies
            self._end(
                Unreachable(
                    f"The connection to the daemon at {show_address(self._address)} has ended.",
                    hint=TLS_HINT if is_early else "",
                )
            )

    def pause_writing(self) -> None:
        """The other side does not take more now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    def write(self, requests: Sequence[Request]) -> None:
        """Send requests in one frame, or in several if they are longer than the limit."""
        if self._transport is not None:
            for frame in list(frames(requests, self.limit_bytes)):  # all of them, or none
                self._transport.write(frame)

    @property
    def is_writable(self) -> bool:
        """Whether the transport takes more."""
        return self._writable.is_set()

    async def drained(self) -> None:
        """Wait until the transport takes more."""
        await self._writable.wait()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection without sending what the other side does not take."""
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until the socket is closed, which with TLS takes a farewell, and for that only a second."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._closed.wait()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()

    def _end(self, error: OpsqError) -> None:
        self._writable.set()
        if not self._is_ended:
            self._is_ended = True
            self._on_end(error)


async def _connected(connect: Callable[[Any], socket.socket], address: Target) -> socket.socket:
    """What `connect` makes in a thread of its own, which nobody waits for at the end of the process.

    A socket that comes when it is not wanted any more is closed.
    """
    loop = asyncio.get_running_loop()
    dialled: asyncio.Future[socket.socket] = loop.create_future()

    def dial() -> None:
        peer: socket.socket | None = None
        failure: BaseException | None = None
        try:
            peer = connect(address)
        except BaseException as error:  # noqa: BLE001  # it is raised by those who wait
            failure = error
        try:
            loop.call_soon_threadsafe(finish, peer, failure)
        except RuntimeError:  # the event loop has ended
            if peer is not None:
                peer.close()

    def finish(peer: socket.socket | None, failure: BaseException | None) -> None:
        if dialled.done():
            if peer is not None:
                peer.close()
        elif peer is not None:
            dialled.set_result(peer)
        elif failure is not None:
            dialled.set_exception(failure)

    try:
        threading.Thread(target=dial, name="opsq-dial", daemon=True).start()
    except RuntimeError as error:  # this process can have no more threads now
        raise Unreachable(f"This process cannot connect to {show_address(address)}: {error}.") from error
    return await dialled


async def open_transport(
    make: Callable[[], AsyncTransport], address: Target, connect: Callable[[Any], socket.socket]
) -> tuple[AsyncTransport, Callable[[Welcome], Welcome]]:
    """Dial, with TLS if the address has it; also what has the greeting say whose the daemon is.

    Raises:
        OpsqError: as `connect`; for TLS, as `tls.tls_failure` says.
    """
    loop = asyncio.get_running_loop()
    peer = await _connected(connect, address)
    peer.setblocking(False)
    known = with_owner(peer, address)
    if not isinstance(address, TlsAddress):
        is_local = isinstance(address, str | ShardedAddress)
        try:
            made = loop.create_unix_connection(make, sock=peer) if is_local else loop.create_connection(make, sock=peer)
            return (await made)[1], known
        except OSError as error:
            peer.close()
            raise unreachable(address, error) from error
    from opsq.client.core.tls import client_context, tls_failure

    try:
        context = client_context(address)
        _, transport = await loop.create_connection(
            make, sock=peer, ssl=context, server_hostname=address.host, ssl_handshake_timeout=DIAL_S
        )
    except OSError as error:
        await asyncio.sleep(0)  # the event loop closes its transport in the next turn
        peer.close()
        raise tls_failure(address, error) from error
    return transport, known
