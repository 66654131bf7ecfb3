"""Failed attempts: counted, delayed by the back-off, dead when they are used up; and what of it outlives the engine."""

from __future__ import annotations

import pytest

from opsq.queue.chunks import fail
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket


def fail_next(rig: Rig, **options: object) -> Ticket:
    """Reserve the next chunk and fail it."""
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    assert rig.fail(peer, ticket.held(), **options) == []
    return ticket


def dead(rig: Rig, submission_id: int) -> list[m.DeadChunk]:
    return rig.only(rig.connect(), m.Dead(next(rig.ids), submission_id), m.DeadChunks).chunks


# --- attempts ---


def test_failed_chunk_comes_again_with_its_attempts_counted(rig: Rig) -> None:
    rig.submit(1)
    assert [fail_next(rig, delay_s=0.0).attempt for _ in range(3)] == [0, 1, 2]


def test_chunk_dies_with_its_last_attempt_and_the_dead_letter_tells_why(rig: Rig) -> None:
    submission_id = rig.submit(2, max_attempts=2)
    fail_next(rig, delay_s=0.0)
    assert rig.show(submission_id).state == "open"
    fail_next(rig, delay_s=0.0, reason="no such column", exit_status=3)
    [letter] = dead(rig, submission_id)
    assert (letter.index, letter.attempts, letter.lost, letter.reason, letter.exit_status) == (
        0,
        2,
        0,
        "no such column",
        3,
    )
    assert rig.show(submission_id).state == "failed"


def test_answer_tells_which_attempt_it_was_and_what_becomes_of_the_chunk(rig: Rig) -> None:
    submission_id = rig.submit(2, max_attempts=2, backoff=m.Backoff(8.0, 1.0, 8.0))
    peer = rig.connect()

    def fail(**options: bool) -> tuple[int, int, float | None]:
        [ticket] = rig.reserve(peer)
        failure = m.Failure(ticket.held(), **options)
        [after] = rig.only(peer, m.Fail(next(rig.ids), [failure]), m.Completed).failures
        assert (after.submission_id, after.block, after.mask) == (submission_id, 0, ticket.held().mask)
        return after.attempts, after.max_attempts, after.delay_s

    attempts, max_attempts, delay_s = fail()
    assert (attempts, max_attempts) == (1, 2)
    assert delay_s is not None
    assert 4 <= delay_s <= 8
    assert fail(is_final=True) == (1, 2, None)


def test_final_failure_kills_at_the_first_attempt(rig: Rig) -> None:
    submission_id = rig.submit(1)
    fail_next(rig, is_final=True, signal=9)
    [letter] = dead(rig, submission_id)
    assert (letter.attempts, letter.signal) == (1, 9)


def test_losses_and_failures_are_counted_apart(rig: Rig) -> None:
    submission_id = rig.submit(1, max_attempts=2, max_lost=2)
    fail_next(rig, delay_s=0.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.disconnect(peer)
    rig.settle()
    assert rig.show(submission_id).state == "open"
    fail_next(rig, delay_s=0.0)
    [letter] = dead(rig, submission_id)
    assert (letter.attempts, letter.lost) == (2, 1)


def test_released_chunk_has_no_attempt_counted_however_often(rig: Rig) -> None:
    rig.submit(1, max_attempts=1, max_lost=1)
    peer = rig.connect()
    for _ in range(10):
        [ticket] = rig.reserve(peer)
        assert ticket.attempt == 0
        rig.release(peer, ticket.held())


def test_chunks_of_a_block_have_attempts_of_their_own(rig: Rig) -> None:
    rig.submit(4)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 4)
    rig.fail(peer, ticket.held([1, 2]), delay_s=0.0)
    rig.release(peer, ticket.held([0, 3]))
    tickets = rig.reserve(peer, 4)
    assert sorted((ticket.attempt, ticket.indexes) for ticket in tickets) == [(0, [0, 3]), (1, [1, 2])]


def test_failure_under_a_lost_reservation_is_ignored_and_said_to_be(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0, max_attempts=1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.advance(6)
    [refusal] = rig.fail(peer, ticket.held(), is_final=True)
    assert refusal.code == "reservation_lost"
    assert rig.show(submission_id).state == "open"


def test_failure_sent_twice_counts_once(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), delay_s=0.0)
    [refusal] = rig.fail(peer, ticket.held(), delay_s=0.0)
    assert refusal.code == "reservation_lost"
    assert rig.reserve(peer)[0].attempt == 1


def test_attempts_and_the_delay_outlive_a_crash(rig: Rig) -> None:
    rig.submit(1)
    fail_next(rig, delay_s=10.0)
    rig.advance(4)
    rig.crash()
    peer = rig.connect()
    assert rig.reserve(peer) == []
    rig.advance(5.5)
    assert rig.reserve(peer) == []
    rig.advance(0.5)
    assert rig.reserve(peer)[0].attempt == 1


def test_failure_whose_commit_fails_leaves_the_chunk_with_its_holder_and_its_attempts(rig: Rig) -> None:
    submission_id = rig.submit(1, max_attempts=1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.send(peer, m.Fail(9, [m.Failure(ticket.held())]))
    rig.fail_commit()
    rig.told.clear()
    state = rig.show(submission_id)
    assert (state.state, state.reserved_count, state.dead_count) == ("open", 1, 0)
    rig.advance(2)
    assert rig.fail(peer, ticket.held()) == []
    assert rig.show(submission_id).state == "failed"


# --- back-off ---


def test_failed_chunk_waits_for_its_back_off_and_is_counted_as_delayed(rig: Rig) -> None:
    submission_id = rig.submit(1, backoff=m.Backoff(4.0, 2.0, 300.0))
    fail_next(rig)
    assert rig.show(submission_id).delayed_count == 1
    peer = rig.connect()
    rig.advance(3.5)
    assert rig.reserve(peer) == []
    rig.advance(0.5)
    assert len(rig.reserve(peer)) == 1
    assert rig.show(submission_id).delayed_count == 0


def test_failure_beside_a_chunk_in_hand_does_not_lengthen_what_that_has_waited(rig: Rig) -> None:
    """The block in back-off leaves its attempts to the file; not while one of its chunks is with a consumer."""
    rig.submit(2)
    peer = rig.connect()
    [first] = rig.reserve(peer)
    rig.fail(peer, first.held(), delay_s=100.0)
    rig.advance(100)
    [again], [second] = rig.reserve(peer), rig.reserve(peer)
    rig.fail(peer, second.held(), delay_s=1000.0)
    rig.complete(peer, again.held())
    assert rig.rows("SELECT wait_s FROM history WHERE event = 'completed'") == [(0.0,)]


def test_blocks_whose_back_off_ends_together_come_back_over_several_ticks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fail, "DUE_LIMIT", 2)
    submission_id = rig.submit(3 * 64)
    peer = rig.connect()
    rig.fail(peer, *(ticket.held() for ticket in rig.reserve(peer, 3 * 64)), delay_s=10.0)
    rig.pass_time(10.5)
    rig.tick()
    assert rig.show(submission_id).delayed_count == 64
    rig.tick()
    assert rig.show(submission_id).delayed_count == 0


def test_delay_of_the_failure_replaces_the_back_off(rig: Rig) -> None:
    rig.submit(1, backoff=m.Backoff(600.0, 2.0, 600.0))
    fail_next(rig, delay_s=2.0)
    rig.advance(2)
    assert len(rig.reserve(rig.connect())) == 1


def test_losses_do_not_lengthen_the_back_off(rig: Rig) -> None:
    rig.submit(1, backoff=m.Backoff(2.0, 10.0, 600.0))
    peer = rig.connect()
    for _ in range(3):
        [ticket] = rig.reserve(peer)
        rig.start(peer, ticket)
        rig.disconnect(peer)
        rig.settle()
        peer = rig.connect()
    fail_next(rig)
    rig.advance(2)
    assert len(rig.reserve(rig.connect())) == 1


# --- delay and reservation ---


def test_chunk_delayed_for_ten_times_its_reservation_is_delivered_once(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0, delay_s=50.0)
    peer = rig.connect()
    call = rig.park(peer)
    delivered = 0
    for _ in range(60):
        rig.advance(1)
        rig.send(peer, m.Heartbeat(1))
        delivered += len(rig.replies(peer, call))
    assert delivered == 1


def test_chunk_whose_retry_is_due_after_ten_times_its_reservation_is_delivered_once_more(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0)
    fail_next(rig, delay_s=50.0)
    peer = rig.connect()
    call = rig.park(peer)
    for _ in range(49):
        rig.advance(1)
        assert rig.replies(peer, call) == []
    rig.advance(1)
    assert len(rig.replies(peer, call)) == 1
    assert rig.show(submission_id).reserved_count == 1


def test_history_has_a_row_of_its_own_for_each_failed_attempt(rig: Rig) -> None:
    submission_id = rig.submit(2, max_attempts=2, keep_on_dead=True)
    peer = rig.connect("worker")
    [ticket] = rig.reserve(peer, 2)
    rig.fail(peer, ticket.held(), delay_s=0.0, reason="a", exit_status=1, run_s=2.5)
    tickets = rig.reserve(peer, 2)
    rig.fail(peer, tickets[0].held(), delay_s=0.0, reason="b")
    rows = rig.rows(
        "SELECT event, submission_id, mask, attempt, consumer, reason, exit_status, run_s FROM history ORDER BY seq"
    )
    consumer = peer.consumer
    assert sorted(rows) == sorted(
        [
            *[("failed", submission_id, mask, 0, consumer, "a", 1, 2.5) for mask in (1, 2)],
            *[("failed", submission_id, mask, 1, consumer, "b", None, 0.0) for mask in (1, 2)],
            *[("dead", submission_id, mask, 1, consumer, "b", None, 0.0) for mask in (1, 2)],
        ]
    )
