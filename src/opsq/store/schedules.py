"""Rows of `schedule`: what operators have planned, and up to where it is decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import apsw
import msgspec

from opsq.store.submissions import UNFINISHED_STATES

_numbers = msgspec.msgpack.Decoder(tuple[int, ...])


class ScheduleRow(NamedTuple):
    """A schedule; what each column says stands in the migration that made the table."""

    name: str
    definition: bytes
    created_at: int
    created_by: str | None
    created_from: str | None
    creator: int | None
    decided_at: int
    fired_count: int = 0
    skipped_count: int = 0
    missed_count: int = 0
    waiting: tuple[int, ...] = ()
    open_ids: tuple[int, ...] = ()
    last_planned_at: int | None = None
    last_submission_id: int | None = None
    paused_at: int | None = None
    paused_by: str = ""
    note: str = ""


def all_rows(connection: apsw.Connection) -> list[ScheduleRow]:
    """Every schedule, by name."""
    return list(_rows(connection, "ORDER BY name"))


def put(writer: apsw.Connection, row: ScheduleRow) -> None:
    """Store a schedule, in place of the one of its name."""
    stored = row._replace(
        waiting=msgspec.msgpack.encode(row.waiting),  # type: ignore[arg-type]
        open_ids=msgspec.msgpack.encode(row.open_ids),  # type: ignore[arg-type]
    )
    sql = f"INSERT OR REPLACE INTO schedule ({', '.join(row._fields)}) VALUES ({', '.join('?' * len(row))})"
    writer.execute(sql, stored)


def delete(writer: apsw.Connection, name: str) -> None:
    """Forget a schedule."""
    writer.execute("DELETE FROM schedule WHERE name = ?", (name,))


def find(connection: apsw.Connection, name: str) -> ScheduleRow | None:
    """The schedule of this name."""
    return next(_rows(connection, "WHERE name = ?", (name,)), None)


def running(connection: apsw.Connection, submission_ids: tuple[int, ...]) -> set[int]:
    """Those of these submissions that have not ended."""
    sql = f"SELECT id FROM submission WHERE id = ? AND state IN {UNFINISHED_STATES!r}"
    return {row[0] for one in submission_ids for row in connection.execute(sql, (one,))}


def _rows(connection: apsw.Connection, which: str, bindings: tuple[str, ...] = ()) -> Iterator[ScheduleRow]:
    for row in connection.execute(f"SELECT {', '.join(ScheduleRow._fields)} FROM schedule {which}", bindings):
        yield ScheduleRow._make((*row[:10], _numbers.decode(row[10]), _numbers.decode(row[11]), *row[12:]))
