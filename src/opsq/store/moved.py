"""Rows of `moved`, the forwarding entries: where submissions are now that were here before.

It must not delete what they have left behind: `removals` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import apsw

from opsq.store import submissions


class Target(NamedTuple):
    """Another daemon: the identity of its file, its shard number, and its address as an operator has typed it."""

    identity: bytes
    shard: int
    address: str


class MovedRow(NamedTuple):
    """A submission that has moved."""

    submission_id: int
    identity: bytes
    shard: int
    address: str


_COLUMNS = ", ".join(MovedRow._fields)


def identity(connection: apsw.Connection) -> bytes:
    """The 16 bytes that name this file."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    return bytes(row[0]) if row else b""


def is_used(connection: apsw.Connection) -> bool:
    """Whether any submission has moved."""
    return connection.execute("SELECT 1 FROM moved LIMIT 1").fetchone() is not None


def find(connection: apsw.Connection, submission_id: int) -> MovedRow | None:
    """Where a submission is now, if it has moved."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM moved WHERE submission_id = ?", (submission_id,)).fetchone()
    return None if row is None else MovedRow._make(row)


def by_key(connection: apsw.Connection, request_key: bytes | None, idempotency_key: str | None) -> MovedRow | None:
    """The submission that one of these keys made, if it has moved."""
    found = None if request_key is None else _holder(connection, "request_key", request_key)
    if found is None and idempotency_key is not None:
        found = _holder(connection, "idempotency_key", idempotency_key)
    return found


def by_unique_key(connection: apsw.Connection, unique_key: str) -> MovedRow | None:
    """The submission that held this key when it moved, and may hold it still."""
    return _holder(connection, "unique_key", unique_key)


def _holder(connection: apsw.Connection, column: str, key: bytes | str) -> MovedRow | None:
    sql = f"SELECT {_COLUMNS} FROM moved WHERE {column} = ? AND {column} IS NOT NULL LIMIT 1"
    row = connection.execute(sql, (key,)).fetchone()
    return None if row is None else MovedRow._make(row)


def release(writer: apsw.Connection, idempotency_key: str | None, unique_key: str | None) -> None:
    """A submission that is here has these keys: those that have moved have them no more."""
    for column, key in (("idempotency_key", idempotency_key), ("unique_key", unique_key)):
        if key is not None:
            writer.execute(f"UPDATE moved SET {column} = NULL WHERE {column} = ? AND {column} IS NOT NULL", (key,))


def put(writer: apsw.Connection, submission_id: int, target: Target, moved_at: int) -> None:
    """A submission is the other daemon's from this commit on."""
    writer.execute(
        "INSERT OR REPLACE INTO moved "
        "(submission_id, identity, shard, address, request_key, idempotency_key, unique_key, moved_at) "
        "SELECT id, ?2, ?3, ?4, request_key, (SELECT key FROM idempotency WHERE submission_id = id), "
        f"iif({submissions.HOLDS_UNIQUE_KEY}, unique_key, NULL), ?5 "
        "FROM submission WHERE id = ?1",
        (submission_id, *target, moved_at),
    )


def confirm(writer: apsw.Connection, submission_ids: Iterable[int]) -> None:
    """The other daemon hands them out."""
    writer.executemany("UPDATE moved SET is_confirmed = 1 WHERE submission_id = ?", ((one,) for one in submission_ids))


def unconfirmed(connection: apsw.Connection, after: int, limit: int) -> list[MovedRow]:
    """Those behind an id of which it is not known that the other daemon hands them out, the oldest first."""
    sql = f"SELECT {_COLUMNS} FROM moved WHERE NOT is_confirmed AND submission_id > ? ORDER BY submission_id LIMIT ?"
    return [MovedRow._make(row) for row in connection.execute(sql, (after, limit))]


def forget(writer: apsw.Connection, submission_id: int) -> None:
    """A submission has come back."""
    writer.execute("DELETE FROM moved WHERE submission_id = ?", (submission_id,))


def unconfirmed_count(connection: apsw.Connection) -> int:
    """How many there are."""
    return int(connection.execute("SELECT count(*) FROM moved WHERE NOT is_confirmed").get)
