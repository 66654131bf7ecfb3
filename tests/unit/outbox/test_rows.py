"""What is written into an outbox: what is wrong is refused before a row is written, and durations begin at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from opsq import outbox, traces
from opsq.content import manifest
from opsq.errors import AlreadyFinished, ChunkTooLarge, InvalidHandle, UsageError
from opsq.ids import parse_handle
from opsq.outbox.rows import ROW_LIMIT_BYTES
from opsq.wire.messages import NewSubmission

HANDLE = "252863352093540352/70@1.0.40.7"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    made.executescript(outbox.ddl("sqlite"))
    yield made
    made.close()


def rows(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT order_key, submission, chunks FROM opsq_outbox ORDER BY seq").fetchall()


def only(connection: sqlite3.Connection) -> NewSubmission:
    """The one submission that is in the outbox."""
    [(_, submission, _)] = rows(connection)
    return msgspec.msgpack.decode(submission, type=NewSubmission)


def test_row_says_all_that_a_relay_needs(connection: sqlite3.Connection) -> None:
    key = outbox.submit(connection, [b"a", b"b"], metadata={"tenant": "x"}, title="t", on_dead="keep", order_key="k")
    new = only(connection)
    assert (new.request_key, new.metadata, new.title, new.keep_on_dead) == (key, {"tenant": "x"}, "t", True)
    assert (new.chunks_count, manifest.decode(new.content).inline) == (2, [b"a", b"b"])
    assert rows(connection)[0][0] == "k"


def test_chunks_that_do_not_fit_a_submission_are_beside_it(connection: sqlite3.Connection) -> None:
    chunks = [b"x" * 3000, b"y" * 3000]
    outbox.submit(connection, iter(chunks))
    [(_, _, kept)] = rows(connection)
    assert msgspec.msgpack.decode(kept) == chunks
    assert only(connection).chunks_count == 2


def test_each_row_has_a_key_of_its_own(connection: sqlite3.Connection) -> None:
    assert outbox.submit(connection, []) != outbox.submit(connection, [])


@pytest.mark.parametrize(("duration", "moment"), [("delay_s", "not_before_at"), ("expires_s", "expires_at")])
def test_duration_counts_from_the_call(connection: sqlite3.Connection, duration: str, moment: str) -> None:
    before = time.time_ns() // 1_000_000
    outbox.submit(connection, [b"a"], **{duration: 60})  # type: ignore[arg-type]  # one of the options
    after = time.time_ns() // 1_000_000
    new = only(connection)
    assert getattr(new, duration) is None
    assert before + 60_000 <= getattr(new, moment) <= after + 60_000


def test_trace_of_the_caller_is_carried(connection: sqlite3.Connection) -> None:
    context = traces.read({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
    with traces.given(context):
        outbox.submit(connection, [b"a"])
        outbox.submit(connection, [b"a" * 5000])
    for _, submission, _ in rows(connection):
        assert traces.carried_by(msgspec.msgpack.decode(submission, type=NewSubmission).content) == context


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"chunks": ["text"]}, "must be bytes"),
        ({"chunks": 3}, "chunks is 3"),
        ({"chunks": [], "order_key": 3}, "order_key is 3"),
        ({"chunks": [], "metadata": {"not a key": 1}}, "metadata"),
        ({"chunks": [], "delay_s": -1}, "delay_s"),
        ({"chunks": [], "delay_s": 1, "not_before_at": 1}, "cannot be combined"),
        ({"chunks": [], "on_dead": "explode"}, "explode"),
    ],
)
def test_impossible_submission_is_refused_and_no_row_written(
    connection: sqlite3.Connection, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        outbox.submit(connection, **arguments)
    assert rows(connection) == []


def test_more_than_a_row_takes_is_refused(connection: sqlite3.Connection) -> None:
    piece = bytes(ROW_LIMIT_BYTES // 16)
    outbox.submit(connection, [piece] * 16)
    with pytest.raises(ChunkTooLarge, match=str(ROW_LIMIT_BYTES)):
        outbox.submit(connection, (piece for _ in iter(int, 1)))  # which never ends
    with pytest.raises(ChunkTooLarge, match=str(ROW_LIMIT_BYTES)):
        outbox.complete(connection, HANDLE, bytes(ROW_LIMIT_BYTES + 1))
    assert len(rows(connection)) == 1


@pytest.mark.parametrize("made", [object(), psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)])
def test_other_connection_is_refused_by_its_class(made: Any) -> None:
    with pytest.raises(UsageError, match=type(made).__name__):
        outbox.submit(made, [b"a"])


def test_connection_inside_one_of_a_pool_is_found(connection: sqlite3.Connection) -> None:
    class Pooled:
        dbapi_connection = connection

    outbox.submit(Pooled(), [b"a"])  # type: ignore[arg-type]  # as SQLAlchemy has it
    assert len(rows(connection)) == 1


def test_completion_is_kept_by_chunk_with_its_token(connection: sqlite3.Connection) -> None:
    assert outbox.completed(connection, HANDLE) is None
    outbox.complete(connection, parse_handle(HANDLE), b"result")
    assert outbox.completed(connection, HANDLE) == b"result"
    found = connection.execute("SELECT submission_id, chunk_index, handle FROM opsq_outbox_completed").fetchall()
    assert found == [(252863352093540352, 70, HANDLE)]


def test_second_completion_of_a_chunk_is_refused(connection: sqlite3.Connection) -> None:
    outbox.complete(connection, HANDLE, b"first")
    with pytest.raises(AlreadyFinished, match="252863352093540352/70"):
        outbox.complete(connection, HANDLE.replace("@1", "@2"), b"second")
    assert outbox.completed(connection, HANDLE) == b"first"


def test_what_names_no_chunk_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(InvalidHandle):
        outbox.complete(connection, "nonsense")
    with pytest.raises(UsageError, match="int is no chunk"):
        outbox.complete(connection, 3)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("result", ["text", 3, None, [1, 2], ("object", 0, 7)])
def test_result_that_is_no_bytes_is_refused(connection: sqlite3.Connection, result: Any) -> None:
    with pytest.raises(UsageError, match="must be bytes"):
        outbox.complete(connection, HANDLE, result)
    assert outbox.completed(connection, HANDLE) is None


@pytest.mark.parametrize("result", [bytearray(b"result"), memoryview(b"result")])
def test_result_may_be_bytes_of_any_kind(connection: sqlite3.Connection, result: Any) -> None:
    outbox.complete(connection, HANDLE, result)
    assert outbox.completed(connection, HANDLE) == b"result"


def test_nothing_is_committed(connection: sqlite3.Connection) -> None:
    outbox.submit(connection, [b"a"])
    outbox.complete(connection, HANDLE)
    connection.rollback()
    assert rows(connection) == []
    assert outbox.completed(connection, HANDLE) is None
