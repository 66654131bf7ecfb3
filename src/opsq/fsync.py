"""Makes what is written survive a loss of power: the bytes of files, and the names of files and folders.

A file is durable when its bytes are synced *and* its name is synced in its folder, and so on up to a folder that is.
This file must not know what is written. Whoever acknowledges something syncs through it before.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable


def sync_descriptor(descriptor: int) -> None:
    """Make the bytes of an open file durable; on macOS also flush the drive's cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def sync_path(path: str) -> None:
    """Make the entries of a folder durable, its own name excepted: that is an entry of its parent."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        os.sync()  # a folder in which we may write and not read cannot be synced by itself
        return
    try:
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
