"""Chunks that are completed in a transaction: once, whoever was killed, and however late the relay comes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

import opsq
from integration.outbox.conftest import Base
from integration.outbox.test_relay import ForgetfulOutbox
from opsq import outbox
from opsq.client.sync.connection import Connection
from opsq.errors import AlreadyFinished, Unreachable
from opsq.ids import Handle
from opsq.settings import Settings
from opsq.wire.messages import Reserve, Reserved
from waiting import wait_until


def reserve(settings: Settings, lease_s: float | None = None, count: int = 1) -> list[Handle]:
    """Reserve chunks as a lease, or as a consumer that is gone at once."""
    with Connection.open(settings.socket) as daemon:
        reserved = daemon.call(Reserve(daemon.next_id(), count, "OldestFirst", None, lease_s), Reserved)
        return [handle for _, handle in reserved.handles()]


def complete(base: Base, handle: Handle | opsq.Chunk, result: bytes = b"done") -> None:
    """Complete a chunk in a transaction of its own."""
    with contextlib.closing(base.connect()) as connection:
        outbox.complete(connection, handle, result)
        connection.commit()


def test_chunk_is_completed_after_its_consumer_was_killed(base: Base, queue: opsq.Queue, settings: Settings) -> None:
    submission = queue.submit([b"a"])
    [handle] = reserve(settings)  # by a connection that has ended: the chunk is free again
    complete(base, handle, b"result")
    assert base.relay_once() == (0, 0)
    assert submission.wait(60).state == "completed"
    assert list(submission.results()) == [b"result"]
    assert list(queue.consume()) == []


def test_chunk_is_completed_after_its_lease_has_lapsed(base: Base, queue: opsq.Queue, settings: Settings) -> None:
    submission = queue.submit([b"a"])
    [handle] = reserve(settings, 0.1)
    wait_until(lambda: submission.state().reserved_count == 0)
    complete(base, handle, b"result")
    base.relay_once()
    assert list(submission.results()) == [b"result"]


def test_consumer_that_has_the_chunk_by_then_loses_it(base: Base, queue: opsq.Queue, settings: Settings) -> None:
    """The transaction of the first has committed; that of the second cannot, and the chunk is done."""
    submission = queue.submit([b"a"])
    [first] = reserve(settings)
    complete(base, first, b"first")
    [second] = reserve(settings, 3600.0)
    with pytest.raises(AlreadyFinished):
        complete(base, second, b"second")
    base.relay_once()
    assert submission.wait(60).state == "completed"
    assert list(submission.results()) == [b"first"]


def test_consumer_that_completes_the_chunk_itself_is_not_contradicted(base: Base, queue: opsq.Queue) -> None:
    submission = queue.submit([b"a", b"b", b"c"])
    for chunk in queue.consume("OldestFirst"):
        complete(base, chunk, chunk.data.upper())
        chunk.complete(chunk.data.upper())
    assert base.relay_once() == (0, 0)
    assert list(submission.results()) == [b"A", b"B", b"C"]
    assert base.aside == []


def test_chunk_that_its_next_consumer_has_completed_by_what_it_found_is_done(
    base: Base, queue: opsq.Queue, settings: Settings
) -> None:
    """The first was killed after its commit; the second finds the result, and is faster than the relay."""
    submission = queue.submit([b"a"] * 70)
    for handle in reserve(settings, None, 70):
        complete(base, handle, b"first")
    with contextlib.closing(base.connect()) as connection:
        for chunk in queue.consume("OldestFirst"):
            result = outbox.completed(connection, chunk)
            assert result is not None
            chunk.complete(result)
    assert base.relay_once() == (0, 0)
    assert list(submission.results()) == [b"first"] * 70
    assert base.aside == []


def test_completion_that_is_handed_over_again_changes_nothing(
    base: Base, queue: opsq.Queue, settings: Settings
) -> None:
    submission = queue.submit([b"a"] * 3)
    for number, handle in enumerate(reserve(settings, 3600.0, 3)):
        complete(base, handle, b"%d" % number if number else b"large" * 2000)
    for _ in range(2):
        with pytest.raises(Unreachable, match="killed"):
            base.relay_once(ForgetfulOutbox(base.open_outbox()))
    assert base.relay_once() == (0, 0)
    assert list(submission.results()) == [b"large" * 2000, b"1", b"2"]


def test_rolled_back_completion_leaves_the_chunk_to_others(base: Base, queue: opsq.Queue, settings: Settings) -> None:
    submission = queue.submit([b"a"])
    [handle] = reserve(settings)
    with contextlib.closing(base.connect()) as connection:
        outbox.complete(connection, handle, b"first")
        connection.rollback()
    base.relay_once()
    assert submission.state().completed_count == 0
    for chunk in queue.consume():
        complete(base, chunk, b"second")
        chunk.complete(b"second")
    base.relay_once()
    assert list(submission.results()) == [b"second"]


def test_completion_and_what_follows_from_it_commit_together(base: Base, queue: opsq.Queue) -> None:
    first = queue.submit([b"a"], metadata={"step": 1})
    for chunk in queue.consume("SelectOnly(step=1)"):
        with contextlib.closing(base.connect()) as connection:
            outbox.complete(connection, chunk, b"result")
            outbox.submit(connection, [b"next"], metadata={"step": 2})
            connection.commit()
        chunk.complete(b"result")
    base.relay_once()
    assert first.wait(60).state == "completed"
    for chunk in queue.consume():
        assert chunk.data == b"next"
        chunk.complete()
    assert queue.status().total.completed_count == 2


def test_completion_of_a_removed_submission_is_set_aside(base: Base, queue: opsq.Queue, settings: Settings) -> None:
    submission = queue.submit([b"a"])
    other = queue.submit([b"b"])
    for handle in (handle for _ in range(2) for handle in reserve(settings, 3600.0)):
        complete(base, handle, b"large" * 2000)
    submission.cancel()
    submission.remove()
    assert base.relay_once() == (0, 1)
    [aside] = base.aside
    assert (aside.table, str(submission.id) in aside.reason) == ("opsq_outbox_completed", True)
    assert list(other.results()) == [b"large" * 2000]


def test_dead_chunk_whose_work_has_committed_is_completed_once_it_is_requeued(
    base: Base, queue: opsq.Queue, settings: Settings
) -> None:
    submission = queue.submit([b"a"], max_attempts=1)
    [handle] = reserve(settings)
    for chunk in queue.consume():
        chunk.fail("no")
    complete(base, handle, b"result")
    assert base.relay_once() == (0, 1)
    submission.requeue()
    relay = base.relay()
    assert relay.put_back() == 1
    relay.close()
    assert base.relay_once() == (0, 0)
    assert list(submission.results()) == [b"result"]


def test_completion_stays_for_a_while_and_then_goes(base: Base, queue: opsq.Queue, settings: Settings) -> None:
    queue.submit([b"a"])
    [handle] = reserve(settings, 3600.0)
    complete(base, handle)
    base.relay_once()
    assert base.execute("SELECT count(*) FROM opsq_outbox_completed") == [(1,)]
    opened: Any = base.open_outbox()
    opened.open()
    opened.prune(-2.0)
    opened.close()
    assert base.execute("SELECT count(*) FROM opsq_outbox_completed") == [(0,)]


def test_two_transactions_that_complete_a_chunk_at_once(
    postgresql_base: Base, queue: opsq.Queue, settings: Settings
) -> None:
    """The second waits for the first, and is refused if that commits, else it is the one."""
    base = postgresql_base
    queue.submit([b"a", b"b"])
    for handle, is_committed in zip(reserve(settings, 3600.0, 2), (True, False), strict=True):
        first, errors = base.connect(), []

        def second(handle: Handle = handle, errors: list[Exception] = errors) -> None:
            try:
                complete(base, handle, b"second")
            except AlreadyFinished as error:
                errors.append(error)

        outbox.complete(first, handle, b"first")
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: base.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))
        first.commit() if is_committed else first.rollback()
        thread.join()
        first.close()
        assert len(errors) == int(is_committed)
    results = base.execute("SELECT result FROM opsq_outbox_completed ORDER BY chunk_index")
    assert [bytes(result) for (result,) in results] == [b"first", b"second"]
