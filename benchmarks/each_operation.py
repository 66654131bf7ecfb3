"""`Consumer.run_each_operation` with a no-op function, in chunks of 1000 operations: the overhead per operation.

One process, one job, against the daemon on the same cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import opsq
from harness import Benchmark, Context, Row, at_least, main, median, reported
from ours.client import connect
from ours.daemon import Daemon

_PER_CHUNK = 1000
_RUNS = 5


def measure(context: Context) -> Iterator[Row]:
    """Results dropped, and kept."""
    operations_count = context.size(5_000_000, 500_000)
    chunk = b"".join(b"operation-%04d\n" % number for number in range(_PER_CHUNK))
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()
        with opsq.connect(str(daemon.socket_path)) as queue:
            for keeps_results, must in ((False, at_least(1e6, "operations/s")), (True, reported())):
                rates = []
                for number in range(_RUNS):
                    context.say(f"run {number + 1} of {_RUNS}, results {'kept' if keeps_results else 'dropped'}")
                    submission = queue.submit(chunk for _ in range(operations_count // _PER_CHUNK))
                    with queue.consumer("OldestFirst") as consumer:
                        started = time.perf_counter()
                        tally = consumer.run_each_operation(_nothing, keeps_results=keeps_results)
                        rates.append(operations_count / (time.perf_counter() - started))
                    if tally.completed_count != operations_count // _PER_CHUNK:
                        raise RuntimeError(f"{tally} instead of all")
                    submission.remove()
                what = (
                    f"run_each_operation, no-op, {_PER_CHUNK} a chunk, results {'kept' if keeps_results else 'dropped'}"
                )
                yield Row(what, "operations/s", median(rates), must, samples={"ours": rates})


def _nothing(operation: bytes) -> bytes:
    return operation


BENCHMARK = Benchmark("each_operation", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
