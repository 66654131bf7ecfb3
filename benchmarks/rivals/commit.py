"""The floor under every durable reply: a raw COMMIT of one row in SQLite.

WAL and `synchronous = FULL` as ours, into a log that is long enough already, so that no commit pays for growing it.
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw

_RESTART_ROWS = 8000


class OneRowCommits:
    """A table of small rows, each inserted and synced alone."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        for setting in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._connection.execute("CREATE TABLE row(id INTEGER PRIMARY KEY, at INTEGER, mask INTEGER) STRICT")
        self._since_restart = 0
        self.seconds(_RESTART_ROWS)
        self._restart_log()

    def seconds(self, rows_count: int) -> list[float]:
        """Insert rows, a transaction each, and return the seconds of each."""
        taken = []
        for _ in range(rows_count):
            if self._since_restart >= _RESTART_ROWS:
                self._restart_log()
            self._since_restart += 1
            started = time.perf_counter()
            self._connection.execute("INSERT INTO row(at, mask) VALUES (?, ?)", (1_764_000_000_000, -1))
            taken.append(time.perf_counter() - started)
        return taken

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _restart_log(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        self._since_restart = 0
