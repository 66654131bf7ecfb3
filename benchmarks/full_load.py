"""Ten minutes of full load: what grows, and the longest time in which nothing came back.

The load completes one chunk a call with 64 in flight, which writes the most log for each chunk. Meanwhile finished
submissions are forgotten, and history is pruned. `--soak` does it for an hour, with as much history as by default.

A small file beside the queue is synced all the time: how long that took tells whether it was the disk that stalled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import apsw

from harness import Benchmark, Context, DiskProbe, Row, at_most, main, median, ratio_at_most, reported
from opsq.wire.messages import DaemonState, Status
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon

_ROUND_CHUNKS = 50_000
_LOG_EVERY_S = 0.05
_LOOK_EVERY_S = 0.5
_FLAT = 1.1
_SLOW_COMMIT_S = 0.03
_QUARTERS = ("first", "second", "third", "last")
_PRUNED_AFTER_S = 120
"""Pruning begins once a minute: before this, nothing can be said of what it keeps small."""
_HISTORY_ROWS = 50_000
_SOAK_HISTORY_ROWS = 10_000_000
_FINISHED_DAYS = 0.001
_MIB = 1 << 20


class _Look(NamedTuple):
    anonymous_bytes: int
    file_bytes: int


class _Watch:
    """Looks at log, memory and file, and keeps the longest pause between two looks at what came back."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._last = self._log_looked = self._looked = time.monotonic()
        self.log_bytes = 0
        self.stall = (0.0, 0.0)
        """When the longest began and ended."""
        self.looks: list[_Look] = []

    def on_reply(self) -> None:
        """Something came back."""
        here = time.monotonic()
        if here - self._last > self.stall[1] - self.stall[0]:
            self.stall = self._last, here
        if here - self._log_looked > _LOG_EVERY_S:
            self._log_looked = here
            self.log_bytes = max(self.log_bytes, self._daemon.log_bytes())
        if here - self._looked > _LOOK_EVERY_S:
            self._looked = here
            file_bytes = self._daemon.database_path.stat().st_size
            self.looks.append(_Look(self._daemon.anonymous_bytes(), file_bytes))
        self._last = time.monotonic()  # looking is no stall of the daemon

    def usual(self, of: Callable[[_Look], int], quarter: str) -> float:
        """The median in a quarter of the time, since looks are evenly spaced."""
        count, begun_count = len(self.looks) // len(_QUARTERS), _QUARTERS.index(quarter)
        return median([of(look) for look in self.looks[begun_count * count : (begun_count + 1) * count]])


def measure(context: Context) -> Iterator[Row]:
    """Rounds of submit and complete until the time is over."""
    load_s = 3600 if context.is_soak else context.size(600, 20)
    history_rows = _SOAK_HISTORY_ROWS if context.is_soak else _HISTORY_ROWS
    context.say(f"full load for {load_s} s, {history_rows:,} rows of history kept")
    completed = 0
    settings = {"history_rows": str(history_rows), "finished_days": str(_FINISHED_DAYS)}
    with Daemon(context.folder("opsq"), **settings) as daemon, connect(daemon) as client:
        with DiskProbe(context.folder("probe")) as probe:
            watch = _Watch(daemon)
            started = time.monotonic()
            while time.monotonic() - started < load_s:
                client.submit(10, _ROUND_CHUNKS // 10)
                loads.complete(
                    client, _ROUND_CHUNKS, strategy="Random", per_call=1, in_flight=64, on_reply=watch.on_reply
                )
                completed += _ROUND_CHUNKS
        commits = _commits(client)
        first, last = _history(daemon)
    if not watch.log_bytes:
        raise RuntimeError("the log of the database was never seen, so its size cannot be judged")
    rate = completed / load_s
    note = f"{completed} chunks, {rate:,.0f} a second"
    what = f"{load_s} s of full load"
    yield Row(f"{what}: size of the log", "bytes", watch.log_bytes, at_most(128 * _MIB, "bytes"), note=note)
    began, ended = watch.stall
    then_ms, most_ms = probe.longest_s(began, ended) * 1000, probe.longest_s() * 1000
    note = f"{note}; {commits}; a file beside waited {then_ms:.0f} ms for its sync then, and {most_ms:.0f} at most"
    yield Row(f"{what}: longest stall", "s", ended - began, at_most(0.050, "s"), note=note)
    is_pruned = load_s >= _PRUNED_AFTER_S
    note = "in the last quarter of the time" + ("" if is_pruned else "; too short for pruning, once a minute")
    # Everything is warm in the second quarter; in an hour the history has all its rows after 27 minutes.
    for name, of, earlier in (("RssAnon", _anonymous, "second"), ("size of the file", _file, "third")):
        size_bytes, before_bytes = watch.usual(of, "last"), watch.usual(of, earlier)
        yield Row(
            f"{what}: {name} is flat",
            "bytes",
            size_bytes,
            ratio_at_most(_FLAT) if is_pruned else reported(),
            rival=before_bytes,
            rival_name="before",
            ratio=size_bytes / before_bytes,
            ratio_reads=f"last/{earlier} quarter",
            note=note,
        )
    brought_rows = 120 * last / load_s
    must = at_most(history_rows + brought_rows, "rows") if is_pruned else reported()
    note = f"{history_rows:,}, and what two minutes bring: {brought_rows:,.0f}"
    yield Row(f"{what}: history kept", "rows", last - first + 1, must, note=note)


def _anonymous(look: _Look) -> int:
    return look.anonymous_bytes


def _file(look: _Look) -> int:
    return look.file_bytes


def _commits(client: Client) -> str:
    """How many COMMITs were slow, by the bounds of the daemon's histogram: most of such a time is the disk's."""
    measures = client.call(Status(client.next_id(), measures=True), DaemonState).measures
    if measures is None or measures.commits is None:
        raise RuntimeError("the daemon does not tell how long its commits took")
    times = measures.commits
    slow = [
        f"{count:,} longer than {bound_s * 1000:g} ms"
        for number, bound_s in enumerate(times.bounds_s, 1)
        if bound_s >= _SLOW_COMMIT_S and (count := sum(times.counts[number:]))
    ]
    return f"{sum(times.counts):,} COMMITs, {', '.join(slow) or 'none of them slow'}"


def _history(daemon: Daemon) -> tuple[int, int]:
    """The number of the first row that is kept, and of the last."""
    connection = apsw.Connection(str(daemon.database_path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        first, last = connection.execute("SELECT min(seq), max(seq) FROM history").get
        return int(first), int(last)
    finally:
        connection.close()


BENCHMARK = Benchmark("full_load", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
