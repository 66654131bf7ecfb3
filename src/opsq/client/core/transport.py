"""What links need of a transport: sockets to a daemon, frames within its limit, pauses between dials.

This file keeps no connection and knows no requests in flight; it imports only what is cheap, because the hot verbs go
through it.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from opsq.client.core.address import Address, ShardedAddress, Target, TlsAddress, show_address
from opsq.errors import NotPermitted, ProtocolError, Unreachable, UsageError
from opsq.paths import SOCKET_PATH_LIMIT_BYTES, short_socket_owner
from opsq.peer_credentials import peer_uid
from opsq.units import counted
from opsq.users import is_trusted, may_others_change, text_of_owner
from opsq.wire.frames import encode_requests
from opsq.wire.messages import ErrorReply, Reply, Request, Welcome

if TYPE_CHECKING:
    from opsq.client.core.tls import TlsSocket

DIAL_S = 10.0
"""How long a daemon may take to accept a connection and to answer the hello."""

TLS_HINT = "Does it want a certificate of this client? Give --tls-client-cert-file; its log says why it closed."
"""For a connection over TLS that ends before a word: a daemon that does not accept a certificate just closes."""

MISSES = 3
"""A daemon that leaves this many heartbeats unanswered is gone."""

FRAME_LIMIT_BYTES = 1 << 16
"""The longest frame before the daemon has named its own limit."""

REPLY_LIMIT_BYTES = 16 << 20
"""Replies up to this length are read even if the daemon takes only shorter frames."""


R = TypeVar("R")


class Wire(Protocol):
    """What a link needs of a transport: a `Connection`, or the engine in this process."""

    welcome: Welcome

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests, in order.

        Raises:
            Unreachable: the transport has ended.
            UsageError: one cannot be sent, such as one that is too long; none was.
        """

    def receive(self, timeout_s: float | None) -> list[Reply]:
        """What has arrived; waits up to `timeout_s` (None: for ever) if nothing has. Raises as `send`."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when something arrives, or -1."""

    def close(self) -> None:
        """End the transport; what waits in `receive` wakes up."""


Dial = Callable[[], Wire]
"""Makes a greeted transport, or raises as `Connection.open` does."""


def frames(requests: Sequence[Request], limit_bytes: int) -> Iterator[bytes]:
    """The requests in one frame, or in several if one would be longer than `limit_bytes`.

    Raises:
        UsageError: a single request is longer than the limit, or has a value that cannot be sent.
    """
    frame = encode_requests(requests)
    if len(frame) - 4 <= limit_bytes:
        yield frame
        return
    if len(requests) == 1:
        raise UsageError(
            f"A {type(requests[0]).__name__} of {counted(len(frame) - 4, 'byte')} "
            f"exceeds the frame limit of {counted(limit_bytes, 'byte')}.",
            hint="Send less at once, or raise the daemon's frame_limit_bytes.",
        )
    half = len(requests) // 2
    yield from frames(requests[:half], limit_bytes)
    yield from frames(requests[half:], limit_bytes)


def here() -> tuple[str, int]:
    """Host and process, as a hello names them."""
    return socket.gethostname()[:255], os.getpid()


def default_name() -> str:
    """The name of a consumer or producer that was given none."""
    return f"{socket.gethostname()}-{os.getpid()}"


def expect(reply: Reply, kind: type[R]) -> R:
    """The reply, if it is of the kind that the request asks for.

    Raises:
        OpsqError: it is an error reply; the class is that of its code.
        ProtocolError: it is of another kind.
    """
    if isinstance(reply, kind):
        return reply
    if isinstance(reply, ErrorReply):
        raise reply.error()
    raise ProtocolError(f"The daemon answered with {type(reply).__name__} where {kind.__name__} was expected.")


class Backoff:
    """Growing pauses with jitter between attempts to reach a daemon: 50 ms, doubled up to 5 s, cut by up to a half."""

    def __init__(self) -> None:
        self._next_s = 0.05

    def next_s(self) -> float:
        """The next pause, in seconds."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, 5.0)
        return pause_s * (0.5 + os.urandom(1)[0] / 510)  # the random module costs a hot verb 2 ms


def connected_socket(address: Address) -> socket.socket:
    """A socket connected to `address`; TLS has not begun.

    Raises:
        Unreachable: no process listens there, no host can have that name, or this process can make no socket now.
        NotPermitted: the socket belongs to another user, or to one who is not the owner of its folder.
        UsageError: the path is too long for a socket.
    """
    try:
        return _unix_socket(address) if isinstance(address, str) else _tcp_socket(address)
    except OSError as error:
        raise unreachable(address, error) from error
    except UnicodeError as error:  # a label of the host is empty, or too long
        raise Unreachable(
            f"No daemon answers at {show_address(address)}: the name of the host is not valid."
        ) from error


def unreachable(address: Target, error: OSError) -> Unreachable:
    """What it means that there is no connection to `address`."""
    where, reason = show_address(address), error.strerror or error
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return Unreachable(
            f"This process cannot connect to {where}: {reason}.",
            hint="Close some files, or raise the limit of open files (`ulimit -n`).",
        )
    if not isinstance(address, str):
        return Unreachable(f"No daemon answers at {where}: {reason}.", hint="Is it started with --listen?")
    several = " Of several sockets, each after the first begins with / or ./." if "," in address else ""
    return Unreachable(f"No daemon answers at {where}: {reason}.", hint=f"Start it with `opsq start`.{several}")


def _tcp_socket(address: tuple[str, int] | TlsAddress) -> socket.socket:
    peer = socket.create_connection(address[:2], DIAL_S)
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError:  # macOS has no options for a connection that was reset
        peer.close()
        raise
    return peer


def _unix_socket(address: str) -> socket.socket:
    length = len(os.fsencode(address))
    if length > SOCKET_PATH_LIMIT_BYTES:
        raise UsageError(
            f"The socket path {address} has {counted(length, 'byte')}; a socket path "
            f"may have {SOCKET_PATH_LIMIT_BYTES}.",
            hint="Choose a shorter one with --socket or OPSQ_SOCKET.",
        )
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(DIAL_S)
        peer.connect(address)
        _check_owner(peer, address)
    except PermissionError as error:
        peer.close()
        raise NotPermitted(f"The socket {address} may not be used by this user{text_of_owner(address)}.") from error
    except BaseException:
        peer.close()
        raise
    return peer


def with_owner(peer: socket.socket | TlsSocket, address: Target) -> Callable[[Welcome], Welcome]:
    """What has a greeting say whether the daemon at the other end runs on this machine as this user or root.

    A router, which is of this process, knows that of its shards.
    """
    uid = peer_uid(peer)
    is_own = uid is not None and is_trusted(uid)
    return lambda welcome: welcome if isinstance(address, ShardedAddress) else replace(welcome, is_own=is_own)


def _check_owner(peer: socket.socket, path: str) -> None:
    """Refuse a daemon of somebody else than this user, root and the owner of the socket's folder.

    Nothing has been sent to it. Anybody can make a folder under /tmp: there its name says whose it must be.
    """
    uid = peer_uid(peer)
    if uid is None:
        raise NotPermitted(f"The system does not say who listens at {path}.")
    folder = os.path.dirname(os.path.abspath(path))
    found = os.stat(folder)
    owner = short_socket_owner(path)
    if owner is not None and (found.st_uid not in {owner, 0} or may_others_change(found)):
        raise NotPermitted(
            f"The folder {folder} belongs to uid {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}:"
            f" it may not be what the daemon of uid {owner} made.",
            hint="Nothing was sent. Choose a short path with --socket or OPSQ_SOCKET.",
        )
    if not is_trusted(uid) and uid != (found.st_uid if owner is None else owner):
        raise NotPermitted(
            f"The process that listens at {path} belongs to uid {uid}, but the folder to uid {found.st_uid}.",
            hint="Nothing was sent. The owner of the folder should check its contents and its mode.",
        )
