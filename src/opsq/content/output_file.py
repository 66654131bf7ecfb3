"""Opens what a user names as an output: a file that appears whole or not at all, or a stream, written as it comes.

It must not decide what is written.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from opsq.content.file_io import unlink_if_there, write_failure
from opsq.errors import UsageError
from opsq.filesystem import is_no_room
from opsq.fsync import sync_descriptor, sync_path

STDOUT = "-"
"""What users write for standard output."""

_DESCRIPTORS = re.compile(r"/dev/fd|/proc/(?P<process>self|\d+)(/task/\d+)?/fd", re.ASCII)
"""Folders whose names are the open descriptors of a process."""
_LINKS_MAX = 40
"""As many as the kernel follows."""


@contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open an output.

    A regular file, new or not, gets its content once the block has succeeded, and then survives a power failure; after
    an error nothing has changed. Everything else is written to as it comes: `-`, a path that names an open descriptor
    (`/dev/stdout`, which a shell may have led to the end of a file by `>>`), a named pipe, a device.

    Raises:
        UsageError: it cannot be opened.
        StorageFull: the disk of a regular file is full.
    """
    place = os.fspath(path)
    if (descriptor := _descriptor(place)) is not None:
        sys.stdout.flush()
        with _duplicate(place, descriptor) as out:
            yield out
    elif _is_stream(place):
        with _opened(place, os.O_APPEND) as out:
            yield out
    else:
        place = os.path.realpath(place)
        try:
            yield from _beside(place)
        except OSError as error:
            if is_no_room(error):
                raise write_failure(place, error) from error
            raise


def is_stdout(path: str | None) -> bool:
    """Whether what is written to `path` comes out of standard output; None stands for it."""
    return path is None or _descriptor(path) == 1


def _descriptor(path: str) -> int | None:
    """The descriptor of this process that the path names; None: it names none."""
    if path == STDOUT:
        return 1
    for place in _links(path):
        folder, name = os.path.split(place)
        found = _DESCRIPTORS.fullmatch(folder)
        if found and name.isdecimal() and found["process"] in {None, "self", str(os.getpid())}:
            return int(name)
    return None


def _links(path: str) -> Iterator[str]:
    """The path, then what each link on its way names."""
    for _ in range(_LINKS_MAX):
        folder, name = os.path.split(os.path.abspath(path))
        place = os.path.join(os.path.realpath(folder), name)
        yield place
        try:
            path = os.path.join(os.path.dirname(place), os.readlink(place))
        except OSError:
            return


def _is_stream(path: str) -> bool:
    """Whether the path leads to what no new file of that name can replace."""
    if any(_DESCRIPTORS.fullmatch(os.path.dirname(place)) for place in _links(path)):  # of another process
        return True
    mode = _mode_of(path)
    return mode is not None and not stat.S_ISREG(mode)


def _beside(path: str) -> Iterator[BinaryIO]:
    """Open a new file next to `path`; rename it to that at the end, or remove it after an error."""
    mode = _mode_of(path)
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name[:60]}.{os.urandom(4).hex()}.new")
    try:
        with _opened(new, os.O_CREAT | os.O_EXCL) as out:
            if mode is not None:
                os.fchmod(out.fileno(), stat.S_IMODE(mode))
            yield out
            out.flush()
            sync_descriptor(out.fileno())
        os.replace(new, path)
    except BaseException:
        unlink_if_there(new)
        raise
    sync_path(folder)


def _mode_of(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _duplicate(path: str, descriptor: int) -> BinaryIO:
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise UsageError(f"{path} cannot be written: it is open for reading only.")
        return os.fdopen(os.dup(descriptor), "wb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _opened(path: str, flags: int) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC, 0o666), "wb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
