"""Ten minutes of full load: the size of SQLite's log, and the longest time in which nothing came back.

The load completes one chunk a call with 64 in flight, which writes the most log for each chunk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main
from ours import loads
from ours.client import connect
from ours.daemon import Daemon

_ROUND_CHUNKS = 50_000
_LOOK_EVERY_S = 0.05
_MIB = 1 << 20


class _Watch:
    """Looks at the log's size, and keeps the longest pause between two looks at what came back."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._last = self._looked = time.perf_counter()
        self.log_bytes = 0
        self.pauses: list[float] = []

    def on_reply(self) -> None:
        """Something came back."""
        here = time.perf_counter()
        self.pauses.append(here - self._last)
        self._last = here
        if here - self._looked > _LOOK_EVERY_S:
            self._looked = here
            self.log_bytes = max(self.log_bytes, self._daemon.log_bytes())


def measure(context: Context) -> Iterator[Row]:
    """Rounds of submit and complete until the time is over."""
    load_s = context.size(600, 20)
    context.say(f"full load for {load_s} s")
    completed = 0
    with Daemon(context.folder("opsq")) as daemon, connect(daemon) as client:
        watch = _Watch(daemon)
        started = time.monotonic()
        while time.monotonic() - started < load_s:
            client.submit(10, _ROUND_CHUNKS // 10)
            loads.complete(client, _ROUND_CHUNKS, strategy="Random", per_call=1, in_flight=64, on_reply=watch.on_reply)
            completed += _ROUND_CHUNKS
    if not watch.log_bytes:
        raise RuntimeError("the log of the database was never seen, so its size cannot be judged")
    note = f"{completed} chunks, {completed / load_s:,.0f} a second"
    what = f"{load_s} s of full load"
    yield Row(f"{what}: size of the log", "bytes", watch.log_bytes, at_most(128 * _MIB, "bytes"), note=note)
    yield Row(f"{what}: longest stall", "s", max(watch.pauses), at_most(0.100, "s"), note=note)


BENCHMARK = Benchmark("full_load", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
