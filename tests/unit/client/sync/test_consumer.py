"""The consumer's loop against a scripted daemon.

When it asks, what it reports, how it ends, what it does when things fail.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from opsq.client.core import prefetch
from opsq.client.core.held_block import Lost
from opsq.client.core.prefetch import Prefetch
from opsq.client.sync.consumer import Consumer
from opsq.errors import InvalidStrategy, StorageFull, Unreachable, UsageError
from opsq.wire.messages import (
    Alive,
    CancelWait,
    ChunkMask,
    Complete,
    CompleteAndReserve,
    Completed,
    Completion,
    ErrorReply,
    Extend,
    Fail,
    Grant,
    Heartbeat,
    Reclaim,
    Refusal,
    Release,
    Reply,
    Request,
    Reserve,
    Reserved,
    Revoked,
    Started,
)
from scripted import ScriptedDaemon, grant, reserved, silence
from waiting import wait_until


class Backlog:
    """Grants what is left, at most `count` chunks of the first grant a call, and accepts every verdict."""

    def __init__(self, *grants: Grant) -> None:
        self.grants = deque(grants)
        self.completed: list[tuple[int, int]] = []
        self.failed_count = self.released_count = 0
        self.counts: list[int] = []
        self.refusals: list[Refusal] = []

    def __call__(self, request: Request) -> list[Reply]:
        replies: list[Reply] = []
        if isinstance(request, Complete | CompleteAndReserve):
            self._complete(request.completions)
            refusals, self.refusals = self.refusals, []
            replies.append(Completed(request.id, refusals))
        if isinstance(request, Reserve | CompleteAndReserve):
            self.counts.append(request.count)
            replies.append(self._reserve(request))
        if isinstance(request, Fail):
            self.failed_count += sum(failure.held.mask.bit_count() for failure in request.failures)
        if isinstance(request, Release):
            self.released_count += sum(held.mask.bit_count() for held in request.held)
        if isinstance(request, Extend | Fail | Release | Reclaim):
            replies.append(Completed(request.id))
        if isinstance(request, Heartbeat):
            replies.append(Alive(request.id))
        return replies

    def _complete(self, completions: list[Completion]) -> None:
        self.completed += [
            (part.held.block, bit) for part in completions for bit in range(64) if part.held.mask >> bit & 1
        ]

    def _reserve(self, request: Reserve | CompleteAndReserve) -> Reserved:
        if not self.grants:
            return reserved(request.id, is_empty=request.until_empty)
        found = self.grants.popleft()
        mask = 0
        while found.mask & ~mask and mask.bit_count() < request.count:
            mask |= (found.mask & ~mask) & -(found.mask & ~mask)
        if found.mask & ~mask:
            self.grants.appendleft(grant(found.submission_id, found.block, found.mask & ~mask))
        return reserved(request.id, grant(found.submission_id, found.block, mask))


@pytest.fixture
def daemon() -> ScriptedDaemon:
    return ScriptedDaemon(Backlog(grant(block=0, mask=(1 << 64) - 1), grant(block=1, mask=0b1111)))


@pytest.fixture
def backlog(daemon: ScriptedDaemon) -> Backlog:
    assert isinstance(daemon.script, Backlog)
    return daemon.script


@pytest.fixture
def consumer(daemon: ScriptedDaemon) -> Iterator[Consumer]:
    with Consumer(daemon.open_wire) as consumer:
        yield consumer


def test_the_loop_completes_all_and_ends_when_nothing_is_left(consumer: Consumer, backlog: Backlog) -> None:
    seen = []
    for chunk in consumer:
        seen.append((chunk.index // 64, chunk.index % 64))
        chunk.complete(b"x")
    assert backlog.completed == seen
    assert len(seen) == 68
    assert consumer.is_ended


def test_reserves_grow_from_one_so_that_a_killed_consumer_gets_on(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    with Consumer(daemon.open_wire, batch=16) as consumer:
        for chunk in consumer:
            chunk.complete()
    assert backlog.counts[:5] == [1, 2, 4, 8, 16]
    assert max(backlog.counts) == 16


def test_the_first_chunk_of_each_reserve_is_reported_as_begun_at_once(
    daemon: ScriptedDaemon, consumer: Consumer
) -> None:
    for chunk in consumer:
        assert daemon.wire.of(Started)[0] == Started([ChunkMask(7, 0, 1)])
        chunk.complete()
        break


def test_leaving_the_loop_gives_back_what_has_no_verdict(consumer: Consumer, backlog: Backlog) -> None:
    for number, chunk in enumerate(consumer):
        if number == 9:
            break
        chunk.complete()
    assert len(backlog.completed) == 9
    granted = 68 - sum(found.mask.bit_count() for found in backlog.grants)
    assert backlog.released_count == granted - 9


def test_an_exception_in_the_loop_gives_back_too(consumer: Consumer, backlog: Backlog) -> None:
    def work() -> None:
        for chunk in consumer:
            raise ZeroDivisionError(str(chunk))

    with pytest.raises(ZeroDivisionError):
        work()
    assert backlog.released_count == 1


def test_a_chunk_without_a_verdict_is_an_error(consumer: Consumer, backlog: Backlog) -> None:
    with pytest.raises(UsageError, match="7/0 was neither completed, failed nor released"):
        for _ in consumer:
            pass
    assert backlog.released_count == 1


def test_two_verdicts_are_an_error(consumer: Consumer) -> None:
    for chunk in consumer:
        chunk.complete()
        with pytest.raises(UsageError, match="already has a verdict"):
            chunk.fail()
        break


def test_overlapping_chunks_may_be_finished_by_any_thread_in_any_order(consumer: Consumer, backlog: Backlog) -> None:
    threads = []
    for chunk in consumer.chunks(overlapping=True):
        threads.append(threading.Thread(target=chunk.complete, args=(b"done",)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    consumer.flush()
    assert len(backlog.completed) == 68


def test_failures_and_releases_are_reported(consumer: Consumer, backlog: Backlog) -> None:
    for chunk in consumer:
        chunk.release() if chunk.index % 2 else chunk.fail("odd", retry=False)
    assert (backlog.failed_count, backlog.released_count) == (34, 34)


def test_until_idle_ends_at_the_first_moment_without_work(
    consumer: Consumer, daemon: ScriptedDaemon, backlog: Backlog
) -> None:
    backlog.grants.clear()
    assert list(consumer.chunks(until_empty=False, until_idle=True)) == []
    assert daemon.wire.of(Reserve)[0].wait_s == 0.0


def test_without_an_end_the_daemon_is_asked_to_wait_for_ever(daemon: ScriptedDaemon, consumer: Consumer) -> None:
    for chunk in consumer.chunks(until_empty=False):
        chunk.complete()
        break
    assert (daemon.wire.of(Reserve)[0].wait_s, daemon.wire.of(Reserve)[0].until_empty) == (None, False)


def test_after_stop_nothing_is_reserved_and_what_arrives_is_released(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    """The reserve in flight is abandoned; its answer, should it bring chunks all the same, is given back at once."""
    parked: list[Request] = []

    def park(request: Request) -> list[Reply]:
        if isinstance(request, CancelWait):
            return [reserved(parked[0].id, grant(mask=0b11))] if request.request_id == parked[0].id else []
        if isinstance(request, Reserve):
            parked.append(request)
            return []
        return backlog(request)

    daemon.script = park
    with Consumer(daemon.open_wire) as consumer:
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.extend(consumer.chunks(until_empty=False)))
        thread.start()
        wait_until(lambda: parked, what="the reserve is parked")
        consumer.stop()
        thread.join()
        assert not seen
        wait_until(lambda: backlog.released_count == 2, what="what arrived is released")
    assert len(parked) == 1


def test_stop_ends_what_waits_in_bulk_while_the_daemon_is_away(daemon: ScriptedDaemon) -> None:
    daemon.script = silence
    with Consumer(daemon.open_wire) as looping, Consumer(daemon.open_wire) as asking:
        ends: list[object] = []
        threads = [
            threading.Thread(target=lambda: ends.append(list(looping.reservations(16, until_empty=False)))),
            threading.Thread(target=lambda: ends.append(asking.reserve(16, wait_s=None).is_empty)),
        ]
        for thread, wire in zip(threads, daemon.wires, strict=True):
            thread.start()
            wait_until(lambda: wire.of(Reserve), what="the reserve is parked")  # noqa: B023  # called at once
        daemon.refusal = Unreachable("gone")
        for wire in daemon.wires:
            wire.close()
        wait_until(lambda: daemon.dials_count > 6, what="both try to reconnect")
        for consumer in (looping, asking):
            consumer.stop()
        for thread in threads:
            thread.join(60)
        assert sorted(map(str, ends)) == ["True", "[]"]


def test_stop_ends_a_bulk_loop_whose_reserve_is_sent_after_it(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is told to cancel what it does not have yet; and again, when the loop is left."""
    daemon.script = silence
    with Consumer(daemon.open_wire) as consumer:

        def stop_first(requests: list[Request]) -> list[Request]:
            if any(isinstance(request, Reserve) for request in requests):
                consumer.stop()
                wait_until(lambda: daemon.wire.of(CancelWait), what="the reserve is cancelled")
            return requests

        monkeypatch.setattr(consumer, "_sendable", stop_first)
        ended = threading.Event()
        thread = threading.Thread(
            target=lambda: (list(consumer.reservations(16, ahead=1, until_empty=False)), ended.set())
        )
        thread.start()
        assert ended.wait(60)
        assert isinstance(daemon.wire.sent[-1], CancelWait)


def test_a_reserve_that_fails_for_a_while_is_tried_again(
    daemon: ScriptedDaemon, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failed attempt of any chunk."""
    monkeypatch.setattr("opsq.client.core.consumer_base.RETRY_S", 0.01)
    refused: list[Request] = []

    def refuse_twice(request: Request) -> list[Reply]:
        if isinstance(request, Reserve) and len(refused) < 2:
            refused.append(request)
            return [ErrorReply(request.id, "storage_full", "No room.")]
        return backlog(request)

    daemon.script = refuse_twice
    with Consumer(daemon.open_wire) as consumer:
        for chunk in consumer:
            chunk.complete()
    assert len(backlog.completed) == 68
    assert backlog.failed_count == 0


def test_a_strategy_that_the_daemon_does_not_know_is_raised(daemon: ScriptedDaemon, consumer: Consumer) -> None:
    daemon.script = lambda request: (
        [ErrorReply(request.id, "invalid_strategy", "What?")] if isinstance(request, Reserve) else []
    )
    with pytest.raises(InvalidStrategy, match="What"):
        next(iter(consumer))


def test_a_completion_that_cannot_be_sent_is_tried_until_the_deadline_and_then_told(
    daemon: ScriptedDaemon, backlog: Backlog
) -> None:
    """The chunk is then dropped, so that it is offered again by the daemon."""
    with Consumer(daemon.open_wire, reconnect_s=0.2) as consumer:
        chunks = consumer.chunks()
        chunk = next(chunks)
        daemon.refusal = Unreachable("gone")
        daemon.wire.close()
        chunk.complete(b"x")
        with pytest.raises(Unreachable, match="gone"):
            consumer.flush()
        assert daemon.dials_count > 2
        assert not consumer.unsettled_count
        chunks.close()
    assert not backlog.completed


def test_a_completion_in_flight_during_a_loss_is_sent_again(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    with Consumer(daemon.open_wire) as consumer:
        chunks = consumer.chunks()
        chunk = next(chunks)
        first = daemon.wire
        daemon.script = lambda request: first.close() or []
        chunk.complete(b"x")
        wait_until(lambda: first.of(Complete), what="the completion is on its way")
        daemon.script = backlog
        consumer.flush(10)
        assert daemon.wire.sent[:2] != first.sent
        assert isinstance(daemon.wire.sent[0], Reclaim)
        assert backlog.completed == [(0, 0)]
        chunks.close()


def test_what_a_consumer_had_leased_it_leases_again(daemon: ScriptedDaemon) -> None:
    with Consumer(daemon.open_wire, lease_s=60.0) as consumer:
        chunks = consumer.chunks()
        chunk = next(chunks)
        daemon.wire.close()
        wait_until(lambda: len(daemon.wires) == 2 and daemon.wire.of(Reclaim), what="the next connection")
        assert [one.lease_s for one in daemon.wire.of(Reclaim)] == [60.0]
        chunk.complete(b"x")
        chunks.close()


def test_without_room_completions_wait_and_are_sent_again(
    daemon: ScriptedDaemon, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.client.core.consumer_base.RETRY_S", 0.01)
    refused: list[Request] = []

    def refuse_twice(request: Request) -> list[Reply]:
        if isinstance(request, Complete | CompleteAndReserve) and len(refused) < 2:
            refused.append(request)
            return [ErrorReply(request.id, StorageFull.code, "No room.")]
        return backlog(request)

    daemon.script = refuse_twice
    with Consumer(daemon.open_wire) as consumer:
        for chunk in consumer:
            chunk.complete()
            break
        consumer.flush(10)
    assert backlog.completed == [(0, 0)]


def test_a_lost_chunk_goes_to_the_handler_and_the_loop_goes_on(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    lost: list[Lost] = []
    with Consumer(daemon.open_wire, on_lost=lost.append) as consumer:
        for chunk in consumer:
            if chunk.index == 5:
                daemon.wire.push(Revoked([ChunkMask(7, 0, 1 << 5)], "cancelled"))
                consumer._link.wait_until(lambda chunk=chunk: chunk.is_revoked, 10)
            chunk.complete()
    assert [(found.submission_id, found.index, found.code) for found in lost] == [(7, 5, "cancelled")]
    assert len(backlog.completed) == 67


def test_a_lost_chunk_is_a_warning_in_the_log_by_default(
    consumer: Consumer, backlog: Backlog, caplog: pytest.LogCaptureFixture
) -> None:
    backlog.refusals = [Refusal(7, 0, 1, "already_finished", "chunk_finished")]
    with caplog.at_level(logging.WARNING, "opsq"):
        for chunk in consumer:
            chunk.complete()
    assert "The reservation of chunk 7/0 was lost (already_finished): Chunk 7/0 is finished." in caplog.text


def test_closing_with_an_unanswered_completion_says_so(
    daemon: ScriptedDaemon, backlog: Backlog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.client.sync.verdict_sender.CLOSE_S", 0.01)
    daemon.script = lambda request: [] if isinstance(request, Complete) else backlog(request)
    with caplog.at_level(logging.WARNING, "opsq"), Consumer(daemon.open_wire) as consumer:
        for chunk in consumer:
            chunk.complete()
            break
    assert "may be offered again" in caplog.text


def test_bulk_reservations_travel_with_the_completions_before_them(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    with Consumer(daemon.open_wire) as consumer:
        for reservation in consumer.reservations(50, ahead=1):
            reservation.complete([b"%d" % number for number in range(reservation.chunks_count)])
    assert len(backlog.completed) == 68
    assert [type(request) for request in daemon.wire.sent if not isinstance(request, Started)][:3] == [
        Reserve,
        CompleteAndReserve,
        CompleteAndReserve,
    ]


def test_later_bulk_reserve_that_is_answered_first_is_not_kept_waiting(
    daemon: ScriptedDaemon, backlog: Backlog
) -> None:
    """The first may be parked for ever, while another shard has work for the second."""
    parked: list[Request] = []

    def park_first(request: Request) -> list[Reply]:
        if isinstance(request, Reserve | CompleteAndReserve) and not parked:
            parked.append(request)
            return []
        return backlog(request)

    daemon.script = park_first
    with Consumer(daemon.open_wire) as consumer:
        reservations = consumer.reservations(50, until_empty=False)
        for expected in (50, 14, 4):
            reservation = next(reservations)
            assert reservation.chunks_count == expected
            reservation.complete([b""] * expected)
        reservations.close()
    assert len(backlog.completed) == 68


def test_bulk_loop_ends_only_when_every_reserve_of_it_is_answered(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    """The first finds nothing; the second is granted what was submitted in between."""
    grants, backlog.grants = backlog.grants, deque()

    def submit_after_the_first(request: Request) -> list[Reply]:
        replies = backlog(request)
        if isinstance(request, Reserve):
            backlog.grants = grants
        return replies

    daemon.script = submit_after_the_first
    with Consumer(daemon.open_wire) as consumer:
        for reservation in consumer.reservations(50):
            reservation.complete([b""] * reservation.chunks_count)
    assert (len(backlog.completed), backlog.released_count) == (68, 0)


def test_verdict_with_a_mistake_is_none(consumer: Consumer, backlog: Backlog) -> None:
    """Else the chunk would stay reserved for ever, and nobody work on it."""
    wrong: Any = "text"
    chunks = consumer.chunks()
    chunk = next(chunks)
    with pytest.raises(UsageError, match="it must be bytes"):
        chunk.complete(wrong)
    with pytest.raises(UsageError, match="delay_s is -1"):
        chunk.fail(delay_s=-1)
    assert not chunk.has_verdict
    chunk.fail("It failed.")
    assert chunk.has_verdict
    consumer.flush(10)
    assert backlog.failed_count == 1
    chunks.close()


def test_bulk_loop_without_a_reserve_on_its_way_is_refused(consumer: Consumer) -> None:
    with pytest.raises(UsageError, match="ahead is 0; it must be from 1"):
        next(consumer.reservations(50, ahead=0))


def test_reserve_that_waits_fails_when_another_thread_closes_the_consumer(daemon: ScriptedDaemon) -> None:
    daemon.script = silence
    errors: list[UsageError] = []

    def reserve() -> None:
        try:
            consumer.reserve(1, wait_s=None)
        except UsageError as error:
            errors.append(error)

    with Consumer(daemon.open_wire) as consumer:
        thread = threading.Thread(target=reserve)
        thread.start()
        wait_until(lambda: daemon.wire.of(Reserve), what="the reserve is parked")
        consumer.close()
        thread.join()
    assert [error.message for error in errors] == ["The consumer was closed, or its loop was left, while this waited."]


def test_a_single_bulk_reservation_is_given_back_as_a_whole(consumer: Consumer, backlog: Backlog) -> None:
    reservation = consumer.reserve(50)
    assert [(part.submission_id, part.block, part.mask) for part in reservation.blocks] == [(7, 0, (1 << 50) - 1)]
    with pytest.raises(UsageError, match="Got 2 results for 50 chunks"):
        reservation.complete([b"", b""])
    reservation.release()
    with pytest.raises(UsageError, match="already has a verdict"):
        reservation.fail()
    consumer.flush(10)
    assert backlog.released_count == 50


def test_nothing_free_gives_an_empty_reservation(consumer: Consumer, backlog: Backlog) -> None:
    backlog.grants.clear()
    assert consumer.reserve(10).chunks_count == 0


def test_a_driven_consumer_never_waits(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    with Consumer(daemon.open_wire, is_polled=True) as consumer:
        done_count = 0
        while not consumer.is_ended:
            consumer.want(7, until_empty=True)
            consumer.poll()
            while (chunk := consumer.take()) is not None:
                chunk.complete()
                done_count += 1
        consumer.flush(10)
    assert done_count == len(backlog.completed) == 68


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What `Prefetch` takes for the time; the test moves it."""
    now = [0.0]
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_slow_consumer_reserves_one_by_one_and_nothing_ahead(clock: list[float]) -> None:
    ahead = Prefetch(None)
    for _ in range(5):
        assert ahead.next_count() == 1
        ahead.count_taken()
        clock[0] += 10
        assert not ahead.is_ahead_due(0)


def test_a_fast_consumer_reserves_a_quarter_of_a_second_ahead(clock: list[float]) -> None:
    ahead = Prefetch(None)
    counts = []
    for _ in range(10):
        counts.append(ahead.next_count())
        for _ in range(counts[-1]):
            ahead.count_taken()
            clock[0] += 0.001
    assert counts == [1, 2, 4, 8, 16, 32, 64, 128, 250, 250] or counts[-1] in {249, 250, 251}
    assert ahead.is_ahead_due(counts[-1] // 2)
    assert not ahead.is_ahead_due(counts[-1])


def test_consumer_knows_the_shortest_reservation_that_it_holds(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    lengths = {1: 600.0, 2: 0.5, 3: 9.0}

    def script(request: Request) -> list[Reply]:
        replies = backlog(request)
        return [
            msgspec.structs.replace(reply, deadline_s=lengths[reply.grants[0].mask.bit_count()])
            if isinstance(reply, Reserved) and reply.grants
            else reply
            for reply in replies
        ]

    daemon.script = script
    with Consumer(daemon.open_wire) as consumer:
        assert consumer._shortest_s() == math.inf
        held = [consumer.reserve(count) for count in (1, 2, 3)]
        assert consumer._shortest_s() == 0.5
        held[1].complete()
        consumer.flush()
        assert consumer._shortest_s() == 9.0
        held[2].release()
        held[0].complete()
        consumer.flush()
        assert consumer._shortest_s() == math.inf
    with Consumer(daemon.open_wire, lease_s=0.3) as consumer:
        assert consumer.reserve(1).chunks_count == 1
        assert consumer._shortest_s() == math.inf, "heartbeats do not keep a lease"


@pytest.mark.parametrize("is_read_by_another", [False, True], ids=["read by itself", "read by another thread"])
def test_heartbeats_keep_at_once_what_was_extended_to_a_shorter_time(
    daemon: ScriptedDaemon, backlog: Backlog, *, is_read_by_another: bool
) -> None:
    """The next one was due in a minute."""
    with Consumer(daemon.open_wire) as consumer:
        chunk = next(chunks := consumer.chunks())
        if is_read_by_another:
            daemon.script = lambda request: [] if isinstance(request, Reserve) else backlog(request)
            thread = threading.Thread(target=lambda: consumer.reserve(1, wait_s=None))
            thread.start()
            wait_until(lambda: consumer._link._is_taken, what="the thread reads")
        chunk.extend(0.3)
        wait_until(lambda: len(daemon.wire.of(Heartbeat)) >= 3, 30, "three heartbeats")
        consumer.stop()
        if is_read_by_another:
            thread.join()
        chunk.complete()
        chunks.close()


def test_what_was_reserved_together_is_extended_together(daemon: ScriptedDaemon, backlog: Backlog) -> None:
    """So it is with the daemon: what is left of it is still kept by as many heartbeats."""
    grants = [grant(block=0), grant(block=1)]
    daemon.script = lambda request: (
        [reserved(request.id, *grants)] if isinstance(request, Reserve) else backlog(request)
    )
    with Consumer(daemon.open_wire) as consumer:
        first, second = consumer.reserve(8).held_blocks
        consumer.extend(first, 1, 0.3)
        consumer.extend(second, 1, 900.0)
        assert (first.length_s, second.length_s, consumer._shortest_s()) == (0.3, 900.0, 0.3)
        consumer.extend(second, 1, 0.2)
        consumer.release_blocks([second])
        consumer.flush()
        assert (first.length_s, consumer._shortest_s()) == (0.2, 0.2)
        consumer.extend(second, 1, 0.1)
        consumer.release_blocks([first])
        consumer.flush()
        assert consumer._shortest_s() == math.inf, "nothing is held"


def test_bulk_reserve_tells_what_was_lost_before_and_raises_what_went_wrong(daemon: ScriptedDaemon) -> None:
    lost: list[Lost] = []
    with Consumer(daemon.open_wire, on_lost=lost.append) as consumer:
        first = consumer.reserve(2)
        daemon.wire.push(Revoked([ChunkMask(7, 0, 1)], "cancelled"))
        wait_until(lambda: bool(consumer._ledger.lost), what="the loss is known")
        second = consumer.reserve(1)
        assert [(found.index, found.code) for found in lost] == [(0, "cancelled")]
        consumer._verdicts.errors.append(StorageFull("no room"))
        asked_count = len(daemon.wire.of(Reserve))
        with pytest.raises(StorageFull, match="no room"):
            consumer.reserve(1)
        assert len(daemon.wire.of(Reserve)) == asked_count
        first.release()
        second.release()
