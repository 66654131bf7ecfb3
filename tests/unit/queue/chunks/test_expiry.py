"""Reservations that end by themselves: very many chunks are lost in slices, a batch for each, and each chunk once."""

from __future__ import annotations

import apsw
import pytest

from opsq.queue.chunks import fail
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket

BLOCKS_COUNT = 10
BLOCK_ROWS = 1 + 2 * 64
"""What is written for a block whose chunks die when they are lost."""


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has room for three blocks of deaths."""
    monkeypatch.setattr(fail, "TRIED_ROWS", 3 * BLOCK_ROWS)


def expire(rig: Rig, seconds: int) -> None:
    """Let time pass without a commit."""
    for _ in range(seconds):
        rig.pass_time(1)
        rig.tick()


def settle_each(rig: Rig) -> list[int]:
    """Commit all there is, with a tick between two batches; how many rows each had for chunks that were lost."""
    rows_counts = []
    while rig.engine.next_tick_s(rig.now) == 0 or rig.engine.has_batch(rig.now):
        batch = rig.engine._state.batch
        rows_counts.append(len(batch.history) + len(batch.dead))
        rig.commit()
        rig.tick()
    return [count for count in rows_counts if count]


def taken(rig: Rig, **options: object) -> tuple[int, list[Ticket]]:
    """A submission of which each chunk dies with its first loss, and a lease on all of it, about to expire."""
    submission_id = rig.submit(64 * BLOCKS_COUNT, max_lost=1, keep_on_dead=True, **options)
    tickets = rig.reserve(rig.connect(), 64 * BLOCKS_COUNT, lease_s=2.0)
    return submission_id, tickets


def all_died_once(rig: Rig) -> bool:
    count = 64 * BLOCKS_COUNT
    return (
        rig.rows("SELECT count(*), count(DISTINCT chunk), min(lost), max(lost) FROM dead") == [(count, count, 1, 1)]
        and rig.rows("SELECT count(*) FROM history WHERE event = 'dead'") == [(count,)]
        and rig.rows("SELECT count(*) FROM history WHERE event = 'lost'") == [(BLOCKS_COUNT,)]
        and rig.rows("SELECT count(*) FROM lease") == [(0,)]
    )


def test_lease_of_very_many_chunks_that_die_is_lost_a_bounded_part_with_each_batch(rig: Rig) -> None:
    submission_id, _ = taken(rig)
    expire(rig, 3)
    assert settle_each(rig) == [3 * BLOCK_ROWS] * 3 + [BLOCK_ROWS]
    assert all_died_once(rig)
    assert rig.show(submission_id).state == "completed"


def test_crash_while_a_lease_is_being_lost_counts_each_of_its_chunks_once(rig: Rig) -> None:
    taken(rig)
    expire(rig, 3)
    for _ in range(2):
        rig.commit()
        rig.tick()
    rig.crash()
    assert rig.rows("SELECT count(*) FROM dead") == [(6 * 64,)]
    expire(rig, 1)
    settle_each(rig)
    assert all_died_once(rig)


def test_very_many_reservations_that_expire_at_once_share_the_bound(rig: Rig) -> None:
    rig.submit(64 * BLOCKS_COUNT, max_lost=1, keep_on_dead=True)
    peer = rig.connect()
    for _ in range(2 * BLOCKS_COUNT):
        rig.reserve(peer, 32, lease_s=2.0)
    expire(rig, 3)
    assert max(settle_each(rig)) <= 3 * BLOCK_ROWS + 65
    assert rig.rows("SELECT count(*) FROM dead") == [(64 * BLOCKS_COUNT,)]


def test_connection_that_had_started_very_many_chunks_loses_a_bounded_part_with_each_batch(rig: Rig) -> None:
    """What it had not started is free at once."""
    submission_id = rig.submit(64 * BLOCKS_COUNT, max_lost=1, keep_on_dead=True)
    peer = rig.connect()
    tickets = rig.reserve(peer, 64 * BLOCKS_COUNT)
    for ticket in tickets[:-1]:
        rig.start(peer, ticket)
    rig.disconnect(peer)
    assert [ticket.block for ticket in rig.reserve_now(rig.connect(), 64)] == [BLOCKS_COUNT - 1]
    assert rig.engine.is_losing
    assert settle_each(rig) == [3 * BLOCK_ROWS] * 3
    assert not rig.engine.is_losing
    assert rig.show(submission_id).counts.dead_count == 64 * (BLOCKS_COUNT - 1)


def test_chunk_of_a_reservation_that_is_being_lost_can_be_completed_and_else_nothing(rig: Rig) -> None:
    submission_id, tickets = taken(rig)
    peer, rest = rig.connect(), tickets[-1].held()
    expire(rig, 3)
    [refusal] = rig.fail(peer, rest)
    assert refusal.code == "reservation_lost"
    [refusal] = rig.release(peer, rest)
    assert refusal.code == "reservation_lost"
    [refusal] = rig.only(peer, m.Extend(next(rig.ids), [rest], 60.0), m.Completed).refusals
    assert refusal.code == "reservation_lost"
    assert rig.complete(peer, rest) == []
    settle_each(rig)
    assert rig.show(submission_id).counts.completed_count == 64
    assert rig.show(submission_id).counts.dead_count == 64 * (BLOCKS_COUNT - 1)


def test_consumer_that_is_back_while_its_chunks_are_being_lost_keeps_those_that_are_not(rig: Rig) -> None:
    submission_id = rig.submit(64 * BLOCKS_COUNT, max_lost=1, keep_on_dead=True)
    old, new = rig.connect(), rig.connect()
    tickets = rig.reserve(old, 64 * BLOCKS_COUNT)
    for ticket in tickets:
        rig.start(old, ticket)
    rig.disconnect(old)
    assert rig.reclaim(new, *(ticket.held() for ticket in tickets[3:])) == []
    settle_each(rig)
    assert rig.show(submission_id).reserved_count == 64 * (BLOCKS_COUNT - 3)
    assert rig.fail(new, tickets[-1].held()) == []


def test_lease_whose_loss_could_not_be_committed_is_lost_as_soon_as_there_is_room(rig: Rig) -> None:
    taken(rig)
    expire(rig, 3)
    rig.fail_commit()
    rig.advance(2)
    settle_each(rig)
    assert all_died_once(rig)


def test_end_of_a_lease_of_a_restart_frees_at_once_what_was_not_started_and_loses_the_rest_bit_by_bit(rig: Rig) -> None:
    submission_id = rig.submit(64 * BLOCKS_COUNT, max_lost=1, keep_on_dead=True)
    peer = rig.connect()
    for ticket in rig.reserve(peer, 64 * BLOCKS_COUNT)[:-1]:
        rig.start(peer, ticket)
    rig.restart()
    expire(rig, 31)
    rows_count = len(rig.engine._state.batch.history)
    rig.commit()
    assert 0 < rows_count <= 3 * BLOCK_ROWS
    assert [ticket.block for ticket in rig.reserve_now(rig.connect(), 64)] == [BLOCKS_COUNT - 1]
    assert rig.engine.is_losing
    rig.tick()
    settle_each(rig)
    assert rig.show(submission_id).counts.dead_count == 64 * (BLOCKS_COUNT - 1)
    assert rig.rows("SELECT count(*) FROM lease") == [(0,)]


@pytest.mark.parametrize("expires", [False, True])
def test_stop_while_a_reservation_is_being_lost_keeps_the_rest_to_be_lost_after_it(rig: Rig, expires: bool) -> None:
    """All of it: one that has expired counts whether it was started or not."""
    submission_id = rig.submit(64 * BLOCKS_COUNT, max_lost=1, keep_on_dead=True, reservation_s=2.0)
    peer = rig.connect()
    tickets = rig.reserve(peer, 64 * BLOCKS_COUNT)
    if expires:
        expire(rig, 3)
    else:
        for ticket in tickets:
            rig.start(peer, ticket)
        rig.disconnect(peer)
    rig.engine.save_reservations(rig.now)
    rig.commit()
    rig.crash()
    assert rig.show(submission_id).reserved_count == 64 * (BLOCKS_COUNT - 3)
    expire(rig, 31)
    settle_each(rig)
    assert rig.rows("SELECT count(*), min(lost), max(lost) FROM dead") == [(64 * BLOCKS_COUNT, 1, 1)]


# --- the same of failures that are reported ---


def test_report_of_very_many_failures_is_counted_a_bounded_part_with_each_batch_and_answered_after_the_last(
    rig: Rig,
) -> None:
    submission_id = rig.submit(64 * BLOCKS_COUNT, max_attempts=1, keep_on_dead=True)
    peer = rig.connect()
    failures = [m.Failure(ticket.held()) for ticket in rig.reserve(peer, 64 * BLOCKS_COUNT)]
    rig.send(peer, m.Fail(99, failures))
    rows_counts = []
    while rig.engine.has_batch(rig.now):
        assert rig.replies(peer, 99) == []
        batch = rig.engine._state.batch
        rows_counts.append(len(batch.history) + len(batch.dead))
        rig.commit()
    assert max(rows_counts) == 3 * 64 * 3
    [answer] = rig.replies(peer, 99)
    assert isinstance(answer, m.Completed)
    assert not answer.refusals
    assert sum(after.mask.bit_count() for after in answer.failures) == 64 * BLOCKS_COUNT
    assert rig.show(submission_id).counts.dead_count == 64 * BLOCKS_COUNT


def test_many_reports_that_come_at_once_share_the_bound(rig: Rig) -> None:
    rig.submit(64 * BLOCKS_COUNT)
    peer = rig.connect()
    requests = [m.Fail(100 + ticket.block, [m.Failure(ticket.held())]) for ticket in rig.reserve(peer, 640)]
    for request in requests:
        rig.send(peer, request)
    assert len(rig.engine._state.batch.history) <= 3 * BLOCK_ROWS + 64
    rig.settle()
    assert [rig.replies(peer, request.id) for request in requests].count([]) == 0
    assert rig.rows("SELECT count(*) FROM history WHERE event = 'failed'") == [(640,)]


def test_failures_with_long_reasons_count_for_more(rig: Rig) -> None:
    rig.submit(64 * BLOCKS_COUNT)
    peer = rig.connect()
    failures = [m.Failure(ticket.held(), "x" * 16_384) for ticket in rig.reserve(peer, 640)]
    rig.send(peer, m.Fail(99, failures))
    assert len(rig.engine._state.batch.history) == 64
    rig.settle()
    assert len(rig.replies(peer, 99)) == 1


def test_report_of_failures_that_is_refused_half_way_and_sent_again_counts_each_once(rig: Rig) -> None:
    rig.submit(64 * BLOCKS_COUNT)
    peer = rig.connect()
    failures = [m.Failure(ticket.held()) for ticket in rig.reserve(peer, 640)]
    rig.send(peer, m.Fail(99, failures))
    rig.commit()
    assert rig.begin()
    rig.end(apsw.FullError("database or disk is full"))
    [refused] = [reply for _, reply in rig.told if isinstance(reply, m.ErrorReply)]
    assert (refused.id, refused.code) == (99, "storage_full")
    rig.told.clear()
    rig.advance(2)
    [again] = rig.ask(peer, m.Fail(100, failures))
    assert isinstance(again, m.Completed)
    assert {refusal.code for refusal in again.refusals} == {"reservation_lost"}
    assert rig.rows("SELECT count(*), sum(mask IS NOT NULL) FROM history WHERE event = 'failed'") == [(640, 640)]
