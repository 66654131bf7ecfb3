"""What the driver sees of the daemon while a fleet works: counts, that it is away, a bar for people."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import astuple
from rich.console import Console

import opsq
from daemons import end
from opsq.daemon import lifecycle
from opsq.runner.pool_options import ConsumeOptions
from opsq.settings import Settings
from opsq.spark.fleet import driver, watch
from opsq.spark.fleet.driver import FleetSummary
from opsq.spark.fleet.tasks import Plan, TaskSummary
from opsq.spark.fleet.watch import FleetWatch
from opsq.spark.source import daemon_address
from opsq.spark.source.daemon_address import Daemon
from opsq.wire.messages import Counts
from waiting import wait_until

DEADLINE_S = 180


def watching(daemon: Settings, submission_id: int | None = None, *, shows_progress: bool = False) -> FleetWatch:
    return FleetWatch(Daemon(daemon.socket, ""), submission_id, shows_progress=shows_progress)


def complete_all_but_the_first(queue: opsq.Queue) -> None:
    with queue.consumer("OldestFirst") as consumer:
        for chunk in consumer.chunks():
            if chunk.index:
                chunk.complete()
            else:
                chunk.fail(retry=False)


class OtherConsumers:
    """A session in which one task of one fleet completes nothing, while others take all chunks; it has no JVM."""

    def __init__(self, queue: opsq.Queue) -> None:
        self._queue = queue

    def range(self, *_: int) -> OtherConsumers:
        return self

    def mapInArrow(self, *_: object) -> OtherConsumers:  # noqa: N802  # as PySpark calls it
        return self

    def getTags(self) -> set[str]:  # noqa: N802
        return set()

    def addTag(self, tag: str) -> None:  # noqa: N802
        """Nothing."""

    removeTag = addTag  # noqa: N815

    def collect(self) -> list[tuple[object, ...]]:
        complete_all_but_the_first(self._queue)
        return [astuple(TaskSummary(0, "here"))]


@pytest.mark.parametrize(
    ("is_of_one", "counts"), [(True, (2, 1)), (False, (0, 0))], ids=["of a submission: by all", "of all: by its tasks"]
)
def test_fleet_has_the_counts_of_its_submission_and_without_one_those_of_its_tasks(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch, is_of_one: bool, counts: tuple[int, int]
) -> None:
    monkeypatch.setattr(driver, "is_remote", lambda _: True)
    monkeypatch.setattr(driver, "_observed", lambda frame: frame)
    submission = queue.submit([b"a", b"b", b"c"], on_dead="keep")
    options = ConsumeOptions(jobs=1, submission_id=submission.id if is_of_one else None)
    plan = Plan(daemon=Daemon(daemon.socket, ""), options=options, command=("cat",))
    session: Any = OtherConsumers(queue)
    summary = driver.run_fleet(session, plan, 1)
    assert (summary.completed, summary.dead) == counts


def test_latest_counts_follow_the_daemon_and_stay_while_it_is_away(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK_S", 0.05)
    monkeypatch.setattr(watch, "_LAST_LOOK_S", 0.0)
    submission = queue.submit([b"a", b"b", b"c"], on_dead="keep")
    with watching(daemon, submission.id) as seen:
        assert seen.latest == seen.before
        complete_all_but_the_first(queue)
        wait_until(lambda: seen.latest == submission.state().counts, DEADLINE_S, "the counts are new")
        end(daemon)
        assert seen.latest is not None
        assert (seen.latest.completed_count, seen.latest.dead_count) == (2, 1)


def test_counts_of_tasks_are_taken_where_the_daemon_was_not_asked() -> None:
    summary = FleetSummary([TaskSummary(0, "a", completed=2), TaskSummary(1, "b", completed=3, dead=1)], 1.0)
    assert (summary.completed, summary.dead) == (5, 1)


def test_daemon_that_is_away_is_reported_and_so_is_its_return(
    daemon: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon_address, "AWAY_S", 0.1)
    monkeypatch.setattr(watch, "_LOOK_S", 0.05)
    with caplog.at_level(logging.WARNING, "opsq"), watching(daemon) as seen:
        wait_until(lambda: seen.before is not None, DEADLINE_S, "the daemon was asked")
        end(daemon)
        wait_until(lambda: "No daemon has answered at" in caplog.text, DEADLINE_S, "its absence is reported")
        lifecycle.start(daemon)
        wait_until(lambda: "answers again" in caplog.text, DEADLINE_S, "its return is reported")
    assert caplog.text.count("No daemon has answered") == 1
    assert seen.after is not None


def test_progress_shows_chunks_and_failures(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr(watch, "_console", lambda: Console(file=drawn, force_terminal=True, width=100))
    submission = queue.submit([b"a", b"b", b"c", b"d"], on_dead="keep")
    with watching(daemon, submission.id, shows_progress=True):
        complete_all_but_the_first(queue)
    assert "4/4" in drawn.getvalue()
    assert "1 dead" in drawn.getvalue()
    assert "rows" not in drawn.getvalue()


class Cell:
    """The output of a cell of a notebook: what was shown in it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw
        assert display_id
        self.shown.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data)


def test_progress_in_a_notebook_is_one_output_with_rows_and_needs_no_widgets(
    daemon: Settings, queue: opsq.Queue, submit_table: Callable[..., opsq.Submission], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=cell.display))
    monkeypatch.setattr(watch, "_console", lambda: Console(force_jupyter=True))
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    assert watch.is_seen()
    submission = submit_table([{"n": n} for n in range(4000)], rowsPerChunk=1000, onDead="keep")
    begun = "1/4 chunks, ≈ 1,000 of 4,000 rows"
    with watching(daemon, submission.id, shows_progress=True), queue.consumer("OldestFirst") as consumer:
        for chunk in consumer.chunks():
            if chunk.index:
                chunk.complete()
            else:
                chunk.fail(retry=False)
                wait_until(lambda: cell.shown[-1]["text/plain"].startswith(begun), DEADLINE_S, "one is done")
    last = cell.shown[-1]
    assert last["text/plain"].startswith("4/4 chunks, 4,000 of 4,000 rows")
    assert last["text/plain"].endswith("1 dead")
    assert last["text/html"].startswith('<progress value="4" max="4"></progress> 4/4 chunks')


def test_rows_are_left_out_of_the_progress_where_the_store_cannot_be_seen(
    daemon: Settings, submit_table: Callable[..., opsq.Submission], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = io.StringIO()
    monkeypatch.setattr(watch, "_console", lambda: Console(file=drawn, force_terminal=True, width=100))
    submission = submit_table([{"n": 1}], rowsPerChunk=1)
    (Path(daemon.state_dir) / "content").rename(Path(daemon.state_dir) / "elsewhere")
    with watching(daemon, submission.id, shows_progress=True):
        pass
    assert "0/1" in drawn.getvalue()
    assert "rows" not in drawn.getvalue()


def test_daemon_is_asked_once_before_and_once_after_a_short_fleet(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, asked = io.StringIO(), []
    look = FleetWatch._look

    def counted(self: FleetWatch) -> Counts | None:
        asked.append(self)
        return look(self)

    monkeypatch.setattr(watch, "_console", lambda: Console(file=drawn, force_terminal=True, width=100))
    monkeypatch.setattr(watch, "_LOOK_S", DEADLINE_S)
    monkeypatch.setattr(FleetWatch, "_look", counted)
    submission = queue.submit([b"a", b"b"], on_dead="keep")
    with watching(daemon, submission.id, shows_progress=True):
        complete_all_but_the_first(queue)
    assert len(asked) == 2
    assert "2/2" in drawn.getvalue()
