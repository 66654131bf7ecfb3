"""Where the stderr of programs goes: to the viewer, or into files, one for each attempt at a chunk that says anything.

This file must not decide whether an attempt failed. A log that cannot be written is reported once, and stops nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from opsq.client.sync.chunk import Chunk
from opsq.errors import InputUnreadable
from opsq.runner.pool_options import Logs
from opsq.runner.progress import ProgressViewer
from opsq.users import open_file


class ShownStderr:
    """What the program of one attempt says, as a viewer shows it."""

    __slots__ = ("_chunk_name", "_viewer")

    def __init__(self, viewer: ProgressViewer, chunk_name: str) -> None:
        self._viewer = viewer
        self._chunk_name = chunk_name

    def write(self, piece: bytes) -> None:
        """Show what a program said."""
        self._viewer.said(self._chunk_name, piece)

    def close(self, *, is_completed: bool) -> None:
        """Show what has no line end."""
        self._viewer.said(self._chunk_name, b"")


class StderrLog:
    """The log of one attempt; the file comes into being with the first bytes."""

    __slots__ = ("_fd", "_folder", "_owner", "path")

    def __init__(self, owner: StderrLogs, folder: str, name: str) -> None:
        self._owner = owner
        self._folder = folder
        self.path = os.path.join(folder, name)
        self._fd = -1

    def write(self, piece: bytes) -> None:
        """Append what a program said."""
        if self._owner.is_broken or not piece:
            return
        try:
            if self._fd < 0:
                os.makedirs(self._folder, 0o700, exist_ok=True)
                self._fd = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            while piece:
                piece = piece[os.write(self._fd, piece) :]
        except OSError as error:
            self._owner.broken(f"The log {self.path} cannot be written, and no more is logged: {error.strerror}.")

    def close(self, *, is_completed: bool) -> None:
        """End the log, and remove it if only those of failures are kept."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if is_completed and self._owner.is_failed_only:
            with suppress(OSError):
                os.unlink(self.path)
            with suppress(OSError):  # others of the submission are there
                os.rmdir(self._folder)


def check_folder(logs: Logs) -> None:
    """Make sure that `StderrLogs` can have its folder; makes nothing.

    Raises:
        InputUnreadable: it cannot.
    """
    path = logs.folder
    try:
        while True:
            try:
                is_folder = stat.S_ISDIR(os.stat(path).st_mode)
                break
            except FileNotFoundError:
                path = os.path.dirname(path)
        if not is_folder:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if path != logs.folder and not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _impossible(logs, error) from error


def _impossible(logs: Logs, error: OSError) -> InputUnreadable:
    return InputUnreadable(f"--log-dir {logs.folder}: {error.strerror}.", hint="Name a folder that can be made.")


class StderrLogs:
    """Makes logs.

    Args:
        logs: where, and which are kept.
        say: called once if they cannot be written.

    Raises:
        InputUnreadable: the folder cannot be made.
    """

    def __init__(self, logs: Logs, say: Callable[[str], None]) -> None:
        self._folder = logs.folder
        self.is_failed_only = logs.is_failed_only
        self.is_broken = False
        self._say = say
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
        except OSError as error:
            raise _impossible(logs, error) from error

    def log(self, chunk: Chunk) -> StderrLog:
        """The log of the attempt at a chunk that begins now."""
        return StderrLog(
            self, os.path.join(self._folder, str(chunk.submission_id)), f"{chunk.index}.{chunk.attempt}.log"
        )

    def broken(self, text: str) -> None:
        """Write nothing any more."""
        self.is_broken = True
        self._say(text)
