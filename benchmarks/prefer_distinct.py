"""`PreferDistinct(key, 1, OldestFirst)` with 2·10⁵ submissions of one chunk each: a reserve of one chunk, p50.

Opsqueue publishes 220 ms for this, from another machine. Two backlogs: a value for each submission; and a hundred
values, so that most of what comes first is of a value that has its chunk already.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main, median, reported
from ours.engine import EngineAlone
from ours.mill import Mill

_PUBLISHED_S = 0.220
_STRATEGY = "PreferDistinct(tenant, 1, OldestFirst)"


def measure(context: Context) -> Iterator[Row]:
    """In the steady state; submissions end as fast as they are served."""
    count = context.size(200_000, 20_000)
    calls = context.size(4000, 1000)
    for name, values in (("a value each", count), ("100 values", 100)):
        context.say(f"{count} submissions, {name}")
        engine = EngineAlone(context.folder("prefer_distinct") / "opsq.sqlite", is_durable=False)
        engine.submit(count, 1, [{"tenant": number % values} for number in range(count)])
        engine.settle()
        mill = Mill(engine, _STRATEGY)
        first = mill.reserve()
        mill.turn(calls)
        turns = [mill.turn(calls) for _ in range(context.pairs)]
        engine.close()
        what = f"{_STRATEGY}, {count:.0e} submissions of one chunk, {name}"
        told = f"by the wall p50 {median([turn.p50_wall_s for turn in turns]) * 1e6:.1f} µs"
        p50 = [turn.p50_cpu_s for turn in turns]
        yield Row(
            f"{what}: p50",
            "s",
            median(p50),
            at_most(30e-6, "s"),
            rival=_PUBLISHED_S,
            rival_name="Opsqueue, published",
            ratio=median(p50) / _PUBLISHED_S,
            ratio_reads="ours/rival",
            note=f"{told}; first call {first.wall_s * 1e3:.2f} ms",
            samples={"ours": p50, "ours by the wall": [turn.p50_wall_s for turn in turns]},
        )
        p99 = [turn.p99_cpu_s for turn in turns]
        yield Row(
            f"{what}: p99",
            "s",
            median(p99),
            reported(),
            samples={"ours": p99, "ours by the wall": [turn.p99_wall_s for turn in turns]},
        )


BENCHMARK = Benchmark("prefer_distinct", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
