"""Draws as SVG: the chunks of a submission as a map, and events over time as bars.

Colours and strokes are those of classes in the style sheet. It must not ask for anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from opsq.wire.messages import HistoryEvent

CELLS_LIMIT = 1024
COLUMNS = 64
BARS = 60
BAR_WIDTH, PLOT_HEIGHT = 10, 90
_SPANS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)
"""How long a bar may be, as long as that suffices."""


class ChunkMap(NamedTuple):
    """A grid of cells; for each class of cells the path that draws them."""

    columns: int
    rows: int
    chunks_per_cell: int
    paths: dict[str, str]


def chunk_map(
    chunks_count: int, completed: Sequence[int], running: Mapping[int, int], dead: Iterable[int], *, is_final: bool
) -> ChunkMap:
    """The chunks of a submission, some to a cell where they are many.

    Args:
        completed: a mask for each block.
        running: masks by block.
        dead: indexes.
        is_final: what is neither completed nor dead was skipped.
    """
    per_cell = 1
    while chunks_count > per_cell * CELLS_LIMIT:
        per_cell *= 2
    count = -(-chunks_count // per_cell)
    done = _per_cell(enumerate(completed), per_cell, count)
    busy = _per_cell(running.items(), per_cell, count)
    died = {index // per_cell for index in dead}
    columns = max(min(count, COLUMNS), 1)
    paths: dict[str, list[str]] = {}
    for cell in range(count):
        whole = min(per_cell, chunks_count - cell * per_cell)
        if cell in died:
            kind = "dead"
        elif busy[cell]:
            kind = "reserved"
        elif done[cell] >= whole:
            kind = "completed"
        elif done[cell]:
            kind = "begun"
        else:
            kind = "skipped" if is_final else "waiting"
        paths.setdefault(kind, []).append(_cell(kind, cell % columns, cell // columns))
    drawn = {kind: "".join(parts) for kind, parts in paths.items()}
    return ChunkMap(columns, -(-count // columns), per_cell, drawn)


def _cell(kind: str, x: int, y: int) -> str:
    """A square; a cross where chunks are dead, and a dot where nothing has been done, so that colour is not needed."""
    if kind == "dead":
        return f"M{x}.2 {y}.2l.6.6m0-.6l-.6.6"
    if kind in {"waiting", "skipped"}:
        return f"M{x}.35 {y}.5h.3"
    return f"M{x}.08 {y}.5h.84"


def _per_cell(masks: Iterable[tuple[int, int]], per_cell: int, count: int) -> list[int]:
    """How many bits are set in each cell."""
    found = [0] * count
    if per_cell >= 64:
        for block, mask in masks:
            found[block * 64 // per_cell] += mask.bit_count()
        return found
    part = (1 << per_cell) - 1
    for block, mask in masks:
        for shift in range(0, mask.bit_length(), per_cell):
            found[(block * 64 + shift) // per_cell] += (mask >> shift & part).bit_count()
    return found


class Plot(NamedTuple):
    """Bars over time: for each class the path that draws them, and what stands at the axes."""

    paths: dict[str, str]
    width: int
    from_at: int
    to_at: int
    bar_ms: int
    largest: float


def counts_plot(events: Sequence[HistoryEvent], until: int = 0) -> Plot | None:
    """How many chunks were completed, failed or lost, and died in each time, one upon the other; None: none.

    Args:
        until: when it ends; 0: with the last event.
    """
    kinds = {"completed": "completed", "failed": "failed", "lost": "failed", "dead": "dead"}
    counted = [event for event in events if event.event in kinds]
    times = _Times.of(counted, until)
    if times is None:
        return None
    sums = {kind: [0.0] * times.bars_count for kind in ("completed", "failed", "dead")}
    for event in counted:
        sums[kinds[event.event]][times.bar(event.at)] += event.mask.bit_count()
    return _stacked(sums, times)


def longest_plot(events: Sequence[HistoryEvent], kind: Literal["run", "wait"]) -> Plot | None:
    """How long the longest attempt ran, or waited before it, in each time; None: nothing was tried."""
    tried = [event for event in events if event.consumer]
    times = _Times.of(tried)
    if times is None:
        return None
    longest = [0.0] * times.bars_count
    for event in tried:
        bar = times.bar(event.at)
        longest[bar] = max(longest[bar], event.run_max_s if kind == "run" else event.wait_s)
    return _stacked({kind: longest}, times)


class _Times(NamedTuple):
    """The bars of a plot in time."""

    from_at: int
    bar_ms: int
    bars_count: int

    @classmethod
    def of(cls, events: Sequence[HistoryEvent], until: int = 0) -> _Times | None:
        """The times from the first event to the last, or later: even ones, as people read them."""
        if not events:
            return None
        first = min(event.at for event in events)
        last = max(until, *(event.at for event in events))
        least_ms = (last - first) // (BARS - 1) + 1
        bar_ms = next((round(each * 1000) for each in _SPANS_S if each * 1000 >= least_ms), least_ms)
        return cls(first - first % bar_ms, bar_ms, (last - first + first % bar_ms) // bar_ms + 1)

    def bar(self, at: int) -> int:
        """In which bar an instant is."""
        return (at - self.from_at) // self.bar_ms


def _stacked(sums: Mapping[str, Sequence[float]], times: _Times) -> Plot:
    largest = max(map(sum, zip(*sums.values(), strict=True)))
    paths: dict[str, list[str]] = {kind: [] for kind in sums}
    for bar in range(times.bars_count):
        below = 0.0
        for kind, values in sums.items():
            if values[bar] and largest:
                height = max(values[bar] / largest * PLOT_HEIGHT, 1.0)
                x, y = bar * BAR_WIDTH + BAR_WIDTH // 2, PLOT_HEIGHT - below
                paths[kind].append(f"M{x} {y:.1f}v{-height:.1f}")
                below += height
    drawn = {kind: "".join(parts) for kind, parts in paths.items() if parts}
    to_at = times.from_at + times.bars_count * times.bar_ms
    return Plot(drawn, times.bars_count * BAR_WIDTH, times.from_at, to_at, times.bar_ms, largest)
