"""Holding chunks: heartbeats, deadlines, leases, losing a consumer, taking up again what was held.

Over restarts too.
"""

from __future__ import annotations

import apsw
import pytest

from opsq.errors import StorageFull
from opsq.wire import messages as m
from unit.model.rig import Rig


def codes(refusals: list[m.Refusal]) -> list[str]:
    return [refusal.code for refusal in refusals]


def attempt(rig: Rig) -> int:
    """The attempt number with which the next chunk is handed out."""
    [ticket] = rig.reserve(rig.connect())
    return ticket.attempt


# --- losing ---


def test_started_chunk_of_a_lost_connection_is_offered_again_with_a_loss_counted(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.disconnect(peer)
    rig.settle()
    assert attempt(rig) == 1


def test_chunk_of_a_lost_connection_that_was_not_started_is_free_at_once_without_a_loss(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    rig.reserve(peer)
    rig.disconnect(peer)
    assert attempt(rig) == 0


def test_loss_counts_for_the_started_chunks_of_a_grant_alone(rig: Rig) -> None:
    rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 3)
    rig.start(peer, ticket, [1])
    rig.disconnect(peer)
    rig.settle()
    assert sorted((ticket.attempt, ticket.indexes) for ticket in rig.reserve(rig.connect(), 3)) == [
        (0, [0, 2]),
        (1, [1]),
    ]


def test_started_of_another_consumer_changes_nothing(rig: Rig) -> None:
    rig.submit(1)
    peer, other = rig.connect(), rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(other, ticket)
    rig.disconnect(peer)
    assert attempt(rig) == 0


def test_chunk_that_was_given_back_and_taken_up_again_is_not_started(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.start(peer, ticket)
    rig.release(peer, ticket.held([0]))
    assert rig.reclaim(peer, ticket.held([0])) == []
    rig.disconnect(peer)
    rig.settle()
    assert sorted((ticket.attempt, ticket.indexes) for ticket in rig.reserve(rig.connect(), 3)) == [(0, [0]), (1, [1])]


@pytest.mark.parametrize("lease_s", [None, 5.0])
def test_expiry_counts_as_a_loss_started_or_not(rig: Rig, lease_s: float | None) -> None:
    submission_id = rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=lease_s)
    rig.advance(4.5)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(0.5)
    assert rig.show(submission_id).reserved_count == 0
    assert rig.pushes(peer, m.Revoked) == [m.Revoked([m.ChunkMask(submission_id, 0, 1)], "reservation_lost")]
    assert attempt(rig) == 1
    assert ticket.attempt == 0


@pytest.mark.parametrize("lease_s", [None, 5.0])
def test_expiry_whose_commit_fails_comes_again(rig: Rig, lease_s: float | None) -> None:
    rig.submit(1, reservation_s=5.0)
    rig.reserve(rig.connect(), lease_s=lease_s)
    for _ in range(5):
        rig.pass_time(1)
        rig.tick()
    rig.fail_commit()
    rig.advance(3)
    assert len(rig.reserve(rig.connect())) == 1


def test_expired_chunk_has_all_its_losses_before_it_dies(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0, max_lost=3)
    for lost in range(3):
        assert rig.show(submission_id).state == "open"
        assert attempt(rig) == lost
        rig.advance(5)
    assert rig.show(submission_id).state == "failed"


def test_completion_is_not_taken_from_the_death_of_a_consumer(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.disconnect(peer)
    rig.settle()
    assert rig.show(submission_id).completed_count == 0
    assert attempt(rig) == 1


def test_chunk_that_kills_each_consumer_is_dead_with_the_reason_recorded(rig: Rig) -> None:
    submission_id = rig.submit(1, max_lost=3)
    for _ in range(3):
        peer = rig.connect()
        [ticket] = rig.reserve(peer)
        rig.start(peer, ticket)
        rig.disconnect(peer)
        rig.settle()
    [dead] = rig.only(rig.connect(), m.Dead(1, submission_id), m.DeadChunks).chunks
    assert (dead.lost, dead.attempts) == (3, 0)
    assert "connection" in dead.reason


@pytest.mark.parametrize("name", ["worker", "worker-2"])
def test_consumer_of_the_same_name_neither_keeps_nor_loses_what_the_first_held(rig: Rig, name: str) -> None:
    rig.submit(1, reservation_s=5.0)
    first = rig.connect("worker")
    rig.reserve(first)
    second = rig.connect(name)
    assert first.consumer != second.consumer
    assert rig.reserve(second) == []
    rig.advance(4)
    rig.send(second, m.Heartbeat(1))
    rig.advance(1)
    assert len(rig.reserve(second)) == 1


def test_consumer_restarted_under_its_name_gets_the_chunk_of_its_former_self(rig: Rig) -> None:
    rig.submit(1)
    first = rig.connect("worker")
    [ticket] = rig.reserve(first)
    rig.start(first, ticket)
    second = rig.connect("worker")
    rig.disconnect(first)
    rig.settle()
    assert len(rig.reserve(second)) == 1


# --- keeping ---


@pytest.mark.parametrize("request_", [m.Heartbeat(1), m.Started([m.ChunkMask(1, 0, 1)])])
def test_anything_heard_of_a_consumer_extends_its_reservations(rig: Rig, request_: m.Request) -> None:
    submission_id = rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    rig.reserve(peer)
    for _ in range(10):
        rig.advance(4)
        rig.send(peer, request_)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(5)
    assert rig.show(submission_id).reserved_count == 0


def test_heartbeat_does_not_extend_a_lease(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    rig.reserve(peer, lease_s=5.0)
    rig.advance(4)
    rig.send(peer, m.Heartbeat(1))
    rig.advance(1)
    assert rig.show(submission_id).reserved_count == 0


def test_extended_lease_ends_at_its_new_deadline_also_after_a_restart(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=5.0)
    rig.advance(4)
    assert rig.only(peer, m.Extend(1, [ticket.held()], 20.0), m.Completed).refusals == []
    rig.restart()
    rig.advance(19)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(1)
    assert rig.show(submission_id).reserved_count == 0


def test_extension_is_the_length_by_which_heartbeats_move_the_deadline_from_then_on(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    assert rig.only(peer, m.Extend(1, [ticket.held()], 30.0), m.Completed).refusals == []
    rig.advance(29)
    rig.send(peer, m.Heartbeat(2))
    rig.advance(29)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(2)
    assert rig.show(submission_id).reserved_count == 0


def test_lease_can_be_shortened(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=500.0)
    rig.ask(peer, m.Extend(1, [ticket.held()], 2.0))
    rig.advance(2)
    assert rig.show(submission_id).reserved_count == 0


def test_lease_extended_a_thousand_times_costs_one_timer(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=5.0)
    for _ in range(1000):
        rig.send(peer, m.Extend(1, [ticket.held()], 5.0))
    buckets = rig.engine._reservations._deadlines._buckets
    assert sum(len(bucket) for bucket in buckets.values()) == 1


def test_extend_of_what_is_not_held_is_refused(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.advance(6)
    assert codes(rig.only(peer, m.Extend(1, [ticket.held()]), m.Completed).refusals) == ["reservation_lost"]


@pytest.mark.parametrize("is_released", [False, True])
def test_extend_that_meets_the_end_of_its_lease_under_way_is_refused(rig: Rig, is_released: bool) -> None:
    """Until its commit the part is still there, and by then the chunk is somebody else's."""
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=2.0)
    if is_released:
        rig.send(peer, m.Release(1, [ticket.held()]))
    else:
        rig.pass_time(2)
        rig.tick()
    rig.send(peer, m.Extend(2, [ticket.held()], 60.0))
    rig.settle()
    [reply] = rig.replies(peer, 2)
    assert isinstance(reply, m.Completed)
    assert codes(reply.refusals) == ["reservation_lost"]
    assert len(rig.reserve(rig.connect())) == 1


def test_completing_a_part_of_a_lease_does_not_move_its_stored_deadline(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, lease_s=10.0)
    rig.advance(8)
    rig.complete(peer, ticket.held([0]))
    rig.crash()
    rig.advance(1.5)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(0.5)
    assert rig.show(submission_id).reserved_count == 0


# --- giving back ---


@pytest.mark.parametrize("lease_s", [None, 60.0])
def test_released_chunk_is_offered_again_without_an_attempt(rig: Rig, lease_s: float | None) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=lease_s)
    assert rig.release(peer, ticket.held()) == []
    assert attempt(rig) == 0
    assert codes(rig.release(peer, ticket.held())) == ["reservation_lost"]


def test_release_of_a_lease_whose_commit_fails_leaves_it_held(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=60.0)
    rig.send(peer, m.Release(1, [ticket.held()]))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 1)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(2)
    assert rig.release(peer, ticket.held()) == []


def test_all_that_a_consumer_holds_can_be_given_back_by_its_id(rig: Rig) -> None:
    rig.submit(5)
    peer, operator = rig.connect(), rig.connect()
    rig.reserve(peer, 2)
    rig.reserve(peer, 1, lease_s=60.0)
    assert rig.only(operator, m.ReleaseConsumer(1, peer.consumer), m.Changed).count == 3
    assert sum(chunk.mask.bit_count() for push in rig.pushes(peer, m.Revoked) for chunk in push.chunks) == 3
    assert sum(ticket.granted.bit_count() for ticket in rig.reserve(operator, 9)) == 5


# --- leases ---


def test_lease_survives_its_connection_and_a_crash(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=60.0)
    rig.disconnect(peer)
    assert rig.reserve(rig.connect()) == []
    rig.crash()
    assert rig.reserve(rig.connect()) == []
    assert rig.show(submission_id).reserved_count == 1
    assert rig.complete(rig.connect(), ticket.held()) == []


def test_reply_with_a_lease_leaves_after_its_commit(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    rig.send(peer, m.Reserve(9, 1, "OldestFirst", 0.0, 60.0))
    assert rig.replies(peer, 9) == []
    rig.settle()
    assert len(rig.replies(peer, 9)) == 1


def test_lease_whose_reply_cannot_be_delivered_is_given_back_without_an_attempt(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    rig.send(peer, m.Reserve(9, 1, "OldestFirst", 0.0, 60.0))
    rig.disconnect(peer)
    rig.settle()
    assert attempt(rig) == 0


def test_lease_whose_commit_fails_is_free_and_the_next_reply_describes_its_submission(rig: Rig) -> None:
    rig.submit(1, content=b"where it lies")
    peer = rig.connect()
    rig.send(peer, m.Reserve(9, 1, "OldestFirst", 0.0, 60.0))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 9)
    rig.advance(2)
    reply = rig.only(peer, m.Reserve(10, 1, "OldestFirst", 0.0, 60.0), m.Reserved)
    assert [described.content for described in reply.submissions] == [b"where it lies"]


def test_leases_of_a_submission_end_with_it_in_the_file_too(rig: Rig) -> None:
    """One of them is granted in the very batch that cancels."""
    submission_id = rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, lease_s=60.0)
    rig.send(peer, m.Complete(7, [m.Completion(ticket.held([0]))]))
    rig.send(peer, m.Reserve(8, 1, "OldestFirst", 0.0, 60.0))
    rig.send(peer, m.Cancel(9, submission_id))
    rig.settle()
    assert rig.rows("SELECT * FROM lease") == []


def test_lease_of_what_is_done_is_dropped_from_the_file_at_the_next_start(rig: Rig) -> None:
    """No run of ours leaves one; were it kept, it would be read at every start."""
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1, lease_s=60.0)
    [row] = rig.rows("SELECT * FROM lease")
    assert rig.complete(peer, ticket.held()) == []
    rig.database.begin()
    rig.database.writer.execute(f"INSERT INTO lease VALUES ({', '.join('?' * len(row))})", row)
    rig.database.commit()
    rig.crash()
    rig.settle()
    assert rig.rows("SELECT * FROM lease") == []
    assert rig.status().total.reserved_count == 0


# --- restarts ---


def test_stop_and_start_keep_what_connections_hold_for_thirty_seconds(rig: Rig) -> None:
    submission_id = rig.submit(1)
    rig.reserve(rig.connect())
    rig.restart(away_s=10)
    rig.advance(19.5)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(0.5)
    assert rig.show(submission_id).reserved_count == 0


@pytest.mark.parametrize("starts_late", [False, True])
def test_restart_whose_consumers_do_not_come_back_costs_a_loss_only_what_was_started(
    rig: Rig, starts_late: bool
) -> None:
    """Else a machine that restarts with `max_lost` of 1 would kill chunks with which nobody has begun."""
    submission_id = rig.submit(2, max_lost=2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    if not starts_late:
        rig.start(peer, ticket, [0])
    rig.engine.save_reservations(rig.now)
    rig.settle()
    if starts_late:
        rig.start(peer, ticket, [0])
    rig.restart()
    rig.advance(29)
    assert rig.show(submission_id).reserved_count == 2
    rig.advance(2)
    assert rig.rows("SELECT * FROM lease") == []
    rig.crash()
    found = sorted((ticket.attempt, ticket.indexes) for ticket in rig.reserve(rig.connect(), 2))
    assert found == [(0, [1]), (1, [0])]


def test_end_of_a_lease_of_a_restart_whose_commit_fails_comes_again(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.start(peer, ticket, [0])
    rig.restart()
    for _ in range(31):
        rig.pass_time(1)
        rig.tick()
    rig.fail_commit()
    assert rig.show(submission_id).reserved_count == 2
    rig.advance(3)
    assert rig.show(submission_id).reserved_count == 0
    found = sorted((ticket.attempt, ticket.indexes) for ticket in rig.reserve(rig.connect(), 2))
    assert found == [(0, [1]), (1, [0])]


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_started_behind_a_reassert_of_a_restart_is_so_if_both_are_committed(rig: Rig, fails: bool) -> None:
    rig.submit(1)
    [ticket] = rig.reserve(rig.connect())
    rig.restart()
    peer = rig.connect()
    rig.send(peer, m.Reclaim(1, [ticket.held()]))
    rig.start(peer, ticket)
    if fails:
        rig.fail_commit()
    rig.disconnect(peer)
    rig.advance(32)
    assert attempt(rig) == int(not fails)


def test_what_was_started_before_a_restart_is_so_for_the_client_that_is_back(rig: Rig) -> None:
    """It is lost with the new connection, though nobody has said again that it was started."""
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.start(peer, ticket, [0])
    rig.restart()
    peer = rig.connect()
    assert rig.reclaim(peer, ticket.held()) == []
    rig.disconnect(peer)
    rig.settle()
    found = sorted((ticket.attempt, ticket.indexes) for ticket in rig.reserve(rig.connect(), 2))
    assert found == [(0, [1]), (1, [0])]


def test_client_that_reconnects_after_a_restart_goes_on_with_its_chunk_as_before(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=100.0)
    [ticket] = rig.reserve(rig.connect())
    rig.restart(away_s=5)
    peer = rig.connect()
    assert rig.reclaim(peer, ticket.held()) == []
    rig.advance(99)
    assert rig.show(submission_id).reserved_count == 1
    assert rig.rows("SELECT * FROM lease") == []
    assert rig.complete(peer, ticket.held()) == []


def test_connection_that_closes_after_a_stop_has_saved_it_loses_nothing(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.engine.save_reservations(rig.now)
    rig.settle()
    rig.disconnect(peer)
    rig.settle()
    rig.crash()
    other = rig.connect()
    assert rig.reclaim(other, ticket.held()) == []
    assert rig.complete(other, ticket.held()) == []


def test_client_that_reconnects_after_a_crash_takes_up_chunks_that_nobody_else_has_got(rig: Rig) -> None:
    rig.submit(3)
    [ticket] = rig.reserve(rig.connect(), 2)
    rig.crash()
    thief = rig.connect()
    [stolen] = rig.reserve(thief, 1)
    peer = rig.connect()
    refusals = rig.reclaim(peer, ticket.held())
    assert [(refusal.mask, refusal.code) for refusal in refusals] == [(1, "reservation_lost")]
    assert rig.complete(peer, ticket.held([1])) == []
    assert rig.complete(thief, stolen.held()) == []


def test_lease_that_has_lapsed_and_is_taken_up_again_is_a_lease(rig: Rig) -> None:
    """It outlives the connection and the process, as the one before, and expires by itself."""
    submission_id = rig.submit(2)
    [ticket] = rig.reserve(rig.connect(), 2, lease_s=5.0)
    rig.advance(6)
    assert rig.show(submission_id).reserved_count == 0
    peer = rig.connect()
    assert rig.reclaim(peer, ticket.held(), lease_s=60.0) == []
    rig.disconnect(peer)
    rig.settle()
    assert rig.show(submission_id).reserved_count == 2
    rig.crash()
    assert rig.show(submission_id).reserved_count == 2
    rig.advance(61)
    assert rig.show(submission_id).reserved_count == 0


def test_lease_of_length_0_that_is_taken_up_again_is_as_long_as_its_submission_says(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=30.0)
    [ticket] = rig.reserve(rig.connect(), lease_s=5.0)
    rig.advance(6)
    peer = rig.connect()
    assert rig.reclaim(peer, ticket.held(), lease_s=0.0) == []
    rig.disconnect(peer)
    rig.advance(29)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(2)
    assert rig.show(submission_id).reserved_count == 0


def test_lapsed_lease_is_taken_up_again_only_if_that_is_committed(rig: Rig) -> None:
    submission_id = rig.submit(1)
    [ticket] = rig.reserve(rig.connect(), lease_s=5.0)
    rig.advance(6)
    rig.send(rig.connect(), m.Reclaim(1, [ticket.held()], 60.0))
    rig.fail_commit()
    assert rig.show(submission_id).reserved_count == 0


def test_reassert_that_meets_the_loss_of_the_old_connection_under_way_succeeds(rig: Rig) -> None:
    submission_id = rig.submit(1)
    old, new = rig.connect(), rig.connect()
    [ticket] = rig.reserve(old)
    rig.start(old, ticket)
    rig.disconnect(old)
    assert rig.reclaim(new, ticket.held()) == []
    assert rig.show(submission_id).reserved_count == 1
    assert rig.complete(new, ticket.held()) == []


def test_work_that_goes_on_behind_a_reassert_that_waits_has_started(rig: Rig) -> None:
    """The client says so right behind the reclaim, which meets the loss of its old connection under way."""
    rig.submit(1)
    old, new = rig.connect(), rig.connect()
    [ticket] = rig.reserve(old)
    rig.start(old, ticket)
    rig.disconnect(old)
    rig.send(new, m.Reclaim(1, [ticket.held()]))
    rig.start(new, ticket)
    rig.settle()
    assert rig.replies(new, 1) == [m.Completed(1)]
    rig.disconnect(new)
    rig.settle()
    assert attempt(rig) == 2


def test_work_has_started_on_all_that_a_reassert_that_waits_takes_up(rig: Rig) -> None:
    """It waits for a chunk that somebody else is completing; a second one waits with it."""
    rig.submit(3)
    old = rig.connect()
    tickets = [*rig.reserve(old, 2), *rig.reserve(old, 1)]
    rig.crash()
    thief, peer = rig.connect(), rig.connect()
    [stolen] = rig.reserve(thief, 1)
    rig.send(thief, m.Complete(1, [m.Completion(stolen.held())]))
    rig.send(peer, m.Reclaim(2, [ticket.held() for ticket in tickets]))
    rig.send(peer, m.Reclaim(3, [tickets[0].held()]))
    for ticket in tickets:
        rig.start(peer, ticket)
    rig.settle()
    rig.disconnect(peer)
    rig.settle()
    assert [(ticket.attempt, ticket.indexes) for ticket in rig.reserve(rig.connect(), 3)] == [(1, [1, 2])]


def test_reassert_that_waits_and_fails_forgets_what_has_started(rig: Rig) -> None:
    rig.submit(1)
    old, new = rig.connect(), rig.connect()
    [ticket] = rig.reserve(old)
    rig.start(old, ticket)
    rig.disconnect(old)
    rig.send(new, m.Reclaim(1, [ticket.held()]))
    rig.start(new, ticket)
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(new, 1)
    rig.send(new, m.Reclaim(1, [ticket.held()]))
    rig.advance(2)  # a full disk is asked for room once a second
    rig.disconnect(new)
    rig.settle()
    assert attempt(rig) == 0


def test_reassert_takes_a_reservation_over_from_a_connection_that_is_still_there(rig: Rig) -> None:
    submission_id = rig.submit(1)
    old, new = rig.connect(), rig.connect()
    [ticket] = rig.reserve(old)
    rig.start(old, ticket)
    assert rig.reclaim(new, ticket.held()) == []
    rig.disconnect(old)
    assert rig.show(submission_id).reserved_count == 1


def test_reassert_that_had_to_wait_takes_nothing_for_a_connection_that_is_gone(rig: Rig) -> None:
    """Chunks that it took would be held by nobody, and never be free again."""
    submission_id = rig.submit(2)
    old, new = rig.connect(), rig.connect()
    [ticket] = rig.reserve(old, 2)
    rig.send(old, m.Complete(1, [m.Completion(ticket.held([0]))]))
    assert rig.begin()
    rig.send(new, m.Reclaim(2, [ticket.held()]))
    rig.disconnect(new)
    rig.end(None)
    rig.settle()
    assert rig.show(submission_id).reserved_count == 1
    rig.disconnect(old)
    assert rig.show(submission_id).reserved_count == 0


def test_reassert_with_a_wrong_token_is_refused(rig: Rig) -> None:
    rig.submit(1)
    [ticket] = rig.reserve(rig.connect())
    rig.crash()
    assert codes(rig.reclaim(rig.connect(), ticket.held(mac=1))) == ["reservation_lost"]


def test_crash_of_consumer_and_engine_strands_nothing(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    rig.reserve(peer, 1)
    rig.reserve(peer, 1, lease_s=5.0)
    rig.crash()
    assert [ticket.indexes for ticket in rig.reserve(rig.connect(), 5)] == [[0]]
    rig.advance(5)
    assert [ticket.indexes for ticket in rig.reserve(rig.connect(), 5)] == [[1]]


def test_chunk_that_is_taken_up_again_counts_once_under_a_gate(rig: Rig) -> None:
    for _ in range(3):
        rig.submit(1, metadata={"tenant": "a"})
    gated = "MaxSimultaneous(tenant, 2, OldestFirst)"
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1, gated)
    rig.crash()
    peer = rig.connect()
    rig.reserve(rig.connect(), 0 + 1, "MaxSimultaneous(tenant, 1, NewestFirst)")
    assert rig.reclaim(peer, ticket.held()) == []
    assert rig.reserve(peer, 5, gated) == []
    rig.release(peer, ticket.held())
    assert len(rig.reserve(peer, 5, gated)) == 1


def test_lease_that_expires_while_its_submission_ends_in_vain_expires_after_that(rig: Rig) -> None:
    """The commit of the end fails, so the row of the lease is still there: memory must not have forgotten it."""
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1, lease_s=2.0)
    rig.send(peer, m.Cancel(1, submission_id))
    assert rig.begin()
    for _ in range(2):
        rig.pass_time(1)
        rig.tick()
    rig.end(apsw.FullError("database or disk is full"))
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(3)
    assert rig.show(submission_id).reserved_count == 0
    assert rig.rows("SELECT * FROM lease") == []
    assert rig.complete(peer, ticket.held()) == []


def test_lease_that_is_taken_up_again_while_it_expires_has_a_deadline_again(rig: Rig) -> None:
    """The loss of its other chunk is being committed, so the lease is still known.

    What it takes up must not be held for ever.
    """
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, lease_s=2.0)
    rig.release(peer, ticket.held([0]))
    for _ in range(2):
        rig.pass_time(1)
        rig.tick()
    assert rig.reclaim(peer, ticket.held([0])) == []
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(600)
    assert rig.show(submission_id).reserved_count == 0


def test_lease_holds_what_it_has_taken_up_only_if_that_is_committed(rig: Rig) -> None:
    """Else memory would hold chunks for it of which the file knows nothing."""
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, lease_s=60.0)
    rig.release(peer, ticket.held([0]))
    rig.send(peer, m.Reclaim(1, [ticket.held()]))
    rig.fail_commit()
    assert rig.show(submission_id).reserved_count == 1


def test_lease_that_expired_in_vain_and_is_taken_up_again_has_begun_nothing(rig: Rig) -> None:
    """The commit of the loss fails; then the consumer is back, begins with nothing, and is gone: that is no loss."""
    rig.submit(1)
    [ticket] = rig.reserve(rig.connect())
    rig.restart()
    for _ in range(31):
        rig.pass_time(1)
        rig.tick()
    rig.fail_commit()
    peer = rig.connect()
    rig.send(peer, m.Reclaim(99, [ticket.held()]))
    rig.advance(1)  # a full disk is asked for room once a second
    assert rig.replies(peer, 99) == [m.Completed(99)]
    rig.disconnect(peer)
    rig.settle()
    assert attempt(rig) == 0
