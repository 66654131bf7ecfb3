"""An outbox in PostgreSQL against procrastinate: an order and its job in one transaction, and from there to done.

Both put a row beside the order. Ours then goes through a relay into the queue, to a consumer; a worker of the rival
takes its rows out of PostgreSQL. Jobs do nothing.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg

import opsq
from harness import Benchmark, Context, Ratio, Row, alternate, main, median, paired_row, ratio_at_least, reported
from opsq import outbox
from ours.client import connect
from ours.daemon import Daemon, environment
from ours.postgresql import Cluster, Initdb, postgresql
from rivals import procrastinate_jobs
from rivals.programs import PROCRASTINATE

_ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, item text NOT NULL)"
_RIVAL = "procrastinate"


def measure(context: Context) -> Iterator[Row]:
    """Transactions of one job and of a hundred; then all the way."""
    folder = context.folder("pg")
    context.work_dir.chmod(0o711)
    with postgresql(folder) as server:
        for jobs, transactions in ((1, context.size(2_000, 500)), (100, context.size(100, 30))):
            context.say(f"{transactions} transactions of {jobs}")
            ours, theirs = alternate(
                context.pairs, partial(_put, server, transactions, jobs), partial(_defer, server, transactions, jobs)
            )
            what = f"an order with {jobs} job{'s' * (jobs > 1)} in a transaction"
            yield paired_row(
                what, "jobs/s", ours, theirs, ratio_at_least(0.9), rival_name=_RIVAL, reads=Ratio.OURS_OVER_RIVAL
            )
        count = context.size(10_000, 2_000)
        context.say(f"{count} jobs from committed to done")
        ours, theirs = alternate(
            context.pairs, partial(_all_the_way, context, server, count), partial(_work, server, count)
        )
        what = "from a committed row to a job that is done, one worker"
        yield paired_row(
            what, "jobs/s", ours, theirs, ratio_at_least(1.0), rival_name=_RIVAL, reads=Ratio.OURS_OVER_RIVAL
        )
        for relays in (1, 2):
            context.say(f"{relays} relays")
            rates = [_relay(context, server, count, relays) for _ in range(context.pairs)]
            what = f"rows handed over by {relays} relay{'s' * (relays > 1)}"
            yield Row(what, "rows/s", median(rates), reported(), samples={"ours": rates})


def _put(server: Cluster, transactions: int, jobs: int) -> float:
    """Jobs a second."""
    url = server.make_database(_ORDERS, outbox.ddl("postgresql"))
    with psycopg.connect(url) as connection:
        started = time.perf_counter()
        for number in range(transactions):
            _order(connection, number)
            for job in range(jobs):
                outbox.submit(connection, [b"%d" % job])
            connection.commit()
        return transactions * jobs / (time.perf_counter() - started)


def _defer(server: Cluster, transactions: int, jobs: int) -> float:
    """Jobs a second."""
    url = server.make_database(_ORDERS)
    procrastinate_jobs.make_tables(url)
    with procrastinate_jobs.deferring(url) as task, psycopg.connect(url) as connection:
        deferrer = task.configure(connection=connection)
        started = time.perf_counter()
        for number in range(transactions):
            _order(connection, number)
            for job in range(jobs):
                deferrer.defer(n=job)
            connection.commit()
        return transactions * jobs / (time.perf_counter() - started)


def _order(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute("INSERT INTO orders VALUES (%s, 'tea')", (number,))


def _filled(server: Cluster, count: int) -> str:
    url = server.make_database(outbox.ddl("postgresql"))
    with psycopg.connect(url) as connection:
        for job in range(count):
            outbox.submit(connection, [b"%d" % job])
    return url


def _all_the_way(context: Context, server: Cluster, count: int) -> float:
    """Jobs a second, through a relay and a consumer."""
    url = _filled(server, count)
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()  # waits until it listens
        started = time.perf_counter()
        with _relaying(daemon, url), opsq.connect(daemon.socket_path) as queue:
            done_count = 0
            with queue.consumer("OldestFirst") as consumer:
                for chunk in consumer.chunks(until_empty=False):
                    _ = chunk.data
                    chunk.complete()
                    done_count += 1
                    if done_count == count:
                        break
                consumer.flush()
            return count / (time.perf_counter() - started)


def _work(server: Cluster, count: int) -> float:
    """Jobs a second, through a worker of the rival."""
    url = server.make_database()
    procrastinate_jobs.make_tables(url)
    with procrastinate_jobs.deferring(url) as task, psycopg.connect(url) as connection:
        deferrer = task.configure(connection=connection)
        for job in range(count):
            deferrer.defer(n=job)
    return count / procrastinate_jobs.work_off(url)


def _relay(context: Context, server: Cluster, count: int, relays: int) -> float:
    """Rows a second, with the start of the processes."""
    url = _filled(server, count)
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()
        started = time.perf_counter()
        processes = [_start_relay(daemon, url, "--once") for _ in range(relays)]
        for process in processes:
            if process.wait():
                raise RuntimeError("a relay has failed")
        return count / (time.perf_counter() - started)


@contextlib.contextmanager
def _relaying(daemon: Daemon, url: str) -> Iterator[None]:
    process = _start_relay(daemon, url)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _start_relay(daemon: Daemon, url: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "opsq", "relay", url, *options]
    return subprocess.Popen(command, env=environment(daemon.state_dir))


BENCHMARK = Benchmark("outbox", __doc__ or "", measure, (Initdb(), PROCRASTINATE))

if __name__ == "__main__":
    main(BENCHMARK)
