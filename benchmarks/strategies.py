"""A reserve of one chunk by every node and by ten named compositions, p50 and p99, at 10⁴, 10⁶ and 10⁸ chunks.

Submissions have 1000 chunks and three metadata keys: a thousand tenants, three plans, four regions. What was completed
comes in again, so that the backlog stays as it is; one chunk in a hundred is given back. A turn begins with fronts that
are warm; the notes have the first calls.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness import Benchmark, Context, Row, main, ratio_at_most
from ours.engine import EngineAlone
from ours.mill import SHARES, Metadata, Mill, Quantiles, Share, compared
from ours.named import COMPOSITIONS, NODES, metadata_of, priority_of

_SUBMISSION_CHUNKS = 1000
_HELD, _BATCH = 2, 4
"""At 10⁴ chunks there are only ten submissions, and one of the strategies takes one chunk of each at a time."""
_AT_ONCE = 100
_RATIO = 3.0


def measure(context: Context) -> Iterator[Row]:
    """The sizes take turns; a strategy begins with a new engine at each size."""
    sizes = context.size((10**4, 10**6, 10**8), (10**4, 10**5, 10**6))
    warm_up, calls = context.size((5000, 2000), (1000, 1000))
    folder = context.folder("strategies")
    backlogs: dict[int, _Backlog] = {}
    for size in sizes:
        context.say(f"{size:.0e} chunks")
        backlogs[size] = _Backlog(folder / f"{size}.sqlite", size)
    for name, strategy in (NODES | COMPOSITIONS).items():
        context.say(f"{name}: {strategy}")
        mills = {size: backlog.mill(strategy) for size, backlog in backlogs.items()}
        first_s = {size: mill.reserve().wall_s for size, mill in mills.items()}
        for mill in mills.values():
            mill.turn(warm_up)
        turns: dict[int, list[Quantiles]] = {size: [] for size in sizes}
        for _ in range(context.pairs):
            for size, mill in mills.items():
                turns[size].append(mill.turn(calls))
        what = strategy if name in NODES else f"{name}, {strategy}"
        told = ", ".join(f"{first_s[size] * 1e6:.0f} µs at {size:.0e}" for size in sizes)
        for share in SHARES:
            yield _row(what, share, turns, f"first call {told}")
    for backlog in backlogs.values():
        backlog.close()


def _row(what: str, share: Share, turns: dict[int, list[Quantiles]], note: str) -> Row:
    few, *_, many = turns
    row = compared(
        f"{what} at {many:.0e} against {few:.0e} chunks",
        share,
        turns[many],
        turns[few],
        ratio_at_most(_RATIO),
        rival_name=f"{few:.0e} chunks",
        note=note,
    )
    by_size = {
        f"{size:.0e} chunks": [taken[SHARES.index(share)] for taken in taken_at] for size, taken_at in turns.items()
    }
    return dataclasses.replace(row, samples=row.samples | by_size)


class _Backlog:
    """A queue with a constant backlog: completed work is replaced by new submissions of the same metadata."""

    def __init__(self, path: Path, chunks_count: int) -> None:
        self._engine = EngineAlone(path, is_durable=False)
        self._completed: Counter[tuple[tuple[str, int | str], ...]] = Counter()
        waiting: dict[int, list[Metadata]] = {}
        for number in range(chunks_count // _SUBMISSION_CHUNKS):
            metadata = metadata_of(number)
            of_priority = waiting.setdefault(priority_of(metadata), [])
            of_priority.append(metadata)
            if len(of_priority) == _AT_ONCE:
                self._submit(of_priority)
                of_priority.clear()
        for of_priority in waiting.values():
            self._submit(of_priority)

    def mill(self, strategy: str) -> Mill:
        """A consumer, on a new engine."""
        self._engine.renew()
        return Mill(self._engine, strategy, held=_HELD, batch=_BATCH, on_completed=self._replace)

    def close(self) -> None:
        self._engine.close()

    def _submit(self, metadata: list[Metadata]) -> None:
        if metadata:
            self._engine.submit(len(metadata), _SUBMISSION_CHUNKS, metadata, priority=priority_of(metadata[0]))

    def _replace(self, metadata: Metadata) -> None:
        name = tuple(metadata.items())
        self._completed[name] += 1
        if (
            self._completed[name] % _SUBMISSION_CHUNKS == _SUBMISSION_CHUNKS // 2
        ):  # long before the last of them is reserved
            self._submit([metadata])


BENCHMARK = Benchmark("strategies", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
