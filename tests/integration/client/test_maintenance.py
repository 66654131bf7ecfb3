"""History, backup, check and pruning from Python: embedded, over a socket and awaited, under the same names."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest

import opsq
from daemons import running
from opsq.errors import OpsqError, UsageError


def work(queue: opsq.Queue) -> opsq.Submission:
    """Complete 70 chunks and fail one."""
    submission = queue.submit([b"a"] * 71, metadata={"tenant": "acme"}, max_attempts=1, on_dead="keep")
    for chunk in queue.consume("OldestFirst"):
        if chunk.index == 70:
            chunk.fail("out of quota", exit_status=75)
        else:
            chunk.complete()
    return submission


def test_embedded_queue_tells_its_history_and_forgets_it(tmp_path: Path) -> None:
    with opsq.Queue.open(tmp_path) as queue:
        submission = work(queue)
        rows = list(queue.history())
        assert sum(row.mask.bit_count() for row in rows if row.event == "completed") == 70
        assert [row.seq for row in queue.history(newest_first=True)] == [row.seq for row in rows][::-1]
        assert list(queue.history(after=rows[0].seq)) == rows[1:]
        failed = [row for row in rows if row.event == "failed"]
        assert [row.exit_status for row in failed] == [75]
        hour = dt.timedelta(hours=1)
        for where in (
            {"events": ["failed"]},
            {"submission_id": submission.id, "index": 70, "exit_statuses": [75], "signals": [9]},
            {"reason": "QUOTA", "exit_statuses": (75,), "metadata": {"tenant": "acme"}},
            {"events": ["failed"], "from_at": dt.datetime.now(dt.UTC) - hour, "to_at": dt.datetime.now(dt.UTC) + hour},
        ):
            assert [row for row in queue.history(**where) if row.event == "failed"] == failed
        assert list(queue.history(consumer="nobody")) == []
        assert queue.prune_history(keep=1) == len(rows) - 1
        assert list(queue.history()) == rows[-1:]
        assert queue.prune_history(older_than_s=3600) == 0


def test_copy_of_the_database_is_whole_and_sound(tmp_path: Path) -> None:
    with opsq.Queue.open(tmp_path / "state") as queue:
        work(queue)
        (tmp_path / "copy").mkdir()
        copy = tmp_path / "copy" / "opsq.sqlite"
        assert queue.backup(copy) == copy.stat().st_size
        with pytest.raises(OpsqError, match="exists"):
            queue.backup(copy)
        assert queue.check() == []
        assert queue.vacuum() >= 0
    with opsq.Queue.open(tmp_path / "copy") as queue:
        assert queue.check() == []
        [state] = queue.submissions()
        assert (state.completed_count, state.dead_count) == (70, 1)


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ({"events": "failed"}, "events"),
        ({"exit_statuses": [9999]}, "exit_statuses"),
        ({"metadata": 3}, "metadata"),
        ({"from_at": dt.datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001  # that is the point
        ({"after": -1}, "after"),
    ],
)
def test_condition_that_cannot_be_is_refused_by_name(tmp_path: Path, where: dict[str, object], named: str) -> None:
    with opsq.Queue.open(tmp_path) as queue, pytest.raises(UsageError, match=named):
        list(queue.history(**where))  # type: ignore[arg-type]  # that is the point


def test_pruning_needs_a_condition(tmp_path: Path) -> None:
    with opsq.Queue.open(tmp_path) as queue, pytest.raises(UsageError, match="No events were selected"):
        queue.prune_history()


def test_upkeep_is_awaited_under_the_same_names(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def upkeep(address: str) -> None:
        async with opsq.connect_async(address) as queue:
            rows = [row async for row in queue.history(events=["failed"])]
            assert [row.reason for row in rows] == ["out of quota"]
            size_bytes = await queue.backup("copy.sqlite")  # of this process, not of the daemon
            assert (runtime_dir / "here/copy.sqlite").stat().st_size == size_bytes
            assert await queue.check() == []
            assert await queue.vacuum() >= 0
            assert await queue.prune_history(keep=0) > 0
            assert [row async for row in queue.history()] == []

    (runtime_dir / "here").mkdir()
    monkeypatch.chdir(runtime_dir / "here")
    with running(runtime_dir) as settings:
        with opsq.connect(settings.socket) as queue:
            work(queue)
            assert [row.reason for row in queue.history(events=["failed"])] == ["out of quota"]
        asyncio.run(asyncio.wait_for(upkeep(settings.socket), 180))
