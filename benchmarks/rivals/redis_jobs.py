"""Jobs in Redis by RQ and by Dramatiq, and a worker of each in this process.

Redis has the settings that it comes with, also Debian's: a snapshot after a minute or more and no log, so that a crash
loses what was done since the last one.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from rivals.programs import REDIS
from rivals.servers import connect_when_ready

_THREADS = 16
"""Of Dramatiq's worker: with the eight that it has by itself it is slower, and with 64, too."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """Run Redis with its files in `folder`, which is empty; gives its socket."""
    path = folder / "redis.sock"
    command = [REDIS.find(), "--port", "0", "--unixsocket", str(path), "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        connect_when_ready(path, server).close()
        yield path
    finally:
        server.terminate()
        server.wait()


def work(n: int) -> None:
    """Do nothing."""


def rq_seconds(path: Path, jobs_count: int) -> float:
    """Put jobs in, then have RQ's worker do them, in its own process without a fork for each: the seconds of that."""
    import redis
    import rq

    connection = redis.Redis(unix_socket_path=str(path))
    try:
        queue = rq.Queue(connection=connection)
        queue.enqueue_many([rq.Queue.prepare_data(work, (n,)) for n in range(jobs_count)])
        worker = rq.SimpleWorker([queue], connection=connection)
        started = time.perf_counter()
        worker.work(burst=True, logging_level="ERROR")
        taken = time.perf_counter() - started
        done_count = queue.finished_job_registry.count
        connection.flushdb()
        if done_count != jobs_count:
            raise RuntimeError(f"RQ has done {done_count} of {jobs_count} jobs")
        return taken
    finally:
        connection.close()


def dramatiq_seconds(path: Path, jobs_count: int) -> float:
    """Put jobs in, then have Dramatiq's worker do them: the seconds of that."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=f"unix://{path}")
    actor = dramatiq.actor(broker=broker)(work)
    for n in range(jobs_count):
        actor.send(n)
    worker = dramatiq.Worker(broker, worker_threads=_THREADS)
    started = time.perf_counter()
    worker.start()
    try:
        broker.join(actor.queue_name)
        return time.perf_counter() - started
    finally:
        worker.stop()
        broker.close()
