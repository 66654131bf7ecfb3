"""One frame of `opsq top` from a given state of the queue, on screens of several sizes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from opsq.cli.caller import Caller
from opsq.cli.output.console import SafeConsole
from opsq.cli.output.top_frame import footer, frame
from opsq.cli.output.top_view import FAILURES_KEPT, RUNNING_ASKED, Sight, TopView, TopWatch
from opsq.documents.progress_meter import ProgressMeter
from opsq.documents.submissions import RunningShape
from opsq.wire.messages import (
    UNREACHABLE,
    ConsumerState,
    Counts,
    DaemonState,
    Finding,
    History,
    HistoryEvent,
    HistoryRows,
    Running,
    RunningChunk,
    RunningChunks,
    ShardState,
)

CALLER = Caller({}, frozenset())
SUBMISSION = 252687752515026944
STATE = DaemonState(
    id=1,
    server="1",
    pid=4711,
    state="running",
    uptime_s=7200.0,
    total=Counts(None, 2, 90, 1, 9, 100, 2, 0),
    by=[],
    states={"open": 2, "failed": 0},
    consumers=[ConsumerState(f"node{n}-100-0123abcd", True, 3, 61.0, "Random") for n in range(20)],
    parked_count=0,
    connections_count=21,
    oldest_reservation_s=61.0,
    unfolded_count=0,
    file_bytes=1,
    free_bytes=0,
    wal_bytes=0,
    settings={},
)


def chunk(index: int, run_s: float = 60.0, **changes: Any) -> RunningShape:
    metadata: dict[str, int | str] = {"tenant": "acme", "job": "nightly"}
    shape = RunningShape(str(SUBMISSION), index, 0, "me-0123abcd", "node7", 4711, "", run_s, False, metadata, "Of July")
    return replace(shape, **changes)


def failure(seq: int, event: str = "failed", reason: str = "no such\nfile") -> HistoryEvent:
    return HistoryEvent(seq, 1_800_000_000_000, event, SUBMISSION, 0, 0b1000, 1, "me", 1.0, 1.0, 0.0, 3, None, reason)


def paused(tenant: str, by: str) -> Finding:
    return Finding("paused", {"by": by, "paused_at": 1_700_000_000_000, "pairs": f"tenant={tenant}"})


def view(**changes: Any) -> TopView:
    found = TopView(
        STATE,
        ProgressMeter(),
        [chunk(n, 600.0 - n) for n in range(30)],
        False,
        [failure(seq) for seq in range(20, 0, -1)],
    )
    return replace(found, **changes)


def drawn(
    shown: TopView, sight: Sight | None = None, *, columns: int = 80, rows: int | None = 24, **more: Any
) -> list[str]:
    console = SafeConsole(file=io.StringIO(), width=columns, height=rows or 500)
    line = None if rows is None else footer(sight or Sight(), is_paused=False)
    console.print(frame(CALLER, shown, sight or Sight(), height=rows, footer=line, **more))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [each.rstrip() for each in text.splitlines()]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 50), (40, 10), (200, 24), (20, 5)])
def test_frame_fits_the_screen_whatever_there_is(columns: int, rows: int) -> None:
    shown = view(state=replace(STATE, held_back=[paused(f"t{n}", "x" * 90) for n in range(9)]))
    lines = drawn(shown, columns=columns, rows=rows, trouble="No daemon answers.")
    assert len(lines) <= max(rows, 9)
    assert all(cell_len(line) <= columns for line in lines)


def test_counts_of_thousands_of_millions_leave_room_for_each_other() -> None:
    total = Counts(None, 3, 2_999_999_995, 10**9, 10**9, 1_234_567_890, 10**9, 0)
    text = "\n".join(drawn(view(state=replace(STATE, total=total, backlog_limit=6 * 10**9))))
    assert "chunks: 3.0G waiting, 1.0G delayed, 1.0G reserved, 1.2G completed, 1.0G dead" in text
    assert "backlog 5.0G of at most 6.0G, 2 open" in text


def test_failures_that_are_not_all_are_marked_and_a_lease_is_named() -> None:
    lease = ConsumerState("cli-1", False, 3, 61.0, None)
    failures = [failure(seq) for seq in range(FAILURES_KEPT, 0, -1)]
    text = "\n".join(drawn(view(failures=failures, running=[], state=replace(STATE, consumers=[lease]))))
    assert f"failures {FAILURES_KEPT}+" in text
    assert next(line for line in text.split("\n") if line.startswith("cli-1")).endswith("lease")


def test_screen_of_80_columns_has_a_part_of_everything() -> None:
    lines = drawn(view(state=replace(STATE, held_back=[paused("a", "ada@node7")])))
    text = "\n".join(lines)
    assert lines[0].startswith("running  pid 4711, up 2h, 21 connections")
    assert "90 waiting, 1 delayed, 9 reserved, 100 completed, 2 dead" in text
    assert "blocked: Waiting work has been paused by ada@node7" in text
    assert "backlog 100, 2 open" in text
    for head in ("running 30", "failures 20", "consumers 20"):
        assert head in text
    first = next(line for line in lines if f"{SUBMISSION}/0" in line)
    assert "10m" in first
    assert "me-0123abcd on node7-4711" in first
    assert "Of" in first
    assert "exit 3" in text
    assert "no such file" in text
    assert lines[-1].startswith("q quit")
    assert len(lines) == 24


def test_larger_screen_shows_more_of_what_runs_and_one_with_room_everything() -> None:
    count = [sum("on node7" in line for line in drawn(view(), rows=rows)) for rows in (24, 30, 100)]
    assert count[0] < count[1] < count[2] == 30
    assert sum("node1" in line for line in drawn(view(), rows=None)) == 11


@pytest.mark.parametrize(
    ("state", "there", "gone"),
    [
        ("running", "running 30", "failures"),
        ("lost", "failures 20", "running 30"),
        ("dead", "failures 20", "consumers"),
    ],
)
def test_state_in_sight_has_the_screen_for_itself(state: str, there: str, gone: str) -> None:
    text = "\n".join(drawn(view(), Sight(state=state)))
    assert there in text
    assert f"only {state}" in text
    assert gone not in text


def test_text_of_others_moves_no_cursor() -> None:
    evil = "\x1b[2Jred\x07\u202e"
    shown = view(running=[chunk(1, metadata={"a": evil})], failures=[failure(1, reason=evil)])
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(drawn(shown)))


def test_what_blocks_is_named() -> None:
    state = replace(STATE, consumers=[], held_back=[paused("a", "ada@node7"), Finding("draining")])
    text = "\n".join(drawn(view(state=state), columns=200))
    for words in (
        "paused by ada@node7",
        "tenant=a",
        "the daemon is stopping",
        "90 chunks waiting, and no consumer is connected",
    ):
        assert words in text
    assert "blocked" not in "\n".join(drawn(view()))


class Daemon:
    """Answers with what it has; counts the pages of history."""

    def __init__(self) -> None:
        self.events = [failure(seq) for seq in range(300, 0, -1)]
        self.running = 1000
        self.empty_pages: list[HistoryRows] = []
        self.asked: list[Any] = []

    def next_id(self) -> int:
        return 1

    def call(self, request: Any, kind: type[Any]) -> Any:
        self.asked.append(request)
        if isinstance(request, History) and self.empty_pages:
            return self.empty_pages.pop(0)
        if isinstance(request, History):
            left = [e for e in self.events if request.after is None or e.seq < request.after][: request.limit]
            return HistoryRows(1, left, left[-1].seq if left and left[-1].seq > 1 else None, {})
        if isinstance(request, Running):
            row = RunningChunk(SUBMISSION, 0, (1 << 60) - 1, 0, "me", "h", 1, 5.0)
            return RunningChunks(1, [row] * (request.limit // 60 + 1), (0, 0, 0, 0, 0), {})
        return STATE


def test_look_asks_for_a_bounded_part_and_for_new_failures_only() -> None:
    daemon, watch = Daemon(), TopWatch()
    first = watch.look(daemon, Sight())
    assert (len(first.running), first.has_more_running, len(first.failures)) == (RUNNING_ASKED, True, FAILURES_KEPT)
    daemon.events = [failure(302, "dead"), failure(301, "lost"), *daemon.events]
    daemon.asked.clear()
    second = watch.look(daemon, Sight())
    assert [event.seq for event in second.failures] == list(range(302, 202, -1))
    assert sum(isinstance(request, History) for request in daemon.asked) == 1
    assert len(daemon.asked) == 3


def test_failure_of_another_shard_is_found_whatever_its_number() -> None:
    daemon, watch = Daemon(), TopWatch()
    daemon.events = [failure(50)]
    watch.look(daemon, Sight())
    daemon.events = [failure(7), failure(50)]
    assert [event.seq for event in watch.look(daemon, Sight()).failures] == [7, 50]


def test_search_for_failures_ends_where_the_last_look_began() -> None:
    daemon, watch = Daemon(), TopWatch()
    daemon.events = [failure(9)]
    watch.look(daemon, Sight())
    daemon.asked.clear()
    daemon.empty_pages = [HistoryRows(1, [], 100 - n, {}, {}, daemon.events[0].at + 1 - n) for n in range(5)]
    assert [event.seq for event in watch.look(daemon, Sight()).failures] == [9]
    assert sum(isinstance(request, History) for request in daemon.asked) == 3


def test_shards_are_counted_in_place_of_a_process() -> None:
    shards = [ShardState(0, "a:7400", "running", "1", STATE.total, 5.0), ShardState(1, "b:7400", UNREACHABLE)]
    [head, *_] = drawn(view(state=replace(STATE, shards=shards)))
    assert head.startswith("running  2 shards, 1 of them unreachable, up 2h, 21 connections")


def test_sight_chooses_by_text_state_and_metadata() -> None:
    daemon, watch = Daemon(), TopWatch()
    daemon.events = [failure(3, "dead"), failure(2, "lost"), failure(1, reason="Quota")]
    assert [event.seq for event in watch.look(daemon, Sight(state="lost")).failures] == [2]
    assert [event.seq for event in watch.look(daemon, Sight(text="quota")).failures] == [1]
    assert not watch.look(daemon, Sight(text="nobody")).running
    watch.look(daemon, Sight(metadata={"tenant": "a"}))
    assert [request.metadata for request in daemon.asked if isinstance(request, Running)][-1] == {"tenant": "a"}
    assert daemon.asked[-1].where.metadata == {"tenant": "a"}
