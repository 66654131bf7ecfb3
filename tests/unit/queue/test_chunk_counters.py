"""What is counted for monitoring: each attempt once, after its commit, with how long it waited and ran."""

from __future__ import annotations

import pytest

from opsq.queue.views import reports
from opsq.wire import messages as m
from unit.model.rig import Rig


def measures(rig: Rig) -> m.Measures:
    """What monitoring is told now."""
    state = rig.only(rig.connect("asker"), m.Status(next(rig.ids), measures=True), m.DaemonState)
    assert state.measures is not None
    return state.measures


def sizes(durations: m.Durations) -> dict[float, int]:
    """How many durations are in each class that has some, by its bound."""
    bounds = [*durations.bounds_s, float("inf")]
    return {bound: count for bound, count in zip(bounds, durations.counts, strict=True) if count}


def test_attempts_are_counted_by_what_became_of_them_with_their_times(rig: Rig) -> None:
    rig.submit(70, max_attempts=2, keep_on_dead=True)
    peer = rig.connect()
    rig.pass_time(5)
    first, second = rig.reserve(peer, 70)
    rig.only(
        peer,
        m.Complete(next(rig.ids), [m.Completion(first.held(range(60)), run_s=30.0, run_max_s=2.0)]),
        m.Completed,
    )
    rig.fail(peer, first.held([60]), is_final=True, run_s=100.0)
    rig.fail(peer, first.held([61]), delay_s=0.0, run_s=0.005)
    rig.release(peer, first.held([62]))
    rig.send(peer, m.Started([second.held([64])]))
    rig.pass_time(7)
    rig.disconnect(peer)
    rig.settle()
    found = measures(rig)
    assert found.events == {"completed": 60, "failed": 2, "lost": 1, "dead": 1, "requeued": 0, "dropped": 0}
    assert sizes(found.waits) == {10.0: 63}
    assert found.waits.sum_s == pytest.approx(63 * 5)
    assert sizes(found.runs) == {0.01: 1, 1.0: 60, 10.0: 1, 600.0: 1}
    assert found.runs.sum_s == pytest.approx(30 + 100 + 0.005 + 7)


def test_each_of_many_completions_is_counted_once(rig: Rig) -> None:
    rig.submit(100)
    peer = rig.connect()
    for done in range(1, 101):
        [ticket] = rig.reserve(peer, 1)
        rig.only(peer, m.Complete(next(rig.ids), [m.Completion(ticket.held(), run_s=done / 1000)]), m.Completed)
        if done % 45 == 0:
            assert measures(rig).events["completed"] == done
    found = measures(rig)
    assert found.events["completed"] == sum(found.runs.counts) == 100
    assert sizes(found.runs) == {0.01: 10, 0.1: 90}
    assert found.runs.sum_s == pytest.approx(5.05)


def test_what_was_not_committed_is_not_counted(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.send(peer, m.Complete(next(rig.ids), [m.Completion(ticket.held())]))
    rig.fail_commit()
    assert measures(rig).events["completed"] == 0


def test_nothing_is_measured_unless_asked_for(rig: Rig) -> None:
    assert rig.status().measures is None


def test_oldest_waiting_is_the_oldest_submission_with_a_chunk_to_hand_out(rig: Rig) -> None:
    assert measures(rig).oldest_waiting_s == 0.0
    rig.submit(2)
    rig.pass_time(100)
    rig.submit(1)
    rig.pass_time(10)
    assert measures(rig).oldest_waiting_s == pytest.approx(110)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    assert measures(rig).oldest_waiting_s == pytest.approx(10)
    rig.release(peer, ticket.held([1]))
    assert measures(rig).oldest_waiting_s == pytest.approx(110)
    rig.reserve(peer, 3)
    assert measures(rig).oldest_waiting_s == 0.0
    assert measures(rig).consumers_count == 1


def test_scheduled_submission_does_not_wait_before_it_is_due(rig: Rig) -> None:
    rig.submit(1, delay_s=60.0)
    rig.advance(50)
    assert measures(rig).oldest_waiting_s == 0.0
    rig.advance(40)
    assert measures(rig).oldest_waiting_s == pytest.approx(30, abs=1)


def test_search_for_the_oldest_ends_behind_many_that_are_busy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "OLDEST_ROWS", 3)
    peer = rig.connect()
    for _ in range(4):
        rig.submit(1)
        rig.pass_time(10)
    rig.reserve(peer, 3)
    assert measures(rig).oldest_waiting_s == pytest.approx(20)
    rig.reserve(peer, 1)
    assert measures(rig).oldest_waiting_s == 0.0
