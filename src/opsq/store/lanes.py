"""Lanes: one per metadata pair, and lane 0 for everything; which submissions are in them, and their counters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import apsw
import msgspec

ALL = 0
"""The lane that every open submission is in."""

Value = int | str

_NOBODY_WAITS = "NOT EXISTS (SELECT 1 FROM dependency WHERE target = ~lane.id)"

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[dict[str, tuple[int, Value]]] = msgspec.msgpack.Decoder(dict[str, tuple[int, Value]])


class Rows(Protocol):
    """What a statement gives."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""

    def fetchone(self) -> Any:
        """The next row, if there is one."""


class Reader(Protocol):
    """Runs statements that read: a connection, or what measures one."""

    def execute(self, sql: str, bindings: Any, /) -> Rows:
        """Run a statement."""


class LaneCounts(NamedTuple):
    """What the submissions of a lane, finished ones included, add up to; `completed` counts folded completions only."""

    value: Value
    submissions: int
    total: int
    completed: int
    dead: int
    skipped: int


def find(connection: apsw.Connection, key: str, value: Value) -> int | None:
    """The lane of a pair; None when no submission has ever had it."""
    row = connection.execute("SELECT id FROM lane WHERE key = ? AND value = ?", (key, value)).fetchone()
    return int(row[0]) if row else None


def find_all(connection: apsw.Connection, pairs: Mapping[str, Value]) -> tuple[int, ...] | None:
    """The lanes of pairs; None when no submission has ever had one of them."""
    found = [find(connection, key, value) for key, value in pairs.items()]
    known = tuple(lane_id for lane_id in found if lane_id is not None)
    return known if len(known) == len(found) else None


def is_in_use(connection: apsw.Connection, key: str, value: Value | None) -> bool:
    """Whether a submission has the pair, or (`value` None) the key."""
    condition, bindings = ("", (key,)) if value is None else (" AND value = ?", (key, value))
    rows = connection.execute(
        f"SELECT 1 FROM lane WHERE key = ?{condition} AND submissions_count > 0 LIMIT 1",
        bindings,
    )
    return rows.fetchone() is not None


def pair(connection: Reader, lane_id: int) -> tuple[str, Value]:
    """Key and value of a lane; empty when it is no more."""
    row = connection.execute("SELECT key, value FROM lane WHERE id = ?", (lane_id,)).fetchone()
    return (str(row[0]), row[1]) if row else ("", "")


def pair_with_id(connection: Reader, lane_id: int) -> tuple[int, Value]:
    """The lane itself and its value."""
    return lane_id, pair(connection, lane_id)[1]


def open_count(connection: apsw.Connection, lane_id: int, limit: int) -> int:
    """How many open submissions are in the lane, counted no further than `limit`."""
    sql = "SELECT count(*) FROM (SELECT 1 FROM lane_submission WHERE lane_id = ? LIMIT ?)"
    return int(connection.execute(sql, (lane_id, limit)).get)


def find_or_make(writer: apsw.Connection, key: str, value: Value) -> int:
    """The lane of a pair, made if need be."""
    found = find(writer, key, value)
    if found is None:
        writer.execute("INSERT INTO lane (key, value) VALUES (?, ?)", (key, value))
        found = writer.last_insert_rowid()
    return found


def encode(found: dict[str, tuple[int, Value]]) -> bytes:
    """The lanes of a submission as its row keeps them."""
    return _encoder.encode(found)


def decode(stored: bytes) -> dict[str, tuple[int, Value]]:
    """Key → (lane, value) of a submission's metadata."""
    return _decoder.decode(stored)


def metadata(connection: apsw.Connection, submission_ids: Iterable[int]) -> dict[int, dict[str, Value]]:
    """The metadata of each of these submissions; empty for one that is gone."""
    found: dict[int, dict[str, Value]] = {submission_id: {} for submission_id in submission_ids}
    for submission_id, key, value in connection.execute(
        "SELECT submission_id, key, value FROM submission_lane JOIN lane ON lane.id = lane_id "
        "WHERE submission_id IN (SELECT value FROM json_each(?)) ORDER BY submission_id, lane_id",
        (json.dumps(list(found)),),
    ):
        found[submission_id][key] = value
    return found


def attach(writer: apsw.Connection, submission_id: int, lane_ids: Iterable[int]) -> None:
    """Record the metadata of a submission, for as long as it exists."""
    writer.executemany(
        "INSERT INTO submission_lane (submission_id, lane_id) VALUES (?, ?)",
        ((submission_id, lane) for lane in lane_ids),
    )


def announce(writer: apsw.Connection, submission_id: int, lane_ids: Iterable[int]) -> None:
    """Note that a submission is unfinished, but not open."""
    writer.executemany(
        "INSERT INTO lane_coming (lane_id, submission_id) VALUES (?, ?)",
        ((lane, submission_id) for lane in lane_ids),
    )


def enter(writer: apsw.Connection, submission_id: int, shuffle: int, priority: int, lane_ids: Iterable[int]) -> None:
    """Make an open submission visible to walks."""
    writer.executemany(
        "INSERT OR IGNORE INTO lane_submission (lane_id, submission_id, shuffle, rank) VALUES (?, ?, ?, ?)",
        ((lane, submission_id, shuffle, -priority) for lane in (ALL, *lane_ids)),
    )


def leave(writer: apsw.Connection, submission_id: int, lane_ids: Iterable[int]) -> None:
    """Take a submission out of all walks, or forget its announcement: whichever there is."""
    sql = "DELETE FROM {} WHERE lane_id = ? AND submission_id = ?"
    writer.execute(sql.format("lane_submission"), (ALL, submission_id))
    table = "lane_submission" if writer.changes() else "lane_coming"
    writer.executemany(sql.format(table), ((lane, submission_id) for lane in lane_ids))


class GoneLane(NamedTuple):
    """A lane that is no more."""

    id: int
    key: str
    value: Value


def forget(writer: apsw.Connection, submission_id: int) -> list[GoneLane]:
    """Delete the metadata of a removed submission, its share of the counters, and lanes that nobody is in any more.

    The newest lane is kept in any case, so that its number is never given to another pair.

    Returns:
        The lanes that are no more.
    """
    rows = [
        row[0]
        for row in writer.execute("SELECT lane_id FROM submission_lane WHERE submission_id = ?", (submission_id,))
    ]
    writer.executemany(
        "UPDATE lane SET submissions_count = submissions_count - 1, chunks_total = lane.chunks_total - s.chunks_total, "
        "chunks_completed = lane.chunks_completed - s.chunks_completed, "
        "chunks_dead = lane.chunks_dead - s.chunks_dead, "
        "chunks_skipped = lane.chunks_skipped - s.chunks_skipped "
        "FROM submission s WHERE s.id = ? AND lane.id = ?",
        ((submission_id, lane) for lane in (ALL, *rows)),
    )
    writer.execute("DELETE FROM submission_lane WHERE submission_id = ?", (submission_id,))
    # The counters of new submissions are written last in a batch, so they do not tell whether a lane is in use.
    gone = writer.executemany(
        "DELETE FROM lane WHERE id = ?1 AND id < (SELECT max(id) FROM lane) "
        f"AND NOT EXISTS (SELECT 1 FROM submission_lane WHERE lane_id = ?1) AND {_NOBODY_WAITS} "
        "RETURNING id, key, value",
        ((lane,) for lane in rows),
    )
    return [GoneLane._make(row) for row in gone]


def prune_slice(writer: apsw.Connection, after: int, limit: int) -> tuple[list[GoneLane], int]:
    """Delete those of the next `limit` lanes behind `after` that nobody is in any more; the newest is kept.

    Returns:
        The lanes that are no more, and the lane after which the next slice begins; 0 when this was the last.
    """
    ids = [row[0] for row in writer.execute("SELECT id FROM lane WHERE id > ? ORDER BY id LIMIT ?", (after, limit))]
    gone = writer.execute(
        "DELETE FROM lane WHERE id > ?1 AND id <= ?2 AND id != ?3 AND id < (SELECT max(id) FROM lane) "
        f"AND NOT EXISTS (SELECT 1 FROM submission_lane WHERE lane_id = lane.id) AND {_NOBODY_WAITS} "
        "RETURNING id, key, value",
        (after, ids[-1] if ids else after, ALL),
    )
    return [GoneLane._make(row) for row in gone], ids[-1] if len(ids) == limit else 0


def open_ids(connection: apsw.Connection, lane_id: int, after: int, limit: int) -> list[int]:
    """Up to `limit` open submissions of the lane behind `after`, oldest first."""
    rows = connection.execute(
        "SELECT submission_id FROM lane_submission WHERE lane_id = ? AND submission_id > ? "
        "ORDER BY submission_id LIMIT ?",
        (lane_id, after, limit),
    )
    return [row[0] for row in rows]


def common_ids(connection: apsw.Connection, lane_ids: Sequence[int], limit: int) -> tuple[list[int], bool]:
    """The open submissions that are in all these lanes, oldest first, and whether there may be more of them.

    Cost: the first `limit` submissions of the first lane, and a look-up of each in the others.
    """
    first, *others = lane_ids
    is_in = " AND EXISTS (SELECT 1 FROM lane_submission WHERE lane_id = ? AND submission_id = one.submission_id)"
    rows: list[Any] = connection.execute(
        f"SELECT submission_id, 1{is_in * len(others)} FROM (SELECT submission_id FROM lane_submission "
        "WHERE lane_id = ? ORDER BY submission_id LIMIT ?) AS one",
        (*others, first, limit),
    ).fetchall()
    return [int(row[0]) for row in rows if row[1]], len(rows) == limit


def add_counts(writer: apsw.Connection, deltas: Iterable[tuple[int, int, int, int, int, int]]) -> None:
    """Add to the counters of lanes: rows of (submissions, total, completed, dead, skipped, lane)."""
    writer.executemany(
        "UPDATE lane SET submissions_count = submissions_count + ?, chunks_total = chunks_total + ?, "
        "chunks_completed = chunks_completed + ?, chunks_dead = chunks_dead + ?, chunks_skipped = chunks_skipped + ? "
        "WHERE id = ?",
        deltas,
    )


def counts(connection: apsw.Connection, key: str) -> Iterator[tuple[int, LaneCounts]]:
    """Lane and counters of each value of `key` (`''`: lane 0 alone), by value. Cost: the values of the key."""
    for lane_id, *fields in connection.execute(
        "SELECT id, value, submissions_count, chunks_total, chunks_completed, chunks_dead, chunks_skipped FROM lane "
        "WHERE key = ? ORDER BY value",
        (key,),
    ):
        yield lane_id, LaneCounts(*fields)
