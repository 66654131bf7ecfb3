"""An outbox in a file of SQLite: read without a lock, so that nobody waits for a hand-over.

This file must not know what is in a row. Relays that read the same rows hand them over under the same keys, which makes
each once.
"""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from opsq.errors import Unreachable, UsageError
from opsq.outbox.waiting_rows import (
    COMPLETIONS,
    LEFT,
    MISSING_HINT,
    PUT_BACK,
    SUBMISSIONS,
    Completion,
    Left,
    Submission,
    batch_of,
)

_BUSY_S = 30.0
_LOOK_S = 0.05
"""How often the data version is looked at: a few microseconds each."""

# A column of SQLite may hold anything.
TAKE = """
    SELECT seq, CAST(submission AS BLOB), CAST(chunks AS BLOB) FROM opsq_outbox
    WHERE refusal IS NULL ORDER BY seq LIMIT ?
"""
TAKE_COMPLETED = """
    SELECT seq, CAST(handle AS TEXT), CAST(result AS BLOB) FROM opsq_outbox_completed
    WHERE told_at IS NULL AND refusal IS NULL ORDER BY seq LIMIT ?
"""
"""Rows as they are read one by one: a batch ends where it is large enough."""
_DONE = {
    SUBMISSIONS: "DELETE FROM opsq_outbox WHERE seq = ?",
    COMPLETIONS: "UPDATE opsq_outbox_completed SET told_at = CURRENT_TIMESTAMP WHERE told_at IS NULL AND seq = ?",
}
_ASIDE = {
    SUBMISSIONS: "UPDATE opsq_outbox SET refusal = ? WHERE seq = ?",
    COMPLETIONS: "UPDATE opsq_outbox_completed SET refusal = ? WHERE told_at IS NULL AND seq = ?",
}


class SqliteOutbox:
    """The outbox in a file of SQLite; see `Outbox`.

    Args:
        path: the file, which must be there.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._connected: sqlite3.Connection | None = None
        self._version = -1
        self.name = path

    def open(self) -> None:
        """See `Outbox`."""
        if self._connected is not None:
            return
        if not os.path.exists(self._path):
            raise UsageError(f"{self.name} is not there.", hint=MISSING_HINT)
        try:
            self._connected = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", uri=True, isolation_level=None, timeout=_BUSY_S
            )
        except sqlite3.Error as error:
            raise Unreachable(f"{self.name} cannot be opened: {error}.") from error

    def take_submissions(self, limit: int) -> list[Submission]:
        """See `Outbox`."""
        with self._explained() as connection:
            self._version = _data_version(connection)
            with contextlib.closing(connection.execute(TAKE, (limit,))) as rows:
                return batch_of(Submission(*row) for row in rows)

    def take_completions(self, limit: int) -> list[Completion]:
        """See `Outbox`."""
        with self._explained() as connection, contextlib.closing(connection.execute(TAKE_COMPLETED, (limit,))) as rows:
            return batch_of(Completion(*row) for row in rows)

    def settle(self, table: str, done: list[int], refused: dict[int, str]) -> None:
        """See `Outbox`."""
        if not done and not refused:
            return
        with self._writing() as connection:
            connection.executemany(_DONE[table], [(seq,) for seq in done])
            connection.executemany(_ASIDE[table], [(reason, seq) for seq, reason in refused.items()])

    def leave(self) -> None:
        """See `Outbox`."""

    def put_back(self) -> int:
        """See `Outbox`."""
        with self._writing() as connection:
            return sum(connection.execute(statement).rowcount for statement in PUT_BACK)

    def prune(self, keep_s: float) -> None:
        """See `Outbox`."""
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM opsq_outbox_completed WHERE told_at < datetime('now', ?)", (f"{-keep_s:+f} seconds",)
            )

    def left(self) -> Left:
        """See `Outbox`."""
        with self._explained() as connection:
            return Left(*connection.execute(LEFT).fetchone())

    def wait(self, stop_fd: int, timeout_s: float) -> None:
        """See `Outbox`."""
        poll = select.poll()
        poll.register(stop_fd, select.POLLIN)
        until = time.monotonic() + timeout_s
        with self._explained() as connection:
            while _data_version(connection) == self._version and (left_s := until - time.monotonic()) > 0:
                if poll.poll(min(left_s, _LOOK_S) * 1000):
                    return

    def close(self) -> None:
        """See `Outbox`."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, as short as it can be."""
        with self._explained() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[sqlite3.Connection]:
        """The connection; errors of the driver inside become ours."""
        try:
            if self._connected is None:
                raise Unreachable(f"{self.name} is not open.")
            yield self._connected
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error) or "no such column" in str(error):
                raise UsageError(f"There is no outbox in {self.name}: {error}.", hint=MISSING_HINT) from error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY}:
                raise UsageError(f"The outbox in {self.name} cannot be used: {error}.") from error
            with contextlib.suppress(sqlite3.Error):
                self.close()
            raise Unreachable(f"{self.name} cannot be used: {error}.") from error


def _data_version(connection: sqlite3.Connection) -> Any:
    """Changes whenever another connection has committed."""
    return connection.execute("PRAGMA data_version").fetchone()[0]
