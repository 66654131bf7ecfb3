"""One chunk a call, 64 calls in flight on one connection or one on each of 64, against beanstalkd driven alike.

Its client is Python's, as ours is. Ours is durable at every reply; beanstalkd is so with `-f0`, and loses up to 50 ms
of acknowledged work by default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_least
from ours import loads
from ours.client import connect
from ours.daemon import Daemon
from rivals import beanstalkd
from rivals.programs import BEANSTALKD

_CALLS = 64
_ORDER = "OldestFirst"
_ON_ONE = f"reserve + complete, 1 a call, {_CALLS} in flight"
_ON_ALL = f"reserve + complete, 1 a call, {_CALLS} connections with one in flight each"


def measure(context: Context) -> Iterator[Row]:
    """Both ways of ours, of `-f0` and of the default, in turns."""
    chunks_count = context.size(100_000, 10_000)
    context.say(f"{chunks_count} chunks; {_CALLS} in flight on one connection, and on as many")
    with contextlib.ExitStack() as opened:
        daemon = opened.enter_context(Daemon(context.folder("opsq"), heartbeat_s="600"))  # turns of rivals are silence
        clients = [opened.enter_context(connect(daemon)) for _ in range(_CALLS)]

        def ours(complete: Callable[[], float]) -> float:
            clients[0].submit(10, chunks_count // 10)
            return chunks_count / complete()

        sides = [
            lambda: ours(
                lambda: loads.complete(clients[0], chunks_count, strategy=_ORDER, per_call=1, in_flight=_CALLS)
            ),
            lambda: ours(lambda: loads.complete_on_all(clients, chunks_count, strategy=_ORDER)),
        ]
        for name, fsync_ms, jobs_count in (
            ("f0", 0, context.size(20_000, 2000)),
            ("f50", 50, chunks_count),
        ):
            serving = beanstalkd.serving(context.folder(name), fsync_ms=fsync_ms)
            sides += _rival_sides(opened, opened.enter_context(serving), jobs_count)
        one, each, f0_one, f0_each, f50_one, f50_each = alternate(context.pairs, *sides)
    for what, rates, synced, default in ((_ON_ONE, one, f0_one, f50_one), (_ON_ALL, each, f0_each, f50_each)):
        for rival_rates, rival_name, bound in ((synced, "beanstalkd -f0", 8.0), (default, "beanstalkd -f50", 0.9)):
            yield paired_row(
                f"{what}, against {rival_name}",
                "chunks/s",
                rates,
                rival_rates,
                ratio_at_least(bound),
                rival_name=rival_name,
            )
    yield paired_row(
        f"{_ON_ALL}, against one with {_CALLS}",
        "chunks/s",
        each,
        one,
        ratio_at_least(0.8),
        rival_name="one connection",
    )


def _rival_sides(
    opened: contextlib.ExitStack, rival: beanstalkd.Client, jobs_count: int
) -> tuple[Callable[[], float], Callable[[], float]]:
    clients = [rival, *(opened.enter_context(rival.another()) for _ in range(_CALLS - 1))]

    def on_one() -> float:
        rival.put(jobs_count)
        return jobs_count / rival.reserve_and_delete(jobs_count, in_flight=_CALLS)

    def on_all() -> float:
        rival.put(jobs_count)
        return jobs_count / beanstalkd.reserve_and_delete_on_all(clients, jobs_count)

    return on_one, on_all


BENCHMARK = Benchmark("pipelined", __doc__ or "", measure, (BEANSTALKD,))

if __name__ == "__main__":
    main(BENCHMARK)
