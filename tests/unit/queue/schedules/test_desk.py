"""Schedules: every planned instant is decided once, whatever happens to the process and its clocks."""

from __future__ import annotations

import random

import apsw
import msgspec
import pytest

from opsq.content import manifest
from opsq.errors import Conflict, NoRoom, NotFound, StorageFull, UsageError
from opsq.queue.policy import Policy
from opsq.queue.schedules.desk import LOOK_LIMIT
from opsq.queue.schedules.plan import Plan
from opsq.queue.schedules.table import STALE_DUE, KnownSchedule, ScheduleTable
from opsq.store import schedules
from opsq.store.schedules import ScheduleRow
from opsq.store.write_ahead_log import WriteAheadLog
from opsq.wire import messages as m
from unit.model.rig import Rig

MINUTE_S = 60.0
DAY_S = 86_400.0


def schedule(name: str = "nightly", when: str = "every 1m", **options: object) -> m.Schedule:
    new = m.Schedule(name, when, m.NewSubmission(bytes(16), 0))
    return msgspec.structs.replace(new, **options)


def add(rig: Rig, one: m.Schedule, *, replaces: bool = False) -> None:
    rig.only(rig.connect(), m.PutSchedule(next(rig.ids), one, replaces), m.Changed)


def state(rig: Rig, name: str = "nightly") -> m.ScheduleState:
    [found] = rig.only(rig.connect(), m.ShowSchedules(next(rig.ids), name), m.Schedules).schedules
    return found


def made(rig: Rig, name: str = "nightly") -> list[m.SubmissionState]:
    """The submissions of a schedule, oldest first."""
    request = m.List(next(rig.ids), metadata={"schedule": name}, limit=10_000)
    return rig.only(rig.connect(), request, m.Listed).submissions[::-1]


def planned(rig: Rig, name: str = "nightly") -> list[object]:
    return [one.metadata["planned"] for one in made(rig, name)]


def run(rig: Rig, seconds: float) -> None:
    """Let time pass, and have the engine look at the clock every ten seconds."""
    while seconds > 0:
        rig.pass_time(min(seconds, 10))
        rig.tick()
        rig.settle()
        seconds -= 10


def finish(rig: Rig) -> None:
    """Complete all there is."""
    peer = rig.connect()
    while tickets := rig.reserve(peer, 1000):
        rig.complete(peer, *(ticket.held() for ticket in tickets))
    rig.tick()
    rig.settle()


def fail(rig: Rig) -> None:
    peer = rig.connect()
    for ticket in rig.reserve(peer, 1000):
        rig.fail(peer, ticket.held(), is_final=True)
    rig.tick()
    rig.settle()


def test_instant_makes_a_submission_of_one_chunk_that_says_which(rig: Rig) -> None:
    add(rig, schedule())
    run(rig, 59)
    assert made(rig) == []
    run(rig, 2)
    [one] = made(rig)
    assert (one.chunks_count, one.metadata["schedule"]) == (1, "nightly")
    at = one.metadata["planned"]
    blob = rig.only(rig.connect(), m.Describe(next(rig.ids), [one.submission_id]), m.Described).submissions[0].content
    assert msgspec.json.decode((manifest.decode(blob).inline or [b""])[0]) == {"schedule": "nightly", "at": at}


def test_template_gives_content_metadata_and_options(rig: Rig) -> None:
    template = m.NewSubmission(bytes(16), 3, b"content", {"tenant": "acme"}, max_attempts=7, title="Import")
    add(rig, schedule(template=template))
    run(rig, 61)
    [one] = made(rig)
    assert (one.chunks_count, one.max_attempts, one.title, one.metadata["tenant"]) == (3, 7, "Import", "acme")


def test_what_runs_still_has_the_next_instant_skipped(rig: Rig) -> None:
    add(rig, schedule())
    run(rig, 3 * MINUTE_S + 1)
    assert (len(made(rig)), state(rig).skipped_count) == (1, 2)
    finish(rig)
    run(rig, MINUTE_S)
    assert (len(made(rig)), state(rig).fired_count) == (2, 2)


def test_queued_instants_come_one_after_the_other(rig: Rig) -> None:
    add(rig, schedule(overlap="queue"))
    run(rig, 3 * MINUTE_S + 1)
    assert (len(made(rig)), len(state(rig).waiting)) == (1, 2)
    finish(rig)
    assert (len(made(rig)), len(state(rig).waiting)) == (2, 1)
    finish(rig)
    assert (len(made(rig)), len(state(rig).waiting)) == (3, 0)
    assert planned(rig) == sorted(map(str, planned(rig)))


def test_instant_that_waits_comes_though_the_clock_was_set_back_behind_it(rig: Rig) -> None:
    add(rig, schedule(overlap="queue"))
    run(rig, 2 * MINUTE_S + 1)
    rig.pass_time(0, wall_s=-3600.0)
    finish(rig)
    assert (len(made(rig)), len(state(rig).waiting)) == (2, 0)


def test_allowed_overlap_runs_side_by_side(rig: Rig) -> None:
    add(rig, schedule(overlap="allow"))
    run(rig, 3 * MINUTE_S + 1)
    assert [one.state for one in made(rig)] == ["open"] * 3


def test_cancelled_overlap_ends_what_ran(rig: Rig) -> None:
    add(rig, schedule(overlap="cancel"))
    run(rig, 3 * MINUTE_S + 1)
    assert [one.state for one in made(rig)] == ["cancelled", "cancelled", "open"]
    assert "nightly" in made(rig)[0].reason
    assert state(rig).open_count == 1


@pytest.mark.parametrize(("catch_up", "fired"), [("none", 0), ("last", 1), ("all", 10)])
def test_instants_that_passed_while_no_daemon_ran_are_caught_up_as_asked(rig: Rig, catch_up: str, fired: int) -> None:
    add(rig, schedule(when="every 1h", overlap="allow", catch_up=catch_up))
    rig.restart(away_s=10.5 * 3600)
    run(rig, 1)
    assert (len(made(rig)), state(rig).missed_count) == (fired, 10 - fired)


def test_what_is_longer_ago_than_asked_is_missed(rig: Rig) -> None:
    add(rig, schedule(when="every 1h", overlap="allow", catch_up="all", catch_up_s=3.2 * 3600))
    rig.restart(away_s=10.5 * 3600)
    run(rig, 1)
    assert (len(made(rig)), state(rig).missed_count) == (3, 7)


def test_years_of_minutes_are_passed_over_in_slices(rig: Rig) -> None:
    add(rig, schedule(catch_up="none"))
    rig.restart(away_s=30 * DAY_S + 30)
    for _ in range(200):
        rig.tick()
        rig.settle()
    found = state(rig)
    assert (found.missed_count, found.fired_count) == (30 * 1440 - 1, 1)  # the last one was not late


def test_look_at_the_clock_decides_no_more_for_many_that_are_behind_and_each_has_its_share(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        add(rig, schedule(f"late{number}", catch_up="none"))
    rig.restart(away_s=30 * DAY_S + 30)
    add(rig, schedule("z", catch_up="none"))
    rig.pass_time(61)
    looked_for: list[int] = []
    after = Plan.after
    monkeypatch.setattr(Plan, "after", lambda plan, instant: looked_for.append(instant) or after(plan, instant))
    rig.tick()
    rig.settle()
    assert len(looked_for) <= 2 * LOOK_LIMIT
    assert len(made(rig, "z")) == 1
    assert state(rig, "late7").fired_count == 0
    assert rig.engine.next_tick_s(rig.now) == 0


def test_suspended_machine_catches_up_on_the_last_and_counts_the_rest(rig: Rig) -> None:
    """The monotonic clock has stood still, so it shows no more than a step of the other."""
    add(rig, schedule(when="every 1h", overlap="allow"))
    rig.pass_time(1, wall_s=8.5 * 3600)
    run(rig, 2)
    assert planned(rig) == ["2027-01-15T16:00:00.000Z"]
    assert (state(rig).fired_count, state(rig).missed_count) == (1, 7)


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_stepped_clock_makes_no_instant_come_twice(rig: Rig, step_s: float) -> None:
    add(rig, schedule(when="every 1h", overlap="allow", catch_up="all"))
    run(rig, 2 * 3600 + 1)
    rig.pass_time(0, wall_s=step_s)
    run(rig, 2 * 3600)
    rig.pass_time(0, wall_s=-step_s)
    run(rig, 2 * 3600)
    found = planned(rig)
    assert len(found) == len(set(found)) >= 4


def test_crash_before_the_commit_makes_it_again_and_after_it_not(rig: Rig) -> None:
    add(rig, schedule(overlap="allow"))
    rig.pass_time(61)
    rig.tick()
    rig.crash()  # nothing of it was committed
    assert made(rig) == []
    rig.tick()
    rig.settle()
    rig.crash()
    rig.tick()
    rig.settle()
    assert len(made(rig)) == 1


def test_failed_commit_makes_it_again(rig: Rig) -> None:
    add(rig, schedule(overlap="allow"))
    rig.pass_time(61)
    rig.tick()
    rig.fail_commit()
    assert state(rig).fired_count == 0
    run(rig, 20)
    assert (len(made(rig)), state(rig).fired_count) == (1, 1)


def test_end_that_could_not_be_noted_is_noted_later(rig: Rig) -> None:
    add(rig, schedule())
    run(rig, 61)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    rig.tick()
    rig.fail_commit()
    assert state(rig).open_count == 1
    run(rig, 3 * MINUTE_S)
    assert state(rig).fired_count == 2
    assert state(rig).open_count == 1


def test_failure_pauses_if_asked_and_resume_goes_on_from_now(rig: Rig) -> None:
    add(rig, schedule(pauses_on_failure=True))
    run(rig, 61)
    fail(rig)
    found = state(rig)
    assert found.paused_at is not None
    assert str(found.last_submission_id) in found.note
    assert found.upcoming == []
    run(rig, 5 * MINUTE_S)
    assert len(made(rig)) == 1
    rig.only(rig.connect(), m.ResumeSchedule(next(rig.ids), "nightly"), m.Changed)
    run(rig, MINUTE_S)
    assert (len(made(rig)), state(rig).missed_count) == (2, 0)


def test_failure_pauses_also_if_the_process_dies_at_once(rig: Rig) -> None:
    add(rig, schedule(pauses_on_failure=True))
    run(rig, 61)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), is_final=True)
    rig.crash()
    run(rig, 1)
    assert state(rig).paused_at is not None


def test_paused_schedule_passes_over_its_instants(rig: Rig) -> None:
    add(rig, schedule())
    assert rig.only(rig.connect(), m.PauseSchedule(next(rig.ids), "nightly", "ada", "holiday"), m.Changed).count == 1
    assert rig.only(rig.connect(), m.PauseSchedule(next(rig.ids), "nightly"), m.Changed).count == 0
    rig.restart(away_s=600)
    run(rig, 60)
    assert (made(rig), state(rig).paused_by, state(rig).note) == ([], "ada", "holiday")


def test_pause_stays_in_force_though_a_change_of_the_same_batch_cannot_be_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(rig, schedule())
    write = schedules.put

    def write_pauses(writer: apsw.Connection, row: ScheduleRow) -> None:
        if row.paused_at is None:
            raise Conflict(cause="schedule_changed", name=row.name)
        write(writer, row)

    monkeypatch.setattr(schedules, "put", write_pauses)
    peer = rig.connect()
    rig.send(peer, m.PauseSchedule(next(rig.ids), "nightly"))
    rig.send(peer, m.ResumeSchedule(next(rig.ids), "nightly"))
    rig.settle()
    assert state(rig).paused_at is not None
    rig.crash()
    assert state(rig).paused_at is not None


def test_end_that_is_not_committed_has_nothing_go_on_though_a_change_beside_it_cannot_be_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(rig, schedule(overlap="queue"))
    run(rig, 2 * MINUTE_S + 1)
    [running] = made(rig)
    write = schedules.put

    def refuse_pauses(writer: apsw.Connection, row: ScheduleRow) -> None:
        if row.paused_at is not None:
            raise Conflict(cause="schedule_changed", name=row.name)
        write(writer, row)

    peer = rig.connect()
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "put", refuse_pauses)
        rig.send(peer, m.Cancel(next(rig.ids), running.submission_id))
        rig.send(peer, m.PauseSchedule(next(rig.ids), "nightly"))
        rig.fail_commit()
    run(rig, 20)
    assert [one.state for one in made(rig)] == ["open"]
    assert state(rig).open_count == 1
    rig.ask(peer, m.Cancel(next(rig.ids), running.submission_id))
    run(rig, 10)
    assert [one.state for one in made(rig)] == ["cancelled", "open"]


@pytest.mark.parametrize("change", ["resume", "edit"])
def test_schedule_that_was_decided_by_a_clock_far_ahead_goes_on_from_a_resume_or_an_edit(rig: Rig, change: str) -> None:
    add(rig, schedule(when="every 1h"))
    rig.pass_time(0, wall_s=5 * DAY_S)
    run(rig, 1)
    finish(rig)
    rig.pass_time(0, wall_s=-5 * DAY_S)
    run(rig, 3600)
    assert len(made(rig)) == 1
    if change == "edit":
        add(rig, schedule(when="every 30m"), replaces=True)
    else:
        rig.only(rig.connect(), m.PauseSchedule(next(rig.ids), "nightly"), m.Changed)
        rig.only(rig.connect(), m.ResumeSchedule(next(rig.ids), "nightly"), m.Changed)
    assert state(rig).upcoming[0] - rig.now.wall <= 3600_000
    run(rig, 3600)
    assert len(made(rig)) >= 2


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "cancel"])
def test_resume_behind_a_clock_that_was_set_back_makes_no_instant_twice_and_cancels_none(
    rig: Rig, overlap: str
) -> None:
    add(rig, schedule(when="every 1h", overlap=overlap, catch_up="all"))
    run(rig, 4 * 3600 + 1)
    before = [(one.metadata["planned"], one.state) for one in made(rig)]
    rig.pass_time(0, wall_s=-2 * 3600.0)
    rig.only(rig.connect(), m.PauseSchedule(next(rig.ids), "nightly"), m.Changed)
    rig.only(rig.connect(), m.ResumeSchedule(next(rig.ids), "nightly"), m.Changed)
    run(rig, 2 * 3600)
    assert [(one.metadata["planned"], one.state) for one in made(rig)] == before
    assert len(set(state(rig).waiting)) == len(state(rig).waiting)
    while state(rig).open_count:
        finish(rig)
    instants = planned(rig)
    assert len(instants) == len(set(instants))


def test_trigger_makes_one_now_whatever_runs(rig: Rig) -> None:
    add(rig, schedule(when="@yearly"))
    for _ in range(2):
        rig.only(rig.connect(), m.TriggerSchedule(next(rig.ids), "nightly"), m.Submitted)
    assert (len(made(rig)), state(rig).fired_count, state(rig).open_count) == (2, 0, 2)


def test_backfill_makes_what_has_none(rig: Rig) -> None:
    add(rig, schedule(when="every 1h", overlap="allow"))
    run(rig, 2 * 3600 + 1)
    start = rig.now.wall - int(DAY_S * 1000)
    request = m.BackfillSchedule(next(rig.ids), "nightly", start, rig.now.wall)
    created = rig.only(rig.connect(), request, m.Submitted).created
    assert (len(created), sum(one.is_new for one in created)) == (24, 22)
    again = rig.only(rig.connect(), msgspec.structs.replace(request, id=next(rig.ids)), m.Submitted).created
    assert not any(one.is_new for one in again)


@pytest.mark.parametrize("is_full", [True, False])
def test_trigger_and_backfill_are_refused_if_there_is_no_room_for_what_they_make(rig: Rig, is_full: bool) -> None:
    add(rig, schedule(overlap="allow"))
    run(rig, 2 * MINUTE_S + 1)
    if is_full:
        peer = rig.connect()
        rig.send(peer, m.Submit(next(rig.ids), [m.NewSubmission(rig.request_key(), 1)]))
        rig.fail_commit()
        rig.pass_time(1)
    else:
        rig.policy = Policy(max_backlog_chunks=2)
        rig.restart()
    start = rig.now.wall - 100_000
    for request in (
        m.TriggerSchedule(next(rig.ids), "nightly"),
        m.BackfillSchedule(next(rig.ids), "nightly", start - 120_000, rig.now.wall),
    ):
        with pytest.raises(StorageFull if is_full else NoRoom):
            rig.ask(rig.connect(), request)
    there = m.BackfillSchedule(next(rig.ids), "nightly", start, rig.now.wall)
    created = rig.only(rig.connect(), there, m.Submitted).created
    assert [one.is_new for one in created] == [False, False]


def test_schedule_for_which_a_full_disk_has_no_room_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    add(rig, schedule())
    peer = rig.connect()
    rig.send(peer, m.Submit(next(rig.ids), [m.NewSubmission(rig.request_key(), 1)]))
    rig.fail_commit()
    monkeypatch.setattr(WriteAheadLog, "room_for_growth_bytes", lambda *_: 60_000)
    large = m.NewSubmission(bytes(16), 1, bytes(60_000))
    with pytest.raises(StorageFull):
        rig.send(peer, m.PutSchedule(next(rig.ids), schedule(template=large), replaces=True))
    rig.send(peer, m.PutSchedule(next(rig.ids), schedule(when="every 2m"), replaces=True))


def test_queued_instant_that_a_backfill_has_made_does_not_stop_those_behind_it(rig: Rig) -> None:
    add(rig, schedule(overlap="queue"))
    run(rig, 3 * MINUTE_S + 1)
    first = state(rig).waiting[0]
    rig.only(rig.connect(), m.BackfillSchedule(next(rig.ids), "nightly", first, first + 1), m.Submitted)
    finish(rig)
    run(rig, 1)
    assert (len(made(rig)), state(rig).waiting) == (3, [])


def test_queued_instant_goes_on_after_a_resume_though_the_process_dies_at_once(rig: Rig) -> None:
    add(rig, schedule(overlap="queue"))
    run(rig, 2 * MINUTE_S + 1)
    rig.only(rig.connect(), m.PauseSchedule(next(rig.ids), "nightly"), m.Changed)
    finish(rig)
    rig.send(rig.connect(), m.ResumeSchedule(next(rig.ids), "nightly"))
    rig.commit()
    rig.crash()
    run(rig, 1)
    assert (len(made(rig)), state(rig).waiting) == (2, [])


def test_backfill_of_too_many_is_refused(rig: Rig) -> None:
    add(rig, schedule(when="every 1s"))
    with pytest.raises(UsageError, match="1000 planned instants"):
        rig.ask(rig.connect(), m.BackfillSchedule(next(rig.ids), "nightly", 0, rig.now.wall))


def test_edit_keeps_what_was_counted_and_decided(rig: Rig) -> None:
    add(rig, schedule(overlap="allow"))
    run(rig, 2 * MINUTE_S + 1)
    add(rig, schedule(when="every 1h", overlap="allow"), replaces=True)
    run(rig, 10 * MINUTE_S)
    assert (len(made(rig)), state(rig).fired_count) == (2, 2)


def test_of_two_edits_of_the_same_state_the_second_is_refused_and_may_be_repeated(rig: Rig) -> None:
    before = schedule()
    add(rig, before)
    first, second = schedule(jitter_s=5.0), schedule(overlap="queue")
    peer = rig.connect()
    for _ in range(2):  # also when its client sends it again, for want of an answer
        rig.only(peer, m.PutSchedule(next(rig.ids), first, True, before), m.Changed)
    with pytest.raises(Conflict, match="Somebody else has just changed the schedule nightly"):
        rig.ask(peer, m.PutSchedule(next(rig.ids), second, True, before))
    assert state(rig).schedule == first
    rig.only(peer, m.PutSchedule(next(rig.ids), second, True, first), m.Changed)
    assert state(rig).schedule == second


@pytest.mark.parametrize("change", ["edit", "pause"])
def test_change_at_the_very_instant_does_not_cost_it_its_submission(rig: Rig, change: str) -> None:
    add(rig, schedule())
    rig.pass_time(60)  # and no tick
    if change == "edit":
        add(rig, schedule(when="every 1h"), replaces=True)
    else:
        rig.only(rig.connect(), m.PauseSchedule(next(rig.ids), "nightly"), m.Changed)
    assert (len(made(rig)), state(rig).fired_count) == (1, 1)


def test_schedule_that_has_ended_goes_on_from_the_edit_that_takes_its_end_away(rig: Rig) -> None:
    add(rig, schedule(overlap="allow", catch_up="all", until_at=rig.now.wall + 121_000))
    run(rig, 5 * MINUTE_S)
    add(rig, schedule(overlap="allow", catch_up="all"), replaces=True)
    run(rig, 10)
    assert (len(made(rig)), state(rig).missed_count) == (2, 0)
    run(rig, MINUTE_S)
    assert len(made(rig)) == 3


def test_edit_of_something_else_keeps_what_jitter_has_put_off(rig: Rig) -> None:
    add(rig, schedule(when="every 1h", jitter_s=1800.0))
    rig.pass_time(3600)
    rig.tick()
    assert made(rig) == []
    add(rig, schedule(when="every 1h", jitter_s=1800.0, overlap="queue"), replaces=True)
    run(rig, 1800)
    assert planned(rig) == ["2027-01-15T09:00:00.000Z"]


def test_removed_schedule_comes_no_more_and_its_name_is_free(rig: Rig) -> None:
    add(rig, schedule())
    rig.only(rig.connect(), m.RemoveSchedule(next(rig.ids), "nightly"), m.Changed)
    run(rig, 2 * MINUTE_S)
    assert made(rig) == []
    with pytest.raises(NotFound):
        state(rig)
    add(rig, schedule())
    rig.restart()
    assert state(rig).fired_count == 0


def test_name_is_taken_once_and_only_what_is_there_is_replaced(rig: Rig) -> None:
    with pytest.raises(NotFound):
        add(rig, schedule(), replaces=True)
    add(rig, schedule())
    with pytest.raises(Conflict):
        add(rig, schedule())


@pytest.mark.parametrize(
    "template",
    [
        m.NewSubmission(bytes(16), 0, metadata={"schedule": "x"}),
        m.NewSubmission(bytes(16), 0, metadata={"planned": "x"}),
        m.NewSubmission(bytes(16), 0, unique_key="x"),
        m.NewSubmission(bytes(16), 0, idempotency_key="x"),
        m.NewSubmission(bytes(16), 0, not_before_at=1),
    ],
)
def test_template_that_makes_one_submission_only_is_refused(rig: Rig, template: m.NewSubmission) -> None:
    with pytest.raises(UsageError):
        add(rig, schedule(template=template))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"from_at": 1_800_000_000_000, "until_at": 1_800_000_000_000}, "would end before it begins"),
        ({"catch_up": "none", "catch_up_s": 60.0}, "nothing to bound"),
    ],
)
def test_schedule_that_contradicts_itself_is_refused(rig: Rig, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        add(rig, schedule(**options))


def test_jitter_is_the_same_after_a_restart_and_moves_no_planned_instant(rig: Rig) -> None:
    add(rig, schedule(when="every 1h", jitter_s=1800.0))
    run(rig, 3600 + 1800)
    [one] = made(rig)
    assert one.metadata["planned"] == "2027-01-15T09:00:00.000Z"
    assert rig.now.wall - 1_800_000 <= one.submitted_at <= rig.now.wall


def test_from_and_until_bound_it(rig: Rig) -> None:
    start = rig.now.wall + 600_000
    add(rig, schedule(overlap="allow", from_at=start, until_at=start + 180_000))
    run(rig, 1200)
    assert len(made(rig)) == 3
    assert state(rig).upcoming == []


def test_many_that_are_due_at_once_all_come(rig: Rig) -> None:
    count = LOOK_LIMIT
    peer = rig.connect()
    for number in range(count):
        rig.send(peer, m.PutSchedule(next(rig.ids), schedule(f"s{number}", "@hourly")))
    rig.settle()
    rig.pass_time(3600)
    while rig.engine.next_tick_s(rig.now) == 0:
        rig.tick()
        rig.settle()
    assert rig.status().total.submissions_count == count
    reply = rig.only(peer, m.ShowSchedules(next(rig.ids), limit=100), m.Schedules)
    assert (len(reply.schedules), reply.has_more) == (100, True)
    after = reply.schedules[-1].schedule.name
    following = rig.only(peer, m.ShowSchedules(next(rig.ids), after=after, limit=1), m.Schedules)
    assert following.schedules[0].schedule.name > after


def test_start_with_many_looks_for_no_instant_and_misses_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    count = LOOK_LIMIT
    peer = rig.connect()
    for number in range(count):
        rig.send(peer, m.PutSchedule(next(rig.ids), schedule(f"s{number}", "@hourly")))
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "after", lambda *_: pytest.fail("a start with ten thousand would take long"))
        rig.restart()
    with monkeypatch.context() as patch:
        patch.setattr(ScheduleTable, "change", lambda *_: pytest.fail("nothing is due, so nothing is to be written"))
        for _ in range(3):
            rig.tick()
    rig.pass_time(3600)
    while rig.engine.next_tick_s(rig.now) == 0:
        rig.tick()
        rig.settle()
    assert rig.status().total.submissions_count == count


@pytest.mark.parametrize("seed", range(20))
def test_every_instant_is_decided_once_over_crashes_restarts_and_steps_of_the_clock(rig: Rig, seed: int) -> None:
    """What was fired, skipped and missed are together the instants that passed, and none has two submissions."""
    chance = random.Random(seed)
    overlap = chance.choice(["skip", "queue", "allow", "cancel"])
    add(rig, schedule(when="every 7m", overlap=overlap, catch_up=chance.choice(["none", "last", "all"])))
    began, latest = rig.now.wall, rig.now.wall
    for _ in range(60):
        chance.choice(
            [
                lambda: run(rig, chance.uniform(1, 900)),
                lambda: rig.pass_time(chance.uniform(1, 900)),
                rig.tick,
                rig.settle,
                rig.crash,
                rig.fail_commit,
                lambda: rig.restart(away_s=chance.uniform(0, 7200)),
                lambda: rig.pass_time(0, wall_s=chance.uniform(-3600, 3600)),
                lambda: None if rig.engine.is_full else finish(rig),
            ]
        )()
        latest = max(latest, rig.now.wall)
    rig.pass_time(0, wall_s=(latest - rig.now.wall) / 1000)
    run(rig, 30)
    run(rig, 1)
    found, instants = state(rig), planned(rig)
    assert len(instants) == len(set(instants)) == found.fired_count
    decided = found.fired_count + found.skipped_count + found.missed_count + len(found.waiting)
    assert decided == (rig.now.wall - began) // (7 * 60_000)


def test_instants_of_schedules_that_were_changed_or_removed_are_not_kept_until_they_come(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    plan = ScheduleTable.plan

    def measured(table: ScheduleTable, known: KnownSchedule) -> None:
        plan(table, known)
        lengths.append(len(table._due))

    monkeypatch.setattr(ScheduleTable, "plan", measured)
    peer = rig.connect()
    for number in range(STALE_DUE):
        add(rig, schedule("other", f"every {number + 10}m"))
        rig.only(peer, m.RemoveSchedule(next(rig.ids), "other"), m.Changed)
        add(rig, schedule(when=f"every {number + 10}m"), replaces=number > 0)
    assert max(lengths) <= STALE_DUE + 4
    run(rig, (STALE_DUE + 9) * MINUTE_S)
    assert len(made(rig)) == 1
