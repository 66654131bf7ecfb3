"""What a command line says while a job of Spark runs, without Spark: a job is a thread here."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from daemons import end
from opsq.cli.caller import Caller
from opsq.cli.spark import job
from opsq.cli.spark.fleet_work import process
from opsq.cli.spark.job import Interrupted, SparkJobs
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.stop_signals import StopSignals
from opsq.settings import Settings
from opsq.spark.fleet import driver
from opsq.spark.fleet.driver import FleetSummary
from opsq.spark.fleet.tasks import Plan
from opsq.spark.fleet.watch import FleetWatch
from opsq.wire.messages import Counts

COUNTS = Counts(
    None, 1, waiting_count=6, delayed_count=0, reserved_count=1, completed_count=3, dead_count=0, skipped_count=0
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look and tell as often as possible."""
    for name in ("DRAW_S", "_TICK_S", "LINE_S"):
        monkeypatch.setattr(job, name, 0.0)


def watched(signals: StopSignals, *, is_quiet: bool, is_reporting: bool, ends: int = 0) -> None:
    """Watch a job that ends, or a signal that comes, when the queue was looked at five times."""
    over, looks = threading.Event(), []

    def look() -> Counts:
        looks.append(1)
        if len(looks) == 5:
            if ends:
                signal.raise_signal(ends)
            else:
                over.set()
        return COUNTS

    job = threading.Thread(target=over.wait)
    job.start()
    spark: Any = None
    jobs = SparkJobs(Caller({"quiet": is_quiet}, frozenset()), spark, signals, is_reporting=is_reporting)
    try:
        jobs._watch("working", job, look)
    finally:
        over.set()
        job.join()


@pytest.mark.parametrize(
    ("is_quiet", "is_reporting", "is_told"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_lines_about_the_state_are_told_off_a_terminal_if_asked_for(
    capfd: pytest.CaptureFixture[str], is_quiet: bool, is_reporting: bool, is_told: bool
) -> None:
    with StopSignals() as signals:
        watched(signals, is_quiet=is_quiet, is_reporting=is_reporting)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("opsq: 3 of 10 chunks done" in err, bool(err)) == (is_told, is_told)


def test_progress_of_a_fleet_is_what_its_one_watch_has_seen(daemon: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Counts | None] = []

    def run_fleet(_spark: object, _plan: Plan, _tasks_count: int, watch: FleetWatch) -> FleetSummary:
        watch.latest = COUNTS
        return FleetSummary([], 0.0)

    class Jobs:
        spark = None

        def run(self, _what: str, job: Callable[[], Any], look: Callable[[], Counts | None]) -> Any:
            shown.append(look())
            summary = job()
            end(daemon)  # whoever would ask it now waits
            shown.append(look())
            return summary

    monkeypatch.setattr(driver, "run_fleet", run_fleet)
    caller, jobs = Caller({"state_dir": str(daemon.state_dir)}, frozenset({"state_dir"})), cast("SparkJobs", Jobs())
    process(caller, jobs, ["cat"], ConsumeOptions(jobs=1, until="empty"), 1, None)
    assert shown == [None, COUNTS]


def test_signal_ends_the_watch_with_its_status() -> None:
    with StopSignals() as signals, pytest.raises(Interrupted) as raised:
        watched(signals, is_quiet=False, is_reporting=False, ends=signal.SIGTERM)
    assert raised.value.number == signal.SIGTERM
