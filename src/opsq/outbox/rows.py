"""Writes the rows of an outbox through a connection of yours: submissions and completions, in your transaction.

This file never commits nor rolls back, and knows no daemon: what a row says is all that a relay needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import msgspec

from opsq import clock, traces
from opsq.client.core import arguments, new_submission
from opsq.client.core.arguments import converted
from opsq.content.manifest import INLINE_LIMIT_BYTES, INLINE_LIMIT_COUNT, Content, encode
from opsq.errors import AlreadyFinished, ChunkTooLarge, UsageError
from opsq.ids import Handle, parse_handle
from opsq.units import counted

if TYPE_CHECKING:
    from opsq.client.core.chunk_base import ChunkBase
    from opsq.client.core.new_submission import SubmitOptions

ROW_LIMIT_BYTES = 16 << 20
"""At most this many bytes of chunks, or of a result, go into a row; a relay holds some rows in memory."""

ORDER_LOCKS = 0x0B5C
"""The class of the advisory locks of order keys in PostgreSQL, among those that insert; the next is that of relays."""

_PACKAGES = {"sqlite3": "sqlite", "psycopg": "postgresql", "psycopg2": "postgresql"}
_SUBMIT = {
    "sqlite": "INSERT INTO opsq_outbox (order_key, submission, chunks) VALUES (?, ?, ?)",
    "postgresql": "INSERT INTO opsq_outbox (order_key, submission, chunks) VALUES (%s, %s, %s)",
}
_SUBMIT_IN_ORDER = {
    **_SUBMIT,
    # The lock is had before the row gets its number, and is held until the commit: so numbers are in order of commits.
    "postgresql": f"""
        WITH taken AS MATERIALIZED (SELECT pg_advisory_xact_lock({ORDER_LOCKS}, hashtext(%s)))
        INSERT INTO opsq_outbox (order_key, submission, chunks)
        SELECT %s::text, %s::bytea, %s::bytea FROM taken
    """,
}
_COMPLETE = {
    "sqlite": """
        INSERT INTO opsq_outbox_completed (submission_id, chunk_index, handle, result) VALUES (?, ?, ?, ?)
        ON CONFLICT DO NOTHING
    """,
    "postgresql": """
        INSERT INTO opsq_outbox_completed (submission_id, chunk_index, handle, result) VALUES (%s, %s, %s, %s)
        ON CONFLICT DO NOTHING
    """,
}

_COMPLETED = {
    "sqlite": "SELECT result FROM opsq_outbox_completed WHERE submission_id = ? AND chunk_index = ?",
    "postgresql": "SELECT result FROM opsq_outbox_completed WHERE submission_id = %s AND chunk_index = %s",
}


class DbCursor(Protocol):
    """What is needed of a cursor of PEP 249."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement has changed."""

    def execute(self, operation: Any, parameters: Any, /) -> Any:
        """Run a statement."""

    def close(self) -> None:
        """Let go of it."""


class DbConnection(Protocol):
    """What is needed of a connection of PEP 249."""

    def cursor(self) -> Any:
        """A new cursor."""


def submit(
    connection: DbConnection,
    chunks: Iterable[bytes],
    *,
    order_key: str | None = None,
    **options: Unpack[SubmitOptions],
) -> bytes:
    """Write a submission into the outbox, in the transaction that the connection is in; nothing is committed.

    Args:
        connection: of psycopg, psycopg2 or sqlite3, or what SQLAlchemy keeps around one.
        chunks: the chunks, in order; together at most `ROW_LIMIT_BYTES`.
        order_key: submissions with the same one arrive in the order in which their transactions commit. PostgreSQL
            has these transactions wait for each other.
        options: those of `Producer.submit`; what is counted from now is counted from this call.

    Returns:
        The request key: once a relay has handed it over, `queue.find_request` finds the submission by it.

    Raises:
        UsageError: a value is out of its range, or the connection is of another database.
        ChunkTooLarge: there is more than fits a row.
    """
    raw, dialect = _opened(connection)
    key, submission, kept = _as_row(chunks, options)
    if order_key is None:
        _execute(raw, _SUBMIT[dialect], (None, submission, kept))
    elif not isinstance(order_key, str):
        raise UsageError(f"order_key is {order_key!r}; it must be text.")
    else:
        lock = (order_key,) if dialect == "postgresql" else ()
        _execute(raw, _SUBMIT_IN_ORDER[dialect], (*lock, order_key, submission, kept))
    return key


def complete(connection: DbConnection, chunk: ChunkBase | Handle | str, result: bytes = b"") -> None:
    """Write into the outbox that a chunk is done, in the transaction that the connection is in; nothing is committed.

    Of all transactions that do so for a chunk, one can commit. After that call `chunk.complete(result)`; if the
    consumer is killed before, the relay completes the chunk, even if its reservation has ended.

    Args:
        connection: as in `submit`.
        chunk: the chunk, or its handle.
        result: at most `ROW_LIMIT_BYTES`.

    Raises:
        AlreadyFinished: another transaction has. Roll this one back; `completed` has the result.
        UsageError: the connection is of another database, or that is no chunk.
        ChunkTooLarge: the result is larger than fits a row.
    """
    raw, dialect = _opened(connection)
    handle = _handle_of(chunk)
    result = converted("result", arguments.result(result), bytes, "bytes")
    if len(result) > ROW_LIMIT_BYTES:
        raise ChunkTooLarge(
            f"The result has {counted(len(result), 'byte')}; a row of an outbox takes {ROW_LIMIT_BYTES}."
        )
    if not _execute(raw, _COMPLETE[dialect], (handle.submission_id, handle.index, str(handle), result)):
        raise AlreadyFinished(
            f"Another transaction has completed chunk {handle.submission_id}/{handle.index}.",
            hint="Roll this one back; opsq.outbox.completed has the result.",
        )


def completed(connection: DbConnection, chunk: ChunkBase | Handle | str) -> bytes | None:
    """The result with which a transaction has completed a chunk; None: none has.

    Ask before you work on a chunk, which is handed out again if its consumer was killed after the commit.

    Raises:
        UsageError: as `complete`.
    """
    raw, dialect = _opened(connection)
    handle = _handle_of(chunk)
    cursor = raw.cursor()
    try:
        cursor.execute(_COMPLETED[dialect], (handle.submission_id, handle.index))
        row = cursor.fetchone()
    finally:
        cursor.close()
    if row is None:
        return None
    return bytes(row["result"] if isinstance(row, dict) else row[0])  # as the row factory of the connection has it


def _handle_of(chunk: ChunkBase | Handle | str) -> Handle:
    if isinstance(chunk, str):
        return parse_handle(chunk)
    found = chunk if isinstance(chunk, Handle) else getattr(chunk, "handle", None)
    if not isinstance(found, Handle):
        raise UsageError(f"{type(chunk).__name__} is no chunk.", hint="Give the chunk, or its handle.")
    return found


def _as_row(chunks: Iterable[bytes], options: SubmitOptions) -> tuple[bytes, bytes, bytes | None]:
    """A submission as a row: its request key, what to send, and the chunks that a relay has to put into the store."""
    key = new_submission.new_request_key()
    gathered = _gathered(chunks)
    size_bytes = sum(map(len, gathered))
    is_short = size_bytes <= INLINE_LIMIT_BYTES and len(gathered) <= INLINE_LIMIT_COUNT
    content = Content(key.hex(), len(gathered), size_bytes, inline=gathered if is_short else None)
    new = new_submission.new_submission(key, encode(traces.carrying(content)), len(gathered), **_from_now(options))
    return key, msgspec.msgpack.encode(new), None if is_short else msgspec.msgpack.encode(gathered)


def _gathered(chunks: Iterable[bytes]) -> list[bytes]:
    gathered: list[bytes] = []
    size_bytes = 0
    for chunk in converted("chunks", chunks, iter, "an iterable of bytes"):
        gathered.append(bytes(new_submission.checked_chunk(chunk)))
        size_bytes += len(chunk)
        if size_bytes > ROW_LIMIT_BYTES:
            raise ChunkTooLarge(
                f"The chunks have more than {ROW_LIMIT_BYTES} bytes, which is what a row of an outbox takes.",
                hint="Submit them before the transaction, with a delay, or put where they are into the row.",
            )
    return gathered


def _from_now(options: SubmitOptions) -> SubmitOptions:
    """The options with moments in place of durations, which would else begin when the relay comes."""
    now_ms = clock.now().wall
    found: dict[str, Any] = dict(options)
    for duration, moment in (("delay_s", "not_before_at"), ("expires_s", "expires_at")):
        seconds = found.get(duration)
        if seconds is not None and found.get(moment) is None:
            new_submission.new_submission(bytes(16), b"", 0, **{duration: seconds})  # complains as for a submission
            found[moment] = now_ms + int(found.pop(duration) * 1000)
    return found  # type: ignore[return-value]  # as many keys as before, of the same type


def _opened(connection: Any) -> tuple[Any, str]:
    """The connection of the driver itself, and which database it is to."""
    raw = getattr(connection, "dbapi_connection", None) or connection  # of a pool of SQLAlchemy
    kinds = type(raw).__mro__
    if not any(kind.__name__.startswith("Async") for kind in kinds):
        for kind in kinds:
            dialect = _PACKAGES.get(kind.__module__.partition(".")[0])
            if dialect is not None:
                return raw, dialect
    raise UsageError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no connection to SQLite or PostgreSQL that"
        " an outbox can be written through.",
        hint="Give one of sqlite3, psycopg or psycopg2; of SQLAlchemy, session.connection().connection.",
    )


def _execute(raw: Any, statement: str, parameters: Sequence[object]) -> int:
    """Run a statement; returns how many rows it has changed."""
    cursor: DbCursor = raw.cursor()
    try:
        cursor.execute(statement, parameters)
        return cursor.rowcount
    finally:
        cursor.close()
