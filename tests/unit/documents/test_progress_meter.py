"""How fast chunks end and how long the rest takes, from counts over time."""

from __future__ import annotations

import pytest

from opsq.documents.progress_meter import ProgressMeter
from opsq.wire.messages import Backoff, Counts, HistoryEvent, SubmissionState


def counts(waiting: int, completed: int, *, reserved: int = 0, submissions: int = 2) -> Counts:
    return Counts(None, submissions, waiting, 0, reserved, completed, 0, 0)


def test_course_counts_from_where_it_began_and_tells_rate_and_time_left():
    meter = ProgressMeter()
    meter.note(None, 0.0)
    assert (meter.done_count, meter.total_count, meter.rate_text(), meter.left_text()) == (0, 0, "", "")
    meter.note(counts(100, 1000), 10.0)
    assert (meter.done_count, meter.total_count, meter.rate_text()) == (0, 100, "")
    meter.note(counts(58, 1040, reserved=2), 20.0)
    assert (meter.done_count, meter.total_count, meter.rate_text(), meter.left_text()) == (
        40,
        100,
        "4/s",
        "15s left",
    )


def test_course_follows_what_was_lately():
    meter = ProgressMeter()
    for second in range(0, 40, 2):
        meter.note(counts(0, second * 10 if second < 20 else 200 + (second - 20)), float(second))
    assert meter.rate_per_s == 1.0


def test_course_of_one_submission_counts_what_was_done_before():
    meter = ProgressMeter()
    meter.note(counts(10, 30, submissions=1), 0.0)
    assert (meter.done_count, meter.total_count) == (30, 40)


def test_course_goes_on_when_what_is_finished_is_removed():
    meter = ProgressMeter()
    meter.note(counts(10, 500), 0.0)
    meter.note(counts(8, 2), 1.0)
    assert (meter.done_count, meter.total_count, meter.rate_per_s) == (0, 8, 0.0)


def test_slow_work_has_a_rate_between_two_ends_of_chunks():
    """A chunk a minute, looked at each second: 15 seconds seldom see one end."""
    meter = ProgressMeter()
    for second in range(600):
        meter.note(counts(100 - second // 60, second // 60), float(second))
        if second >= 120:
            assert 1 / 90 < meter.rate_per_s < 1 / 50
    assert len(meter._seen) < 50


def test_rest_without_work_is_no_slow_work():
    meter = ProgressMeter()
    for second in range(3600):
        meter.note(counts(0, 10), float(second))
    for second in range(3600, 3606):
        meter.note(counts(3606 - second, 10 + second - 3600), float(second))
    assert meter.rate_per_s == pytest.approx(1.0, rel=0.2)


def test_work_that_stands_still_slows_down():
    meter = ProgressMeter()
    for second in range(100):
        meter.note(counts(100 - min(second, 50), min(second, 50)), float(second))
    assert 0 < meter.rate_per_s < 0.2


STATE = SubmissionState(
    submission_id=7,
    state="open",
    chunks_count=100,
    completed_count=40,
    dead_count=0,
    skipped_count=0,
    reserved_count=10,
    delayed_count=0,
    metadata={},
    priority=0,
    max_attempts=1,
    max_lost=1,
    backoff=Backoff(1.0, 2.0, 60.0),
    keep_on_dead=False,
    reservation_s=60.0,
    submitted_at=0,
    not_before_at=None,
    expires_at=None,
    finished_at=None,
    unique_key=None,
    has_attachment=False,
    reason="",
)


def ended(at_s: float, chunks_count: int, run_s: float) -> HistoryEvent:
    mask = (1 << chunks_count) - 1
    return HistoryEvent(1, round(at_s * 1000), "completed", 7, 0, mask, 0, "c", run_s, run_s, 0.0, 0, None, "")


def test_rate_of_the_past_comes_from_the_ends_of_chunks():
    meter = ProgressMeter()
    meter.recall(STATE, [ended(1000 + i, 2, 0.5) for i in range(20)], 1020.0)
    assert (meter.rate_per_s, meter.left_s) == (pytest.approx(2.0, rel=0.1), pytest.approx(30.0, rel=0.1))
    assert (meter.done_count, meter.total_count) == (40, 100)


def test_rate_of_one_end_is_that_of_its_run_time():
    meter = ProgressMeter()
    meter.recall(STATE, [ended(1060, 1, 60.0)], 1060.0)
    assert meter.rate_per_s == pytest.approx(1 / 60)


def test_without_ends_the_rate_is_unknown_and_so_it_is_when_clocks_differ():
    for ends in ([], [ended(2000, 1, 0.0)]):
        meter = ProgressMeter()
        meter.recall(STATE, ends, 1000.0)
        assert (meter.rate_per_s, meter.left_s, meter.rate_text(), meter.left_text()) == (0.0, None, "", "")
