"""TLS of the daemon: its certificate, read again when the files change, and the door where clients shake hands.

This file must not know what is said over a connection. A client is counted from the first byte on, and one that does
not speak TLS gets an answer that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from opsq.daemon.connection_quota import ConnectionQuota
from opsq.daemon.refusal_log import RefusalLog
from opsq.daemon.reread_files import RereadFiles
from opsq.errors import NotPermitted, OpsqError, ProtocolError, TimedOut
from opsq.settings import Settings
from opsq.tls_files import identify, reading_ca
from opsq.units import format_address
from opsq.wire.frames import encode
from opsq.wire.messages import ErrorReply

HANDSHAKE_S = 10.0
"""How long a client may take for the whole handshake."""

_LINGER_S = 2.0
_PAUSE_S = 0.1
_HANDSHAKE = b"\x16"
"""The first byte of a client that speaks TLS; a frame begins with the length of a hello, which is shorter."""

OnOpen = Callable[[asyncio.BaseTransport], OpsqError | None]
"""Called when a connection is open; the error with which it must end, if it must."""

_log = logging.getLogger(__name__)


class TlsFiles(NamedTuple):
    """The files of a daemon's TLS; an empty path is no file."""

    cert: str
    key: str
    client_ca: str


class ServerTls:
    """The context for new connections.

    Raises:
        NotPermitted: other users can read the key.
        InputUnreadable: a file cannot be read, or is not what it should be.
    """

    def __init__(self, settings: Settings) -> None:
        self._files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
        self._context = RereadFiles("the TLS files", self._files, lambda: load_context(self._files))

    @property
    def wants_certificates(self) -> bool:
        """Whether clients need a certificate."""
        return bool(self._files.client_ca)

    def context(self) -> ssl.SSLContext:
        """The context by the files as they are now; if they cannot be read, as they were, and that is logged."""
        if self._context.refresh():
            _log.info("the TLS certificate was reloaded from %s", self._files.cert)
        return self._context.found


def load_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a daemon with these files.

    Raises:
        NotPermitted: other users can read the key.
        InputUnreadable: a file cannot be read, or is not what it should be.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    identify(context, files.cert, files.key, is_private=True)
    if files.client_ca:
        # A client without one is refused by its session, with a reason; a failed handshake gives none.
        context.verify_mode = ssl.CERT_OPTIONAL
        with reading_ca(files.client_ca):
            context.load_verify_locations(files.client_ca)
    return context


class TlsDoor:
    """Accepts connections on a listening TCP socket and hands those that have shaken hands to sessions.

    Args:
        make_session: makes the protocol of a connection, given what to call when it is open.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ServerTls,
        make_session: Callable[[OnOpen], asyncio.Protocol],
        quota: ConnectionQuota,
        refusals: RefusalLog,
    ) -> None:
        self.tls = tls
        self.make_session = make_session
        self.quota = quota
        self.refusals = refusals
        self.loop = asyncio.get_running_loop()
        self._listener = listener
        self._handshakes: set[_Handshake] = set()
        self._accepting = self.loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more; handshakes end."""
        self._accepting.cancel()
        for handshake in list(self._handshakes):
            handshake.close()

    def leave(self, handshake: _Handshake) -> None:
        """A handshake is over, well or not."""
        self._handshakes.discard(handshake)
        self.quota.leave(handshake)

    async def _accept(self) -> None:
        while True:
            try:
                peer, address = await self.loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptors: waiting for some must not spin
                self.refusals.note("accept", f"cannot accept a connection: {error}")
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:  # macOS has no options for a client that has gone
                peer.close()
                continue
            handshake = _Handshake(self, peer, format_address(*address[:2]))
            self._handshakes.add(handshake)
            if (refusal := self.quota.enter(handshake, is_tcp=True)) is not None:
                handshake.end(refusal)


class _Handshake:
    """A client that has not shaken hands yet."""

    def __init__(self, door: TlsDoor, peer: socket.socket, name: str) -> None:
        self._door = door
        self._peer = peer
        self._name = name
        self._is_open = False
        self._task = door.loop.create_task(self._run())
        self._task.add_done_callback(self._finish)

    def end(self, error: OpsqError) -> None:
        """Close; the reason is logged, since a peer without keys cannot be answered."""
        self._door.refusals.note(f"tls {error.code}", f"no TLS with {self._name}: {error.message}")
        self.close()

    def close(self) -> None:
        """Close at once."""
        self._door.leave(self)
        self._task.cancel()

    def _finish(self, _task: asyncio.Task[None]) -> None:
        self._door.leave(self)
        if not self._is_open:
            self._peer.close()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                first = await self._first_byte()
                if first == _HANDSHAKE:
                    await self._shake_hands()
                elif first:
                    await self._tell()
        except TimeoutError:
            self.end(TimedOut("the handshake took too long"))
        except OSError as error:
            self.end(ProtocolError(f"the handshake failed: {getattr(error, 'reason', None) or error}"))

    async def _first_byte(self) -> bytes:
        """Look at the first byte without taking it."""
        there = asyncio.Event()
        self._door.loop.add_reader(self._peer, there.set)
        try:
            await there.wait()
        finally:
            self._door.loop.remove_reader(self._peer)
        return self._peer.recv(1, socket.MSG_PEEK)

    async def _shake_hands(self) -> None:
        door = self._door
        await door.loop.connect_accepted_socket(
            lambda: door.make_session(self._open), self._peer, ssl=door.tls.context(), ssl_handshake_timeout=HANDSHAKE_S
        )

    def _open(self, transport: asyncio.BaseTransport) -> OpsqError | None:
        """The handshake was good; why the session must end all the same, if it must."""
        self._is_open = True
        self._door.leave(self)
        if self._door.tls.wants_certificates and not transport.get_extra_info("peercert"):
            return NotPermitted(
                "This daemon accepts only clients with a certificate that its CA has signed.",
                hint="Give --tls-client-cert-file and --tls-client-key-file.",
            )
        return None

    async def _tell(self) -> None:
        """Answer a client that does not speak TLS in its own language, and close when it has read that."""
        error = ProtocolError(
            "This port speaks TLS only.",
            hint="Write the address as tls://HOST:PORT, and give the CA of its certificate with --tls-ca-file.",
        )
        self._door.refusals.note("tls plain", f"no TLS with {self._name}: it does not speak TLS")
        with contextlib.suppress(OSError):  # TimeoutError too
            self._peer.send(encode([ErrorReply.of(0, error)]))
            self._peer.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_LINGER_S):
                while await self._door.loop.sock_recv(self._peer, 1 << 16):
                    pass
