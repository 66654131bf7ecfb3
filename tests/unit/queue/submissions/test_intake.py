"""A drained daemon: what is refused, what is answered, what goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import QueueDraining
from opsq.wire import messages as m
from unit.model.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def drain(rig: Rig, *, is_undo: bool = False) -> int:
    return rig.only(rig.connect(), m.Drain(next(rig.ids), is_undo), m.Changed).count


def capacity(rig: Rig) -> m.Capacity:
    return rig.only(rig.connect(), m.CheckCapacity(next(rig.ids), 1, 0, 0.0), m.Capacity)


def test_new_submissions_are_refused_until_that_is_undone_and_over_a_crash(rig: Rig) -> None:
    assert drain(rig) == 1
    assert drain(rig) == 0
    for _ in range(2):
        with pytest.raises(QueueDraining):
            rig.submit(1)
        with pytest.raises(QueueDraining):
            capacity(rig)
        assert not rig.status().takes_new
        rig.crash()
    assert drain(rig, is_undo=True) == 1
    assert drain(rig, is_undo=True) == 0
    rig.submit(1)
    assert rig.status().takes_new


def test_drain_whose_commit_is_lost_is_none(rig: Rig) -> None:
    rig.send(rig.connect(), m.Drain(next(rig.ids)))
    rig.fail_commit()
    rig.advance(2)
    rig.submit(1)


def test_what_a_key_has_made_is_answered(rig: Rig) -> None:
    new = m.NewSubmission(rig.request_key(), 1, idempotency_key="once", unique_key="only")
    made = rig.only(rig.connect(), m.Submit(next(rig.ids), [new]), m.Submitted).created[0]
    drain(rig)
    for again in (
        new,
        m.NewSubmission(rig.request_key(), 1, idempotency_key="once"),
        m.NewSubmission(rig.request_key(), 1, unique_key="only"),
    ):
        [found] = rig.only(rig.connect(), m.Submit(next(rig.ids), [again]), m.Submitted).created
        assert (found.submission_id, found.is_new) == (made.submission_id, False)


def test_follow_ups_still_come_with_their_completion(rig: Rig) -> None:
    rig.submit(1)
    drain(rig)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    done = rig.follow(peer, ticket.held(), m.NewSubmission(rig.request_key(), 1))
    assert len(done.created) == 1
    assert len(rig.reserve(peer)) == 1


def test_schedule_waits_as_if_no_daemon_ran_and_catches_up_after_that(rig: Rig) -> None:
    template = m.NewSubmission(bytes(16), 0)
    peer = rig.connect()
    rig.only(peer, m.PutSchedule(next(rig.ids), m.Schedule("often", "every 1m", template, catch_up="last")), m.Changed)
    drain(rig)
    for request in (m.TriggerSchedule(next(rig.ids), "often"), m.BackfillSchedule(next(rig.ids), "often", 0, 1)):
        with pytest.raises(QueueDraining):
            rig.ask(peer, request)
    rig.advance(600)
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]
    drain(rig, is_undo=True)
    rig.advance(1)
    assert rig.rows("SELECT count(*) FROM submission") == [(1,)]


def test_who_waits_for_room_is_refused_when_the_drain_begins(tmp_path: Path) -> None:
    from opsq.queue.policy import Policy

    rig = Rig(tmp_path, Policy(max_backlog_chunks=1))
    rig.submit(1)
    peer = rig.connect()
    request = m.Submit(next(rig.ids), [m.NewSubmission(rig.request_key(), 1)], None)
    assert rig.ask(peer, request) == []
    drain(rig)
    with pytest.raises(QueueDraining):
        rig.replies(peer, request.id)
