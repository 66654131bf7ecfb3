"""Rows of an outbox arrive once, in order, whatever fails in between; what the daemon refuses blocks nothing."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import end, kill, running
from integration.outbox.conftest import Base, Stop
from opsq import outbox, traces
from opsq.daemon import lifecycle
from opsq.errors import NoRoom, Unreachable, UsageError
from opsq.outbox.waiting_rows import Submission
from opsq.settings import Settings
from waiting import wait_until

CONTEXT = traces.read({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})


def submitted(queue: opsq.Queue) -> list[Any]:
    """All submissions, oldest first."""
    return list(queue.submissions())[::-1]


def chunks_in_order(queue: opsq.Queue) -> list[bytes]:
    """The chunks of all submissions, as they come to a consumer."""
    found = []
    for chunk in queue.consume("OldestFirst"):
        found.append(chunk.data)
        chunk.complete()
    return found


def write(base: Base, *chunks: bytes, **options: Any) -> None:
    """A submission for each chunk, in one transaction."""
    with contextlib.closing(base.connect()) as connection:
        for chunk in chunks:
            outbox.submit(connection, [chunk], **options)
        connection.commit()


def test_submission_arrives_with_all_its_options(base: Base, queue: opsq.Queue) -> None:
    with contextlib.closing(base.connect()) as connection, traces.given(CONTEXT):
        key = outbox.submit(
            connection,
            [b"a", b"b"],
            metadata={"tenant": "acme", "n": 7},
            attachment=b"attached",
            priority=3,
            max_attempts=9,
            unique_key="u",
            idempotency_key="i",
            title="Two letters",
        )
        connection.commit()
    assert base.relay_once() == (0, 0)
    [state] = submitted(queue)
    assert (state.metadata, state.priority, state.max_attempts) == ({"tenant": "acme", "n": 7}, 3, 9)
    assert (state.unique_key, state.title, state.chunks_count) == ("u", "Two letters", 2)
    for made in (queue.find_request(key), queue.find("i")):
        assert made is not None
        assert made.id == state.submission_id
    for chunk in queue.consume("OldestFirst"):
        assert (chunk.attachment(), chunk.trace_context) == (b"attached", CONTEXT)
        chunk.complete()


def test_chunks_beside_the_row_are_put_into_the_store(base: Base, queue: opsq.Queue) -> None:
    chunks = [bytes([n]) * 3000 for n in range(200)]
    with contextlib.closing(base.connect()) as connection, traces.given(CONTEXT):
        outbox.submit(connection, chunks)
        outbox.submit(connection, [b""] * 2000)  # as many as do not fit a description
        connection.commit()
    base.relay_once()
    assert [state.chunks_count for state in submitted(queue)] == [200, 2000]
    for chunk in queue.consume("OldestFirst"):
        assert chunk.data == (chunks[chunk.index] if chunk.chunks_count == 200 else b"")
        assert chunk.trace_context == CONTEXT
        chunk.complete()


def test_rolled_back_transaction_leaves_nothing(base: Base, queue: opsq.Queue) -> None:
    with contextlib.closing(base.connect()) as connection:
        outbox.submit(connection, [b"never"], order_key="k")
        connection.rollback()
    assert base.relay_once() == (0, 0)
    assert submitted(queue) == []


class ForgetfulOutbox:
    """Has every row handed over, and then fails as if the relay had been killed."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def settle(self, table: str, done: list[int], refused: dict[int, str]) -> None:
        """Forget what was done."""
        self._inner.leave()
        if done or refused:
            raise Unreachable("killed")
        self._inner.settle(table, [], {})


def test_row_that_is_handed_over_again_arrives_once(base: Base, queue: opsq.Queue) -> None:
    write(base, b"small", b"large" * 2000, metadata={"tenant": "acme"})
    for _ in range(2):
        with pytest.raises(Unreachable, match="killed"):
            base.relay_once(ForgetfulOutbox(base.open_outbox()))
    assert base.relay_once() == (0, 0)
    assert chunks_in_order(queue) == [b"small", b"large" * 2000]


def test_row_that_was_written_by_another_version_of_the_relay_arrives_once(base: Base, queue: opsq.Queue) -> None:
    with contextlib.closing(base.connect()) as connection:
        outbox.submit(connection, [b"small" * 1000] * 2)
        connection.commit()
    with pytest.raises(Unreachable):
        base.relay_once(ForgetfulOutbox(base.open_outbox()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opsq.content.content_writer.ENDS_LIMIT_COUNT", -1)  # describes the same content otherwise
        assert base.relay_once() == (0, 0)
    assert len(submitted(queue)) == 1
    assert base.aside == []


@pytest.mark.parametrize("batch", [1, 500])
def test_row_that_is_refused_for_good_is_set_aside_and_the_others_arrive(
    base: Base, queue: opsq.Queue, batch: int
) -> None:
    write(base, b"before")
    write(base, b"wrong" * 2000, metadata={"submission": "is a built-in key"}, order_key="k")
    write(base, b"after", order_key="k")
    assert base.relay_once(batch=batch) == (0, 1)
    [aside] = base.aside
    assert (aside.table, "built in" in aside.reason) == ("opsq_outbox", True)
    assert chunks_in_order(queue) == [b"before", b"after"]
    assert base.relay_once() == (0, 1)
    assert len(base.aside) == 1
    relay = base.relay()
    assert relay.put_back() == 1
    relay.close()
    base.relay_once()
    assert len(base.aside) == 2


def test_row_that_waits_for_a_submission_that_is_gone_is_set_aside_and_the_others_arrive(
    base: Base, queue: opsq.Queue
) -> None:
    gone = queue.submit([])
    gone.remove()
    write(base, b"before")
    write(base, b"never", after=[gone])
    write(base, b"after")
    assert base.relay_once() == (0, 1)
    [aside] = base.aside
    assert str(gone.id) in aside.reason
    assert chunks_in_order(queue) == [b"before", b"after"]


def test_row_that_would_wait_for_itself_is_set_aside_and_the_others_arrive(base: Base, queue: opsq.Queue) -> None:
    queue.submit([b"first"], metadata={"run": 1})
    waiting = queue.submit([b"last"], after=[{"run": 1}])
    write(base, b"never", metadata={"run": 1}, after=[waiting])
    write(base, b"after")
    assert base.relay_once() == (0, 1)
    [aside] = base.aside
    assert "itself" in aside.reason
    assert sorted(chunks_in_order(queue)) == [b"after", b"first", b"last"]


def test_row_that_no_relay_can_read_is_set_aside(base: Base, queue: opsq.Queue) -> None:
    write(base, b"before", b"after")
    base.execute("UPDATE opsq_outbox SET submission = 'nonsense' WHERE seq = 1")
    base.relay_once()
    assert chunks_in_order(queue) == [b"after"]
    assert len(base.aside) == 1


def test_content_of_a_refused_row_is_not_left_in_the_store(base: Base, settings: Settings) -> None:
    write(base, b"wrong" * 2000, metadata={"submission": "is a built-in key"})
    base.relay_once()
    folders = {path.name for path in Path(settings.state_dir, "content").iterdir() if path.is_dir()}
    assert not {name for name in folders if len(name) == 32}


def test_submission_with_a_key_that_another_one_has_is_that_one(base: Base, queue: opsq.Queue) -> None:
    first = queue.submit([b"x" * 9000], unique_key="u")
    write(base, b"y" * 9000, unique_key="u")
    assert base.relay_once() == (0, 0)
    assert [state.submission_id for state in submitted(queue)] == [first.id]
    assert chunks_in_order(queue) == [b"x" * 9000]


def test_rows_of_a_key_arrive_in_the_order_of_their_transactions(base: Base, queue: opsq.Queue) -> None:
    for n in range(50):
        write(base, b"%d" % n, order_key="k")
    base.relay_once(batch=7)
    assert chunks_in_order(queue) == [b"%d" % n for n in range(50)]


def test_full_queue_makes_rows_wait_in_order(runtime_dir: Any, base: Base) -> None:
    end(base.settings)
    with running(runtime_dir / "s", max_backlog_chunks=3) as settings, opsq.connect(settings.socket) as queue:
        with contextlib.closing(base.connect()) as connection:
            for n in range(5):
                outbox.submit(connection, [b"%d" % n], order_key="k")
            outbox.submit(connection, [b""] * 4, order_key="k")  # will never have room
            outbox.submit(connection, [b"5"], order_key="k")
            connection.commit()
        with pytest.raises(NoRoom):
            base.relay_once()
        assert chunks_in_order(queue) == [b"0", b"1", b"2"]
        assert base.relay_once() == (0, 1)
        assert chunks_in_order(queue) == [b"3", b"4", b"5"]


def test_relay_is_woken_by_new_rows(base: Base, queue: opsq.Queue) -> None:
    with base.relaying(poll_s=3600) as relay:
        for n in range(5):
            write(base, b"%d" % n)
            wait_until(lambda n=n: relay.submitted_count == n + 1)
    assert chunks_in_order(queue) == [b"%d" % n for n in range(5)]


def test_relay_goes_on_when_the_daemon_is_back(base: Base, settings: Settings) -> None:
    with base.relaying() as relay:
        write(base, b"before")
        wait_until(lambda: relay.submitted_count == 1)
        kill(settings)
        write(base, b"after")
        wait_until(lambda: base.outages)
        assert isinstance(base.outages[0], Unreachable)
        lifecycle.start(settings)
        wait_until(lambda: relay.submitted_count == 2)
    assert base.outages[-1] is None


def test_relay_may_look_for_rows_as_seldom_as_it_likes(base: Base) -> None:
    relay = base.open_outbox()
    relay.open()
    relay.take_submissions(1)
    relay.leave()
    with contextlib.closing(Stop()) as stop:
        stop.stop()
        relay.wait(stop.fileno, 30 * 86_400.0)
    relay.close()


def test_once_fails_if_no_daemon_answers_and_loses_nothing(base: Base, settings: Settings, queue: opsq.Queue) -> None:
    write(base, b"kept")
    kill(settings)
    with pytest.raises(Unreachable):
        base.relay_once()
    lifecycle.start(settings)
    base.relay_once()
    assert chunks_in_order(queue) == [b"kept"]


def test_database_without_an_outbox_is_refused_with_advice(base: Base) -> None:
    base.execute("DROP TABLE opsq_outbox")
    with pytest.raises(UsageError, match=r"no outbox in .*opsq outbox ddl"):
        base.relay_once()


# --- PostgreSQL: several relays ---------------------------------------------------------------------------------------


def taken(rows: list[Submission]) -> list[int]:
    return [row.seq for row in rows]


def test_relays_share_rows_and_never_one_key(postgresql_base: Base) -> None:
    base = postgresql_base
    write(base, b"", b"")
    write(base, b"", b"", order_key="k")
    write(base, b"")
    first, second = base.open_outbox(), base.open_outbox()
    first.open()
    second.open()
    assert taken(first.take_submissions(3)) == [1, 2, 3]
    assert taken(second.take_submissions(1)) == [5]  # 4 would overtake 3, and takes up no room in the batch
    second.leave()
    first.settle("opsq_outbox", [1, 2], {})  # 3 is left for another time
    assert taken(second.take_submissions(500)) == [3, 4, 5]
    first.close()
    second.close()


def test_row_waits_for_one_of_its_key_that_cannot_be_had(postgresql_base: Base) -> None:
    base = postgresql_base
    write(base, b"", b"", order_key="k")
    write(base, b"", order_key="other")
    relay = base.open_outbox()
    relay.open()
    with contextlib.closing(base.connect()) as connection:
        connection.execute("SELECT FROM opsq_outbox WHERE seq = 1 FOR UPDATE")
        assert taken(relay.take_submissions(500)) == [3]
        relay.leave()
    assert taken(relay.take_submissions(500)) == [1, 2, 3]
    relay.close()


def test_transactions_with_one_key_wait_for_each_other(postgresql_base: Base, queue: opsq.Queue) -> None:
    base = postgresql_base
    first, second = base.connect(), base.connect()
    outbox.submit(first, [b"first"], order_key="k")
    thread = threading.Thread(target=lambda: (outbox.submit(second, [b"second"], order_key="k"), second.commit()))
    thread.start()
    wait_until(lambda: base.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    outbox.submit(first, [b"first again"], order_key="k")
    base.relay_once()
    first.commit()
    thread.join()
    base.relay_once()
    assert chunks_in_order(queue) == [b"first", b"first again", b"second"]
    first.close()
    second.close()


def test_connection_to_the_database_outlives_an_outage_of_the_daemon(postgresql_base: Base, settings: Settings) -> None:
    base = postgresql_base
    connections = "SELECT pid FROM pg_stat_activity WHERE application_name = 'opsq relay'"
    with base.relaying() as relay:
        write(base, b"before")
        wait_until(lambda: relay.submitted_count == 1)
        before = base.execute(connections)
        kill(settings)
        write(base, b"after")
        wait_until(lambda: base.outages)
        lifecycle.start(settings)
        wait_until(lambda: relay.submitted_count == 2)
        assert base.execute(connections) == before


def test_rows_are_found_by_the_index_whatever_the_statistics_say(postgresql_base: Base) -> None:
    """A sort would take the lock of every key in the table, for which PostgreSQL has no room."""
    base = postgresql_base
    with contextlib.closing(base.connect()) as connection:
        for n in range(300):
            outbox.submit(connection, [b""], order_key=f"key {n}")
        connection.commit()
    base.execute("ANALYZE opsq_outbox")
    relay = base.open_outbox()
    relay.open()
    assert len(relay.take_submissions(10)) == 10
    locks = base.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert locks == [(10,)]
    relay.close()


def test_batch_ends_before_it_is_too_large_for_memory(base: Base, queue: opsq.Queue) -> None:
    with contextlib.closing(base.connect()) as connection:
        for n in range(3):
            outbox.submit(connection, [bytes([n]) * (5 << 20)])
        connection.commit()
    relay = base.open_outbox()
    relay.open()
    assert len(relay.take_submissions(500)) == 1
    relay.close()
    assert base.relay_once() == (0, 0)
    assert [chunk[:1] for chunk in chunks_in_order(queue)] == [b"\0", b"\1", b"\2"]
