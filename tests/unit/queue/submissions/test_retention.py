"""Retention: finished submissions and old history go, in slices, and nothing else does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.queue.policy import Policy
from opsq.queue.submissions import garbage, retention
from opsq.store import history, lanes
from opsq.wire import messages as m
from unit.model.rig import Rig

DAY_S = 86_400


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    """An engine that keeps submissions for a day, and five rows of history."""
    rig = Rig(runtime_dir, Policy(finished_days=1.0, history_days=2.0, history_rows=5))
    yield rig
    rig.settle()
    assert rig.broken_rules() == []
    rig.close()


def look_around(rig: Rig, ticks: int = 5) -> None:
    """Have retention look once, and finish what it finds."""
    rig.pass_time(61)
    for _ in range(ticks):
        rig.tick()
        rig.settle()


def count(rig: Rig, table: str) -> int:
    return int(str(rig.rows(f"SELECT count(*) FROM {table}")[0][0]))


def complete_one_by_one(rig: Rig, chunks_count: int) -> int:
    submission_id = rig.submit(chunks_count)
    peer = rig.connect()
    for _ in range(chunks_count):
        [ticket] = rig.reserve(peer)
        rig.complete(peer, ticket.held())
    return submission_id


def test_finished_submission_is_removed_after_its_time_with_its_content(rig: Rig) -> None:
    rig.submit(0)
    rig.pass_time(DAY_S - 120)
    look_around(rig)
    assert count(rig, "submission") == 1
    rig.pass_time(120)
    look_around(rig)
    assert count(rig, "submission") == 0
    assert rig.engine.removed_content == [(1).to_bytes(16, "big").hex()]


def test_unfinished_submission_is_kept_however_old(rig: Rig) -> None:
    rig.submit(1)
    rig.pass_time(100 * DAY_S)
    look_around(rig)
    assert count(rig, "submission") == 1


def test_more_finished_submissions_than_one_look_takes_are_removed_without_waiting_a_minute_each(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "HIDE_LIMIT", 3)
    peer = rig.connect()
    rig.ask(peer, m.Submit(1, [m.NewSubmission(rig.request_key(), 0) for _ in range(20)]))
    rig.pass_time(2 * DAY_S)
    rig.pass_time(61)
    for _ in range(60):
        rig.pass_time(0.5)
        rig.tick()
        rig.settle()
    assert count(rig, "submission") == 0


def remove_old(rig: Rig) -> int:
    """Have everything removed that is old enough, at one instant, as a daemon does; how many commits that took."""
    rig.pass_time(61)
    rig.tick()
    commits_count = 0
    while rig.engine.has_batch(rig.now):
        assert commits_count < 1000
        rig.commit()
        commits_count += 1
        if rig.engine.next_tick_s(rig.now) == 0.0:
            rig.tick()
    return commits_count


def test_thousands_of_small_submissions_that_are_old_go_at_once_and_many_with_each_commit(rig: Rig) -> None:
    peer = rig.connect()
    new = [m.NewSubmission(rig.request_key(), 1, metadata={"tenant": number % 7}) for number in range(1000)]
    rig.ask(peer, m.Submit(next(rig.ids), new))
    rig.complete(peer, *(ticket.held() for ticket in rig.reserve(peer, 1000)))
    rig.fold()
    rig.pass_time(2 * DAY_S)
    assert remove_old(rig) < 50
    assert (count(rig, "submission"), count(rig, "history_block")) == (0, 0)
    assert len(set(rig.engine.removed_content)) == len(rig.engine.removed_content) == 1000


def test_old_submissions_that_cannot_go_now_keep_no_daemon_busy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "HIDE_LIMIT", 3)
    for _ in range(4):
        rig.engine._state.find(rig.submit(0)).is_held = True
    rig.pass_time(2 * DAY_S)
    assert remove_old(rig) < 10
    assert count(rig, "submission") == 4


def test_history_beyond_its_count_is_pruned_and_the_newest_rows_stay(rig: Rig) -> None:
    complete_one_by_one(rig, 12)
    rig.fold()
    look_around(rig)
    assert rig.rows("SELECT min(seq), max(seq), count(*) FROM history") == [(8, 12, 5)]
    assert count(rig, "history_block") == 5


def test_history_that_is_not_folded_is_never_pruned(rig: Rig) -> None:
    submission_id = complete_one_by_one(rig, 12)
    rig.engine._rooms.retention._next = rig.now.mono
    rig.tick()
    rig.settle()
    assert count(rig, "history") == 12
    rig.crash()
    assert rig.show(submission_id).completed_count == 12


def test_history_older_than_its_time_is_pruned(rig: Rig) -> None:
    rig.submit(1)
    complete_one_by_one(rig, 2)
    rig.fold()
    rig.pass_time(DAY_S)
    complete_one_by_one(rig, 1)
    rig.fold()
    rig.pass_time(DAY_S + 60)
    look_around(rig, 10)
    assert rig.rows("SELECT seq FROM history") == [(3,)]


def test_pruning_goes_in_slices_and_ends_by_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PRUNE_ROWS", 2)
    complete_one_by_one(rig, 12)
    rig.fold()
    rig.pass_time(61)
    sizes = [count(rig, "history")]
    while rig.engine.next_tick_s(rig.now) == 0.0 or len(sizes) < 3:
        rig.tick()
        rig.settle()
        sizes.append(count(rig, "history"))
        assert len(sizes) < 20
    assert all(before - after <= 2 for before, after in itertools.pairwise(sizes))
    assert sizes[-1] == 5


def test_events_go_on_counting_after_all_history_was_pruned(rig: Rig) -> None:
    complete_one_by_one(rig, 2)
    rig.fold()
    rig.pass_time(5 * DAY_S)
    look_around(rig, 10)
    assert count(rig, "history") == 0
    rig.restart()
    complete_one_by_one(rig, 1)
    assert rig.rows("SELECT seq FROM history") == [(3,)]


def test_removal_by_retention_that_cannot_be_committed_comes_again(rig: Rig) -> None:
    rig.submit(0)
    rig.pass_time(2 * DAY_S)
    rig.tick()
    rig.fail_commit()
    rig.advance(2)
    look_around(rig)
    assert count(rig, "submission") == 0


# --- leftovers ---


def finish(rig: Rig, submission_id: int) -> None:
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), submission_id))


def weights(rig: Rig) -> list[tuple[str, int | str, float]]:
    state = rig.only(rig.connect(), m.ShowRules(next(rig.ids)), m.RulesState)
    return [(one.key, one.value, one.weight) for one in state.weights]


def test_lane_that_was_kept_as_the_newest_goes_when_it_is_not_that_any_more(rig: Rig) -> None:
    for number in range(5):
        finish(rig, rig.submit(1, metadata={"n": number}))
        rig.pass_time(DAY_S + 60)
        look_around(rig)
    look_around(rig)
    assert rig.rows("SELECT value FROM lane WHERE id > 0") == [(4,)]
    rig.submit(1, metadata={"n": 4})
    rig.submit(1, metadata={"n": 0})
    assert [(counts.value, counts.waiting_count) for counts in rig.status("n").by] == [(0, 1), (4, 1)]


def test_lanes_in_use_are_kept_and_all_are_looked_at_in_turn(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "SLICE_ROWS", 3)
    kept = rig.submit(1, metadata={"n": 0})
    gone = [rig.submit(1, metadata={"n": number}) for number in range(1, 8)]
    rig.submit(1, metadata={"n": 9})
    rig.submit(1, metadata={"newest": 1})
    for submission_id in gone:
        finish(rig, submission_id)
    monkeypatch.setattr(lanes, "forget", lambda writer, submission_id: [])  # as if each of them had been the newest
    rig.pass_time(DAY_S + 60)
    look_around(rig, 20)
    rig.database.writer.execute("DELETE FROM submission_lane WHERE submission_id NOT IN (SELECT id FROM submission)")
    for _ in range(8):
        look_around(rig)
    assert rig.rows("SELECT key, value FROM lane WHERE id > 0 ORDER BY id") == [("n", 0), ("n", 9), ("newest", 1)]
    assert [ticket.submission_id for ticket in rig.reserve(rig.connect(), 1, "SelectOnly(n=0)")] == [kept]
    rig.database.writer.execute(
        "UPDATE lane SET submissions_count = 3, chunks_total = 3, chunks_skipped = 0 WHERE id = 0"
    )


def test_weight_that_came_with_a_submission_goes_with_the_last_one_of_its_value_and_that_of_an_operator_stays(
    rig: Rig,
) -> None:
    submission_id = rig.submit(1, metadata={"tenant": "a", "team": "x"}, weights={"tenant": 3.0})
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "team", "x", 2.0))
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", "later", 5.0))
    rig.submit(1, metadata={"newest": 1})
    assert weights(rig) == [("team", "x", 2.0), ("tenant", "a", 3.0), ("tenant", "later", 5.0)]
    finish(rig, submission_id)
    rig.pass_time(DAY_S + 60)
    look_around(rig)
    assert weights(rig) == [("team", "x", 2.0), ("tenant", "later", 5.0)]
    rig.restart()
    assert weights(rig) == [("team", "x", 2.0), ("tenant", "later", 5.0)]


def test_weight_that_comes_again_while_its_value_goes_holds(rig: Rig) -> None:
    submission_id = rig.submit(1, metadata={"tenant": "a"}, weights={"tenant": 3.0})
    rig.submit(1, metadata={"newest": 1})
    finish(rig, submission_id)
    rig.pass_time(DAY_S + 60)
    rig.tick()
    rig.settle()
    rig.tick()
    assert rig.begin()
    rig.send(
        rig.connect(),
        m.Submit(
            next(rig.ids), [m.NewSubmission(rig.request_key(), 1, metadata={"tenant": "a"}, weights={"tenant": 4.0})]
        ),
    )
    rig.database.commit()
    rig.end(None)
    rig.settle()
    assert weights(rig) == [("tenant", "a", 4.0)]


def test_passes_of_values_that_are_gone_go_and_those_in_use_stay(rig: Rig) -> None:
    peer = rig.connect()
    stays = rig.submit(500, metadata={"tenant": "stays"})
    gone = rig.submit(500, metadata={"tenant": "gone"})
    rig.submit(1, metadata={"newest": 1}, delay_s=1e8)
    for _ in range(20):
        rig.reserve(peer, 20, "Fair(tenant)")
    rig.fold()
    rig.restart()
    saved = {row[0] for row in rig.rows("SELECT lane_id FROM fair_pass")}
    lane_of = {value: lane for lane, value in rig.rows("SELECT id, value FROM lane WHERE key = 'tenant'")}
    assert {lane_of["stays"], lane_of["gone"]} <= saved
    finish(rig, gone)
    rig.pass_time(DAY_S + 60)
    look_around(rig)
    look_around(rig)
    assert {row[0] for row in rig.rows("SELECT lane_id FROM fair_pass")} == saved - {lane_of["gone"]}
    finish(rig, stays)
    rig.pass_time(DAY_S + 60)
    for _ in range(3):
        look_around(rig)
    assert count(rig, "fair_pass") == 0


def test_passes_of_submissions_last_over_a_restart_as_long_as_they_are_known(rig: Rig) -> None:
    """They are values of a key that every submission has, and in no lane of its own."""
    peer = rig.connect()
    served = rig.submit(100)
    rig.reserve(peer, 40, "Fair(submission)")
    rig.restart()
    look_around(rig)
    new = rig.submit(100)
    assert [ticket.submission_id for ticket in rig.reserve(peer, 8, "Fair(submission)")] == [new]
    finish(rig, served)
    finish(rig, new)
    rig.pass_time(DAY_S + 60)
    for _ in range(3):
        look_around(rig)
    assert count(rig, "fair_pass") == 0
