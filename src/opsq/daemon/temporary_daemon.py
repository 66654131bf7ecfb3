"""A daemon for as long as rounds need it: `opsq run` starts one if none answers, and the last one that uses it ends it.

This file owns the file `opsq.run` of a state folder: the locks on it say who uses the daemon and which rounds run, what it holds says
whether the daemon is a temporary one. It must not know what a round is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import Self

from opsq.daemon import lifecycle
from opsq.daemon.control_connection import ControlConnection
from opsq.errors import Conflict, NotPermitted, OpsqError
from opsq.settings import Settings
from opsq.wire.messages import DaemonState, Status

UNUSED_S = 2.0
"""A temporary daemon without a connection looks so often whether anybody still wants it."""

_USERS_AT = 0
"""The byte whose lock, shared, a user of the daemon holds; each round has a byte behind it."""
_LOOKS_COUNT = 5
_LOOK_S = 0.02


class DaemonUse:
    """The use of the daemon of a state folder by one process, from `enter` to `leave`.

    The locks are of the kind that belongs to a process and ends with it, however that ends; so there must be one of these a process.

    Raises:
        NotPermitted: the state folder cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        lifecycle.make_state_dir(settings.state_dir)
        self._path = marker_path(settings)
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotPermitted(
                f"Cannot open {self._path}: {error.strerror}.", hint="Name another folder by --state-dir."
            ) from error
        self._reviving = threading.Lock()
        self.has_started = False
        """Whether this process has started the daemon."""

    def enter(self) -> Self:
        """Find the daemon, or start a temporary one; it goes on at least until `leave`.

        Raises:
            OpsqError: it could not be started.
        """
        fcntl.lockf(
            self._descriptor, fcntl.LOCK_SH, 1, _USERS_AT
        )  # waits only while the last user before us ends the daemon
        self.has_started = lifecycle.start(self._settings, is_temporary=True).status == "started"
        return self

    def claim(self, key: bytes) -> None:
        """Hold a round, for as long as this process lives.

        Raises:
            Conflict: another process holds it.
        """
        place = 1 + (int.from_bytes(key[:7]) or 1)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:
            raise round_conflict() from error

    def revive(self) -> bool:
        """Start the daemon again if it is a temporary one that was killed; any thread may.

        Returns:
            Whether one runs that is ours to start.

        Raises:
            OpsqError: it could not be started.
        """
        with self._reviving:
            if not self.is_temporary:
                return False
            lifecycle.start(self._settings, is_temporary=True)
            return True

    @property
    def is_temporary(self) -> bool:
        """Whether the daemon ends with its last user."""
        return os.fstat(self._descriptor).st_size > 0

    def leave(self) -> bool:
        """Let go of the daemon; it is stopped if it is a temporary one that nobody else uses. Connections must be closed.

        Returns:
            Whether it was stopped. If somebody else still uses it, it ends when that ends.
        """
        try:
            if not self.is_temporary:
                return False
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _USERS_AT)
            except OSError:  # another round uses it
                return False
            return self._is_unused() and lifecycle.stop(self._settings, 0.0).status == "stopped"
        finally:
            os.close(self._descriptor)

    def _is_unused(self) -> bool:
        for _ in range(_LOOKS_COUNT):
            with contextlib.suppress(OpsqError), ControlConnection(self._settings) as control:
                state = control.ask(Status(1), 1.0)
                if isinstance(state, DaemonState) and state.connections_count <= 1 and not state.total.reserved_count:
                    return True
            time.sleep(_LOOK_S)  # it may not have read yet that our own connections have ended
        return False


def round_conflict() -> Conflict:
    """What is said of a round that another process holds."""
    return Conflict(
        "The same round runs already, in another process.",
        hint="Wait for its end, or make this one another round by --resume KEY.",
    )


def marker_path(settings: Settings) -> str:
    """The file that this is about."""
    return os.path.join(settings.state_dir, "opsq.run")


def write_marker(settings: Settings, *, is_temporary: bool) -> None:
    """Write down what the daemon that serves from now on is; `opsq start` makes a temporary one stay."""
    path = marker_path(settings)
    if is_temporary:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(descriptor, b"temporary\n")
        os.close(descriptor)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, 0)


def may_exit(settings: Settings) -> bool:
    """Whether a daemon without connections may end: it is a temporary one, and no round is about to use it, nor can until it has ended.

    Effects: if so, whoever wants to use it waits for the end of this process.
    """
    try:
        descriptor = os.open(marker_path(settings), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    if os.fstat(descriptor).st_size:
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _USERS_AT)
            return True  # the descriptor stays open, and with it the lock
    os.close(descriptor)
    return False
