"""The rows of a submission on their way to another file: a header, then slices of bounded size.

Reads a submission that nothing changes meanwhile. It must not know who asks, nor make anybody see what it writes. Rows
of leases do not travel, and neither do events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from opsq.ids import from_sql, to_sql
from opsq.store import backlog, idempotency_keys, lanes, rules, submissions
from opsq.store.backlog import AttemptRow, DeadRow
from opsq.store.dependencies import Edge
from opsq.store.history import HistoryRow
from opsq.store.submissions import About, SubmissionRow

FORMAT = 1
SLICE_ROWS = 2_000
SLICE_BYTES = 1 << 20
"""A slice ends with the row with which it becomes longer; a row has at most 64 results of 4 KiB."""

Value = int | str
Cursor = tuple[int, int, int]
"""A table, and behind which of its keys to go on."""
START: Cursor = (0, -1, -(1 << 63))


class Wait(NamedTuple):
    """What a submission waits for or has waited for: another, or a pair (`target` None)."""

    target: int | None
    key: str
    value: Value
    needs: str
    on_failed: str
    outcome: str | None


class Header(msgspec.Struct, frozen=True):
    """All of a submission that is one row, or a few. Instants that came from durations are by the clock of its file."""

    format: int
    exported_at: int
    row: SubmissionRow
    content: bytes
    attachment: bytes | None
    about: About
    metadata: dict[str, Value]
    idempotency_key: str | None
    weights: dict[str, float]
    """Those of its pairs that came with submissions."""
    waits: list[Wait]


class Slice(msgspec.Struct):
    """Some rows of one submission."""

    exported_at: int
    blocks: list[tuple[int, int]] = []
    attempts: list[tuple[int, AttemptRow]] = []
    dead: list[DeadRow] = []
    dropped: list[tuple[int, int]] = []
    results: list[tuple[int, int, bytes]] = []
    history: list[HistoryRow] = []


def header(connection: apsw.Connection, submission_id: int, wall: int) -> Header | None:
    """The header of a submission; None: there is none."""
    found = submissions.load(connection, submission_id)
    if not found:
        return None
    [row] = found
    pairs = {key: value for key, (_, value) in lanes.decode(row.lanes).items()}
    came_with_submissions = rules.weights_of_submissions(connection) if pairs else set()
    weights = {
        key: weight
        for key, value in pairs.items()
        if (key, value) in came_with_submissions and (weight := rules.weight(connection, key, value)) is not None
    }
    return Header(
        FORMAT,
        wall,
        row._replace(lanes=b""),
        submissions.content(connection, submission_id),
        submissions.attachment(connection, submission_id),
        submissions.about(connection, submission_id),
        pairs,
        idempotency_keys.of_submission(connection, submission_id),
        weights,
        [_wait(connection, edge) for edge in _edges(connection, submission_id)],
    )


def _edges(connection: apsw.Connection, submission_id: int) -> list[Edge]:
    sql = f"SELECT {', '.join(Edge._fields)} FROM dependency WHERE submission_id = ?"
    return [Edge._make(row) for row in connection.execute(sql, (submission_id,))]


def _wait(connection: apsw.Connection, edge: Edge) -> Wait:
    target, pair = (edge.target, ("", 0)) if edge.target >= 0 else (None, lanes.pair(connection, ~edge.target))
    return Wait(target, *pair, edge.needs, edge.on_failed, edge.outcome)


# --- out ---

_HISTORY_COLUMNS = ", ".join(f"h.{name}" for name in HistoryRow.__struct_fields__)
_TABLES = (
    "SELECT block, 0, pending FROM block WHERE submission_id = ?1 AND block > ?2 ORDER BY block LIMIT ?4",
    (
        "SELECT block, mask, attempts, lost, due_at, delay_ms FROM attempt "
        "WHERE submission_id = ?1 AND (block, mask) > (?2, ?3) ORDER BY block, mask LIMIT ?4"
    ),
    (
        "SELECT chunk, 0, attempts, lost, dead_at, reason, exit_status, signal FROM dead "
        "WHERE submission_id = ?1 AND chunk > ?2 ORDER BY chunk LIMIT ?4"
    ),
    "SELECT block, 0, mask FROM dropped WHERE submission_id = ?1 AND block > ?2 ORDER BY block LIMIT ?4",
    (
        "SELECT block, mask, results FROM result "
        "WHERE submission_id = ?1 AND (block, mask) > (?2, ?3) ORDER BY block, mask LIMIT ?4"
    ),
    (
        f"SELECT b.block, b.seq, {_HISTORY_COLUMNS} FROM history_block b JOIN history h ON h.seq = b.seq "
        "WHERE b.submission_id = ?1 AND (b.block, b.seq) > (?2, ?3) ORDER BY b.block, b.seq LIMIT ?4"
    ),
)
"""Each gives the two keys after which the next slice goes on, then the rest of the row."""


def has_rows(connection: apsw.Connection, submission_id: int) -> bool:
    """Whether there is more of a submission than its header: work on it has begun."""
    return any(connection.execute(sql, (submission_id, *START[1:], 1)).fetchone() is not None for sql in _TABLES)


def read(connection: apsw.Connection, submission_id: int, after: Cursor, wall: int) -> tuple[Slice, Cursor | None]:
    """The next rows of a submission, and where the slice after them begins; None: these are the last.

    Cost: at most `SLICE_ROWS` rows, and little more than `SLICE_BYTES` bytes.
    """
    found = Slice(wall, [], [], [], [], [], [])
    left_rows, left_bytes = SLICE_ROWS, SLICE_BYTES
    table, *keys = after
    while table < len(_TABLES):
        is_all = True
        for row in connection.execute(_TABLES[table], (submission_id, *keys, left_rows)):
            keys = list(row[:2])
            left_rows -= 1
            left_bytes -= _take(found, table, submission_id, row)
            if left_rows <= 0 or left_bytes <= 0:
                is_all = False
                break
        if not is_all:
            return found, (table, keys[0], keys[1])
        table, keys = table + 1, list(START[1:])
    return found, None


def _take(found: Slice, table: int, submission_id: int, row: Sequence[Any]) -> int:
    """Add a row to a slice; how many bytes that are, roughly."""
    first, second, *rest = row
    if table == 0:
        found.blocks.append((first, from_sql(rest[0])))
    elif table == 1:
        found.attempts.append((first, AttemptRow(from_sql(second), *rest)))
    elif table == 2:
        found.dead.append(DeadRow(submission_id, first, *rest))
        return 64 + len(rest[3])
    elif table == 3:
        found.dropped.append((first, from_sql(rest[0])))
    elif table == 4:
        found.results.append((first, from_sql(second), rest[0]))
        return 32 + len(rest[0])
    else:
        event = HistoryRow(*rest)
        event.mask = from_sql(event.mask)
        found.history.append(event)
        return 128 + len(event.reason) + len(event.consumer)
    return 32


# --- in ---


def put(writer: apsw.Connection, submission_id: int, found: Slice, wall: int) -> None:
    """Store the rows of a slice but for its history; what waits for a retry waits as long as it would have."""
    step_ms = wall - found.exported_at
    backlog.put_blocks(writer, ((submission_id, block, mask) for block, mask in found.blocks))
    writer.executemany(
        "INSERT OR REPLACE INTO attempt (submission_id, block, mask, attempts, lost, due_at, delay_ms) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            (submission_id, block, to_sql(mask), tries, lost, due_at + step_ms if due_at else 0, delay_ms)
            for block, (mask, tries, lost, due_at, delay_ms) in found.attempts
        ),
    )
    backlog.put_dead(writer, (row._replace(submission_id=submission_id) for row in found.dead))
    writer.executemany(
        "INSERT OR REPLACE INTO dropped (submission_id, block, mask) VALUES (?, ?, ?)",
        ((submission_id, block, to_sql(mask)) for block, mask in found.dropped),
    )
    backlog.put_results(writer, ((submission_id, *row[:2], msgspec.Raw(row[2])) for row in found.results))


class Sums(NamedTuple):
    """What rows of a submission add up to: chunks that are pending below the frontier, dead, and dropped."""

    pending: int
    dead: int
    dropped: int


NOTHING = Sums(0, 0, 0)

_STORED = (
    "SELECT 'blocks', block, pending FROM json_each(?2) CROSS JOIN block ON submission_id = ?1 AND block = value "
    "UNION ALL "
    "SELECT 'dropped', block, mask FROM json_each(?2) CROSS JOIN dropped ON submission_id = ?1 AND block = value "
    "UNION ALL SELECT 'dead', chunk / 64, 1 << chunk % 64 FROM json_each(?2) "
    "CROSS JOIN dead ON submission_id = ?1 AND chunk BETWEEN value * 64 AND value * 64 + 63"
)


def added(connection: apsw.Connection, submission_id: int, sums: Sums, found: Slice) -> Sums:
    """What the stored rows of a submission and those of a slice add up to, given the sums of those that are stored.

    Cost: one statement, which looks up each block of the slice.

    Raises:
        ValueError: a row is there twice, or a chunk is two of pending, dead and dropped.
    """
    rows = [("blocks", *row) for row in found.blocks] + [("dropped", *row) for row in found.dropped]
    rows += [("dead", dead.chunk // 64, 1 << dead.chunk % 64) for dead in found.dead]
    masks = {block: 0 for _, block, _ in rows}
    known: set[tuple[str, int]] = set()
    for table, block, mask in connection.execute(_STORED, (submission_id, json.dumps(list(masks)))):
        masks[block] |= from_sql(mask)
        known.add((table, block))
    counts = {"blocks": sums.pending, "dead": sums.dead, "dropped": sums.dropped}
    for table, block, mask in rows:
        if table != "dead" and (table, block) in known:
            raise ValueError(f"{table} has block {block} twice")
        if masks[block] & mask:
            raise ValueError(f"a chunk of block {block} is two of pending, dead and dropped, or one of them twice")
        known.add((table, block))
        masks[block] |= mask
        counts[table] += mask.bit_count()
    return Sums(counts["blocks"], counts["dead"], counts["dropped"])


def events_of(submission_id: int, found: Slice) -> Iterator[HistoryRow]:
    """The rows of history of a slice, of which no chunk is taken from anybody again."""
    for row in found.history:
        row.submission_id = submission_id
        yield row


_headers = msgspec.msgpack.Decoder(Header)
_slices = msgspec.msgpack.Decoder(Slice)


def encode(found: Header | Slice) -> bytes:
    """As it travels."""
    return msgspec.msgpack.encode(found)


def decode_header(sent: bytes) -> Header:
    """The header as it was encoded.

    Raises:
        ValueError: it is none, or of another format.
    """
    found = _headers.decode(sent)
    if found.format != FORMAT:
        raise ValueError(f"it is of format {found.format}, and this is {FORMAT}: both sides need the same opsq")
    return found


def decode_slice(sent: bytes) -> Slice:
    """The slice as it was encoded.

    Raises:
        ValueError: it is none.
    """
    return _slices.decode(sent)
