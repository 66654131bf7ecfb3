"""Rows of `pause`, `rate_limit`, `weight` and `fair_pass`: what operators set, and the passes of fair strategies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import apsw
import msgspec

from opsq.store import meta
from opsq.store.lanes import Reader

Value = int | str
Pairs = tuple[tuple[str, Value], ...]
_pairs = msgspec.msgpack.Decoder(tuple[tuple[str, Value], ...])


class PauseRow(NamedTuple):
    """A pause of all submissions that have every pair; no pairs: of all. An operator's pause is not ended by a user."""

    id: int
    pairs: Pairs
    by_operator: bool
    by_name: str
    paused_at: int


class LimitRow(NamedTuple):
    """A limit on one pair, or (value None) on each value of a key: concurrent chunks, chunks per second, burst."""

    id: int
    key: str
    value: Value | None
    concurrency: int | None
    rate_per_s: float | None
    burst: int | None
    by_name: str
    limited_at: int
    rate_span_s: float
    """The time for which the rate was given."""


def revision(connection: apsw.Connection) -> int:
    """Of all pauses, limits and weights of operators; 0 before the first."""
    return meta.get_int(connection, "rules_revision")


def put_revision(writer: apsw.Connection, number: int) -> None:
    """Store it with the change that it is of."""
    meta.put(writer, "rules_revision", number)


def pauses(connection: apsw.Connection) -> list[PauseRow]:
    """Every pause, the oldest first."""
    return [
        PauseRow(row[0], _pairs.decode(row[1]), bool(row[2]), row[3], row[4])
        for row in connection.execute("SELECT id, pairs, by_operator, by_name, paused_at FROM pause ORDER BY id")
    ]


def put_pause(writer: apsw.Connection, row: PauseRow) -> None:
    """Store a pause, replacing one with the same pairs."""
    writer.execute(
        "INSERT OR REPLACE INTO pause (id, pairs, by_operator, by_name, paused_at) VALUES (?, ?, ?, ?, ?)",
        (row.id, msgspec.msgpack.encode(row.pairs), int(row.by_operator), row.by_name, row.paused_at),
    )


def delete_pause(writer: apsw.Connection, pause_id: int) -> None:
    """End a pause."""
    writer.execute("DELETE FROM pause WHERE id = ?", (pause_id,))


def limits(connection: apsw.Connection) -> list[LimitRow]:
    """Every limit, by key."""
    return [
        LimitRow._make(row)
        for row in connection.execute(f"SELECT {', '.join(LimitRow._fields)} FROM rate_limit ORDER BY key, value")
    ]


def put_limit(writer: apsw.Connection, row: LimitRow) -> None:
    """Store a limit, replacing the one for the same pair."""
    writer.execute(
        f"INSERT OR REPLACE INTO rate_limit ({', '.join(row._fields)}) VALUES ({', '.join('?' * len(row))})", row
    )


def delete_limit(writer: apsw.Connection, limit_id: int) -> None:
    """Lift a limit."""
    writer.execute("DELETE FROM rate_limit WHERE id = ?", (limit_id,))


def weights(connection: apsw.Connection) -> dict[tuple[str, Value], float]:
    """Every weight that is not 1."""
    return {(key, value): weight for key, value, weight in connection.execute("SELECT key, value, weight FROM weight")}


def weights_of_submissions(connection: apsw.Connection) -> set[tuple[str, Value]]:
    """The pairs whose weights came with submissions."""
    return set(connection.execute("SELECT key, value FROM weight WHERE by_submission"))


def weight(connection: apsw.Connection, key: str, value: Value) -> float | None:
    """The weight of a pair; None if none is stored."""
    row = connection.execute("SELECT weight FROM weight WHERE key = ? AND value = ?", (key, value)).fetchone()
    return None if row is None else float(row[0])


def put_weight(writer: apsw.Connection, key: str, value: Value, weight: float, *, by_submission: bool) -> None:
    """Store the weight of a pair; 1 is what every pair has, and is not stored.

    One `by_submission` goes when no submission has the pair.
    """
    if weight == 1:
        writer.execute("DELETE FROM weight WHERE key = ? AND value = ?", (key, value))
    else:
        sql = "INSERT OR REPLACE INTO weight (key, value, weight, by_submission) VALUES (?, ?, ?, ?)"
        writer.execute(sql, (key, value, weight, int(by_submission)))


def drop_weights(writer: apsw.Connection, pairs: Iterable[tuple[str, Value]]) -> None:
    """Delete the weights of these pairs that came with submissions."""
    writer.executemany("DELETE FROM weight WHERE key = ? AND value = ? AND by_submission", pairs)


def passes(connection: Reader, scope: str) -> dict[int, float]:
    """Lane → pass of a fair arm, as last saved."""
    rows = connection.execute("SELECT lane_id, pass FROM fair_pass WHERE scope = ?", (scope,))
    return {int(lane_id): float(pass_) for lane_id, pass_ in rows.fetchall()}


PASSES_KEPT = 10_000
"""Up to this number of all passes, also those of submissions without the key are kept."""


def prune_passes(writer: apsw.Connection, after: tuple[str, int], limit: int) -> tuple[str, int]:
    """Delete those of the next `limit` passes behind `after` whose values are gone.

    A lane above 0 is a value, one below -1 is `~id`, that of a submission. Lane 0 is the lack of a value, which is
    never gone: beside no value its pass is kept while there are few in all. Lane -1, the pass last served, goes last.

    Returns:
        The place after which the next slice begins; from the first on when this was the last.
    """
    places = list(
        writer.execute(
            "SELECT scope, lane_id FROM fair_pass WHERE (scope, lane_id) > (?, ?) ORDER BY scope, lane_id LIMIT ?",
            (*after, limit),
        )
    )
    are_few = writer.execute("SELECT 1 FROM fair_pass LIMIT 1 OFFSET ?", (PASSES_KEPT,)).fetchone() is None
    writer.executemany(
        "DELETE FROM fair_pass WHERE scope = ?1 AND lane_id = ?2 "
        "AND CASE WHEN ?2 > 0 THEN NOT EXISTS (SELECT 1 FROM lane WHERE id = ?2) "
        "WHEN ?2 < -1 THEN NOT EXISTS (SELECT 1 FROM submission WHERE id = ~?2) "
        "WHEN ?2 = 0 AND ?3 THEN 0 "
        "ELSE NOT EXISTS (SELECT 1 FROM fair_pass WHERE scope = ?1 AND lane_id NOT IN (-1, ?2)) END",
        [(*place, are_few) for place in places],
    )
    return places[-1] if len(places) == limit else ("", 0)


def put_passes(writer: apsw.Connection, scope: str, rows: Iterable[tuple[int, float | None]]) -> None:
    """Save passes of a fair arm; None: the pass is of no account any more."""
    all_rows = [(scope, lane_id, pass_) for lane_id, pass_ in rows]
    kept = [row for row in all_rows if row[2] is not None]
    writer.executemany("INSERT OR REPLACE INTO fair_pass (scope, lane_id, pass) VALUES (?, ?, ?)", kept)
    writer.executemany(
        "DELETE FROM fair_pass WHERE scope = ? AND lane_id = ?", [row[:2] for row in all_rows if row[2] is None]
    )
