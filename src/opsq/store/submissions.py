"""Rows of `submission`: inserting, loading, flipping their state; `removals` deletes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from opsq.ids import SubmissionId
from opsq.store import lanes, meta

FINAL_STATES = frozenset({"completed", "failed", "cancelled", "expired"})
UNFINISHED_STATES = ("blocked", "scheduled", "open")
STATES = (*UNFINISHED_STATES, "completed", "failed", "cancelled", "expired")
_UNFINISHED = f"state IN {UNFINISHED_STATES!r}"
HOLDS_UNIQUE_KEY = f"unique_key IS NOT NULL AND unique_until != 'started' AND {_UNFINISHED}"


class SubmissionRow(NamedTuple):
    """A submission without its content and attachment, column by column."""

    id: SubmissionId
    state: str
    chunks_total: int
    chunks_completed: int
    chunks_dead: int
    chunks_skipped: int
    chunks_dropped: int
    """Of the skipped ones: dead letters that were given up."""
    frontier: int
    priority: int
    shuffle: int
    reservation_s: float
    max_attempts: int
    max_lost: int
    backoff_base_s: float
    backoff_factor: float
    backoff_max_s: float
    keep_on_dead: int
    submitted_at: int
    not_before_at: int | None
    delay_ms: int | None
    expires_at: int | None
    expires_ms: int | None
    finished_at: int | None
    revived_at: int | None
    request_key: bytes
    unique_key: str | None
    unique_until: str
    """`UNTIL_DONE`, `UNTIL_START`, or `STARTED`: the latter has come, and the key is free."""
    reason: str
    submitter: int | None
    """The user of the process on this machine that submitted it; None: it came over the network."""
    lanes: bytes
    has_failed: int
    """Attempts at some of its chunks have failed that are not finished."""
    first_block: int | None
    """The first block below the frontier with something pending, and what that is."""
    first_pending: int | None
    has_attachment: int
    short_content: bytes | None
    """The content if it is short: then a consumer is sent it without another look-up."""


class About(NamedTuple):
    """What only people read of a submission: its title, and who submitted it, from which host; None: unknown."""

    title: str | None = None
    submitted_by: str | None = None
    submitted_from: str | None = None


UNTIL_DONE, UNTIL_START, STARTED = "done", "start", "started"
SHORT_CONTENT_BYTES = 512
_STORED = SubmissionRow._fields[: SubmissionRow._fields.index("has_failed")]
_FIRST = "iif(frontier > 0, (SELECT {} FROM block WHERE submission_id = submission.id ORDER BY block LIMIT 1), NULL)"
_COLUMNS = ", ".join(
    (
        *_STORED,
        "EXISTS (SELECT 1 FROM attempt WHERE submission_id = submission.id)",
        _FIRST.format("block"),
        _FIRST.format("pending"),
        "attachment IS NOT NULL",
        f"iif(length(content) <= {SHORT_CONTENT_BYTES}, content, NULL)",
    )
)
_LOAD = f"SELECT {_COLUMNS} FROM submission WHERE id = ? AND state != 'removed'"
_LOAD_SOME = f"SELECT {_COLUMNS} FROM submission WHERE state != 'removed' AND id IN"
_ABOUT = ", ".join(About._fields)
_INSERTED = (*_STORED, "content", "attachment", *About._fields)
_INSERT = f"INSERT INTO submission ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"


def insert(writer: apsw.Connection, row: SubmissionRow, content: bytes, attachment: bytes | None, about: About) -> None:
    """Insert a submission; its lanes are another matter."""
    writer.execute(_INSERT, (*row[: len(_STORED)], content, attachment, *about))


def load(source: apsw.Connection | apsw.Cursor, submission_id: int, others: Sequence[int] = ()) -> list[SubmissionRow]:
    """Some submissions in any order, and behind them the one that is wanted, as far as they are there.

    Cost: a read transaction, and a look-up by primary key each.
    """
    if not others:
        row = source.execute(_LOAD, (submission_id,)).get
        return [SubmissionRow._make(row)] if row is not None else []
    ids = (submission_id, *others)
    rows = source.execute(f"{_LOAD_SOME} ({', '.join('?' * len(ids))})", ids).fetchall()
    found = [SubmissionRow._make(row) for row in rows if row[0] != submission_id]
    return found + [SubmissionRow._make(row) for row in rows if row[0] == submission_id]


def lanes_of(source: apsw.Connection | apsw.Cursor, submission_ids: Sequence[int]) -> list[tuple[int, bytes]]:
    """(id, what its row keeps of its lanes) of some submissions. Cost: a look-up by primary key each."""
    marks = ", ".join("?" * len(submission_ids))
    rows: list[Any] = source.execute(
        f"SELECT id, lanes FROM submission WHERE id IN ({marks})", tuple(submission_ids)
    ).fetchall()
    return rows


def content(connection: apsw.Connection, submission_id: int) -> bytes:
    """The opaque description of where its chunks lie."""
    row = connection.execute("SELECT content FROM submission WHERE id = ?", (submission_id,)).fetchone()
    return bytes(row[0]) if row else b""


def contents(
    connection: apsw.Connection, submission_ids: Iterable[int]
) -> Iterator[tuple[int, int, bytes, bytes, int, int | None]]:
    """Of each of these submissions that is there, in order: id, chunks, content, lanes, has attachment, submitter.

    Cost: a look-up by primary key for each that is taken.
    """
    yield from connection.execute(
        "SELECT submission.id, chunks_total, content, lanes, attachment IS NOT NULL, submitter "
        "FROM json_each(?) CROSS JOIN submission ON submission.id = value WHERE state != 'removed'",
        (json.dumps(list(submission_ids)),),
    )


def attachment(connection: apsw.Connection, submission_id: int) -> bytes | None:
    """Its attachment, if it has one."""
    row = connection.execute("SELECT attachment FROM submission WHERE id = ?", (submission_id,)).fetchone()
    return bytes(row[0]) if row and row[0] is not None else None


def about(connection: apsw.Connection, submission_id: int) -> About:
    """What only people read of it."""
    row = connection.execute(f"SELECT {_ABOUT} FROM submission WHERE id = ?", (submission_id,)).fetchone()
    return About() if row is None else About._make(row)


def titles(connection: apsw.Connection, submission_ids: Iterable[int]) -> dict[int, str]:
    """The titles of those of these submissions that are there and have one. Cost: a look-up by primary key each."""
    sql = (
        "SELECT id, title FROM submission WHERE id IN (SELECT value FROM json_each(?)) AND title IS NOT NULL "
        "AND state != 'removed'"
    )
    return dict(connection.execute(sql, (json.dumps(list(submission_ids)),)))


def by_request_key(connection: apsw.Connection, request_key: bytes) -> SubmissionId | None:
    """The submission that this request made, if it was made."""
    row = connection.execute("SELECT id FROM submission WHERE request_key = ?", (request_key,)).fetchone()
    return SubmissionId(row[0]) if row else None


def by_unique_key(connection: apsw.Connection, unique_key: str) -> SubmissionId | None:
    """The unfinished submission that holds this key, if any."""
    row = connection.execute(
        f"SELECT id FROM submission WHERE unique_key = ? AND {HOLDS_UNIQUE_KEY}",
        (unique_key,),
    ).fetchone()
    return SubmissionId(row[0]) if row else None


def last_id(connection: apsw.Connection) -> int:
    """The largest id ever given out."""
    row = connection.execute("SELECT max(id) FROM submission").fetchone()
    return max(int(row[0] or 0) if row else 0, meta.get_int(connection, "last_removed_id"))


def counts_by_state(connection: apsw.Connection) -> dict[str, int]:
    """How many submissions are in each state. Cost: a scan; called once, at start."""
    rows = connection.execute("SELECT state, count(*) FROM submission WHERE state != 'removed' GROUP BY state")
    return {str(state): int(count) for state, count in rows}


def listed(
    connection: apsw.Connection, states: list[str], lane_ids: Sequence[int], before: int | None, limit: int
) -> Iterator[tuple[SubmissionRow, About]]:
    """Submissions newest first, below id `before`, in any of `states` (empty: all) and in every lane of `lane_ids`."""
    bindings: list[int | str] = []
    if lane_ids:
        sql = f"SELECT {_COLUMNS}, {_ABOUT} FROM submission_lane l JOIN submission ON id = l.submission_id "
        sql += "WHERE l.lane_id = ? AND l.submission_id < ?"
        bindings += [lane_ids[0], before if before is not None else (1 << 63) - 1]
        order = "l.submission_id"
        for lane_id in lane_ids[1:]:
            sql += " AND EXISTS (SELECT 1 FROM submission_lane WHERE submission_id = l.submission_id AND lane_id = ?)"
            bindings.append(lane_id)
    else:
        sql = f"SELECT {_COLUMNS}, {_ABOUT} FROM submission WHERE id < ?"
        bindings.append(before if before is not None else (1 << 63) - 1)
        order = "id"
    sql += " AND state != 'removed'"
    if states:
        sql += f" AND state IN ({', '.join('?' * len(states))})"
        bindings += states
    sql += f" ORDER BY {order} DESC LIMIT ?"
    bindings.append(limit)
    width = len(SubmissionRow._fields)
    rows = connection.execute(sql, tuple(bindings))
    return ((SubmissionRow._make(row[:width]), About._make(row[width:])) for row in rows)


def set_open(writer: apsw.Connection, row: SubmissionRow, lane_ids: Iterable[int]) -> None:
    """Make a scheduled submission visible to strategies."""
    writer.execute("UPDATE submission SET state = 'open' WHERE id = ?", (row.id,))
    lanes.leave(writer, row.id, lane_ids)
    lanes.enter(writer, row.id, row.shuffle, row.priority, lane_ids)


def revive(writer: apsw.Connection, row: SubmissionRow, lane_ids: Iterable[int], revived_at: int) -> None:
    """Make a final submission visible to strategies again.

    It does not expire any more, and what was dropped stays so.
    """
    writer.execute(
        "UPDATE submission SET state = 'open', finished_at = NULL, chunks_skipped = chunks_dropped, reason = '', "
        "expires_at = NULL, expires_ms = NULL, revived_at = ? WHERE id = ?",
        (revived_at, row.id),
    )
    lanes.enter(writer, row.id, row.shuffle, row.priority, lane_ids)


def set_started(writer: apsw.Connection, submission_ids: Iterable[int]) -> None:
    """Free the unique keys that submissions hold until they start."""
    writer.executemany(
        f"UPDATE submission SET unique_until = '{STARTED}' WHERE id = ? AND unique_until = '{UNTIL_START}'",
        ((submission_id,) for submission_id in submission_ids),
    )


def has_until_start(connection: apsw.Connection) -> bool:
    """Whether an unfinished submission holds its unique key until it starts. Cost: those that hold one."""
    sql = (
        "SELECT 1 FROM submission INDEXED BY submission_unique_key "
        f"WHERE {HOLDS_UNIQUE_KEY} "
        "AND unique_until = 'start' LIMIT 1"
    )
    return connection.execute(sql).fetchone() is not None


def set_final(
    writer: apsw.Connection,
    submission_id: int,
    lane_ids: Iterable[int],
    state: str,
    finished_at: int,
    skipped: int,
    reason: str,
) -> bool:
    """Flip a submission into a final state and out of all lanes; its blocks stay as the record of what was skipped.

    Returns:
        Whether it was unfinished; else nothing was done.
    """
    writer.execute(
        "UPDATE submission SET state = ?, finished_at = ?, chunks_skipped = chunks_skipped + ?, reason = ? "
        f"WHERE id = ? AND {_UNFINISHED}",
        (state, finished_at, skipped, reason, submission_id),
    )
    if not writer.changes():
        return False
    lanes.leave(writer, submission_id, lane_ids)
    return True


def add_dead(writer: apsw.Connection, submission_id: int, count: int) -> None:
    """Count chunks as dead (or, negative, not dead any more)."""
    writer.execute("UPDATE submission SET chunks_dead = chunks_dead + ? WHERE id = ?", (count, submission_id))


def dead_count(connection: apsw.Connection, submission_id: int) -> int:
    """How many chunks are dead."""
    row = connection.execute("SELECT chunks_dead FROM submission WHERE id = ?", (submission_id,)).fetchone()
    return int(row[0]) if row else 0


def add_dropped(writer: apsw.Connection, submission_id: int, count: int) -> None:
    """Count dead chunks as given up."""
    writer.execute(
        "UPDATE submission SET chunks_dead = chunks_dead - ?1, chunks_skipped = chunks_skipped + ?1, "
        "chunks_dropped = chunks_dropped + ?1 "
        "WHERE id = ?2",
        (count, submission_id),
    )


def due(connection: apsw.Connection, wall: int, limit: int) -> list[SubmissionId]:
    """Scheduled submissions whose wall-clock time (`--at`) has come."""
    return [
        SubmissionId(row[0])
        for row in connection.execute(
            "SELECT id FROM submission WHERE state = 'scheduled' AND not_before_at <= ? AND delay_ms IS NULL "
            "ORDER BY not_before_at LIMIT ?",
            (wall, limit),
        )
    ]


def next_due_at(connection: apsw.Connection) -> int | None:
    """When the first scheduled submission is due, as a wall instant; None: none is scheduled."""
    row = connection.execute(
        "SELECT not_before_at FROM submission WHERE state = 'scheduled' ORDER BY not_before_at LIMIT 1"
    ).fetchone()
    return None if row is None else row[0]


def expired(connection: apsw.Connection, wall: int, limit: int) -> list[SubmissionId]:
    """Unfinished submissions whose wall-clock expiry has come."""
    return [
        SubmissionId(row[0])
        for row in connection.execute(
            f"SELECT id FROM submission WHERE expires_at <= ? AND expires_at IS NOT NULL AND {_UNFINISHED} "
            "AND expires_ms IS NULL ORDER BY expires_at LIMIT ?",
            (wall, limit),
        )
    ]


def with_durations(
    connection: apsw.Connection,
) -> Iterator[tuple[SubmissionId, str, int | None, int | None, int | None, int | None]]:
    """Unfinished submissions with a delay or expiry given as a duration: id, state, both instants with full lengths."""
    for row in connection.execute(
        "SELECT id, state, not_before_at, delay_ms, expires_at, expires_ms FROM submission "
        "WHERE state = 'scheduled' AND delay_ms IS NOT NULL "
        "UNION SELECT id, state, not_before_at, delay_ms, expires_at, expires_ms FROM submission "
        f"WHERE expires_at IS NOT NULL AND expires_ms IS NOT NULL AND {_UNFINISHED}"
    ):
        yield (SubmissionId(row[0]), *row[1:])


def move_durations(writer: apsw.Connection, step_ms: int) -> None:
    """Move the instants that came from durations. Cost: the submissions that wait for one."""
    for state in ("blocked", "scheduled"):
        writer.execute(
            "UPDATE submission SET not_before_at = not_before_at + ? "
            f"WHERE state = '{state}' AND not_before_at IS NOT NULL AND delay_ms IS NOT NULL",
            (step_ms,),
        )
    writer.execute(
        "UPDATE submission SET expires_at = expires_at + ? "
        f"WHERE expires_at IS NOT NULL AND {_UNFINISHED} AND expires_ms IS NOT NULL",
        (step_ms,),
    )


def finished_before(connection: apsw.Connection, wall: int, limit: int) -> list[SubmissionId]:
    """Final submissions that ended before `wall` and for which none waits, the oldest first."""
    return [
        SubmissionId(row[0])
        for row in connection.execute(
            "SELECT id FROM submission WHERE finished_at < ? AND finished_at IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM dependency WHERE target = submission.id AND outcome IS NULL) "
            "ORDER BY finished_at LIMIT ?",
            (wall, limit),
        )
    ]


def is_there(connection: apsw.Connection, submission_id: int) -> bool:
    """Whether there is such a submission, and its removal has not started."""
    return (
        connection.execute("SELECT 1 FROM submission WHERE id = ? AND state != 'removed'", (submission_id,)).fetchone()
        is not None
    )


def is_hidden(connection: apsw.Connection, submission_id: int) -> bool:
    """Whether there are rows of such a submission that nobody sees: it is being removed, or on its way here."""
    sql = "SELECT 1 FROM submission WHERE id = ? AND state = 'removed'"
    return connection.execute(sql, (submission_id,)).fetchone() is not None
