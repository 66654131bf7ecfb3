"""The file of `opsq notify`: how far it has read, what is still to be delivered to whom, and what could not be.

An event is in it for each of its targets from the transaction that moves the cursor past it until it was delivered. It
is a file of its own, apart from the queue. Must not decide when something is due.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import apsw

from opsq.errors import VersionMismatch
from opsq.users import open_file

BUSY_MS = 10_000
_SCHEMA = 2
_PROGRESS = """
CREATE TABLE progress (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    cursor INTEGER,          -- NULL: nothing was read yet
    at     INTEGER NOT NULL, -- of the event at the cursor; 0: not known
    origin TEXT NOT NULL     -- random: makes the ids of messages differ from those of any other queue
) STRICT;
"""
_DELIVERY = """
CREATE TABLE delivery (
    id       INTEGER PRIMARY KEY AUTOINCREMENT, -- people type it: it must not become that of another
    target   TEXT NOT NULL,
    subject  TEXT NOT NULL,
    message  TEXT NOT NULL,
    at       INTEGER NOT NULL,
    body     BLOB NOT NULL,
    attempts INTEGER NOT NULL,
    due_at   INTEGER NOT NULL,
    dead_at  INTEGER,
    error    TEXT NOT NULL
) STRICT;
CREATE INDEX delivery_waiting ON delivery (id) WHERE dead_at IS NULL;
CREATE INDEX delivery_dead ON delivery (id) WHERE dead_at IS NOT NULL;
"""
_FROM_1 = f"""
ALTER TABLE delivery RENAME TO delivery_1;
DROP INDEX delivery_waiting;
DROP INDEX delivery_dead;
{_DELIVERY}
INSERT INTO delivery SELECT * FROM delivery_1;
DROP TABLE delivery_1;
"""


class NewDelivery(NamedTuple):
    """An event for a target."""

    target: str
    subject: str
    message: str
    at: int
    body: bytes
    error: str = ""
    """Why it is dead from the start; empty: it is to be made."""


class Waiting(NamedTuple):
    """A delivery that is to be made."""

    id: int
    target: str
    subject: str
    attempts: int
    due_at: int


class Dead(NamedTuple):
    """A delivery that was given up."""

    id: int
    target: str
    at: int
    body: bytes
    attempts: int
    dead_at: int
    error: str


class Deliveries:
    """The file, opened; made if it is not there.

    Raises:
        VersionMismatch: a newer opsq has made it.
        OSError, apsw.Error: it cannot be opened, or is no database.
    """

    def __init__(self, path: Path) -> None:
        os.close(open_file(str(path), os.O_RDWR | os.O_CREAT))
        self._connection = connection = apsw.Connection(str(path))
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            with connection:
                self._migrate(path)
        except BaseException:
            connection.close()
            raise

    def _migrate(self, path: Path) -> None:
        found = self._connection.pragma("user_version")
        if found > _SCHEMA:
            raise VersionMismatch(f"{path} was written by a newer opsq.", hint="Use that, or move the file away.")
        if found == 1:
            self._connection.execute(_FROM_1)
        elif not found:
            self._connection.execute(_PROGRESS + _DELIVERY)
            sql = "INSERT INTO progress VALUES (1, NULL, 0, ?)"
            self._connection.execute(sql, (os.urandom(6).hex(),))
        if found != _SCHEMA:
            self._connection.pragma("user_version", _SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def progress(self) -> tuple[int | None, int, str]:
        """The cursor (None: nothing was read yet), when its event was (0: not known), and the origin of message ids."""
        [row] = self._connection.execute("SELECT cursor, at, origin FROM progress")
        return row[0], int(row[1]), str(row[2])

    def take(self, cursor: int, at: int, new: Sequence[NewDelivery], taken_at: int) -> list[Waiting]:
        """Move the cursor past events and note whom they are for, in one transaction; what is due at `taken_at`."""
        connection = self._connection
        taken: list[Waiting] = []
        with connection:
            for one in new:
                connection.execute(
                    "INSERT INTO delivery (target, subject, message, at, body, error, attempts, due_at, dead_at) "
                    "VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?)",
                    (*one, taken_at, taken_at if one.error else None),
                )
                if not one.error:
                    taken.append(Waiting(connection.last_insert_rowid(), one.target, one.subject, 0, taken_at))
            connection.execute("UPDATE progress SET cursor = ?, at = ?", (cursor, at))
        return taken

    def waiting(self) -> list[Waiting]:
        """What is to be delivered, oldest first."""
        sql = "SELECT id, target, subject, attempts, due_at FROM delivery WHERE dead_at IS NULL ORDER BY id"
        return [Waiting(*row) for row in self._connection.execute(sql)]

    def message(self, delivery_id: int) -> tuple[str, bytes] | None:
        """The id and the body of a message; None: somebody has dropped it."""
        sql = "SELECT message, body FROM delivery WHERE id = ?"
        row = self._connection.execute(sql, (delivery_id,)).fetchone()
        return (str(row[0]), bytes(row[1])) if row else None

    def delivered(self, delivery_id: int) -> None:
        """It has arrived."""
        self._connection.execute("DELETE FROM delivery WHERE id = ?", (delivery_id,))

    def failed(self, delivery_id: int, attempts: int, due_at: int, error: str) -> None:
        """It is to be tried again."""
        sql = "UPDATE delivery SET attempts = ?, due_at = ?, error = ? WHERE id = ?"
        self._connection.execute(sql, (attempts, due_at, error, delivery_id))

    def bury(self, delivery_id: int, attempts: int, dead_at: int, error: str) -> None:
        """It is given up, until somebody asks for it."""
        sql = "UPDATE delivery SET attempts = ?, dead_at = ?, error = ? WHERE id = ?"
        self._connection.execute(sql, (attempts, dead_at, error, delivery_id))

    def dead(self) -> list[Dead]:
        """What was given up, oldest first."""
        sql = (
            "SELECT id, target, at, body, attempts, dead_at, error FROM delivery WHERE dead_at IS NOT NULL ORDER BY id"
        )
        return [Dead(*row) for row in self._connection.execute(sql)]

    def dead_count(self) -> int:
        """How many were given up."""
        return int(self._connection.execute("SELECT count(*) FROM delivery WHERE dead_at IS NOT NULL").get)

    def forget(self, before_at: int, most: int) -> int:
        """Drop what was given up before an instant, and the oldest beyond a number; how many."""
        sql = (
            "DELETE FROM delivery WHERE dead_at IS NOT NULL AND (dead_at < ? OR id <= "
            "(SELECT id FROM delivery WHERE dead_at IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?))"
        )
        self._connection.execute(sql, (before_at, most))
        return self._connection.changes()

    def retry(self, delivery_ids: Iterable[int] | None) -> int:
        """Have what was given up delivered after all (None: all of it); how many."""
        sql = "UPDATE delivery SET dead_at = NULL, attempts = 0, due_at = 0 WHERE dead_at IS NOT NULL"
        return self._each(sql, delivery_ids)

    def drop(self, delivery_ids: Iterable[int] | None) -> int:
        """Forget what was given up (None: all of it); how many."""
        return self._each("DELETE FROM delivery WHERE dead_at IS NOT NULL", delivery_ids)

    def version(self) -> int:
        """Changes when another process has changed the file."""
        return int(self._connection.pragma("data_version"))

    def _each(self, sql: str, delivery_ids: Iterable[int] | None) -> int:
        count = 0
        with self._connection:
            for one in [None] if delivery_ids is None else sorted(set(delivery_ids)):
                self._connection.execute(f"{sql} AND (?1 IS NULL OR id = ?1)", (one,))
                count += self._connection.changes()
        return count
