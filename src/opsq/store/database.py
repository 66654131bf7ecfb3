"""The SQLite file: opening, locking, migrating, committing.

Owns the connections and the transaction; must not know what the rows mean. Everything opens through `_connect`, which
sets the pragmas.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from opsq.errors import InputUnreadable, StorageFull
from opsq.filesystem import network_filesystem
from opsq.store import meta
from opsq.store.ballast import Ballast
from opsq.store.database_copy import copy_database
from opsq.store.database_file import (
    BUSY_MS,
    check_header,
    create,
    damaged,
    full_disk,
    lock,
    migrations,
    no_room,
    scalar,
    wrong_version,
)
from opsq.store.sql_trace import OnStatement, trace
from opsq.store.write_ahead_log import LIMIT_BYTES, WriteAheadLog


class Deposed(Exception):  # not an error of a request: the process must end
    """Another owner has taken the file, or the file at the path is not the one that is open."""


class Database:
    """The one open database of a process that owns it (or reads a stopped one).

    `reader` serves statements that are opened and reset within one call; `writer` has a transaction from `begin` to
    `commit` or `rollback`. While `commit` runs in a helper thread nothing else may touch `writer`, not even to ask it
    something.
    """

    def __init__(
        self,
        path: Path,
        lock_fd: int,
        *,
        is_durable: bool,
        is_read_only: bool,
        has_network_fs: bool,
        ballast: Ballast,
        on_statement: OnStatement | None = None,
    ) -> None:
        self.path = path
        self.is_durable = is_durable
        self.is_read_only = is_read_only
        self._lock_fd = lock_fd
        self._network = has_network_fs
        self._on_statement = on_statement
        self.has_room = True
        """False: at the start there was room only for what frees some."""
        self.owner_token = b""
        self._next_token = b""
        self._ballast = ballast
        self.reader = self._connect("reader", writable=False)
        self._owner = self.reader.cursor()
        self.writer = self.reader if is_read_only else self._connect("writer", writable=True)
        self._checkpointer = self.reader if is_read_only else self._connect("checkpoints", writable=True)
        self.log = WriteAheadLog(path, self.writer, self._checkpointer, ballast, has_file=not has_network_fs)
        stat = path.stat()
        self._inode = (stat.st_dev, stat.st_ino)

    # --- opening ---

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        is_durable: bool = True,
        allow_network_fs: bool = False,
        on_statement: OnStatement | None = None,
    ) -> Database:
        """Lock, check, migrate and own the database at `path`; a missing file is created.

        Args:
            path: its folder must exist; the lock is a file beside it, never deleted.
            is_durable: False commits without an fsync: a power cut may lose the last transactions, but never tears one.
            allow_network_fs: use a rollback journal on a network file system instead of refusing it: who reads waits
                for who commits.
            on_statement: called with each statement that has run.

        Raises:
            AlreadyRunning: another process holds the lock.
            DatabaseDamaged: the file is not one of ours, or pages are broken; it was not written to.
            VersionMismatch: a newer opsq wrote it.
            StorageFull: no room for the first pages.
        """
        lock_fd = lock(path.with_suffix(".lock"))
        database: Database | None = None
        ballast = Ballast(path.with_suffix(".ballast"))
        try:
            ballast.make_way()
            remote = network_filesystem(path.parent)
            if remote and not allow_network_fs:
                raise InputUnreadable(
                    f"{path.parent} is on a network file system ({remote}), where SQLite's write-ahead log is not "
                    f"safe.",
                    hint="Use a local --state-dir, or --allow-network-fs for a rollback journal, as safe as that "
                    "system's locks.",
                )
            is_new = not path.exists() or path.stat().st_size == 0
            try:
                if is_new:
                    create(path)
                else:
                    check_header(path)
                database = cls(
                    path,
                    lock_fd,
                    is_durable=is_durable,
                    is_read_only=False,
                    has_network_fs=bool(remote),
                    ballast=ballast,
                    on_statement=on_statement,
                )
                database._migrate()
                database._take_ownership()
                database.has_room = database.has_room and database.log.regain_room()
                if not database.has_room:
                    database.log.give_up_room()
            except (apsw.NotADBError, apsw.CorruptError) as error:
                raise damaged(path, str(error)) from error
            except (apsw.FullError, apsw.IOError, OSError) as error:
                raise no_room(path, error) from error
        except BaseException:
            if database is not None:
                database.close()
            else:
                ballast.hold()
                os.close(lock_fd)
            raise
        return database

    @classmethod
    def open_read_only(cls, path: Path) -> Database:
        """Open the file of a stopped daemon for reading; takes no lock and writes nothing.

        Raises:
            InputUnreadable: there is no such file.
            DatabaseDamaged, VersionMismatch: as `open`.
        """
        if not path.exists():
            raise InputUnreadable(
                f"There is no database at {path}.", hint="Start the daemon once, or name another --state-dir."
            )
        try:
            version = check_header(path)
            if version != len(migrations()):
                raise wrong_version(path, version)
            return cls(
                path,
                -1,
                is_durable=True,
                is_read_only=True,
                has_network_fs=False,
                ballast=Ballast(path.with_suffix(".ballast")),
            )
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise damaged(path, str(error)) from error
        except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
            raise no_room(path, error) from error

    def _connect(self, name: str, *, writable: bool) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE if not self.is_read_only else apsw.SQLITE_OPEN_READONLY
        connection = apsw.Connection(str(self.path), flags=flags, statementcachesize=256)
        connection.set_busy_timeout(BUSY_MS)
        pragmas = ["temp_store = MEMORY", "cache_size = -16384"]
        if self._network:
            pragmas += [
                "journal_mode = DELETE"
            ]  # a write-ahead log needs memory that is shared by all who have the file open
        elif not self.is_read_only:
            pragmas += ["journal_mode = WAL", f"journal_size_limit = {LIMIT_BYTES}", "wal_autocheckpoint = 0"]
        if writable:
            pragmas += [
                f"synchronous = {'FULL' if self.is_durable else 'NORMAL'}",
                "fullfsync = 1",
                "checkpoint_fullfsync = 1",
            ]
        else:
            pragmas += ["query_only = 1"]
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        if self._on_statement is not None:
            trace(connection, name, self._on_statement)
        return connection

    def _migrate(self) -> None:
        scripts = migrations()
        version = int(scalar(self.writer, "PRAGMA user_version"))
        if version > len(scripts):
            raise wrong_version(self.path, version)
        if 0 < version < len(scripts):
            copy = self.path.with_name(f"{self.path.name}.v{version}-{int(time.time())}.bak")
            if not copy.exists():  # a start that was killed has made it in this second
                try:
                    self.backup(copy)
                except StorageFull as error:
                    raise full_disk(copy) from error
        for number, script in enumerate(scripts[version:], version + 1):
            self.begin()
            self.writer.execute(script)
            self.writer.execute(f"PRAGMA user_version = {number}")
            self.commit()
        # A statement that names an index is compiled by the schema as the reader knows it, without a look at the file.
        scalar(self.reader, "SELECT count(*) FROM owner")

    def _take_ownership(self) -> None:
        """Write who owns the file; if there is no room at all, the first transaction does that."""
        self._next_token = secrets.token_bytes(16)
        for _ in range(2):
            try:
                self.begin()
                self.commit()
                return
            except apsw.FullError:
                self.rollback()
                self.has_room = False
                self.log.give_up_room()
        self.owner_token = scalar(self.reader, "SELECT token FROM owner") or b""

    def starts(self) -> int:
        """How many have owned the file, with us, though for want of room it may not say so yet."""
        return meta.get_int(self.reader, "starts") + bool(self._next_token)

    def _write_ownership(self) -> None:
        self.writer.execute("INSERT OR REPLACE INTO owner (id, token) VALUES (1, ?)", (self._next_token,))
        self.writer.execute("UPDATE meta SET value = value + 1 WHERE key = 'starts'")
        for key, bytes_count in (("secret", 32), ("identity", 16)):
            value = secrets.token_bytes(bytes_count)
            self.writer.execute("INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)", (key, value))

    # --- transactions ---

    @property
    def latest(self) -> apsw.Connection:
        """Sees what an open transaction has written; if none is open, what is committed."""
        return self.writer if self.writer.in_transaction else self.reader

    def begin(self) -> None:
        """Begin a write transaction, and make sure that we still own the file.

        Raises:
            Deposed: another owner's token stands in the file, or another file stands at the path.
        """
        self.writer.execute("BEGIN IMMEDIATE")
        if self.owner_token:
            self._check_owner(self.writer)
            self.check_place()
        if self._next_token:
            self._write_ownership()

    def commit(self) -> None:
        """COMMIT; durable when it returns, unless the database is not `is_durable`.

        Nothing but this may run in a helper thread.
        """
        self.writer.execute("COMMIT")
        if self._next_token:
            self.owner_token, self._next_token = self._next_token, b""

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is written within if it raises; the rest of the transaction stays."""
        with self.writer:  # a savepoint of apsw, since a transaction is open
            yield

    def probe(self) -> None:
        """Write a row that changes nothing, to learn whether there is room again."""
        self.writer.execute("UPDATE meta SET value = value WHERE key = 'starts'")

    def rollback(self) -> bool:
        """Undo what is left of the transaction after an error of the writer.

        Returns:
            True: the whole transaction is surely gone. False: its outcome cannot be known.
        """
        try:
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")
            return not self.writer.in_transaction
        except apsw.Error:
            return False

    def check_owner(self) -> None:
        """Make sure, through the reader, that we still own the file; `Deposed` if not."""
        self._check_owner(self._owner)  # with each reserve: a cursor that is kept spares a tenth of it

    def _check_owner(self, source: apsw.Connection | apsw.Cursor) -> None:
        if source.execute("SELECT token FROM owner").get != self.owner_token:
            raise Deposed(f"Another process has taken over {self.path}.")

    def check_place(self) -> None:
        """Make sure that the file still stands at its path; `Deposed` if not."""
        try:
            stat = os.stat(self.path)  # once a commit: the plain call is a third of Path.stat
        except FileNotFoundError as error:
            raise Deposed(f"{self.path} has been removed under the running daemon.") from error
        if (stat.st_dev, stat.st_ino) != self._inode:
            raise Deposed(f"{self.path} has been replaced under the running daemon.")

    # --- sizes and copies ---

    def file_bytes(self) -> int:
        """The size of the database file, without its log."""
        return self.path.stat().st_size

    def free_bytes(self) -> int:
        """Bytes of the file that `vacuum` could give back."""
        return int(scalar(self.reader, "PRAGMA freelist_count")) * int(scalar(self.reader, "PRAGMA page_size"))

    def vacuum(self, pages: int = 1 << 30) -> int:
        """Give up to `pages` free pages back to the file system, on a connection of its own.

        Returns:
            The bytes given back; what is written meanwhile may take as many again.
        """
        connection = self._connect("vacuum", writable=True)
        given_count = 0
        try:
            while pages > 0 and int(scalar(connection, "PRAGMA freelist_count")):
                step = min(pages, 256)  # the writer waits for a step, so each stays within about 10 ms
                connection.execute("BEGIN IMMEDIATE")
                before = int(scalar(connection, "PRAGMA page_count"))
                for _ in connection.execute(f"PRAGMA incremental_vacuum({step})"):
                    pass
                given_count += before - int(scalar(connection, "PRAGMA page_count"))
                connection.execute("COMMIT")
                pages -= step
                time.sleep(0.001)
            return given_count * int(scalar(connection, "PRAGMA page_size"))
        finally:
            connection.close()

    def backup(self, path: Path) -> int:
        """Copy the database to `path`, which must not exist, while work goes on.

        Returns:
            The bytes written. The copy has its name only when it is whole, and is durable on return.

        Raises:
            OpsqError: it cannot be written; nothing is left of it.
        """
        with self.snapshot() as source:
            return copy_database(source, path)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """One state of the file, on a connection of its own, so in any one thread.

        The log cannot start over until it is given back.
        """
        connection = self._connect("snapshot", writable=False)
        try:
            connection.execute("BEGIN DEFERRED")
            scalar(connection, "PRAGMA schema_version")  # the first read fixes the state
            self.log.readers_count += 1
            try:
                yield connection
            finally:
                self.log.readers_count -= 1
        finally:
            connection.close()

    def close(self) -> None:
        """Close the file, copy the log into it, and free the lock."""
        for connection in {id(c): c for c in (self.reader, self._checkpointer, self.writer)}.values():
            connection.close()
        if self._lock_fd >= 0:
            if not self._ballast.hold():  # of the room that the log has left
                self._ballast.hold_rest()
            os.close(self._lock_fd)
            self._lock_fd = -1
