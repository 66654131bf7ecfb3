"""Clocks: deadlines are monotonic, `--at` follows the wall, steps and late ticks hurt nobody."""

from __future__ import annotations

import pytest

from opsq.wire import messages as m
from unit.model.rig import Rig

DAY_S = 86_400.0


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_stepped_wall_clock_moves_no_deadline_of_a_reservation(rig: Rig, step_s: float) -> None:
    submission_id = rig.submit(1, reservation_s=10.0)
    rig.reserve(rig.connect())
    rig.pass_time(0, wall_s=step_s)
    rig.advance(9.5)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(0.5)
    assert rig.show(submission_id).reserved_count == 0


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_engine_never_sleeps_longer_than_a_second_whatever_the_clock_does(rig: Rig, step_s: float) -> None:
    rig.submit(1, delay_s=5.0)
    rig.submit(1, not_before_at=rig.now.wall + 5000)
    rig.pass_time(0, wall_s=step_s)
    rig.tick()
    rig.settle()
    assert 0.0 <= rig.engine.next_tick_s(rig.now) <= 1.0


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_stepped_wall_clock_ends_no_delay_early_or_late(rig: Rig, step_s: float) -> None:
    rig.submit(1, delay_s=10.0)
    failed = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), delay_s=10.0)
    rig.pass_time(0, wall_s=step_s)
    rig.advance(9.5)
    assert rig.reserve(peer, 5) == []
    rig.advance(0.5)
    assert len(rig.reserve(peer, 5)) == 2
    assert rig.show(failed).reserved_count == 1


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_clock_stepped_while_the_engine_was_down_leaves_between_nothing_and_all_of_a_duration(
    rig: Rig, step_s: float
) -> None:
    delayed = rig.submit(1, delay_s=10.0)
    leased = rig.submit(1)
    rig.reserve(rig.connect(), lease_s=10.0)
    rig.restart(wall_s=step_s)
    rig.advance(0.5)
    is_over = step_s > 0
    assert rig.show(delayed).state == ("open" if is_over else "scheduled")
    assert rig.show(leased).reserved_count == (0 if is_over else 1)
    rig.advance(9.5)
    assert rig.show(delayed).state == "open"
    assert rig.show(leased).reserved_count == 0


@pytest.mark.parametrize("step_s", [0.0, -DAY_S, DAY_S])
@pytest.mark.parametrize("end", ["crash", "restart"])
def test_durations_end_exactly_after_a_step_and_a_restart(rig: Rig, end: str, step_s: float) -> None:
    """What is stored moves with the clock, so that the next process finds what remains."""
    delayed = rig.submit(1, delay_s=60.0)
    expiring = rig.submit(1, expires_s=60.0, not_before_at=rig.now.wall + 10**12)
    leased = rig.submit(1, reservation_s=60.0)
    rig.reserve(rig.connect(), 1, f"SelectOnly(submission={leased})", lease_s=60.0)
    rig.advance(20)
    rig.pass_time(0, wall_s=step_s)
    late = rig.submit(1, delay_s=40.0)
    rig.advance(20)
    shown = rig.show(delayed)
    assert shown.not_before_at == rig.now.wall + 20_000
    getattr(rig, end)()
    assert rig.show(delayed).not_before_at == rig.now.wall + 20_000
    rig.advance(19.5)
    assert [rig.show(one).state for one in (delayed, late, expiring)] == ["scheduled"] * 3
    assert rig.show(leased).reserved_count == 1
    rig.advance(0.5)
    assert [rig.show(one).state for one in (delayed, late, expiring)] == ["open", "open", "expired"]
    assert rig.show(leased).reserved_count == 0


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
@pytest.mark.parametrize("end", ["crash", "restart"])
def test_durations_end_exactly_though_the_clock_is_stepped_while_nobody_looks(
    rig: Rig, end: str, step_s: float
) -> None:
    """Within one boot of the machine, the monotonic clock tells how long that was."""
    rig.boot = "this one"
    rig.restart()
    rig.tick()
    rig.settle()
    delayed = rig.submit(1, delay_s=60.0)
    expiring = rig.submit(1, expires_s=60.0, not_before_at=rig.now.wall + 10**12)
    rig.advance(20)
    if end == "crash":
        rig.pass_time(20, wall_s=20 + step_s)
        rig.crash()
    else:
        rig.restart(away_s=20, wall_s=20 + step_s)
    rig.advance(19.5)
    assert [rig.show(one).state for one in (delayed, expiring)] == ["scheduled"] * 2
    assert rig.show(delayed).not_before_at == rig.now.wall + 500
    rig.restart()
    assert rig.show(delayed).not_before_at == rig.now.wall + 500
    rig.advance(0.5)
    assert [rig.show(one).state for one in (delayed, expiring)] == ["open", "expired"]


def test_step_whose_commit_fails_is_seen_again(rig: Rig) -> None:
    delayed = rig.submit(1, delay_s=60.0)
    rig.pass_time(0, wall_s=DAY_S)
    rig.tick()
    rig.fail_commit()
    rig.advance(2)
    assert rig.show(delayed).not_before_at == rig.now.wall + 58_000
    rig.restart()
    rig.advance(57.5)
    assert rig.show(delayed).state == "scheduled"
    rig.advance(0.5)
    assert rig.show(delayed).state == "open"


def test_another_boot_says_nothing_of_how_long_the_machine_was_off(rig: Rig) -> None:
    """Then the wall clock is all there is, and a duration is never longer than it was."""
    rig.boot = "first"
    rig.restart()
    delayed = rig.submit(1, delay_s=60.0)
    rig.boot = "second"
    rig.stop()
    rig.now = rig.now._replace(mono=1_000_000_000, wall=rig.now.wall + 20_000)
    rig._open(rig.path.parent)
    rig.advance(39.5)
    assert rig.show(delayed).state == "scheduled"
    rig.advance(0.5)
    assert rig.show(delayed).state == "open"


@pytest.mark.parametrize("step_s", [0.0, -DAY_S, DAY_S])
def test_times_given_as_instants_follow_the_wall_clock_over_restarts(rig: Rig, step_s: float) -> None:
    starting = rig.submit(1, not_before_at=rig.now.wall + 60_000)
    expiring = rig.submit(1, expires_at=rig.now.wall + 60_000)
    rig.pass_time(0, wall_s=step_s)
    rig.restart(away_s=30)
    rig.advance(29)
    is_over = step_s > 0
    assert (rig.show(starting).state, rig.show(expiring).state) == (
        ("open", "expired") if is_over else ("scheduled", "open")
    )
    rig.advance(1)
    is_over = step_s >= 0
    assert (rig.show(starting).state, rig.show(expiring).state) == (
        ("open", "expired") if is_over else ("scheduled", "open")
    )


def test_time_to_start_at_follows_the_wall_clock_forward_and_back(rig: Rig) -> None:
    submission_id = rig.submit(1, not_before_at=rig.now.wall + 3_600_000)
    rig.pass_time(0, wall_s=-DAY_S)
    rig.advance(5)
    assert rig.show(submission_id).state == "scheduled"
    rig.pass_time(0, wall_s=DAY_S + 3_600)
    rig.tick()
    rig.settle()
    assert rig.show(submission_id).state == "open"


def test_tick_that_comes_late_postpones_expiries_by_a_heartbeat_in_which_input_is_read(rig: Rig) -> None:
    """The process was asleep, and so may its consumers' heartbeats lie unread."""
    submission_id = rig.submit(1, reservation_s=10.0)
    peer = rig.connect()
    rig.reserve(peer)
    rig.pass_time(60)
    rig.tick()
    rig.settle()
    assert rig.show(submission_id).reserved_count == 1
    rig.send(peer, m.Heartbeat(1))
    rig.advance(9.5)
    assert rig.show(submission_id).reserved_count == 1
    rig.advance(0.5)
    assert rig.show(submission_id).reserved_count == 0


def test_tick_that_comes_late_only_postpones(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=10.0)
    rig.reserve(rig.connect())
    rig.pass_time(60)
    rig.tick()
    rig.settle()
    rig.advance(rig.policy.heartbeat_s)
    assert rig.show(submission_id).reserved_count == 0


def test_ids_grow_although_the_clock_steps_back(rig: Rig) -> None:
    first = rig.submit(1)
    rig.pass_time(0, wall_s=-DAY_S)
    second = rig.submit(1)
    rig.restart(wall_s=-DAY_S)
    third = rig.submit(1)
    assert first < second < third


def test_engine_that_has_nothing_to_do_asks_for_a_tick_a_second(rig: Rig) -> None:
    rig.tick()
    rig.settle()
    rig.tick()
    assert rig.engine.next_tick_s(rig.now) == 1.0


def test_engine_asks_for_its_tick_when_a_retry_is_due(rig: Rig) -> None:
    rig.submit(1)
    rig.tick()
    rig.settle()
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), delay_s=0.3)
    assert rig.engine.next_tick_s(rig.now) == pytest.approx(0.3)
    rig.pass_time(0.3)
    assert rig.engine.next_tick_s(rig.now) == 0.0
