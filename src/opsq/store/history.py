"""Rows of `history`: the record of the work, and at the same time the completions that are not yet in `block`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apsw
import msgspec

from opsq.ids import from_sql, to_sql

COMPLETED, FAILED, LOST, DEAD, REQUEUED, DROPPED = "completed", "failed", "lost", "dead", "requeued", "dropped"
CANCELLED, EXPIRED = "cancelled", "expired"
EVENTS = (COMPLETED, FAILED, LOST, DEAD, REQUEUED, DROPPED, CANCELLED, EXPIRED)

PRUNE_ROWS = 2_000
"""Rows deleted in one slice of retention: about 10 ms."""


class HistoryRow(msgspec.Struct, gc=False):
    """One event of some chunks of a block, without its seq, which it gets when it is appended."""

    at: int
    event: str
    submission_id: int
    block: int
    mask: int
    attempt: int
    reservation_id: int
    consumer: str
    run_s: float
    run_max_s: float
    wait_s: float
    exit_status: int | None
    signal: int | None
    reason: str


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
        "SELECT seq, event, submission_id, block, mask, reservation_id FROM history WHERE seq > ? ORDER BY seq", (folded_seq,)
    ):
        yield (*row[:4], from_sql(row[4]), row[5])


def index(writer: apsw.Connection, first_seq: int, last_seq: int) -> None:
    """Make the events `first_seq`…`last_seq` findable by block; sorted, so that pages are touched once each."""
    writer.execute(
        "INSERT OR IGNORE INTO history_block SELECT submission_id, block, seq FROM history WHERE seq BETWEEN ? AND ? ORDER BY 1, 2, 3",
        (first_seq, last_seq),
    )


def of_block(connection: apsw.Connection, submission_id: int, block: int) -> list[HistoryRow]:
    """The folded events of a block, in order."""
    return [
        HistoryRow(*(*row[1:5], from_sql(row[5]), *row[6:]))
        for row in connection.execute(
            "SELECT h.* FROM history_block b JOIN history h ON h.seq = b.seq WHERE b.submission_id = ? AND b.block = ? ORDER BY b.seq",
            (submission_id, block),
        )
    ]


def last_seq(connection: apsw.Connection) -> int:
    """The highest seq in the table, 0 when it is empty."""
    row = connection.execute("SELECT max(seq) FROM history").fetchone()
    return int(row[0] or 0) if row else 0


def prune_slice(writer: apsw.Connection, before_at: int, max_rows: int, folded_seq: int) -> bool:
    """Delete some of the oldest folded events: older than `before_at`, or beyond the newest `max_rows`. True when none are left."""
    row = writer.execute("SELECT seq, at FROM history ORDER BY seq LIMIT 1").fetchone()
    if row is None:
        return True
    oldest_seq, oldest_at = row
    last = last_seq(writer)
    end = min(oldest_seq + PRUNE_ROWS, folded_seq + 1)
    if last - oldest_seq < max_rows:
        if oldest_at >= before_at:
            return True
        cut = writer.execute(
            "SELECT seq FROM history WHERE seq >= ? AND seq < ? AND at >= ? ORDER BY seq LIMIT 1", (oldest_seq, end, before_at)
        ).fetchone()
        end = int(cut[0]) if cut else end
    else:
        end = min(end, last - max_rows + 1)
    if end <= oldest_seq:
        return True
    writer.execute(
        "DELETE FROM history_block WHERE (submission_id, block, seq) IN (SELECT submission_id, block, seq FROM history WHERE seq < ?)",
        (end,),
    )
    writer.execute("DELETE FROM history WHERE seq < ?", (end,))
    return False
