"""One request at a time to a running daemon, over a blocking socket: for `start`, `stop` and `doctor`.

This file must not retry or hold reservations; consumers and producers use opsq.client.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from opsq.errors import InputUnreadable, NotPermitted, TimedOut, Unreachable
from opsq.settings import Settings
from opsq.units import split_address
from opsq.wire.frames import encode, reply_reader
from opsq.wire.messages import VERSION, ErrorReply, Heartbeat, Hello, Reply, Request, Welcome

_DIAL_S = 5.0


class ControlConnection:
    """An open connection for one request at a time.

    Raises:
        Unreachable: no daemon answers.
        NotPermitted: the socket belongs to another user, or the token is wrong.
    """

    def __init__(self, settings: Settings, *, name: str = "opsq") -> None:
        self._where = settings.address or settings.socket
        self._socket = _dial(settings)
        self._reader = reply_reader(1 << 30)
        self._replies: list[Reply] = []
        self._heartbeat_s = _DIAL_S
        try:
            welcome = self.ask(Hello(1, VERSION, name, _token(settings) if settings.address else ""), _DIAL_S)
        except BaseException:
            self.close()
            raise
        if isinstance(welcome, Welcome):
            self._heartbeat_s = welcome.heartbeat_s

    def ask(self, request: Request, deadline_s: float | None = None) -> Reply:
        """Send a request and wait for its reply, sending heartbeats while waiting.

        Raises:
            OpsqError: the daemon refused.
            TimedOut: no reply within `deadline_s` seconds (None: no limit).
            Unreachable: the connection was closed.
        """
        self._send(request)
        request_id = getattr(request, "id", 0)
        end = None if deadline_s is None else time.monotonic() + deadline_s
        beat_at = time.monotonic() + self._heartbeat_s
        while True:
            while self._replies:
                reply = self._replies.pop(0)
                if isinstance(reply, ErrorReply) and reply.id in {0, request_id}:
                    raise reply.error()
                if getattr(reply, "id", -1) == request_id:
                    return reply
            now_s = time.monotonic()
            if end is not None and now_s >= end:
                raise TimedOut(f"The daemon at {self._where} did not answer within {deadline_s:g} s.")
            if now_s >= beat_at:
                beat_at = now_s + self._heartbeat_s
                self._send(Heartbeat(0))
            if not self._receive(min(beat_at, end or beat_at) - now_s):
                raise Unreachable(f"The daemon at {self._where} closed the connection.")

    def wait_closed(self, deadline_s: float) -> bool:
        """Whether the daemon closes the connection within `deadline_s` seconds."""
        end = time.monotonic() + deadline_s
        with contextlib.suppress(Unreachable):
            while (left_s := end - time.monotonic()) > 0:
                if not self._receive(left_s):
                    return True
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> ControlConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _send(self, request: Request) -> None:
        try:
            self._socket.sendall(encode([request]))
        except OSError as error:
            raise Unreachable(f"The daemon at {self._where} closed the connection.") from error

    def _receive(self, timeout_s: float) -> bool:
        """Read once within `timeout_s` seconds; false at the end of the stream."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(max(timeout_s, 0) * 1000):
            return True
        try:
            received = self._socket.recv(1 << 16)
        except OSError as error:
            raise Unreachable(f"The daemon at {self._where} closed the connection.") from error
        self._replies += self._reader.feed(received)
        return bool(received)


def _dial(settings: Settings) -> socket.socket:
    try:
        if settings.address:
            return socket.create_connection(split_address(settings.address), _DIAL_S)
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            unix.settimeout(_DIAL_S)
            unix.connect(settings.socket)
        except BaseException:
            unix.close()
            raise
        return unix
    except PermissionError as error:
        raise NotPermitted(f"This user may not use the socket {settings.socket}.") from error
    except OSError as error:
        where = settings.address or settings.socket
        raise Unreachable(
            f"No daemon answers at {where}: {error.strerror or error}.", hint="Start it with `opsq start`."
        ) from error


def _token(settings: Settings) -> str:
    try:
        with open(os.fspath(settings.token_file), encoding="ascii", errors="replace") as file:
            return file.read(4096).strip()
    except OSError as error:
        raise InputUnreadable(f"Cannot read the token file {settings.token_file}: {error.strerror}.") from error
