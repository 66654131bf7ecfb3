"""Rows of `arriving`: submissions that are moving here, which nobody sees until they are activated.

Until then they are in the state `removed`, with all their rows, so that one that is given up is removed as any other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw

from opsq.ids import SEQUENCE_BITS, SHARD_MAX, SubmissionId
from opsq.store import lanes, meta, submissions
from opsq.store.dependencies import Edge
from opsq.store.transfer import Header, Sums, Wait


class ArrivingRow(NamedTuple):
    """A submission on its way here: from which file, by which attempt, and which slice comes next (None: no more)."""

    submission_id: int
    source: bytes
    move: bytes
    next_slice: int | None
    is_given_up: int
    pending_count: int
    dead_count: int
    dropped_count: int

    @property
    def sums(self) -> Sums:
        """What the slices that are here add up to."""
        return Sums(self.pending_count, self.dead_count, self.dropped_count)


_COLUMNS = ", ".join(ArrivingRow._fields)


def find(connection: apsw.Connection, submission_id: int) -> ArrivingRow | None:
    """What is known of one, given up or not."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM arriving WHERE submission_id = ?", (submission_id,)).fetchone()
    return None if row is None else ArrivingRow._make(row)


class ArrivingCount(NamedTuple):
    """How many are on their way here from a file, of how many everything is here, and where its daemon was."""

    source: bytes
    submissions_count: int
    complete_count: int
    address: str


def counts(connection: apsw.Connection) -> list[ArrivingCount]:
    """How many there are from each file."""
    sql = "SELECT source, count(*), sum(next_slice IS NULL) FROM arriving WHERE NOT is_given_up GROUP BY source"
    rows: list[Any] = connection.execute(sql).fetchall()
    return [ArrivingCount._make((*row, meta.get_text(connection, _address_key(row[0])))) for row in rows]


def put_address(writer: apsw.Connection, source: bytes, address: str) -> None:
    """Note where the daemon of a file is, for people."""
    meta.put(writer, _address_key(source), address)


def makers(connection: apsw.Connection) -> set[int]:
    """The numbers of the shards that made what is here. Cost: all submissions, if any have ever come from elsewhere."""
    if connection.execute("SELECT 1 FROM meta WHERE key GLOB 'move_source *' LIMIT 1").fetchone() is None:
        return set()
    shard = f"id >> {SEQUENCE_BITS} & {SHARD_MAX}"  # as `ids.shard_of`
    return {row[0] for row in connection.execute(f"SELECT DISTINCT {shard} FROM submission")}


def _address_key(source: bytes) -> str:
    return f"move_source {source.hex()}"


def listed(connection: apsw.Connection, source: bytes, limit: int = -1) -> list[ArrivingRow]:
    """Those from one file that were not given up, the oldest first; a negative limit: all."""
    sql = f"SELECT {_COLUMNS} FROM arriving WHERE source = ? AND NOT is_given_up ORDER BY submission_id LIMIT ?"
    return [ArrivingRow._make(row) for row in connection.execute(sql, (source, limit))]


def given_up(connection: apsw.Connection) -> list[int]:
    """Those that were given up, and are not removed yet."""
    return [row[0] for row in connection.execute("SELECT submission_id FROM arriving WHERE is_given_up")]


def by_unique_key(connection: apsw.Connection, unique_key: str) -> SubmissionId | None:
    """The one that will hold this key."""
    sql = (
        "SELECT submission_id FROM arriving WHERE unique_key = ? AND unique_key IS NOT NULL AND NOT is_given_up LIMIT 1"
    )
    row = connection.execute(sql, (unique_key,)).fetchone()
    return None if row is None else SubmissionId(row[0])


def header(connection: apsw.Connection, submission_id: int) -> bytes:
    """The header with which it came, but for its content and attachment."""
    return bytes(connection.execute("SELECT header FROM arriving WHERE submission_id = ?", (submission_id,)).get)


def put(
    writer: apsw.Connection,
    submission_id: int,
    source: bytes,
    move: bytes,
    next_slice: int | None,
    unique_key: str | None,
    header: bytes,
) -> None:
    """A submission begins to arrive."""
    writer.execute(
        "INSERT INTO arriving (submission_id, source, move, next_slice, unique_key, header) VALUES (?, ?, ?, ?, ?, ?)",
        (submission_id, source, move, next_slice, unique_key, header),
    )


def set_next(writer: apsw.Connection, submission_id: int, number: int | None, sums: Sums) -> None:
    """Note which slice comes next (None: it is all here), and what those that are here add up to."""
    writer.execute(
        "UPDATE arriving SET next_slice = ?, pending_count = ?, dead_count = ?, dropped_count = ? "
        "WHERE submission_id = ?",
        (number, *sums, submission_id),
    )


def give_up(writer: apsw.Connection, submission_id: int) -> None:
    """It does not come: what is here of it is to be removed."""
    writer.execute("UPDATE arriving SET is_given_up = 1 WHERE submission_id = ?", (submission_id,))


def activate(writer: apsw.Connection, found: Header, lane_ids: list[int]) -> None:
    """Have everybody see a submission, in the state in which it was."""
    row = found.row
    writer.execute(
        "UPDATE submission SET state = ?, finished_at = ? WHERE id = ?", (row.state, row.finished_at, row.id)
    )
    if row.state == "open":
        lanes.enter(writer, row.id, row.shuffle, row.priority, lane_ids)
    elif row.state not in submissions.FINAL_STATES:
        lanes.announce(writer, row.id, lane_ids)
    writer.executemany(
        f"INSERT INTO dependency ({', '.join(Edge._fields)}) VALUES (?, ?, ?, ?, ?)",
        ((row.id, _target(writer, wait), wait.needs, wait.on_failed, wait.outcome) for wait in found.waits),
    )
    writer.execute("DELETE FROM arriving WHERE submission_id = ?", (row.id,))


def _target(writer: apsw.Connection, wait: Wait) -> int:
    return wait.target if wait.target is not None else ~lanes.find_or_make(writer, wait.key, wait.value)
