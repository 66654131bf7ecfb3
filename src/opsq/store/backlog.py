"""Rows of `block`, `attempt`, `dead`, `result` and `lease`: what is to be done, attempts, results, holders.

Masks are unsigned on this side of the functions and two's complement in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apsw
from msgspec import Raw

from opsq.ids import from_sql, to_sql

SUPPLY_SQL = (
    "SELECT block, pending FROM block WHERE submission_id = ?1 AND block >= ?2 AND block < ?3 ORDER BY block LIMIT ?4"
)
"""The supply of a submission below its frontier; from the frontier on it is arithmetic.

`explain` shows this statement.
"""


class AttemptRow(NamedTuple):
    """How often some chunks of a block failed.

    `due_at` 0: may be tried at once; `delay_ms`: the whole back-off.
    """

    mask: int
    attempts: int
    lost: int
    due_at: int
    delay_ms: int


class DeadRow(NamedTuple):
    """A dead letter."""

    submission_id: int
    chunk: int
    attempts: int
    lost: int
    dead_at: int
    reason: str
    exit_status: int | None
    signal: int | None


class LeaseRow(NamedTuple):
    """What one reservation that outlives its connection holds of a block."""

    reservation_id: int
    submission_id: int
    block: int
    granted: int
    mask: int
    attempt: int
    consumer: str
    deadline_at: int
    length_ms: int
    for_restart: int
    started: int
    """Of chunks that a connection held: those on which work had started."""


def pending_blocks(
    connection: apsw.Connection, submission_id: int, start: int, frontier: int, limit: int
) -> list[tuple[int, int]]:
    """(block, pending) of up to `limit` blocks in `[start, frontier)` that have something pending, ascending."""
    return [
        (block, from_sql(pending))
        for block, pending in connection.execute(SUPPLY_SQL, (submission_id, start, frontier, limit))
    ]


def pending(connection: apsw.Connection, submission_id: int, block: int) -> int:
    """The pending mask of one block below the frontier; 0 when all of it is finished."""
    row = connection.execute(
        "SELECT pending FROM block WHERE submission_id = ? AND block = ?", (submission_id, block)
    ).fetchone()
    return from_sql(row[0]) if row else 0


def put_blocks(writer: apsw.Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Store (submission, block, pending mask), replacing what is there; masks are not 0."""
    writer.executemany(
        "INSERT INTO block (submission_id, block, pending) VALUES (?1, ?2, ?3) "
        "ON CONFLICT (submission_id, block) DO UPDATE SET pending = excluded.pending",
        ((submission_id, block, to_sql(mask)) for submission_id, block, mask in rows),
    )


def delete_blocks(writer: apsw.Connection, rows: Iterable[tuple[int, int]]) -> None:
    """Delete finished blocks (submission, block); those that have no row are no mistake."""
    writer.executemany("DELETE FROM block WHERE submission_id = ? AND block = ?", rows)


def put_frontiers(writer: apsw.Connection, rows: Iterable[tuple[int, int, int]]) -> None:
    """Move frontiers and add folded completions: rows of (frontier, completions, submission)."""
    writer.executemany("UPDATE submission SET frontier = ?, chunks_completed = chunks_completed + ? WHERE id = ?", rows)


def attempts(connection: apsw.Connection, submission_id: int, start: int, end: int) -> Iterator[tuple[int, AttemptRow]]:
    """(block, row) of the blocks in `[start, end)` that have failed before."""
    for block, mask, *fields in connection.execute(
        "SELECT block, mask, attempts, lost, due_at, delay_ms FROM attempt "
        "WHERE submission_id = ? AND block >= ? AND block < ?",
        (submission_id, start, end),
    ):
        yield block, AttemptRow(from_sql(mask), *fields)


def submissions_delayed(connection: apsw.Connection, wall: int) -> list[int]:
    """The open submissions with chunks that are not due at this wall instant. Cost: all rows of attempts."""
    rows = connection.execute(
        "SELECT DISTINCT submission_id FROM attempt JOIN submission ON id = submission_id "
        "WHERE due_at > ? AND state = 'open'",
        (wall,),
    )
    return [submission_id for (submission_id,) in rows]


def delayed(connection: apsw.Connection, submission_id: int, wall: int) -> list[tuple[int, AttemptRow]]:
    """(block, row) of the chunks that are not due at this wall instant. Cost: the rows of the submission."""
    return [
        (block, AttemptRow(from_sql(mask), *fields))
        for block, mask, *fields in connection.execute(
            "SELECT block, mask, attempts, lost, due_at, delay_ms FROM attempt WHERE submission_id = ? AND due_at > ?",
            (submission_id, wall),
        )
    ]


def put_attempts(writer: apsw.Connection, submission_id: int, block: int, rows: Iterable[AttemptRow]) -> None:
    """Replace what is stored of the attempts of a block."""
    writer.execute("DELETE FROM attempt WHERE submission_id = ? AND block = ?", (submission_id, block))
    writer.executemany(
        "INSERT INTO attempt (submission_id, block, mask, attempts, lost, due_at, delay_ms) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((submission_id, block, to_sql(row.mask), *row[1:]) for row in rows),
    )


def delete_attempts(writer: apsw.Connection, rows: Iterable[tuple[int, int]]) -> None:
    """Delete the attempts of finished blocks (submission, block)."""
    writer.executemany("DELETE FROM attempt WHERE submission_id = ? AND block = ?", rows)


def put_dead(writer: apsw.Connection, rows: Iterable[DeadRow]) -> None:
    """Record dead letters."""
    writer.executemany("INSERT OR REPLACE INTO dead VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def dead(connection: apsw.Connection, submission_id: int | None, after: tuple[int, int], limit: int) -> list[DeadRow]:
    """Dead letters after `(submission, chunk)`, in that order, of one submission or of all."""
    sql = "SELECT * FROM dead WHERE (submission_id, chunk) > (?, ?)"
    bindings: tuple[int, ...] = after
    if submission_id is not None:
        sql += " AND submission_id = ?"
        bindings = (max(after[0], submission_id), after[1] if after[0] == submission_id else -1, submission_id)
    return [
        DeadRow(*row) for row in connection.execute(f"{sql} ORDER BY submission_id, chunk LIMIT ?", (*bindings, limit))
    ]


def dead_chunks(connection: apsw.Connection, submission_id: int, start: int = 0, end: int = (1 << 63) - 1) -> list[int]:
    """The indexes in `[start, end)` of dead chunks of a submission, ascending."""
    rows = connection.execute(
        "SELECT chunk FROM dead WHERE submission_id = ? AND chunk >= ? AND chunk < ? ORDER BY chunk",
        (submission_id, start, end),
    )
    return [row[0] for row in rows]


def delete_dead(writer: apsw.Connection, submission_id: int, chunks: Iterable[int]) -> None:
    """Forget dead letters."""
    writer.executemany(
        "DELETE FROM dead WHERE submission_id = ? AND chunk = ?", ((submission_id, chunk) for chunk in chunks)
    )


def put_results(writer: apsw.Connection, rows: Iterable[tuple[int, int, int, Raw]]) -> None:
    """Store results: (submission, block, mask, MessagePack array of one entry per bit)."""
    writer.executemany(
        "INSERT OR REPLACE INTO result (submission_id, block, mask, results) VALUES (?, ?, ?, ?)",
        ((submission_id, block, to_sql(mask), results) for submission_id, block, mask, results in rows),
    )


def results(connection: apsw.Connection, submission_id: int, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """(block, mask, results) of the blocks in `[start, end)`, by block."""
    for block, mask, blob in connection.execute(
        "SELECT block, mask, results FROM result WHERE submission_id = ? AND block >= ? AND block < ? ORDER BY block",
        (submission_id, start, end),
    ):
        yield block, from_sql(mask), blob


def put_leases(writer: apsw.Connection, rows: Iterable[LeaseRow]) -> None:
    """Store leases, replacing the row of the same grant."""
    writer.executemany(
        "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((*row[:3], to_sql(row.granted), to_sql(row.mask), *row[5:-1], to_sql(row.started)) for row in rows),
    )


def move_leases(writer: apsw.Connection, step_ms: int) -> None:
    """Move the deadlines of all leases. Cost: a scan of them."""
    writer.execute("UPDATE lease SET deadline_at = deadline_at + ?", (step_ms,))


def delete_leases(writer: apsw.Connection, rows: Iterable[tuple[int, int, int, int]]) -> None:
    """Delete leases by (reservation, submission, block, granted mask)."""
    writer.executemany(
        "DELETE FROM lease WHERE reservation_id = ? AND submission_id = ? AND block = ? AND granted = ?",
        (
            (reservation_id, submission_id, block, to_sql(granted))
            for reservation_id, submission_id, block, granted in rows
        ),
    )


def leases(connection: apsw.Connection) -> Iterator[LeaseRow]:
    """Every lease, by reservation."""
    for row in connection.execute("SELECT * FROM lease ORDER BY reservation_id"):
        yield LeaseRow._make((*row[:3], from_sql(row[3]), from_sql(row[4]), *row[5:-1], from_sql(row[-1])))
