"""The rival of `schedules`: what people write around a table of jobs, a loop that asks cronsim and sleeps until then.

Each firing is one durable transaction: the row of the job, and up to where its schedule is done. So a crash neither
loses nor doubles one. `synchronous = FULL`, as ours.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
from cronsim import CronSim

_SCHEMA = """
CREATE TABLE schedule(name TEXT PRIMARY KEY, expression TEXT NOT NULL, done_at INTEGER NOT NULL) STRICT;
CREATE TABLE job(
    id INTEGER PRIMARY KEY, schedule TEXT NOT NULL, planned_at INTEGER NOT NULL, UNIQUE(schedule, planned_at)
) STRICT;
"""


class CronLoop:
    """A database file with schedules and the jobs that they have made."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        for setting in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._connection.execute(_SCHEMA).fetchall()

    def add(self, expressions: dict[str, str], done_at: int) -> None:
        """Store schedules, all in one transaction."""
        with self._connection:
            rows = [(name, expression, done_at) for name, expression in expressions.items()]
            self._connection.executemany("INSERT INTO schedule VALUES (?, ?, ?)", rows)

    def fire(self) -> float:
        """Sleep until the first instant, then make the jobs of all that is due; the seconds from then to the last."""
        rows: list[Any] = self._connection.execute("SELECT name, expression, done_at FROM schedule").fetchall()
        due = sorted((_after(expression, done_at), name) for name, expression, done_at in rows)
        first = due[0][0]
        time.sleep(max(0.0, first - time.time()))
        for planned_at, name in due:
            if planned_at > time.time():
                break
            with self._connection:
                self._connection.execute("INSERT INTO job(schedule, planned_at) VALUES (?, ?)", (name, planned_at))
                self._connection.execute("UPDATE schedule SET done_at = ? WHERE name = ?", (planned_at, name))
        return time.time() - first

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _after(expression: str, done_at: int) -> int:
    return int(next(CronSim(expression, datetime.fromtimestamp(done_at, UTC))).timestamp())
