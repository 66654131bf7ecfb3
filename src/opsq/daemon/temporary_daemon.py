"""A daemon that lives as long as runs need it: `opsq run` starts one if none answers, and its last user stops it.

This file owns the file `opsq.run` of a state folder: its locks record which processes use the daemon and which runs are
active, its content whether the daemon is temporary. It must not know what a run does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Self

from opsq.daemon import lifecycle
from opsq.daemon.control_connection import fetch_state
from opsq.errors import Conflict, NotPermitted, OpsqError
from opsq.settings import Settings
from opsq.store.state_folder import make_state_dir
from opsq.users import open_file

UNUSED_S = 2.0
"""How often a temporary daemon without connections checks whether it is still needed."""

_USERS_AT = 0
"""The byte that each user of the daemon holds a shared lock on; each run locks a byte after it."""
_LOOKS_COUNT = 5
_LOOK_S = 0.02


class DaemonUse:
    """One process's use of the daemon of a state folder, from `enter` to `leave`.

    The locks belong to the process and end with it, however it ends; so a process must not have two of these.

    Raises:
        NotPermitted: the state folder cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        make_state_dir(settings.state_dir, is_shared=settings.is_shared)
        self._path = marker_path(settings)
        try:
            self._descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise NotPermitted(
                f"Cannot open {self._path}: {error.strerror}.",
                hint="Name another folder with --state-dir, or remove the file if a run of another user has left it.",
            ) from error
        self._reviving = threading.Lock()
        self.has_started = False
        """Whether this process started the daemon."""

    def enter(self) -> Self:
        """Find the daemon, or start a temporary one; it keeps running at least until `leave`.

        Raises:
            OpsqError: it could not be started.
        """
        fcntl.lockf(self._descriptor, fcntl.LOCK_SH, 1, _USERS_AT)  # waits only while a previous user stops the daemon
        self.has_started = lifecycle.start(self._settings, is_temporary=True).status == "started"
        return self

    def claim(self, key: bytes) -> None:
        """Lock a run for as long as this process lives.

        Raises:
            Conflict: another process holds it.
        """
        place = 1 + (int.from_bytes(key[:7]) or 1)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:
            raise run_conflict() from error

    def revive(self) -> bool:
        """Restart the daemon if it is temporary and was killed; any thread may call this.

        Returns:
            Whether it is temporary, and runs now.

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
        """Whether the daemon stops with its last user."""
        return os.fstat(self._descriptor).st_size > 0

    def leave(self) -> bool:
        """Stop using the daemon; it is stopped if it is temporary and has no other user. Connections must be closed.

        Returns:
            Whether it was stopped. If it has other users, it stops with the last of them.
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
            with contextlib.suppress(OpsqError):
                state = fetch_state(self._settings, 1.0)
                if state.connections_count <= 1 and not state.total.reserved_count:
                    return True
            time.sleep(_LOOK_S)  # it may not have noticed yet that our connections are closed
        return False


def run_conflict() -> Conflict:
    """The error for a run that another process has locked."""
    return Conflict(
        "The same run is already active in another process.",
        hint="Wait until it ends, or make this a different run with --resume KEY or --idempotency-key KEY.",
    )


def marker_path(settings: Settings) -> str:
    """The path of the file `opsq.run`."""
    return os.path.join(settings.state_dir, "opsq.run")


def write_marker(settings: Settings, *, is_temporary: bool) -> None:
    """Record whether the daemon that now serves is temporary; `opsq start` makes a temporary one permanent.

    A file that is there but may not be written, because another user made it, is left alone: it names no run of ours.
    """
    path = marker_path(settings)
    try:
        if is_temporary:
            descriptor = open_file(path, os.O_WRONLY | os.O_CREAT)
            try:
                os.write(descriptor, b"temporary\n")
            finally:
                os.close(descriptor)
        else:
            os.close(open_file(path, os.O_WRONLY | os.O_TRUNC))
    except (FileNotFoundError, PermissionError):
        return
    except OSError as error:
        from opsq.store.database_file import cannot_open

        raise cannot_open(Path(path), error) from error


def may_exit(settings: Settings) -> bool:
    """Whether a daemon without connections may exit: it is temporary, and no process uses it.

    Effects: if so, new users wait until this process has ended.
    """
    try:
        descriptor = os.open(marker_path(settings), os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return False
    if os.fstat(descriptor).st_size:
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _USERS_AT)
            return True  # the descriptor stays open, and with it the lock
    os.close(descriptor)
    return False
