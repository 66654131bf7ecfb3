"""The private folder of one consumer: files that its programs read or write by path, removed after use.

This file must not know chunks or programs. The folder itself goes with `close`, or by the guard when we are killed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
from typing import BinaryIO

from opsq.errors import OpsqError, Refused, StorageFull, WorkFailed
from opsq.runner.process.pipes import NO_ROOM, Feed, Output, Range


class ScratchFolder:
    """A new folder, 0700, where TMPDIR says; made when it is first needed."""

    def __init__(self) -> None:
        self._folder = ""
        self._numbers = itertools.count()

    @property
    def folder(self) -> str:
        """Its path.

        Raises:
            Refused: there is no place for temporary files.
        """
        if not self._folder:
            try:
                self._folder = tempfile.mkdtemp(prefix="opsq-")
            except OSError as error:
                raise Refused(
                    f"No folder can be made for temporary files: {error}.",
                    hint="Set TMPDIR to one that can be written.",
                ) from error
        return self._folder

    def guarded(self) -> str:
        """The folder, for the guard that removes it when we are killed; "" if it cannot be made."""
        try:
            return self.folder
        except Refused:
            return ""

    def name(self, kind: str) -> str:
        """A path that was not used before."""
        return f"{self.folder}/{next(self._numbers)}.{kind}"

    def write(self, kind: str, content: bytes | Range, mode: int = 0o600) -> str:
        """Make a file of that content and return its path.

        Raises:
            StorageFull, Refused: it cannot be written.
            ContentChanged, ContentMissing: the range cannot be read.
        """
        path = self.name(kind)
        feed = Feed(content)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                while not feed.send(fd):
                    pass  # a file takes what it is given
            finally:
                os.close(fd)
        except OSError as error:
            self.remove(path)
            raise self._unwritable(error) from error
        except OpsqError as error:
            self.remove(path)
            cause = error.__cause__
            # A feed takes every error for one of what it reads.
            if isinstance(cause, OSError) and cause.errno in NO_ROOM:
                raise self._unwritable(cause) from error
            raise
        return path

    def _unwritable(self, error: OSError) -> Refused:
        kind = StorageFull if error.errno in NO_ROOM else Refused
        return kind(
            f"A file for a program cannot be written in {self.folder}: {error.strerror}.",
            hint="Set TMPDIR to a folder with room for such files.",
        )

    def take(self, path: str) -> Output:
        """What a program has written to `path`, {out}; the file has no name afterwards.

        Raises:
            WorkFailed: it has written nothing there, or what it made is no regular file.
        """
        fd = self._taken(path, "{out}")
        if fd is None:
            raise WorkFailed("it succeeded, but did not write {out}")
        return Output(b"", fd, os.fstat(fd).st_size)

    def open(self, path: str) -> BinaryIO | None:
        """As `take`, of a program's follow-ups; None: it has written none.

        Raises:
            WorkFailed: what it made cannot be read, or is no regular file.
        """
        fd = self._taken(path, "OPSQ_THEN")
        return None if fd is None else os.fdopen(fd, "rb")

    def _taken(self, path: str, name: str) -> int | None:
        """The descriptor of a file whose name is removed; None: there is none."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorkFailed(f"{name} cannot be read: {error.strerror}") from None
        finally:
            self.remove(path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise WorkFailed(f"{name} is not a regular file")
        return fd

    def remove(self, path: str) -> None:
        """Remove what is there, if anything is."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError:  # a program may make a folder where we asked for a file
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder, with whatever programs have left in it."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
