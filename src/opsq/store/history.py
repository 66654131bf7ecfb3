"""Rows of `history`: the record of the work, and at the same time the completions that are not yet in `block`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apsw
import msgspec

from opsq.ids import from_sql, to_sql

COMPLETED, FAILED, LOST, DEAD, REQUEUED, DROPPED = "completed", "failed", "lost", "dead", "requeued", "dropped"
CANCELLED, EXPIRED = "cancelled", "expired"
EVENTS = (COMPLETED, FAILED, LOST, DEAD, REQUEUED, DROPPED, CANCELLED, EXPIRED)

PRUNE_ROWS = 2_000
"""Rows deleted in one slice of retention: about 10 ms."""
PAGE_ROWS = 1_000
SCAN_ROWS = 10_000
"""Rows that the statement of one page looks at: a few milliseconds."""
INDEXED_ROWS = 20_000
"""A submission with no more folded rows than this is found by the index by block.

The rows of a larger one are found by looking at all.
"""
_LAST_SEQ = (1 << 63) - 1


class HistoryRow(msgspec.Struct, gc=False):
    """One event of some chunks of a block, without its seq, which it gets when it is appended."""

    at: int
    event: str
    submission_id: int
    block: int
    mask: int
    attempt: int = 0
    reservation_id: int = 0
    consumer: str = ""
    run_s: float = 0.0
    run_max_s: float = 0.0
    wait_s: float = 0.0
    exit_status: int | None = None
    signal: int | None = None
    reason: str = ""


class Where(NamedTuple):
    """Conditions that must all hold, but that an exit status and a signal are alternatives.

    What is empty holds for every event.
    """

    submission_id: int | None = None
    chunk: int | None = None
    """A chunk of that submission."""
    events: tuple[str, ...] = ()
    consumer: str = ""
    """How its name begins."""
    lane_ids: tuple[int, ...] = ()
    """Its submission is in all of these lanes."""
    reason: str = ""
    """A part of the reason, in upper or lower case."""
    exit_statuses: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    from_at: int | None = None
    to_at: int | None = None

    def condition(self) -> tuple[str, tuple[int | str, ...]]:
        """As SQL on `history`, with its bindings."""
        parts: list[str] = []
        bindings: list[int | str] = []

        def add(sql: str, *values: int | str) -> None:
            parts.append(sql)
            bindings.extend(values)

        if self.submission_id is not None:
            add("submission_id = ?", self.submission_id)
        if self.chunk is not None:
            add("block = ? AND (mask >> ?) & 1", self.chunk // 64, self.chunk % 64)
        if self.events:
            add(f"event IN ({_marks(self.events)})", *self.events)
        if self.consumer:
            add("substr(consumer, 1, ?) = ?", len(self.consumer), self.consumer)
        for lane_id in self.lane_ids:
            add(
                "EXISTS (SELECT 1 FROM submission_lane l "
                "WHERE l.submission_id = history.submission_id AND l.lane_id = ?)",
                lane_id,
            )
        if self.reason:
            add("instr(lower(reason), lower(?))", self.reason)
        if self.exit_statuses or self.signals:
            sql = f"(exit_status IN ({_marks(self.exit_statuses)}) OR signal IN ({_marks(self.signals)}))"
            add(sql, *self.exit_statuses, *self.signals)
        if self.from_at is not None:
            add("at >= ?", self.from_at)
        if self.to_at is not None:
            add("at < ?", self.to_at)
        return " AND ".join(["true", *parts]), tuple(bindings)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def append(writer: apsw.Connection, first_seq: int, rows: Iterable[HistoryRow]) -> None:
    """Append events, the first as `first_seq`; they fill pages in order, so a completion costs no random write."""
    writer.executemany(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                seq,
                row.at,
                row.event,
                row.submission_id,
                row.block,
                to_sql(row.mask),
                row.attempt,
                row.reservation_id,
                row.consumer,
                row.run_s,
                row.run_max_s,
                row.wait_s,
                row.exit_status,
                row.signal,
                row.reason,
            )
            for seq, row in enumerate(rows, first_seq)
        ),
    )


def unfolded(connection: apsw.Connection, folded_seq: int) -> Iterator[tuple[int, str, int, int, int, int]]:
    """(seq, event, submission, block, mask, reservation) of the events after `folded_seq`, in order."""
    for row in connection.execute(
        "SELECT seq, event, submission_id, block, mask, reservation_id FROM history WHERE seq > ? ORDER BY seq",
        (folded_seq,),
    ):
        yield (*row[:4], from_sql(row[4]), row[5])


def index(writer: apsw.Connection, first_seq: int, last_seq: int) -> None:
    """Make the events `first_seq`…`last_seq` findable by block; sorted, so that pages are touched once each."""
    writer.execute(
        "INSERT OR IGNORE INTO history_block "
        "SELECT submission_id, block, seq FROM history WHERE seq BETWEEN ? AND ? ORDER BY 1, 2, 3",
        (first_seq, last_seq),
    )


def of_block(connection: apsw.Connection, submission_id: int, block: int) -> list[HistoryRow]:
    """The folded events of a block, in order."""
    return [
        HistoryRow(*(*row[1:5], from_sql(row[5]), *row[6:]))
        for row in connection.execute(
            "SELECT h.* FROM history_block b JOIN history h ON h.seq = b.seq "
            "WHERE b.submission_id = ? AND b.block = ? ORDER BY b.seq",
            (submission_id, block),
        )
    ]


def page(
    connection: apsw.Connection,
    where: Where,
    after: int | None,
    limit: int,
    folded_seq: int,
    *,
    newest_first: bool = False,
) -> tuple[list[tuple[int, HistoryRow]], int | None]:
    """Events after the seq `after` (None: from the first, or the newest), in the order of their seqs, or reversed.

    Args:
        folded_seq: up to which seq events are found by block.

    Returns:
        At most `limit` and `PAGE_ROWS` (seq, row), and the seq after which to continue; None at the end. A page may be
        empty although more events follow.

    Cost: at most `SCAN_ROWS` rows looked at, or `INDEXED_ROWS` rows of the index by block.
    """
    first, last = _ends(connection)
    if not last:
        return [], None
    after = (last + 1 if newest_first else first - 1) if after is None else after
    limit = min(limit, PAGE_ROWS)
    seqs = _indexed(connection, where) if where.submission_id is not None else None
    if seqs is not None and (after <= folded_seq + 1 if newest_first else after < folded_seq):
        # Of the submission alone, as far as its events are folded.
        left = [seq for seq in seqs if (seq < after if newest_first else after < seq <= folded_seq)]
        left.sort(reverse=newest_first)
        rows = _rows(
            connection,
            where,
            "seq IN (SELECT value FROM json_each(?))",
            (_json(left[:limit]),),
            limit,
            newest_first=newest_first,
        )
        if len(left) > limit:
            return rows, left[limit - 1]
        return rows, None if newest_first or folded_seq >= last else folded_seq
    if newest_first:
        low = max(after - SCAN_ROWS, first, folded_seq + 1 if seqs is not None else first)
        rows = _rows(connection, where, "seq >= ? AND seq < ?", (low, after), limit, newest_first=True)
        return rows, rows[-1][0] if len(rows) == limit else low if low > first else None
    after = max(after, first - 1)
    high = min(after + SCAN_ROWS, last)
    rows = _rows(connection, where, "seq > ? AND seq <= ?", (after, high), limit, newest_first=False)
    return rows, rows[-1][0] if len(rows) == limit else high if high < last else None


def _rows(
    connection: apsw.Connection,
    where: Where,
    range_sql: str,
    range_bindings: tuple[int | str, ...],
    limit: int,
    *,
    newest_first: bool,
) -> list[tuple[int, HistoryRow]]:
    condition, bindings = where.condition()
    order = "DESC" if newest_first else "ASC"
    sql = f"SELECT * FROM history WHERE {range_sql} AND {condition} ORDER BY seq {order} LIMIT ?"
    return [
        (row[0], HistoryRow(*(*row[1:5], from_sql(row[5]), *row[6:])))
        for row in connection.execute(sql, (*range_bindings, *bindings, limit))
    ]


def _indexed(connection: apsw.Connection, where: Where) -> list[int] | None:
    """The seqs of the folded events of a submission, or of the block of its chunk.

    None when they are too many, or it was removed.
    """
    if not connection.execute(
        "SELECT 1 FROM submission WHERE id = ? AND state != 'removed'", (where.submission_id,)
    ).fetchone():
        return None  # its events are kept, but not found by block any more
    start, end = (0, _LAST_SEQ) if where.chunk is None else (where.chunk // 64, where.chunk // 64)
    found = [
        row[0]
        for row in connection.execute(
            "SELECT seq FROM history_block WHERE submission_id = ? AND block BETWEEN ? AND ? LIMIT ?",
            (where.submission_id, start, end, INDEXED_ROWS + 1),
        )
    ]
    return found if len(found) <= INDEXED_ROWS else None


def _json(seqs: list[int]) -> str:
    return msgspec.json.encode(seqs).decode()


def _ends(connection: apsw.Connection) -> tuple[int, int]:
    """The lowest and the highest seq; zeros when the table is empty."""
    row = connection.execute("SELECT (SELECT min(seq) FROM history), (SELECT max(seq) FROM history)").fetchone()
    return (int(row[0] or 0), int(row[1] or 0)) if row else (0, 0)


def last_seq(connection: apsw.Connection) -> int:
    """The highest seq in the table, 0 when it is empty."""
    row = connection.execute("SELECT max(seq) FROM history").fetchone()
    return int(row[0] or 0) if row else 0


def instant_at(connection: apsw.Connection, seq: int, *, newest_first: bool) -> int | None:
    """When the event at the end of a page happened, or the last before it that is kept; None: there is none."""
    end = "seq >= ? ORDER BY seq" if newest_first else "seq <= ? ORDER BY seq DESC"
    row = connection.execute(f"SELECT at FROM history WHERE {end} LIMIT 1", (seq,)).fetchone()
    return None if row is None else int(row[0])


def prune_slice(writer: apsw.Connection, before_at: int, max_rows: int, folded_seq: int, rows: int = PRUNE_ROWS) -> int:
    """Delete some of the oldest folded events: older than `before_at`, or beyond the newest `max_rows`.

    How many, 0 when none are left.
    """
    row = writer.execute("SELECT seq, at FROM history ORDER BY seq LIMIT 1").fetchone()
    if row is None:
        return 0
    oldest_seq, oldest_at = row
    last = last_seq(writer)
    end = min(oldest_seq + rows, folded_seq + 1)
    if last - oldest_seq < max_rows:
        if oldest_at >= before_at:
            return 0
        cut = writer.execute(
            "SELECT seq FROM history WHERE seq >= ? AND seq < ? AND at >= ? ORDER BY seq LIMIT 1",
            (oldest_seq, end, before_at),
        ).fetchone()
        end = int(cut[0]) if cut else end
    else:
        end = min(end, last - max_rows + 1)
    if end <= oldest_seq:
        return 0
    writer.execute(
        "DELETE FROM history_block "
        "WHERE (submission_id, block, seq) IN (SELECT submission_id, block, seq FROM history WHERE seq < ?)",
        (end,),
    )
    writer.execute("DELETE FROM history WHERE seq < ?", (end,))
    return writer.changes()
