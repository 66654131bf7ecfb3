"""What an idle daemon costs: the processor share with a hundred consumers parked and their heartbeats.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main
from opsq.wire.messages import Alive, Heartbeat, Reserve
from ours.client import connect
from ours.daemon import Daemon

_CONSUMERS_COUNT = 100


def measure(context: Context) -> Iterator[Row]:
    """Park everybody, then do nothing but beat."""
    watched_s = context.size(60, 15)
    with contextlib.ExitStack() as opened:
        daemon = opened.enter_context(Daemon(context.folder("opsq")))
        consumers = [opened.enter_context(connect(daemon)) for _ in range(_CONSUMERS_COUNT)]
        for consumer in consumers:
            consumer.send([Reserve(consumer.next_id(), 1, wait_s=None)])
            consumer.call(Heartbeat(consumer.next_id()), Alive)
        context.say(f"{_CONSUMERS_COUNT} parked consumers, watched for {watched_s} s")
        started, used_s = time.monotonic(), daemon.cpu_s()
        pause_s = consumers[0].welcome.heartbeat_s / _CONSUMERS_COUNT
        beats = 0
        while time.monotonic() - started < watched_s:
            consumer = consumers[beats % _CONSUMERS_COUNT]
            consumer.call(Heartbeat(consumer.next_id()), Alive)
            beats += 1
            time.sleep(max(0.0, started + beats * pause_s - time.monotonic()))
        share = 100 * (daemon.cpu_s() - used_s) / (time.monotonic() - started)
    what = f"idle with {_CONSUMERS_COUNT} parked consumers, processor share"
    yield Row(what, "%", share, at_most(1.0, "%"), note=f"{beats} heartbeats in {watched_s} s")


BENCHMARK = Benchmark("idle", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
