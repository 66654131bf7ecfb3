"""The drawings of the page: which cells a map has, and how high bars are."""

from __future__ import annotations

import re

import pytest

from opsq.gateway.page.drawing import BARS, CELLS_LIMIT, PLOT_HEIGHT, chunk_map, counts_plot, longest_plot
from opsq.wire.messages import HistoryEvent


def cells(path: str) -> list[tuple[int, int]]:
    """Column and row of each cell of a path."""
    return [(int(x), int(y)) for x, y in re.findall(r"M(\d+)\.\d+ (\d+)\.\d+", path)]


def event(at: int, kind: str = "completed", mask: int = 1, **fields: float) -> HistoryEvent:
    """An event of one block."""
    run_s, wait_s = fields.get("run_s", 0.0), fields.get("wait_s", 0.0)
    return HistoryEvent(at, at, kind, 1, 0, mask, 0, "c", run_s, run_s, wait_s, None, None, "")


def test_each_chunk_of_few_is_a_cell_of_its_state() -> None:
    drawn = chunk_map(70, [0b1011, 0], {1: 0b1}, [5], is_final=False)
    assert (drawn.columns, drawn.rows, drawn.chunks_per_cell) == (64, 2, 1)
    assert cells(drawn.paths["completed"]) == [(0, 0), (1, 0), (3, 0)]
    assert cells(drawn.paths["reserved"]) == [(0, 1)]
    assert cells(drawn.paths["dead"]) == [(5, 0)]
    assert len(cells(drawn.paths["waiting"])) == 70 - 5


def test_what_an_ended_submission_has_not_completed_was_skipped() -> None:
    assert set(chunk_map(3, [0b1], {}, [], is_final=True).paths) == {"completed", "skipped"}


@pytest.mark.parametrize("count", [1, 1024, 1025, 5000, 100_000, 1 << 20])
def test_many_chunks_share_cells_and_every_one_is_in_one(count: int) -> None:
    masks = [(1 << min(64, count - first)) - 1 for first in range(0, count, 64)]
    drawn = chunk_map(count, masks, {}, [], is_final=True)
    assert set(drawn.paths) == {"completed"}
    found = len(cells(drawn.paths["completed"]))
    assert found <= CELLS_LIMIT
    assert (found - 1) * drawn.chunks_per_cell < count <= found * drawn.chunks_per_cell


def test_cell_in_which_some_are_completed_is_begun() -> None:
    drawn = chunk_map(4096, [1], {}, [], is_final=False)
    assert cells(drawn.paths["begun"]) == [(0, 0)]


def test_bars_count_chunks_and_the_highest_is_as_high_as_the_plot() -> None:
    plot = counts_plot([event(1_000_000, mask=0b111), event(1_059_000, "failed"), event(1_059_000)])
    assert plot is not None
    assert plot.largest == 3
    assert plot.paths["completed"].startswith(f"M5 {PLOT_HEIGHT:.1f}v{-PLOT_HEIGHT:.1f}")
    assert re.fullmatch(r"M\d+ 60\.0v-30\.0", plot.paths["failed"])
    assert plot.from_at <= 1_000_000
    assert plot.to_at > 1_059_000


@pytest.mark.parametrize("span_ms", [0, 1, 999, 60_000, 86_400_000, 400 * 86_400_000])
def test_any_time_fits_into_the_bars(span_ms: int) -> None:
    events = [event(1_700_000_000_123), event(1_700_000_000_123 + span_ms)]
    plot = counts_plot(events)
    assert plot is not None
    assert plot.width <= BARS * 10
    assert plot.from_at <= events[0].at
    assert events[1].at < plot.to_at


def test_durations_show_the_longest_and_nothing_is_no_plot() -> None:
    plot = longest_plot([event(1000, run_s=2.0), event(1001, run_s=0.5)], "run")
    assert plot is not None
    assert plot.largest == 2.0
    assert longest_plot([], "wait") is None
    assert counts_plot([]) is None
