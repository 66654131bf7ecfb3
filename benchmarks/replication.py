"""What a replica costs, and what the loss of a machine costs with it: submits, completions, the log, and the seconds.

The replica is a folder on the same disk, or an S3 server in Python on loopback: so an upload costs what it does here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial

import opsq
from harness import (
    Benchmark,
    Context,
    Ratio,
    Row,
    alternate,
    at_most,
    main,
    paired_row,
    ratio_at_least,
    reported,
)
from opsq.errors import OpsqError
from ours.client import connect
from ours.daemon import Daemon, environment

_PRODUCERS = 4
_LEASE_S = 1
_SERVICE = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}


def measure(context: Context) -> Iterator[Row]:
    """With and without a replica; acknowledged as replicated; and lost."""
    duration_s = context.size(6, 2)
    context.say("a replica against none")
    with_it, without = alternate(
        context.pairs, partial(_submits, context, duration_s, True), partial(_submits, context, duration_s, False)
    )
    yield paired_row(
        f"submits by {_PRODUCERS} producers beside a replica, against none",
        "submits/s",
        with_it,
        without,
        ratio_at_least(0.75),
        rival_name="no replica",
        reads=Ratio.OURS_OVER_RIVAL,
    )
    longest = [_longest_log(context, duration_s) for _ in range(context.pairs)]
    yield Row("the log beside a replica, at its longest", "bytes", max(longest), at_most(64 << 20, "bytes"))
    with _service() as service:
        for name, url, variables in (("a folder", "", {}), ("S3 on loopback", "s3://bucket/replica", service)):
            context.say(f"acknowledged as replicated, {name}")
            latencies = sorted(_latencies(context, duration_s, url, variables))
            for share, word in ((0.5, "median"), (0.99, "99 %")):
                value = latencies[int(share * len(latencies))]
                yield Row(f"a submit acknowledged as replicated to {name}, {word}", "s", value, reported())
        context.say("kills under load")
        lost = [_loss(context, service, 3.0 + 0.17 * number) for number in range(context.size(8, 2))]
        yield Row(
            "committed before a loss of the machine and lost with it, the longest of some", "s", max(lost), reported()
        )


@contextlib.contextmanager
def _replicated(context: Context, url: str = "", variables: dict[str, str] | None = None) -> Iterator[Daemon]:
    """A daemon with a replica, which is whole; by default a folder."""
    place = context.folder("replicated")
    settings = {
        "store": f"file://{place}/content",
        "replicate_to": url or f"file://{place}/replica",
        "replicate_lease_s": f"{_LEASE_S}s",
    }
    if url:
        settings["store"] = "s3://bucket/content"
    os.environ.update(variables or {})
    with Daemon(place / "state", **settings) as daemon:
        connect(daemon).close()
        with opsq.connect(daemon.socket_path) as queue:
            queue.submit([b"first"], ack="replicated")
        yield daemon


def _submits(context: Context, duration_s: float, has_replica: bool) -> float:
    """Submits a second."""
    if has_replica:
        with _replicated(context) as daemon:
            return len(_load(daemon, duration_s)) / duration_s
    with Daemon(context.folder("alone")) as daemon:
        connect(daemon).close()
        return len(_load(daemon, duration_s)) / duration_s


def _longest_log(context: Context, duration_s: float) -> int:
    """Its bytes."""
    with _replicated(context) as daemon:
        path = daemon.database_path.with_name("opsq.sqlite-wal")
        longest = 0
        loading = threading.Thread(target=_load, args=(daemon, duration_s))
        loading.start()
        while loading.is_alive():
            longest = max(longest, path.stat().st_size)
            time.sleep(0.01)
        return longest


def _latencies(context: Context, duration_s: float, url: str, variables: dict[str, str]) -> list[float]:
    """Of submits that wait for the replica, in seconds."""
    with _replicated(context, url, variables) as daemon:
        return _load(daemon, duration_s, ack="replicated")


def _loss(context: Context, variables: dict[str, str], load_s: float) -> float:
    """How long before the kill the first submit was committed that is not in the copy, in seconds."""
    _empty()
    with _replicated(context, "s3://bucket/replica", variables) as daemon:
        committed: list[tuple[float, int]] = []
        loading = threading.Thread(target=_produce, args=(daemon, time.monotonic() + 3600, committed))
        loading.start()
        time.sleep(load_s)
        killed_at = time.monotonic()
        # Litestream too, which otherwise would copy what is left.
        os.killpg(int((daemon.state_dir / "litestream/litestream.lock").read_text()), signal.SIGKILL)
        daemon.kill()
        shutil.rmtree(daemon.state_dir, ignore_errors=True)
        loading.join()
    target = context.folder("elsewhere") / "state"
    command = [sys.executable, "-m", "opsq", "restore", "s3://bucket/replica"]
    subprocess.run(command, env=environment(target), check=True, capture_output=True)
    with contextlib.closing(sqlite3.connect(target / "opsq.sqlite")) as database:
        known = {row[0] for row in database.execute("SELECT id FROM submission")}
    return max((killed_at - at for at, made in committed if made not in known), default=0.0)


def _load(daemon: Daemon, duration_s: float, ack: str = "committed") -> list[float]:
    """Have producers submit and a consumer work; how long each submit took, in seconds."""
    until = time.monotonic() + duration_s
    taken: list[float] = []

    def submit() -> None:
        with opsq.connect(daemon.socket_path) as queue:
            while time.monotonic() < until:
                begun = time.perf_counter()
                queue.submit([b"x" * 200] * 64, ack="replicated" if ack == "replicated" else None)
                taken.append(time.perf_counter() - begun)

    def work() -> None:
        with opsq.connect(daemon.socket_path) as queue, queue.consumer("OldestFirst") as consumer:
            for chunk in consumer.chunks(until_empty=False):
                chunk.complete(b"y" * 300)
                if time.monotonic() > until:
                    return

    producers = [threading.Thread(target=submit) for _ in range(_PRODUCERS)]
    consumer = threading.Thread(target=work)
    for thread in (*producers, consumer):
        thread.start()
    for thread in producers:
        thread.join()
    with opsq.connect(daemon.socket_path) as queue:
        queue.submit([b"last"])  # wakes the consumer, if it waits
    consumer.join()
    return taken


def _produce(daemon: Daemon, until: float, committed: list[tuple[float, int]]) -> None:
    with contextlib.suppress(OpsqError), opsq.connect(daemon.socket_path, reconnect_s=0) as queue:
        while time.monotonic() < until:
            made = queue.submit([b"x" * 200] * 64).id
            committed.append((time.monotonic(), made))


@contextlib.contextmanager
def _service() -> Iterator[dict[str, str]]:
    """An S3 server with a bucket; the variables by which it is found."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ["AWS_ENDPOINT"] = f"http://{host}:{port}"
    _empty()
    try:
        yield _SERVICE | {"AWS_ENDPOINT": os.environ["AWS_ENDPOINT"]}
    finally:
        server.stop()


def _empty() -> None:
    """Make the bucket anew."""
    for path, method in (("moto-api/reset", "POST"), ("bucket", "PUT")):
        url = f"{os.environ['AWS_ENDPOINT']}/{path}"
        urllib.request.urlopen(urllib.request.Request(url, method=method)).close()  # noqa: S310  # our own server


BENCHMARK = Benchmark("replication", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
