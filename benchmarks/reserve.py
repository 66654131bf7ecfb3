"""The engine's answer to one reserve, p50 and p99, at 10⁴, 10⁶ and 10⁸ chunks in submissions of 1000, in each order.

One call in a hundred is given back at once, as failures and lost consumers do, so fronts have work below their read
level too.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main, median, paired_row, quantile, ratio_at_most
from opsq.wire.messages import Release, Reserve, Reserved
from ours import loads
from ours.engine import EngineAlone

_SUBMISSION_CHUNKS = 1000
_ORDERS = ("OldestFirst", "NewestFirst", "Random")
_CALLS = {1: 4000, 100: 400}
"""How many calls a turn times, by the chunks a call asks for."""


def measure(context: Context) -> Iterator[Row]:
    """The sizes take turns; a turn begins with a new engine on the same file, so nothing is reserved."""
    few, some, many = sizes = context.size((10**4, 10**6, 10**8), (10**4, 10**5, 10**6))
    engines: dict[int, EngineAlone] = {}
    folder = context.folder("engines")
    for size in sizes:
        context.say(f"{size:.0e} chunks")
        engines[size] = EngineAlone(folder / f"{size}.sqlite")
        engines[size].submit(size // _SUBMISSION_CHUNKS, _SUBMISSION_CHUNKS)
    for order in _ORDERS:
        for count, calls in _CALLS.items():
            context.say(f"{order}, {count} a call")
            medians: dict[int, list[float]] = {size: [] for size in sizes}
            highs: dict[int, list[float]] = {size: [] for size in sizes}
            for turn in range(context.pairs + 1):
                for size in sizes:
                    taken = _turn(engines[size], order, count, calls, size)
                    if turn:  # the first one warms up
                        medians[size].append(quantile(taken, 0.5))
                        highs[size].append(quantile(taken, 0.99))
            what = f"engine reserve, {order}, {count} a call"
            for name, figures in (("p50", medians), ("p99", highs)):
                note = f"{median(figures[some]) * 1e6:.1f} µs at {some:.0e} chunks"
                yield paired_row(
                    f"{what}: {name} at {many:.0e} against {few:.0e}",
                    "s",
                    figures[many],
                    figures[few],
                    ratio_at_most(2),
                    rival_name=f"{few:.0e} chunks",
                    note=note,
                )
            if count == 1:
                worst = max(median(figures) for figures in medians.values())
                yield Row(f"{what}: p50, the slowest of the three sizes", "s", worst, at_most(25e-6, "s"))
    for engine in engines.values():
        engine.close()


def _turn(engine: EngineAlone, order: str, count: int, calls: int, size: int) -> list[float]:
    """The seconds of `calls` reserves; where the backlog is too small, half of it is reserved again and again."""
    taken: list[float] = []
    at_once = max(1, min(calls, size // 2 // count))
    while len(taken) < calls:
        engine.renew()
        for number in range(min(at_once, calls - len(taken))):
            seconds, replies = engine.timed_reserve(Reserve(number, count, order))
            (reserved,) = replies
            if not isinstance(reserved, Reserved) or loads.chunks_of(reserved) != count:
                raise RuntimeError(f"{count} chunks were asked for and free; the engine gave {reserved}")
            taken.append(seconds)
            if number % 100 == 50:
                engine.ask(Release(number, [loads.held(reserved.reservation_id, grant) for grant in reserved.grants]))
    return taken


BENCHMARK = Benchmark("reserve", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
