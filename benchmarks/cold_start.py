"""From the start of the daemon to the first reservation, after a crash, with a large backlog and a long unfolded tail.

The time is that of the user: from starting the process to having the chunk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import apsw

from harness import Benchmark, Context, Row, at_most, main, median
from opsq.wire.messages import Reserve, Reserved
from ours import loads
from ours.client import connect
from ours.daemon import Daemon

_TAIL_ROWS = 49_000


def measure(context: Context) -> Iterator[Row]:
    """Fill; then some times over: complete chunks one by one to make the tail, kill, start."""
    chunks_count = context.size(10_000_000, 1_000_000)
    submissions_count = context.size(10_000, 1000)
    daemon = Daemon(context.folder("opsq"))
    taken, tails = [], []
    try:
        daemon.start()
        context.say(f"{chunks_count} chunks in {submissions_count} submissions")
        with connect(daemon) as client:
            client.submit(submissions_count, chunks_count // submissions_count)
        for _ in range(context.pairs):
            with connect(daemon) as client:
                loads.complete_singly(client, _TAIL_ROWS)
                daemon.kill()
            tails.append(_unfolded(daemon))
            context.say(f"start with {tails[-1]} unfolded rows")
            started = time.perf_counter()
            daemon.start()
            with connect(daemon) as client:
                reserved = client.call(Reserve(client.next_id(), 1), Reserved)
                taken.append(time.perf_counter() - started)
            if loads.chunks_of(reserved) != 1:
                raise RuntimeError("the daemon that was started again handed nothing out")
    finally:
        daemon.stop()
    what = f"start to first reservation, {chunks_count:.0e} chunks in {submissions_count:.0e} submissions"
    note = f"unfolded rows at the starts: {', '.join(map(str, tails))}"
    yield Row(what, "s", median(taken), at_most(1.0, "s"), note=note, samples={"ours": taken})


def _unfolded(daemon: Daemon) -> int:
    """How many rows of history a daemon that was killed has left to fold."""
    connection = apsw.Connection(str(daemon.database_path))
    try:
        found = connection.execute(
            "SELECT count(*) FROM history WHERE seq > (SELECT value FROM meta WHERE key = 'folded_seq')"
        ).get
        return int(found)
    finally:
        connection.close()


BENCHMARK = Benchmark("cold_start", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
