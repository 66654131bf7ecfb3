"""Requeue: dead chunks get new attempts, and what failed, was cancelled or expired lives again.

The only way out of a final state.
"""

from __future__ import annotations

import pytest

from opsq.errors import Conflict, NotFound, StorageFull
from opsq.wire import messages as m
from unit.model.rig import Rig


def requeue(rig: Rig, submission_id: int, *indexes: int) -> int:
    return rig.only(rig.connect(), m.Requeue(next(rig.ids), submission_id, list(indexes) or None), m.Changed).count


def kill(rig: Rig, count: int = 1) -> None:
    """Have the next chunks die."""
    peer = rig.connect()
    for ticket in rig.reserve(peer, count):
        rig.fail(peer, ticket.held(), is_final=True, reason="broken")


def test_dead_chunk_of_a_failed_submission_is_offered_again_with_its_skipped_neighbours(rig: Rig) -> None:
    submission_id = rig.submit(3)
    kill(rig)
    assert rig.show(submission_id).state == "failed"
    assert requeue(rig, submission_id) == 3
    state = rig.show(submission_id)
    assert (state.state, state.dead_count, state.skipped_count, state.finished_at, state.reason) == (
        "open",
        0,
        0,
        None,
        "",
    )
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 10)
    assert ticket.indexes == [0, 1, 2]
    assert rig.complete(peer, ticket.held()) == []
    assert rig.show(submission_id).state == "completed"


def test_requeued_chunk_starts_with_no_attempts(rig: Rig) -> None:
    submission_id = rig.submit(1, max_attempts=2)
    peer = rig.connect()
    for _ in range(2):
        [ticket] = rig.reserve(peer)
        rig.fail(peer, ticket.held(), delay_s=0.0)
    assert rig.show(submission_id).state == "failed"
    requeue(rig, submission_id)
    [ticket] = rig.reserve(peer)
    assert ticket.attempt == 0
    rig.fail(peer, ticket.held(), delay_s=0.0)
    assert rig.show(submission_id).state == "open"


def test_named_dead_chunks_alone_are_requeued(rig: Rig) -> None:
    submission_id = rig.submit(4, keep_on_dead=True)
    kill(rig, 3)
    assert requeue(rig, submission_id, 1) == 1
    peer = rig.connect()
    assert [ticket.indexes for ticket in rig.reserve(peer, 10)] == [[1, 3]]
    assert rig.show(submission_id).dead_count == 2


def test_requeue_of_a_chunk_that_is_not_dead_is_refused_and_changes_nothing(rig: Rig) -> None:
    submission_id = rig.submit(4, keep_on_dead=True)
    kill(rig, 2)
    with pytest.raises(Conflict, match=r"/3 is not dead"):
        requeue(rig, submission_id, 1, 3)
    assert rig.show(submission_id).dead_count == 2


def test_requeue_of_an_unknown_submission_is_refused(rig: Rig) -> None:
    with pytest.raises(NotFound):
        requeue(rig, 12345)


def test_requeue_with_nothing_to_give_changes_nothing(rig: Rig) -> None:
    submission_id = rig.submit(1)
    assert requeue(rig, submission_id) == 0


def test_requeue_of_a_completed_submission_with_dead_chunks_opens_it(rig: Rig) -> None:
    submission_id = rig.submit(2, keep_on_dead=True)
    kill(rig)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    assert rig.show(submission_id).state == "completed"
    assert requeue(rig, submission_id) == 1
    [ticket] = rig.reserve(peer, 5)
    assert ticket.indexes == [0]


def test_parked_reserve_gets_a_requeued_chunk(rig: Rig) -> None:
    submission_id = rig.submit(1)
    kill(rig)
    peer = rig.connect()
    call = rig.park(peer)
    requeue(rig, submission_id)
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert reply.grants


def test_expired_submission_that_was_revived_stays_open_over_a_restart(rig: Rig) -> None:
    submission_id = rig.submit(1, expires_s=5.0)
    rig.advance(6)
    assert rig.show(submission_id).state == "expired"
    requeue(rig, submission_id)
    rig.restart()
    rig.advance(60)
    assert rig.show(submission_id).state == "open"


def test_submission_whose_unique_key_is_taken_cannot_be_revived(rig: Rig) -> None:
    first = rig.submit(1, unique_key="nightly")
    rig.ask(rig.connect(), m.Cancel(1, first))
    second = rig.submit(1, unique_key="nightly")
    assert second != first
    with pytest.raises(Conflict, match=str(second)):
        requeue(rig, first)


def test_revived_submission_holds_its_unique_key_from_the_request_on(rig: Rig) -> None:
    submission_id = rig.submit(1, unique_key="nightly")
    peer = rig.connect()
    rig.ask(peer, m.Cancel(1, submission_id))
    rig.fold()
    rig.send(peer, m.Requeue(2, submission_id))
    rig.commit()
    again = m.NewSubmission(rig.request_key(), 1, unique_key="nightly")
    assert rig.only(peer, m.Submit(3, [again]), m.Submitted).created == [m.Created(submission_id, False)]


def test_requeue_that_cannot_be_committed_is_refused_and_can_be_sent_again(rig: Rig) -> None:
    submission_id = rig.submit(2)
    kill(rig)
    rig.fold()
    peer = rig.connect()
    rig.send(peer, m.Requeue(2, submission_id))
    rig.commit()
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 2)
    assert rig.show(submission_id).state == "failed"
    rig.advance(2)
    assert requeue(rig, submission_id) == 2


def test_chunk_that_dies_while_a_requeue_waits_is_requeued_and_not_folded_away(rig: Rig) -> None:
    """Its death is committed after the request and before the requeue itself."""
    submission_id = rig.submit(4, keep_on_dead=True)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 3)
    rig.fail(peer, ticket.held([0]), is_final=True)
    rig.send(peer, m.Requeue(9, submission_id))
    rig.commit()
    rig.send(peer, m.Fail(10, [m.Failure(ticket.held([1]), is_final=True)]))
    rig.settle()
    assert rig.replies(peer, 9) == [m.Changed(9, 2)]
    rig.fold()
    assert rig.broken_rules() == []
    [again] = rig.reserve(peer, 10)
    assert again.indexes == [0, 1, 3]


def test_requeued_chunk_in_a_gap_between_blocks_read_ahead_is_offered(rig: Rig) -> None:
    submission_id = rig.submit(64 * 4, keep_on_dead=True)
    peer = rig.connect()
    tickets = rig.reserve(peer, 64 * 4)
    rig.fail(peer, tickets[1].held(), is_final=True)
    rig.fail(peer, tickets[3].held(), delay_s=0.0)
    for ticket in (tickets[0], tickets[2]):
        rig.release(peer, ticket.held())
    rig.restart()
    peer = rig.connect()
    rig.reserve(peer, 64)
    requeue(rig, submission_id)
    assert sorted(ticket.block for ticket in rig.reserve(peer, 1000)) == [1, 2, 3]


def test_requeue_sent_twice_at_once_gives_the_chunks_once(rig: Rig) -> None:
    submission_id = rig.submit(3, keep_on_dead=True)
    kill(rig, 2)
    peer = rig.connect()
    rig.send(peer, m.Requeue(1, submission_id))
    rig.send(peer, m.Requeue(2, submission_id))
    rig.settle()
    assert rig.replies(peer, 1) == [m.Changed(1, 2)]
    assert rig.replies(peer, 2) == [m.Changed(2, 0)]
    assert rig.show(submission_id).dead_count == 0
