"""A copy of a database in a file of its own, made while work goes on.

Owns that file until it is whole and has its name; must not write to the database.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

import apsw

from opsq.errors import InputUnreadable, OpsqError, StorageFull
from opsq.filesystem import is_no_room, room_left
from opsq.fsync import sync_descriptor, sync_path
from opsq.users import open_file

_STEP_PAGES = 1024


def copy_database(source: apsw.Connection, path: Path) -> int:
    """Copy what a read transaction sees to `path`, which must not exist.

    In one transaction from the first page to the last: otherwise each commit restarts the copy, and it never ends.

    Returns:
        The bytes written. The copy has its name only when it is whole, and is durable on return.

    Raises:
        InputUnreadable: `path` exists, or its folder does not.
        StorageFull: there is no room for it; nothing is left of it.
    """
    folder = Path(os.path.realpath(path.parent))  # no link is followed from there on
    beside = folder / f".{path.name[:60]}.{secrets.token_hex(4)}.new"
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        descriptor = open_file(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _failure(path, error) from error
    try:
        _write(source, beside)
        sync_descriptor(descriptor)
        beside.rename(folder / path.name)
    except (OSError, apsw.FullError, apsw.CantOpenError) as error:
        beside.unlink(missing_ok=True)
        raise _failure(path, error) from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_path(str(folder))
    return path.stat().st_size


def _write(source: apsw.Connection, path: Path) -> None:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    target = apsw.Connection(str(path), flags=flags)
    try:
        target.execute("PRAGMA synchronous = OFF")  # it is synced once, when it is whole
        target.execute("PRAGMA journal_mode = OFF")
        with target.backup("main", source, "main") as copy:
            while not copy.done:
                copy.step(_STEP_PAGES)
    finally:
        target.close()


def _failure(path: Path, error: Exception) -> OpsqError:
    if isinstance(error, apsw.FullError) or is_no_room(error):
        return StorageFull(
            f"There is no room for {path}, with {room_left(path)}.",
            hint="Name a file on another disk, or free some space.",
        )
    reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
    return InputUnreadable(f"Cannot write the backup {path}: {reason}.")
