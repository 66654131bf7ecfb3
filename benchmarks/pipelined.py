"""One chunk a call on one connection with 64 calls in flight, against a Python client of beanstalkd pipelined alike.

Ours is durable at every reply; beanstalkd is so with `-f0`, and loses up to 50 ms of acknowledged work by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_least
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon
from rivals import beanstalkd
from rivals.programs import BEANSTALKD

_IN_FLIGHT = 64


def measure(context: Context) -> Iterator[Row]:
    """Against `-f0` and against the default."""
    chunks_count = context.size(100_000, 10_000)
    for name, fsync_ms, jobs_count, bound in (
        ("beanstalkd -f0", 0, context.size(20_000, 2000), 5.0),
        ("beanstalkd -f50", 50, context.size(100_000, 10_000), 0.8),
    ):
        context.say(f"{chunks_count} chunks, against {jobs_count} jobs of {name}")
        with (
            Daemon(context.folder("opsq")) as daemon,
            connect(daemon) as client,
            beanstalkd.serving(context.folder("b"), fsync_ms=fsync_ms) as rival,
        ):

            def ours(client: Client = client) -> float:
                client.submit(10, chunks_count // 10)
                taken = loads.complete(client, chunks_count, strategy="OldestFirst", per_call=1, in_flight=_IN_FLIGHT)
                return chunks_count / taken

            def theirs(rival: beanstalkd.Client = rival, jobs_count: int = jobs_count) -> float:
                rival.put(jobs_count)
                return jobs_count / rival.reserve_and_delete(jobs_count, in_flight=_IN_FLIGHT)

            rates, rival_rates = alternate(context.pairs, ours, theirs)
        what = f"reserve + complete, 1 a call, {_IN_FLIGHT} in flight, against {name}"
        yield paired_row(what, "chunks/s", rates, rival_rates, ratio_at_least(bound), rival_name=name)


BENCHMARK = Benchmark("pipelined", __doc__ or "", measure, (BEANSTALKD,))

if __name__ == "__main__":
    main(BENCHMARK)
