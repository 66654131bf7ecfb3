"""Dead letters that fulfil conditions, page by page; and the chunks whose letters were dropped.

Rows of `dead` are made and deleted in `backlog`. A page looks at a bounded number of rows, whatever it finds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apsw

from opsq.ids import from_sql, to_sql
from opsq.store.backlog import DeadRow

SCAN_ROWS = 2_000
"""Rows looked at for one page: a few milliseconds."""
_LAST_CHUNK = (1 << 63) - 1

Place = tuple[int, int]
"""Submission and chunk."""


class Where(NamedTuple):
    """Conditions that must all hold; what is empty holds for every letter."""

    submission_ids: tuple[int, ...] = ()
    """Ascending."""
    lane_ids: tuple[int, ...] = ()
    """Its submission is in all of these lanes."""
    from_at: int | None = None
    to_at: int | None = None
    """It died in `[from_at, to_at)`."""
    reason: str = ""
    """A part of the reason, in any case."""
    exit_statuses: frozenset[int] = frozenset()
    signals: frozenset[int] = frozenset()

    def fits(self, row: DeadRow) -> bool:
        """Whether a letter fulfils what is asked of itself."""
        return (
            (self.from_at is None or row.dead_at >= self.from_at)
            and (self.to_at is None or row.dead_at < self.to_at)
            and (not self.reason or self.reason.casefold() in row.reason.casefold())
            and (
                not (self.exit_statuses or self.signals)
                or row.exit_status in self.exit_statuses
                or row.signal in self.signals
            )
        )


def page(connection: apsw.Connection, where: Where, after: Place, limit: int) -> tuple[list[DeadRow], Place | None]:
    """Dead letters after a place, by submission and chunk.

    Returns:
        At most `limit` of them, and the place after which to go on; None at the end. There may be none although there
        are more behind.

    Cost: at most `SCAN_ROWS` rows; a submission that is not wanted is one.
    """
    found: list[DeadRow] = []
    wanted: dict[int, bool] = {}
    place: Place | None = _enter(where, after)
    looked = 0
    while place is not None and looked < SCAN_ROWS:
        asked, at = SCAN_ROWS - looked, place
        place = None  # unless the rows tell of more
        for number, fields in enumerate(
            connection.execute(
                "SELECT * FROM dead WHERE (submission_id, chunk) > (?, ?) ORDER BY submission_id, chunk LIMIT ?",
                (*at, asked),
            ),
            1,
        ):
            row = DeadRow(*fields)
            looked += 1
            if row.submission_id not in wanted:
                wanted[row.submission_id] = _is_wanted(connection, where, row.submission_id)
            if not wanted[row.submission_id]:
                place = _enter(where, (row.submission_id, _LAST_CHUNK))
                break
            if where.fits(row):
                found.append(row)
            if len(found) == limit or number == asked:
                return found, (row.submission_id, row.chunk)
    return found, place


def _enter(where: Where, after: Place) -> Place | None:
    """The first place at or behind `after` from which on something may be wanted."""
    if not where.submission_ids or (after[0] in where.submission_ids and after[1] < _LAST_CHUNK):
        return after
    number = bisect_right(where.submission_ids, after[0])
    return (where.submission_ids[number], -1) if number < len(where.submission_ids) else None


def _is_wanted(connection: apsw.Connection, where: Where, submission_id: int) -> bool:
    if where.submission_ids and submission_id not in where.submission_ids:
        return False
    if not connection.execute(
        "SELECT 1 FROM submission WHERE id = ? AND state != 'removed'", (submission_id,)
    ).fetchone():
        return False
    lanes = {
        row[0]
        for row in connection.execute("SELECT lane_id FROM submission_lane WHERE submission_id = ?", (submission_id,))
    }
    return lanes.issuperset(where.lane_ids)


def are_dead(connection: apsw.Connection, submission_id: int, chunks: Iterable[int]) -> list[int]:
    """Those of the chunks that are dead. Cost: a look-up each."""
    sql = "SELECT chunk FROM dead WHERE submission_id = ? AND chunk = ?"
    return [row[0] for row in connection.executemany(sql, ((submission_id, chunk) for chunk in chunks))]


def put_dropped(writer: apsw.Connection, submission_id: int, masks: dict[int, int]) -> None:
    """Note that chunks, as masks by block, were given up."""
    writer.executemany(
        "INSERT INTO dropped (submission_id, block, mask) VALUES (?, ?, ?) "
        "ON CONFLICT (submission_id, block) DO UPDATE SET mask = dropped.mask | excluded.mask",
        ((submission_id, block, to_sql(mask)) for block, mask in masks.items()),
    )


def dropped(connection: apsw.Connection, submission_id: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(block, mask) of the chunks that were given up, of the blocks in `[start, end)`."""
    for block, mask in connection.execute(
        "SELECT block, mask FROM dropped WHERE submission_id = ? AND block >= ? AND block < ? ORDER BY block",
        (submission_id, start, end),
    ):
        yield block, from_sql(mask)
