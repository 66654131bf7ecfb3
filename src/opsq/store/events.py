"""Rows of `event`: what people want to be told, in the order in which it was committed.

Must not decide what that is.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw
import msgspec

REASON_LENGTH = 1_000
"""An event repeats so much of a reason; all of it is where the subject of the event is kept."""
PRUNE_ROWS = 2_000
SCAN_ROWS = 10_000
"""Rows that one page looks at: a few milliseconds."""


class Detail(msgspec.Struct, omit_defaults=True, gc=False):
    """What an event tells besides its kind and its submission."""

    schedule: str = ""
    metadata: dict[str, int | str] = {}
    """Of a pause; that of a submission is kept with it."""
    chunk: int | None = None
    count: int | None = None
    planned_at: int | None = None
    by_name: str = ""
    reason: str = ""


class EventRow(msgspec.Struct, gc=False):
    """An event without its seq, which it gets when it is appended.

    `is_told`: taken back before the batch is written, it is not.
    """

    at: int
    kind: str
    submission_id: int | None
    detail: Detail
    is_told: bool = True


_encode = msgspec.msgpack.Encoder().encode
_detail = msgspec.msgpack.Decoder(Detail)
_NONE = Detail()


def new(at: int, kind: str, submission_id: int | None = None, reason: str = "", **detail: object) -> EventRow:
    """An event with these details."""
    return EventRow(at, kind, submission_id, Detail(reason=reason[:REASON_LENGTH], **detail))  # type: ignore[arg-type]


def append(writer: apsw.Connection, rows: Iterable[EventRow]) -> None:
    """Append events behind the newest: SQLite gives the next rowid."""
    writer.executemany(
        "INSERT INTO event (at, kind, submission_id, detail) VALUES (?, ?, ?, ?)",
        (
            (row.at, row.kind, row.submission_id, None if row.detail == _NONE else _encode(row.detail))
            for row in rows
            if row.is_told
        ),
    )


def ends(connection: apsw.Connection) -> tuple[int, int]:
    """The oldest and the newest seq; zeros when there was never an event."""
    row = connection.execute("SELECT (SELECT min(seq) FROM event), (SELECT max(seq) FROM event)").fetchone()
    return (int(row[0] or 0), int(row[1] or 0)) if row else (0, 0)


def at(connection: apsw.Connection, seq: int) -> int:
    """When this event was; 0: there is none."""
    row = connection.execute("SELECT at FROM event WHERE seq = ?", (seq,)).fetchone()
    return int(row[0]) if row else 0


def page(
    connection: apsw.Connection, since: int, kinds: Iterable[str], limit: int, last: int
) -> tuple[list[tuple[int, EventRow]], int]:
    """Events behind `since` up to `last` in their order, and how far was looked; only of these kinds, if any are given.

    Cost: at most `SCAN_ROWS` rows looked at.
    """
    wanted = list(kinds)
    high = min(since + SCAN_ROWS, last)
    which = f" AND kind IN ({', '.join('?' * len(wanted))})" if wanted else ""
    found = [
        (int(seq), EventRow(at, kind, submission_id, _NONE if detail is None else _detail.decode(detail)))
        for seq, at, kind, submission_id, detail in connection.execute(
            f"SELECT seq, at, kind, submission_id, detail FROM event WHERE seq > ? AND seq <= ?{which} "
            "ORDER BY seq LIMIT ?",
            (since, high, *wanted, limit),
        )
    ]
    return found, found[-1][0] if len(found) == limit else max(high, since)


def prune_slice(writer: apsw.Connection, before_at: int, max_rows: int, rows: int = PRUNE_ROWS) -> int:
    """Delete some of the oldest: those before `before_at`, or beyond the newest `max_rows`; never the newest of all.

    How many, 0 when none are left.
    """
    first, last = ends(writer)
    end = min(first + rows, last)
    if last - first < max_rows:
        cut = writer.execute(
            "SELECT seq FROM event WHERE seq >= ? AND seq < ? AND at >= ? ORDER BY seq LIMIT 1", (first, end, before_at)
        ).fetchone()
        end = int(cut[0]) if cut else end
    else:
        end = min(end, last - max(max_rows, 1) + 1)
    if end <= first:
        return 0
    writer.execute("DELETE FROM event WHERE seq < ?", (end,))
    return writer.changes()
