"""The file before it is opened as a database: its lock, its header, an empty one, the migrations.

And what is said when that fails.

Every check here leaves the file as it is, but undoes what a killed process had half written. Must not know what the
rows mean.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
from pathlib import Path
from shlex import quote
from typing import Any, Final

import apsw

from opsq.errors import (
    AlreadyRunning,
    DatabaseDamaged,
    InputUnreadable,
    NotPermitted,
    Refused,
    StorageFull,
    VersionMismatch,
)
from opsq.filesystem import is_no_room, room_left, space
from opsq.fsync import sync_path
from opsq.store.disk_use import without_database
from opsq.users import may_others_plant, open_file

APPLICATION_ID: Final = 0x6F707371  # "opsq"
BUSY_MS: Final = 5_000
ROOM_BYTES: Final = 1 << 20
"""With less than this free, an I/O error while opening is taken for a full disk."""
QUICK_CHECK_BYTES: Final = 64 << 20
"""Files up to this size are checked page by page at each start; larger ones by `opsq check`."""


@functools.cache
def migrations() -> tuple[str, ...]:
    """The migration scripts, in order; the schema version is their count."""
    folder = Path(__file__).with_name("migrations")  # importlib.resources is slow to import
    return tuple(entry.read_text() for entry in sorted(folder.glob("*.sql")))


def scalar(connection: apsw.Connection, sql: str, bindings: tuple[int | str, ...] = ()) -> Any:
    """The one value that a statement gives."""
    return connection.execute(sql, bindings).get


def lock(path: Path) -> int:
    """Hold the lock file, whose lock alone decides whether the database is in use.

    Its text names the holder for people.
    """
    try:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise cannot_open(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}:
            raise cannot_open(path, error) from error
        raise AlreadyRunning(
            f"{path.parent} is in use by process {holder or '?'}.",
            hint="Only one daemon or embedded queue can own a state folder; use it through that, or name another "
            "--state-dir.",
        ) from error
    try:
        name = f"{os.getpid()}\n".encode()
        os.pwrite(descriptor, name, 0)  # over the last one, whose block is there when the disk is full
        os.ftruncate(descriptor, len(name))
    except OSError as error:
        if not is_no_room(error):
            os.close(descriptor)
            raise cannot_open(path, error) from error
    return descriptor


def cannot_open(path: Path, error: OSError) -> Exception:
    """What to raise when the system does not let us open or write a file."""
    reason = error.strerror or os.strerror(error.errno or 0)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return NotPermitted(f"Cannot write {path}: {reason}.", hint=_whose(path))
    if is_no_room(error):
        return full_disk(path)
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return StorageFull(f"Cannot open {path}: no file descriptors left.", hint="Raise the limit (ulimit -n).")
    return InputUnreadable(f"Cannot open {path}: {reason}.")


def _whose(path: Path) -> str:
    """What to do about a file that this process may not open."""
    try:
        folder, file = path.parent.stat().st_uid, path.lstat().st_uid
    except OSError:
        file = folder = os.geteuid()
    if file != folder == os.geteuid():
        return f"It belongs to uid {file}. Let root run: chown -R {folder} {path.parent}"
    return "Use a state folder of your own (--state-dir)."


def create(path: Path) -> None:
    """Make an empty database whose page layout cannot be changed later: incremental vacuum and the write-ahead log."""
    os.close(open_file(path, os.O_CREAT | os.O_RDWR))
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(BUSY_MS)
        for pragma in (
            "page_size = 4096",
            "auto_vacuum = INCREMENTAL",
            f"application_id = {APPLICATION_ID}",
            "journal_mode = WAL",
        ):
            connection.execute(f"PRAGMA {pragma}")
    finally:
        connection.close()
    folder = os.path.realpath(path.parent)
    sync_path(folder)
    sync_path(os.path.dirname(folder))  # in case another process made the folder


def check_names(path: Path) -> None:
    """Refuse a file that has several names (hard links), and one that somebody else may have linked here.

    Its log and its lock go by the name, so that under another one another daemon would write to it as well.
    """
    if path.is_symlink() and may_others_plant(path.parent.stat()):
        raise NotPermitted(f"{path} is a link, in a folder that others may write to.", hint=_whose(path))
    if (count := path.stat().st_nlink) > 1:
        folder = path.parent.absolute()
        this, copy = quote(str(folder)), quote(f"{folder}.copy")
        raise InputUnreadable(
            f"{path} has {count} names (hard links), so two daemons could write to it.",
            hint="Make a copy of the folder, while no daemon runs under either name: "
            f"cp -a {this} {copy} && rm -r {this} && mv {copy} {this}",
        )


def roll_back(path: Path) -> None:
    """Undo what a process was writing when it was killed, if it had a rollback journal and not the log.

    SQLite does so at the first look, of a connection that may write.

    Raises:
        NotPermitted: this process may not write the file.
    """
    journal = path.with_name(f"{path.name}-journal")
    if not journal.exists():
        return
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(BUSY_MS)
        scalar(connection, "PRAGMA schema_version")
    except (apsw.ReadOnlyError, apsw.CantOpenError) as error:
        raise NotPermitted(
            f"{path} cannot be read: {journal.name} beside it must be rolled back, and may not be written.",
            hint=_whose(path),
        ) from error
    finally:
        connection.close()


def check_header(path: Path) -> int:
    """Look at an existing file; its schema version. Nothing is written, but a killed transaction is undone."""
    check_names(path)
    roll_back(path)
    connection = apsw.Connection(
        f"{path.absolute().as_uri()}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        connection.set_busy_timeout(BUSY_MS)
        version = int(scalar(connection, "PRAGMA user_version"))
        if scalar(connection, "PRAGMA application_id") != APPLICATION_ID:
            if scalar(connection, "SELECT count(*) FROM sqlite_schema") == 0 and version == 0:
                return 0
            raise damaged(path, "it is not an opsq database")
        if version > len(migrations()):
            raise wrong_version(path, version)
        if path.stat().st_size <= QUICK_CHECK_BYTES:
            found = scalar(connection, "PRAGMA quick_check(1)")
            if found != "ok":
                raise damaged(path, str(found))
        return version
    finally:
        connection.close()


def no_room(path: Path, error: Exception) -> Refused:
    """An error of reading or writing while the file is opened: most likely the disk is full.

    Then SQLite cannot even say so.
    """
    left = space(path)
    if isinstance(error, apsw.FullError) or (left and (left.free_bytes < ROOM_BYTES or not left.has_inodes)):
        return full_disk(path)
    return Refused(
        f"The database {path} cannot be read or written: {error}.", hint="Check the disk and the permissions."
    )


def full_disk(path: Path) -> StorageFull:
    """What to raise when there is no room to begin; it says what would make some."""
    full = StorageFull(cause="no_room_to_start", path=str(path), left=room_left(path))
    full.details.update(without_database(path.parent))
    return full


def damaged(path: Path, detail: str) -> DatabaseDamaged:
    """What to raise for a file that cannot be used as a database."""
    return DatabaseDamaged(
        f"The database {path} is damaged: {detail}. It was left as it is.",
        hint="Restore a backup (`opsq backup` makes them), or recover what is readable with `sqlite3 FILE .recover`.",
    )


def wrong_version(path: Path, version: int) -> VersionMismatch:
    """What to raise for a file of another schema."""
    ours = len(migrations())
    if version > ours:
        return VersionMismatch(
            f"{path} has schema {version}; this opsq knows {ours}.", hint="Install the newer opsq that wrote it."
        )
    return VersionMismatch(
        f"{path} has schema {version}; this opsq needs {ours}.", hint="Start the daemon once: it migrates the file."
    )
