"""Makes what is written survive a loss of power: the bytes of files, and the names of files and folders.

A file is durable when its bytes are synced *and* its name is synced in its folder, and so on up to a folder that is.
This file must not know what is written. What is acknowledged is synced through it first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

_NO_FULL_SYNC = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
"""What file systems say that cannot flush a drive, such as shares of networks; SQLite falls back there, too."""


def sync_descriptor(descriptor: int) -> None:
    """Make the bytes of an open file durable; on macOS also flush the drive's cache."""
    if not _flush_drive(descriptor):
        getattr(os, "fdatasync", os.fsync)(descriptor)


def _flush_drive(descriptor: int) -> bool:
    """On macOS `fsync` leaves data in the cache of the drive; false where the system or the file system has no more."""
    if not hasattr(fcntl, "F_FULLFSYNC"):
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno in _NO_FULL_SYNC:
            return False
        raise
    return True


def sync_path(path: str) -> None:
    """Make the entries of a folder durable, its own name excepted: that is an entry of its parent."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        os.sync()  # a folder in which we may write and not read cannot be synced by itself
        return
    try:
        if not _flush_drive(descriptor):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: str, make: Callable[[str], None], *, is_durable: bool = True) -> bool:
    """Create a folder and its missing parents; false if it existed.

    Args:
        path: of the folder; absolute, or relative to the working folder.
        make: creates one folder, as `os.mkdir`.
        is_durable: the names of all that were created are durable on return.

    Raises:
        OSError: it cannot be created, or is not a folder.
    """
    parent = os.path.dirname(path.rstrip("/")) or "."
    try:
        make(path)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise
        return False
    except FileNotFoundError:
        if os.path.lexists(parent):  # a link that leads nowhere
            raise
        make_folders(parent, make, is_durable=is_durable)
        return make_folders(path, make, is_durable=is_durable)
    if is_durable:
        sync_path(parent)
    return True
