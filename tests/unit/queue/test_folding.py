"""Folding: completions move from history into blocks in slices, soon enough, and nobody can tell from outside."""

from __future__ import annotations

import pytest

from opsq.queue import folding
from opsq.wire import messages as m
from unit.model.rig import Rig


def unfolded(rig: Rig) -> int:
    return rig.status().unfolded_count


def complete_every(rig: Rig, step: int, count: int) -> int:
    """Complete `count` chunks, `step` apart, each as an event of its own; the submission."""
    submission_id = rig.submit(step * count)
    peer = rig.connect()
    tickets = rig.reserve(peer, step * count)
    wanted = set(range(0, step * count, step))
    completions = [
        m.Completion(ticket.held([index])) for ticket in tickets for index in ticket.indexes if index in wanted
    ]
    rig.send(peer, m.Complete(next(rig.ids), completions))
    return submission_id


def test_completion_is_one_appended_row_and_no_block_until_it_is_folded(rig: Rig) -> None:
    rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.complete(peer, ticket.held())
    assert rig.rows("SELECT count(*) FROM history") == [(1,)]
    assert rig.rows("SELECT count(*) FROM block") == [(0,)]
    rig.fold()
    assert rig.rows("SELECT block, pending FROM block") == [(0, 0b100)]


def test_finished_block_has_no_row_and_the_frontier_stands_behind_it(rig: Rig) -> None:
    rig.submit(200)
    peer = rig.connect()
    first, second, *_ = rig.reserve(peer, 200)
    rig.complete(peer, second.held())
    rig.fold()
    assert rig.rows("SELECT block, pending FROM block") == [(0, -1)]
    rig.complete(peer, first.held())
    rig.fold()
    assert rig.rows("SELECT block, pending FROM block") == []
    assert rig.rows("SELECT frontier FROM submission") == [(2,)]


def test_events_are_folded_ten_seconds_after_they_came_however_many(rig: Rig) -> None:
    complete_every(rig, 64, 4000)
    rig.settle()
    assert unfolded(rig) == 4000
    rig.advance(10)
    assert unfolded(rig) == 0


def test_events_that_come_faster_than_slices_of_one_size_stay_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "SLICE_EVENTS", 10)
    monkeypatch.setattr(folding, "LAZY_EVENTS", 40)
    most = 0
    for _ in range(40):
        complete_every(rig, 64, 100)
        rig.commit()
        most = max(most, unfolded(rig))
    assert most <= 100 * folding.SLICE_PART + 100


def test_completion_far_ahead_of_the_frontier_is_folded_in_bounded_steps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "SLICE_GAPS", 4)
    submission_id = rig.submit(64 * 50)
    peer = rig.connect()
    tickets = rig.reserve(peer, 64 * 50)
    rig.complete(peer, tickets[-1].held())
    rig.pass_time(11)
    rig.commit()
    assert rig.rows("SELECT frontier FROM submission") == [(4,)]
    assert rig.broken_rules() == []
    rig.settle()
    assert rig.rows("SELECT frontier FROM submission") == [(50,)]
    assert rig.show(submission_id).completed_count == 64


def test_fold_that_cannot_be_committed_is_made_later(rig: Rig) -> None:
    complete_every(rig, 64, 10)
    rig.settle()
    rig.pass_time(11)
    rig.fail_commit()
    assert unfolded(rig) == 10
    rig.advance(2)
    assert unfolded(rig) == 0


@pytest.mark.parametrize("is_committed", [False, True])
def test_crash_around_a_fold_loses_and_repeats_nothing(rig: Rig, is_committed: bool) -> None:
    submission_id = complete_every(rig, 70, 10)
    rig.settle()
    rig.pass_time(11)
    assert rig.begin()
    if is_committed:
        rig.database.commit()
    rig.crash()
    assert rig.broken_rules() == []
    assert rig.show(submission_id).completed_count == 10
    rig.fold()
    assert rig.show(submission_id).completed_count == 10
    assert sum(ticket.granted.bit_count() for ticket in rig.reserve(rig.connect(), 10_000)) == 690


def test_unfolded_completions_of_a_crashed_engine_are_on_top_of_what_blocks_say(rig: Rig) -> None:
    submission_id = complete_every(rig, 1, 100)
    rig.settle()
    rig.crash()
    assert rig.status().total.completed_count == 100
    assert rig.status().total.waiting_count == 0
    assert rig.show(submission_id).state == "completed"
    assert rig.reserve(rig.connect(), 5) == []


def test_history_of_a_block_is_found_by_it_after_the_fold(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.fail(peer, ticket.held([0]), delay_s=0.0, reason="first")
    rig.complete(peer, ticket.held([1]))
    rig.fold()
    rows = rig.rows("SELECT event, mask FROM history JOIN history_block USING (seq) ORDER BY seq")
    assert rows == [("failed", 1), ("completed", 2)]
    assert rig.rows("SELECT DISTINCT submission_id FROM history_block") == [(submission_id,)]


def test_stopped_file_tells_the_whole_truth_by_itself(rig: Rig) -> None:
    complete_every(rig, 1, 100)
    rig.restart()
    assert rig.rows("SELECT chunks_completed FROM submission") == [(100,)]
    assert unfolded(rig) == 0
