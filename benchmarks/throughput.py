"""Reserve and durable complete over the Unix socket, 1000 chunks a call, against beanstalkd that syncs each delete.

beanstalkd has no batches; it is driven with 64 jobs in flight, where it is fastest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from harness import Benchmark, Context, Row, alternate, at_least, main, median, paired_row, ratio_at_least, reported
from ours import loads
from ours.client import connect
from ours.daemon import Daemon
from rivals import beanstalkd
from rivals.programs import BEANSTALKD

_PER_CALL = 1000
_CALLS_IN_FLIGHT = 4
_SUBMISSION_CHUNKS = 10_000


def measure(context: Context) -> Iterator[Row]:
    """OldestFirst and Random with empty results, then OldestFirst with results of 100 bytes."""
    chunks_count = context.size(2_000_000, 200_000)
    jobs_count = context.size(10_000, 2000)

    with (
        Daemon(context.folder("opsq")) as daemon,
        connect(daemon) as client,
        beanstalkd.serving(context.folder("b"), fsync_ms=0) as rival,
    ):

        def ours(strategy: str, result_bytes: int = 0) -> float:
            client.submit(chunks_count // _SUBMISSION_CHUNKS, _SUBMISSION_CHUNKS)
            return chunks_count / loads.complete(
                client,
                chunks_count,
                strategy=strategy,
                per_call=_PER_CALL,
                in_flight=_CALLS_IN_FLIGHT,
                result_bytes=result_bytes,
            )

        def theirs() -> float:
            rival.put(jobs_count)
            return jobs_count / rival.reserve_and_delete(jobs_count, in_flight=64)

        for strategy in ("OldestFirst", "Random"):
            context.say(f"{strategy}, {chunks_count} chunks, against {jobs_count} jobs")
            rates, rival_rates = alternate(context.pairs, functools.partial(ours, strategy), theirs)
            what = f"reserve + complete, {_PER_CALL} a call, {strategy}"
            yield Row(what, "chunks/s", median(rates), at_least(1e6, "chunks/s"), samples={"ours": rates})
            yield paired_row(
                f"{what}: ratio", "chunks/s", rates, rival_rates, ratio_at_least(300), rival_name="beanstalkd -f0"
            )
        context.say("results of 100 bytes")
        rates, rival_rates = alternate(context.pairs, functools.partial(ours, "OldestFirst", 100), theirs)
        what = f"reserve + complete, {_PER_CALL} a call, results of 100 bytes"
        yield paired_row(what, "chunks/s", rates, rival_rates, reported(), rival_name="beanstalkd -f0")


BENCHMARK = Benchmark("throughput", __doc__ or "", measure, (BEANSTALKD,))

if __name__ == "__main__":
    main(BENCHMARK)
