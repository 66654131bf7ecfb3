"""Reserves of one chunk from backlogs made to be slow, against `OldestFirst` on the same database.

One chunk in a hundred comes back. The first call, which meets all that stands in the way, has a row of its own; where
`OldestFirst` is itself what is tried, its rival is `OldestFirst` with nothing in the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import Benchmark, Context, Row, main, ratio_at_most, reported
from ours.adversaries import ADVERSARIES, Adversary, fill_plain
from ours.engine import EngineAlone, Timed
from ours.mill import SHARES, Mill, Quantiles, compared

_RATIOS = {"p50": 3.0, "p99": 10.0}


def measure(context: Context) -> Iterator[Row]:
    """One queue after the other; on each the two strategies take turns, on the same engine."""
    count = context.size(100_000, 10_000)
    folder = context.folder("adversaries")
    for number, adversary in enumerate(ADVERSARIES):
        context.say(f"{adversary.name}: {', '.join(adversary.strategies)}")
        yield from _rows(context, folder / f"{number}.sqlite", adversary, count)


def _rows(context: Context, path: Path, adversary: Adversary, count: int) -> Iterator[Row]:
    engine = EngineAlone(path, is_durable=False)
    before = adversary.fill(engine, count)
    engine.settle()
    plain = engine
    if adversary.is_plain:
        plain = EngineAlone(path.with_suffix(".plain.sqlite"), is_durable=False)
        fill_plain(plain)
        plain.settle()
    mill, rival = Mill(engine, *adversary.strategies, before=before), Mill(plain, "OldestFirst")
    first, rival_first = mill.reserve(), rival.reserve()
    calls = context.size(1000, 500)
    mill.turn(calls)
    rival.turn(calls)
    ours: list[Quantiles] = []
    theirs: list[Quantiles] = []
    for _ in range(context.pairs):
        ours.append(mill.turn(calls))
        theirs.append(rival.turn(calls))
    engine.close()
    if plain is not engine:
        plain.close()
    rival_name = "OldestFirst, nothing in the way" if adversary.is_plain else "OldestFirst"
    what = f"{adversary.name}, {' / '.join(adversary.strategies)}"
    for share in SHARES:
        yield compared(what, share, ours, theirs, ratio_at_most(_RATIOS[share]), rival_name=rival_name)
    yield Row(f"{what}: first call", "s", first.cpu_s, reported(), rival_first.cpu_s, rival_name, note=_told(first))


def _told(first: Timed) -> str:
    turns = f"{first.turns_count} turns of the event loop, the longest {first.longest_turn_s * 1e3:.1f} ms"
    return f"by the wall {first.wall_s * 1e3:.1f} ms, in {turns}"


BENCHMARK = Benchmark("adversaries", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
