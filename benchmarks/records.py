"""Records over HTTP under wrk at 64 connections: put in, taken and acknowledged, against a stream of Redis.

Both are served by Starlette on uvicorn; see `rivals.redis_streams` for what the rival leaves out.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness import Benchmark, Context, Must, Ratio, Row, alternate, main, paired_row, ratio_at_least, reported
from ours.client import connect
from ours.daemon import Daemon, environment
from rivals import redis_streams
from rivals.programs import REDIS, WRK

_CONNECTIONS = 64
_SCRIPT = Path(redis_streams.__file__).with_name("records.lua")


def measure(context: Context) -> Iterator[Row]:
    """Redis that syncs as ours does is the rival; the one that does not is only shown."""
    seconds = context.size(10, 4)
    kinds: tuple[tuple[str, str, Must], ...] = (
        ("always", "syncs each", ratio_at_least(1.0)),
        ("everysec", "may lose a second", reported()),
    )
    for appendfsync, what, must in kinds:
        with (
            Daemon(context.folder("opsq")) as daemon,
            _gateway(daemon) as ours,
            redis_streams.serving(context.folder("redis"), appendfsync=appendfsync) as theirs,
        ):
            context.say(f"appendfsync {appendfsync}")
            rates, others = alternate(context.pairs, partial(_rate, ours, seconds), partial(_rate, theirs, seconds))
        what_done = f"records over HTTP, {_CONNECTIONS} connections, POST + GET + ack"
        name = f"Redis Streams, {what}"
        yield paired_row(what_done, "requests/s", rates, others, must, rival_name=name, reads=Ratio.OURS_OVER_RIVAL)


@contextlib.contextmanager
def _gateway(daemon: Daemon) -> Iterator[str]:
    """`opsq gateway` in front of a daemon; its URL."""
    connect(daemon).close()  # waits until it listens
    command = [sys.executable, "-m", "opsq", "gateway", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment(daemon.state_dir), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def _rate(url: str, seconds: int) -> float:
    """Requests a second; every answer has to be 200 or 204."""
    command = [WRK.find(), "-t1", f"-c{_CONNECTIONS}", f"-d{seconds}s", "-s", str(_SCRIPT), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in said.splitlines() if line.startswith("RESULT "))
    requests, microseconds, wrong = map(int, line.split()[1:])
    if wrong:
        raise RuntimeError(f"{wrong} requests of {requests} failed")
    return requests / microseconds * 1e6


BENCHMARK = Benchmark("records", __doc__ or "", measure, (REDIS, WRK))

if __name__ == "__main__":
    main(BENCHMARK)
