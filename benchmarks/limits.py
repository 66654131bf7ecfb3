"""A reserve with ten limits in force, none of them reached, against none: what it costs to ask.

Every chunk falls under five of them: concurrency and rate for each tenant and plan, concurrency for each region and
submission, and a rate for its tenant's own; the others are for single values. Both queues are alike and take turns.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, main, ratio_at_most
from opsq.wire.messages import Limit
from ours.engine import EngineAlone
from ours.mill import SHARES, Mill, Quantiles, compared
from ours.named import metadata_of

_MANY = 1_000_000
_LIMITS = (
    Limit(1, "tenant", concurrency=_MANY, rate_per_s=1e9),
    Limit(2, "plan", concurrency=_MANY, rate_per_s=1e9),
    Limit(3, "region", concurrency=_MANY),
    Limit(4, "submission", concurrency=_MANY),
    Limit(5, "plan", "gold", concurrency=_MANY),
    Limit(6, "plan", "silver", concurrency=_MANY),
    Limit(7, "plan", "free", concurrency=_MANY),
    Limit(8, "region", "eu", rate_per_s=1e9),
    Limit(9, "tenant", "t1", concurrency=_MANY),
    Limit(10, "tenant", "t2", rate_per_s=1e9),
)
_RATIOS = {1: 1.5, 100: 1.1}


def measure(context: Context) -> Iterator[Row]:
    """One chunk a call, and a hundred, in the order of age and in the shuffled deck."""
    count = context.size(10_000, 1000)
    folder = context.folder("limits")
    engines = [EngineAlone(folder / f"{name}.sqlite", is_durable=False) for name in ("limited", "free")]
    for engine in engines:
        engine.submit(count, 1000, [metadata_of(number) for number in range(count)])
    for limit in _LIMITS:
        engines[0].ask(limit)
    for strategy in ("OldestFirst", "Random"):
        for per_call, calls in ((1, 2000), (100, 500)):
            context.say(f"{strategy}, {per_call} a call")
            mills = []
            for engine in engines:
                engine.renew()
                mills.append(Mill(engine, strategy, count=per_call))
            limited: list[Quantiles] = []
            free: list[Quantiles] = []
            for number in range(context.pairs + 1):
                for mill, taken in zip(mills, (limited, free), strict=True):
                    found = mill.turn(calls)
                    if number:  # the first one warms up
                        taken.append(found)
            what = f"reserve under ten limits, {strategy}, {per_call} a call"
            for share in SHARES:
                yield compared(what, share, limited, free, ratio_at_most(_RATIOS[per_call]), rival_name="no limits")
    for engine in engines:
        engine.close()


BENCHMARK = Benchmark("limits", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
