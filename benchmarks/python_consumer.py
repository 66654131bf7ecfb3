"""A consumer in Python, one process, whose work takes nothing: chunks a second, against workers of other queues.

`for chunk in queue.consume(): chunk.complete()` against one worker of RQ, of Dramatiq (both on Redis with the settings
that it comes with, which may lose minutes of work) and of procrastinate (on PostgreSQL, which syncs). Each job has an
argument that its worker decodes; so our loop reads each chunk. Graphile Worker's figure is the one it publishes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import psycopg

import opsq
from harness import Benchmark, Context, Ratio, Row, alternate, main, median, paired_row, ratio_at_least, reported
from ours.client import connect
from ours.daemon import Daemon
from ours.postgresql import Cluster, Initdb, postgresql
from rivals import procrastinate_jobs, redis_jobs
from rivals.programs import DRAMATIQ, PROCRASTINATE, REDIS, RQ

_PUBLISHED = 183_000
"""worker.graphile.org/docs/performance: jobs a second, 24 at once, fetched and completed in batches, on its machine."""
_WHAT = "Python consumer, one process, no-op"


def measure(context: Context) -> Iterator[Row]:
    """All in turns; rivals get fewer jobs, for they take longer."""
    chunks_count = context.size(300_000, 50_000)
    jobs_count = context.size(5_000, 500)
    few_count = context.size(1_000, 200)
    context.say(f"{chunks_count} chunks, {jobs_count} jobs of Dramatiq, {few_count} of RQ and procrastinate")
    context.work_dir.chmod(0o711)  # PostgreSQL runs as a user of its own
    with contextlib.ExitStack() as opened:
        daemon = opened.enter_context(Daemon(context.folder("opsq")))
        connect(daemon).close()
        queue = opened.enter_context(opsq.connect(daemon.socket_path))
        redis = opened.enter_context(redis_jobs.serving(context.folder("redis")))
        server = opened.enter_context(postgresql(context.folder("pg")))
        reading, dry, rq, dramatiq, procrastinate = alternate(
            context.pairs,
            partial(_consume, queue, chunks_count, is_read=True),
            partial(_consume, queue, chunks_count, is_read=False),
            lambda: few_count / redis_jobs.rq_seconds(redis, few_count),
            lambda: jobs_count / redis_jobs.dramatiq_seconds(redis, jobs_count),
            lambda: few_count / _procrastinate_seconds(server, few_count),
        )
    for name, rates in (("RQ", rq), ("Dramatiq", dramatiq), ("procrastinate", procrastinate)):
        what = f"{_WHAT}, against {name}"
        yield paired_row(what, "chunks/s", reading, rates, ratio_at_least(10), rival_name=name)
    yield Row(
        f"{_WHAT}, no chunk read",
        "chunks/s",
        median(dry),
        reported(),
        rival=_PUBLISHED,
        rival_name="Graphile Worker, published",
        ratio=median(dry) / _PUBLISHED,
        ratio_reads=Ratio.OURS_OVER_RIVAL.value,
        note="it was measured elsewhere, with 24 jobs at once",
        samples={"ours": dry},
    )


def _consume(queue: opsq.Queue, count: int, *, is_read: bool) -> float:
    """Chunks a second until the last completion is durable."""
    submission = queue.submit(b"%d" % number for number in range(count))
    started = time.perf_counter()
    for chunk in queue.consume("OldestFirst"):
        if is_read:
            _ = chunk.data
        chunk.complete()
    taken = time.perf_counter() - started
    ended = submission.wait()
    if ended.completed_count != count:
        raise RuntimeError(f"{count} chunks were to be completed: {ended}")
    submission.remove()
    return count / taken


def _procrastinate_seconds(server: Cluster, count: int) -> float:
    url = server.make_database()
    procrastinate_jobs.make_tables(url)
    with procrastinate_jobs.deferring(url) as task, psycopg.connect(url) as connection:
        deferrer = task.configure(connection=connection)
        for number in range(count):
            deferrer.defer(n=number)
    return procrastinate_jobs.work_off(url)


BENCHMARK = Benchmark("python_consumer", __doc__ or "", measure, (REDIS, RQ, DRAMATIQ, Initdb(), PROCRASTINATE))

if __name__ == "__main__":
    main(BENCHMARK)
