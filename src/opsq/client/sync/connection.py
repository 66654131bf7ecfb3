"""One connection to a daemon: dial, hello, send frames, receive messages.

This file owns the socket and nothing else: it never reconnects, never resends and starts no thread (see link.py), and
it imports only what is cheap, because the verbs that shell loops call go through it.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from opsq.client.core.address import Target, TlsAddress, show_address
from opsq.client.core.missing_shards import MissingShards
from opsq.client.core.transport import (
    DIAL_S,
    FRAME_LIMIT_BYTES,
    MISSES,
    REPLY_LIMIT_BYTES,
    TLS_HINT,
    Backoff,
    expect,
    frames,
    here,
    with_owner,
)
from opsq.client.shards.dialling import dial
from opsq.errors import OpsqError, TimedOut, Unreachable
from opsq.wire.frames import reply_reader
from opsq.wire.messages import (
    VERSION,
    Alive,
    Claim,
    ErrorReply,
    Heartbeat,
    Hello,
    Reply,
    Request,
    ShardsMissing,
    Welcome,
)

if TYPE_CHECKING:
    from opsq.client.core.tls import TlsSocket

_BEAT_ID = (1 << 63) - 1
_RECEIVE_BYTES = 1 << 18
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLNVAL

R = TypeVar("R")


class Connection:
    """A greeted connection. `send` may be called from any thread; `receive` and `call` from one at a time.

    Args:
        peer: a connected stream socket, which the connection owns from now on.
        address: what it is connected to, for messages.
        name: what the consumer is called in `status`; the daemon adds a random part.
        token: needed over TCP.
        claim: a name that this connection wants for itself.
    """

    welcome: Welcome

    @property
    def store_url(self) -> str:
        """Where the daemon keeps content."""
        return self.welcome.store

    def __init__(
        self,
        peer: socket.socket | TlsSocket,
        address: Target,
        *,
        name: str = "",
        token: str = "",
        claim: Claim | None = None,
    ) -> None:
        self.address = address
        self.on_missing: Callable[[ShardsMissing], None] = MissingShards()
        """Told which shards of a queue of several have no part in the answer that follows, as people know them."""
        self.heard_at = 0.0
        """When something last came, in seconds of `time.monotonic`."""
        self._socket = peer
        self._ids = itertools.count(1)
        self._reader = reply_reader()
        self._inbox: list[Reply] = []
        self._limit_bytes = FRAME_LIMIT_BYTES
        self._heartbeat_s = DIAL_S * 2
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._poll = select.poll()
        self._poll.register(peer, select.POLLIN)
        peer.setblocking(False)
        try:
            welcome = self.call(Hello(self.next_id(), VERSION, name, token, claim, *here()), Welcome, DIAL_S)
            self.welcome = with_owner(peer, address)(welcome)
        except TimedOut as error:
            self.close()
            raise Unreachable(f"The daemon at {show_address(address)} accepts but does not answer.") from error
        except OpsqError:
            self.close()
            raise
        self._limit_bytes = self.welcome.frame_limit_bytes
        self._heartbeat_s = self.welcome.heartbeat_s
        self._reader = reply_reader(max(self._limit_bytes, REPLY_LIMIT_BYTES))

    @classmethod
    def open(
        cls, address: Target, *, name: str = "", token: str = "", reconnect_s: float = 0.0, claim: Claim | None = None
    ) -> Connection:
        """Dial and greet, again and again for up to `reconnect_s` seconds while no daemon answers.

        Raises:
            Unreachable: no daemon answers.
            NotPermitted: the socket belongs to another user, or the token is wrong.
            VersionMismatch, TooManyConnections: the daemon says so.
            NameTaken: another has what `claim` names.
            UsageError: the path is too long for a socket.
        """
        deadline = time.monotonic() + reconnect_s
        pauses = Backoff()
        while True:
            try:
                return cls(dial(address), address, name=name, token=token, claim=claim)
            except Unreachable:
                pause_s = pauses.next_s()
                if time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)

    def next_id(self) -> int:
        """An id for the next request."""
        return next(self._ids)

    def fileno(self) -> int:
        """The descriptor of the socket, for a selectors loop; -1 when closed."""
        return self._socket.fileno()

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests in one frame, or in several if together they are longer than the daemon's limit.

        Reads what arrives while the socket takes no more, so that a daemon which waits for this side to read cannot
        block both.

        Raises:
            Unreachable: the connection has ended, or the daemon has stopped reading.
            UsageError: a single request is longer than the limit; none was sent.
        """
        for frame in list(frames(requests, self._limit_bytes)):  # all of them, or none
            with self._sending:
                self._write(frame)

    def receive(self, timeout_s: float | None) -> list[Reply]:
        """Everything that has arrived, pushes included; may be nothing even before the time is over.

        Args:
            timeout_s: how long to wait if nothing is there, in seconds; None without limit.

        Raises:
            Unreachable: the connection has ended.
            ProtocolError: what came cannot be understood.
        """
        with self._receiving:
            if not self._inbox and not self._read():
                if timeout_s == 0:
                    return []
                self._poll.poll(None if timeout_s is None else max(timeout_s, 0.0) * 1000)
                self._read()
            replies, self._inbox = self._inbox, []
            return replies

    def call(self, request: Request, kind: type[R], timeout_s: float | None = None) -> R:
        """Send one request and wait for its answer, showing by heartbeats that this side lives.

        What else arrives is kept for `receive`.

        Raises:
            TimedOut: no answer came within `timeout_s` seconds (None: waits without limit).
            OpsqError: the daemon refused; the class is that of the error reply.
        """
        self.send([request])
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        others: list[Reply] = []
        beats_count = 0
        beat_at = time.monotonic() + self._heartbeat_s
        try:
            while True:
                now = time.monotonic()
                left_s = beat_at - now if deadline is None else min(beat_at, deadline) - now
                replies = self.receive(max(left_s, 0.0))
                if replies:
                    beats_count = 0
                for at, reply in enumerate(replies):
                    reply_id = getattr(reply, "id", None)
                    if reply_id == _BEAT_ID and isinstance(reply, Alive):
                        continue
                    if reply_id == getattr(request, "id", 0) or (reply_id == 0 and isinstance(reply, ErrorReply)):
                        others += replies[at + 1 :]
                        return expect(reply, kind)
                    others.append(reply)
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise TimedOut(f"The daemon at {show_address(self.address)} did not answer within {timeout_s:g} s.")
                if now >= beat_at:
                    if beats_count >= MISSES:
                        raise self.silent()
                    beats_count += 1
                    beat_at = now + self._heartbeat_s
                    self.send([Heartbeat(_BEAT_ID)])
        finally:
            self._inbox[:0] = others

    def close(self) -> None:
        """Close the socket; harmless when it is closed already."""
        self._shut_down()
        with self._receiving, self._sending:
            self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self, frame: bytes) -> None:
        rest = memoryview(frame)
        try:
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    self._wait_writable()
                except OSError as error:
                    raise self._lost() from error
        except BaseException:
            if len(rest) < len(frame):  # the daemon would take all that follows as the rest of this frame
                self._shut_down()
            raise

    def _wait_writable(self) -> None:
        is_reader = self._receiving.acquire(blocking=False)
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT | (select.POLLIN if is_reader else 0))
            found = poll.poll(MISSES * self._heartbeat_s * 1000)
            if not found:
                raise self.silent()
            for _, events in found:
                if is_reader and events & _READABLE:
                    self._read()
        finally:
            if is_reader:
                self._receiving.release()

    def _read(self) -> bool:
        """Read what is there without waiting; false if nothing was."""
        try:
            received = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost() from error
        if not received:
            raise self._lost()
        self.heard_at = time.monotonic()
        for reply in self._reader.feed(received):
            if isinstance(reply, ShardsMissing):
                self.on_missing(reply)
            else:
                self._inbox.append(reply)
        return True

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def silent(self) -> Unreachable:
        """What to raise when nothing has come for too long."""
        return Unreachable(f"The daemon at {show_address(self.address)} no longer answers.")

    def _lost(self) -> Unreachable:
        is_early = isinstance(self.address, TlsAddress) and not hasattr(self, "welcome")
        return Unreachable(
            f"The connection to the daemon at {show_address(self.address)} has ended.",
            hint=TLS_HINT if is_early else "",
        )
