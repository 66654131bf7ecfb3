"""A hundred thousand waits on a thousand connections: one submission ends, and its waiter knows.

Memory counts from the moment when the connections stand, so it is the waits' own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main, quantile
from opsq.wire.messages import Complete, Completed, Completion, Reserve, Reserved, Shown, Wait
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon, raise_descriptor_limit, settled_bytes


def measure(context: Context) -> Iterator[Row]:
    """Waits for submissions of one chunk each; then some of them are completed one by one."""
    connections_count = context.size(1000, 100)
    waits_count = context.size(100_000, 10_000)
    raise_descriptor_limit()
    with contextlib.ExitStack() as opened:
        daemon = opened.enter_context(Daemon(context.folder("opsq")))
        worker = opened.enter_context(connect(daemon))
        context.say(f"{waits_count} submissions, {connections_count} connections")
        ids = worker.submit(waits_count, 1)
        waiters = [opened.enter_context(connect(daemon)) for _ in range(connections_count)]
        before_bytes = settled_bytes(daemon)
        waiter_of: dict[int, Client] = {}
        for start, waiter in enumerate(waiters):
            mine = ids[start::connections_count]
            waiter.send([Wait(waiter.next_id(), submission_id) for submission_id in mine])
            waiter_of.update(dict.fromkeys(mine, waiter))
        # A last wait for a submission that has ended is answered at once: all waits before it are known then.
        ended_id = worker.submit(1, 0)[0]
        for waiter in waiters:
            waiter.call(Wait(waiter.next_id(), ended_id), Shown)
        grown_bytes = settled_bytes(daemon) - before_bytes
        context.say("one submission ends after the other")
        taken = [_told(worker, waiter_of) for _ in range(context.size(2000, 300))]
        held = f"{waits_count} waits on {connections_count} connections"
        note = f"{len(taken)} ends, p50 {quantile(taken, 0.5) * 1e3:.2f} ms"
        yield Row(f"{held}: the waiter knows, p99", "s", quantile(taken, 0.99), at_most(0.010, "s"), note=note)
        yield Row(f"{held}: memory of a wait", "bytes", grown_bytes / waits_count, at_most(1024, "bytes"))


def _told(worker: Client, waiter_of: dict[int, Client]) -> float:
    """Complete one submission; the seconds from sending the completion until its waiter has the news."""
    reserved = worker.call(Reserve(worker.next_id(), 1), Reserved)
    grant = reserved.grants[0]
    completion = Completion(loads.held(reserved.reservation_id, grant))
    started = time.perf_counter()
    worker.send([Complete(worker.next_id(), [completion])])
    shown = waiter_of[grant.submission_id].await_one(Shown)
    taken = time.perf_counter() - started
    if shown.submission.submission_id != grant.submission_id:
        raise RuntimeError("the waiter got another submission")
    worker.await_one(Completed)
    return taken


BENCHMARK = Benchmark("waits", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
