"""How submissions end: completed, failed, cancelled, expired, removed; scheduled ones that open.

And that an end is final.
"""

from __future__ import annotations

import pytest

from opsq.errors import Conflict, NotFinished, NotFound, StorageFull
from opsq.store import removals
from opsq.wire import messages as m
from unit.model.rig import Rig


def cancel(rig: Rig, submission_id: int) -> int:
    return rig.only(rig.connect(), m.Cancel(next(rig.ids), submission_id, "not needed"), m.Changed).count


def remove(rig: Rig, submission_id: int) -> None:
    rig.only(rig.connect(), m.Remove(next(rig.ids), submission_id), m.Changed)


# --- cancelled ---


def test_cancelled_submission_offers_nothing_and_tells_its_holders(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer = rig.connect()
    rig.reserve(peer, 1)
    assert cancel(rig, submission_id) == 1
    assert rig.pushes(peer, m.Revoked) == [m.Revoked([m.ChunkMask(submission_id, 0, 1)], "cancelled")]
    assert rig.reserve(peer, 5) == []
    state = rig.show(submission_id)
    assert (state.state, state.skipped_count, state.reason) == ("cancelled", 3, "not needed")
    assert cancel(rig, submission_id) == 0


def test_cancel_of_an_unknown_submission_is_refused(rig: Rig) -> None:
    with pytest.raises(NotFound):
        cancel(rig, 99)


def test_cancelled_submission_with_delayed_chunks_counts_none_of_them_as_delayed(rig: Rig) -> None:
    """Also when the back-off would have ended, and when it is revived."""
    submission_id = rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 3)
    rig.complete(peer, ticket.held([0]))
    rig.fail(peer, ticket.held([1]), delay_s=5.0)
    cancel(rig, submission_id)
    assert rig.show(submission_id).delayed_count == 0
    rig.advance(2)
    rig.ask(peer, m.Requeue(9, submission_id))
    assert [ticket.indexes for ticket in rig.reserve(peer, 5)] == [[2]]
    assert rig.show(submission_id).delayed_count == 1
    rig.advance(12)
    assert rig.show(submission_id).delayed_count == 0


def test_cancel_works_while_the_engine_drains(rig: Rig) -> None:
    submission_id = rig.submit(1)
    rig.engine.stop_handing_out()
    assert cancel(rig, submission_id) == 1


def test_cancel_of_what_is_being_requeued_counts_the_requeued_chunks_as_skipped(rig: Rig) -> None:
    submission_id = rig.submit(3, keep_on_dead=True)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), is_final=True)
    rig.fold()
    rig.send(peer, m.Requeue(1, submission_id))
    rig.commit()
    rig.send(peer, m.Cancel(2, submission_id))
    rig.settle()
    state = rig.show(submission_id)
    assert (state.state, state.dead_count, state.skipped_count) == ("cancelled", 0, 3)


def test_ended_submission_leaves_nothing_in_memory(rig: Rig) -> None:
    submission_id = rig.submit(200)
    peer = rig.connect()
    tickets = rig.reserve(peer, 150)
    rig.complete(peer, tickets[0].held())
    rig.fail(peer, tickets[1].held([70, 71]), delay_s=60.0)
    rig.complete(peer, tickets[1].held([72]))
    cancel(rig, submission_id)
    rig.fold()
    rig.complete(peer, tickets[2].held())
    assert rig.engine._state.live.get(submission_id) is None or not rig.engine._state.live[submission_id].blocks


# --- failed ---


def test_dead_chunk_fails_its_submission_and_skips_the_others(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer, other = rig.connect(), rig.connect()
    [ticket] = rig.reserve(peer)
    rig.reserve(other)
    rig.fail(peer, ticket.held(), is_final=True, reason="no such column")
    state = rig.show(submission_id)
    assert (state.state, state.dead_count, state.skipped_count) == ("failed", 1, 2)
    assert "no such column" in state.reason
    assert rig.pushes(other, m.Revoked) == [m.Revoked([m.ChunkMask(submission_id, 0, 2)], "reservation_lost")]


def test_dead_chunk_of_a_submission_that_keeps_on_leaves_the_rest_to_be_done(rig: Rig) -> None:
    submission_id = rig.submit(2, keep_on_dead=True)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.fail(peer, ticket.held([0]), is_final=True)
    assert rig.show(submission_id).state == "open"
    rig.complete(peer, ticket.held([1]))
    state = rig.show(submission_id)
    assert (state.state, state.completed_count, state.dead_count) == ("completed", 1, 1)


# --- expired, scheduled ---


def test_submission_with_a_time_to_live_expires_after_it(rig: Rig) -> None:
    submission_id = rig.submit(2, expires_s=10.0)
    rig.advance(9.5)
    assert rig.show(submission_id).state == "open"
    rig.advance(0.5)
    state = rig.show(submission_id)
    assert (state.state, state.skipped_count) == ("expired", 2)


def test_submission_with_a_time_to_expire_at_follows_the_wall_clock(rig: Rig) -> None:
    submission_id = rig.submit(2, expires_at=rig.now.wall + 3_600_000)
    rig.pass_time(1, wall_s=3_600)
    rig.tick()
    rig.settle()
    assert rig.show(submission_id).state == "expired"


@pytest.mark.parametrize("option", ["expires_s", "expires_at"])
def test_expiry_of_a_submission_whose_commit_fails_comes_again(rig: Rig, option: str) -> None:
    value = 5.0 if option == "expires_s" else rig.now.wall + 5000
    submission_id = rig.submit(1, **{option: value})
    rig.pass_time(5)
    rig.tick()
    rig.fail_commit()
    assert rig.show(submission_id).state == "open"
    rig.advance(3)
    assert rig.show(submission_id).state == "expired"


def test_completed_submission_does_not_expire(rig: Rig) -> None:
    submission_id = rig.submit(1, expires_s=5.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    rig.advance(10)
    assert rig.show(submission_id).state == "completed"


@pytest.mark.parametrize("option", ["delay_s", "not_before_at"])
def test_scheduled_submission_is_offered_when_it_is_due_and_not_before(rig: Rig, option: str) -> None:
    value = 5.0 if option == "delay_s" else rig.now.wall + 5000
    submission_id = rig.submit(1, **{option: value})
    peer = rig.connect()
    rig.advance(4.5)
    assert rig.reserve(peer) == []
    assert rig.show(submission_id).state == "scheduled"
    rig.advance(0.5)
    assert len(rig.reserve(peer)) == 1


@pytest.mark.parametrize("option", ["delay_s", "not_before_at"])
def test_opening_of_a_scheduled_submission_whose_commit_fails_comes_again(rig: Rig, option: str) -> None:
    value = 5.0 if option == "delay_s" else rig.now.wall + 5000
    rig.submit(1, **{option: value})
    rig.pass_time(5)
    rig.tick()
    rig.fail_commit()
    rig.advance(3)
    assert len(rig.reserve(rig.connect())) == 1


def test_delay_goes_on_over_a_restart(rig: Rig) -> None:
    rig.submit(1, delay_s=10.0)
    rig.advance(4)
    rig.restart(away_s=3)
    rig.advance(2.5)
    assert rig.reserve(rig.connect()) == []
    rig.advance(0.5)
    assert len(rig.reserve(rig.connect())) == 1


def test_scheduled_submission_can_be_cancelled_and_never_opens(rig: Rig) -> None:
    submission_id = rig.submit(1, delay_s=5.0)
    assert cancel(rig, submission_id) == 1
    rig.advance(10)
    assert rig.show(submission_id).state == "cancelled"


# --- removed ---


def test_removed_submission_is_gone_with_everything_and_its_content_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "REMOVE_ROWS", 2)
    submission_id = rig.submit(64 * 9, metadata={"tenant": "a"}, keep_on_dead=True)
    kept = rig.submit(1, metadata={"tenant": "b"})
    peer = rig.connect()
    tickets = rig.reserve(peer, 64 * 9)
    for ticket in tickets:
        rig.fail(peer, ticket.held([ticket.indexes[0]]), is_final=True)
        rig.complete(peer, ticket.held([ticket.indexes[1]]), results=m.msgspec.Raw(b"\x91\xc4\x01x"))
    cancel(rig, submission_id)
    rig.fold()
    remove(rig, submission_id)
    with pytest.raises(NotFound):
        rig.show(submission_id)
    for _ in range(20):
        rig.tick()
        rig.settle()
    for table in ("block", "attempt", "dead", "result", "history_block", "submission_lane", "lane_submission"):
        assert rig.rows(f"SELECT * FROM {table} WHERE submission_id = {submission_id}") == [], table
    assert rig.rows("SELECT value FROM lane WHERE key = 'tenant'") == [("b",)]
    assert rig.engine.removed_content == [(1).to_bytes(16, "big").hex()]
    assert rig.show(kept).state == "open"
    assert rig.status().total.submissions_count == 1


def test_removal_goes_on_after_a_crash(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "REMOVE_ROWS", 2)
    submission_id = rig.submit(64 * 9, keep_on_dead=True)
    peer = rig.connect()
    for ticket in rig.reserve(peer, 64 * 9):
        rig.fail(peer, ticket.held([ticket.indexes[0]]), is_final=True)
    cancel(rig, submission_id)
    rig.fold()
    remove(rig, submission_id)
    rig.tick()
    rig.settle()
    rig.crash()
    with pytest.raises(NotFound):
        rig.show(submission_id)
    for _ in range(20):
        rig.tick()
        rig.settle()
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]
    assert rig.rows("SELECT count(*) FROM block") == [(0,)]
    assert rig.engine.removed_content == [(1).to_bytes(16, "big").hex()]


def test_removal_of_the_last_of_a_metadata_value_spares_one_that_is_just_submitted(rig: Rig) -> None:
    submission_id = rig.submit(1, metadata={"tenant": 7})
    cancel(rig, submission_id)
    peer = rig.connect()
    rig.send(peer, m.Remove(1, submission_id))
    rig.commit()
    rig.send(peer, m.Submit(2, [m.NewSubmission(rig.request_key(), 1, metadata={"tenant": 7})]))
    rig.tick()
    rig.settle()
    assert rig.broken_rules() == []
    assert [(counts.value, counts.submissions_count) for counts in rig.status("tenant").by] == [(7, 1)]


def test_removal_of_an_unfinished_submission_is_refused(rig: Rig) -> None:
    submission_id = rig.submit(1)
    with pytest.raises(NotFinished):
        remove(rig, submission_id)


def test_second_removal_is_refused_while_the_first_is_being_committed_and_finds_nothing_after(rig: Rig) -> None:
    submission_id = rig.submit(0)
    peer = rig.connect()
    rig.send(peer, m.Remove(1, submission_id))
    with pytest.raises(Conflict):
        rig.send(peer, m.Remove(2, submission_id))
    rig.settle()
    with pytest.raises(NotFound):
        rig.send(peer, m.Remove(3, submission_id))


def test_removal_whose_commit_fails_changes_nothing(rig: Rig) -> None:
    submission_id = rig.submit(0)
    peer = rig.connect()
    rig.send(peer, m.Remove(1, submission_id))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 1)
    assert rig.show(submission_id).state == "completed"
    rig.advance(2)
    remove(rig, submission_id)


def test_identifier_of_a_removed_submission_is_not_given_out_again_when_the_clock_steps_back(rig: Rig) -> None:
    """Its handles would be good for the new one."""
    submission_id = rig.submit(0)
    remove(rig, submission_id)
    for _ in range(3):
        rig.tick()
        rig.settle()
    rig.restart(away_s=1, wall_s=-3600)
    assert rig.submit(1) > submission_id


def test_counts_are_right_when_a_submission_is_removed_before_its_completions_are_folded_and_all_crashes(
    rig: Rig,
) -> None:
    rig.submit(5)
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, "NewestFirst")
    rig.complete(peer, ticket.held())
    remove(rig, submission_id)
    for _ in range(3):
        rig.tick()
        rig.settle()
    rig.crash()
    rig.fold()
    total = rig.status().total
    assert (total.submissions_count, total.waiting_count, total.completed_count) == (1, 5, 0)
