"""Schedules: what 10⁴ cost while none is due, and how soon the submissions of 10³ that fall due at once are durable.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from harness import Benchmark, Context, Ratio, Row, alternate, at_most, main, median, paired_row, reported
from opsq.wire.messages import (
    DaemonState,
    NewSubmission,
    PutSchedule,
    Schedule,
    Schedules,
    ShowSchedules,
    Status,
)
from ours.client import Client, connect
from ours.daemon import Daemon, settled_bytes
from rivals.cron_loop import CronLoop

_IN_FLIGHT = 100
_LOOK_EVERY_S = 0.005
_DEADLINE_S = 60.0


def measure(context: Context) -> Iterator[Row]:
    """First those that wait, then those that fall due."""
    yield from _idle(context, context.size(10_000, 1000))
    yield _at_once(context, context.size(1000, 200))


def _idle(context: Context, count: int) -> Iterator[Row]:
    """Twice the same daemon: with nothing, and with schedules of which none is due for hours."""
    watched_s = context.size(60, 15)
    context.say(f"no schedule, watched for {watched_s} s")
    later = datetime.now(UTC) + timedelta(hours=6)
    with Daemon(context.folder("opsq")) as daemon:
        with connect(daemon) as client:
            _add(client, {"warm": "@yearly"})
        none_bytes, none_share = settled_bytes(daemon), _share(daemon, watched_s)
        none_s = _start_s(daemon)
        context.say(f"{count} schedules")
        with connect(daemon) as client:
            _add(client, {f"s{number}": f"{number % 60} {later.hour} * * *" for number in range(count)})
        some_bytes, some_share = settled_bytes(daemon), _share(daemon, watched_s)
        some_s = _start_s(daemon)
    note = f"{none_share:.2f} % without, each in {watched_s} s"
    yield Row(f"{count} schedules, none due: processor share", "%", some_share, at_most(1.0, "%"), note=note)
    what = f"{count} schedules: RssAnon of each"
    yield Row(what, "bytes", (some_bytes - none_bytes) / count, at_most(8192, "bytes"))
    what, note = f"{count} schedules: start of the daemon to its first answer", f"{none_s:.2f} s without"
    yield Row(what, "s", some_s, reported(), note=note)


def _share(daemon: Daemon, watched_s: float) -> float:
    started, used_s = time.monotonic(), daemon.cpu_s()
    time.sleep(watched_s)
    return 100 * (daemon.cpu_s() - used_s) / (time.monotonic() - started)


def _start_s(daemon: Daemon) -> float:
    """Stop and start; the seconds from the start to an answer about schedules."""
    daemon.stop()
    started = time.perf_counter()
    daemon.start()
    with connect(daemon) as client:
        client.call(ShowSchedules(client.next_id(), limit=1), Schedules)
    return time.perf_counter() - started


def _at_once(context: Context, count: int) -> Row:
    """From the planned instant until all submissions are committed; theirs, until all jobs are."""
    names = [f"s{number}" for number in range(count)]

    used: list[float] = []

    def ours() -> float:
        with Daemon(context.folder("opsq")) as daemon, connect(daemon) as client:
            at = _soon()
            _add(client, dict.fromkeys(names, _once(at)))
            used_s = daemon.cpu_s()
            taken = _until_made(client, count, at)
            used.append(daemon.cpu_s() - used_s)
            return taken

    def theirs() -> float:
        rival = CronLoop(context.folder("loop") / "file")
        at = _soon()
        rival.add(dict.fromkeys(names, _once(at)), at - 60)
        taken = rival.fire()
        rival.close()
        return taken

    context.say(f"{count} schedules fall due at one instant")
    mine, other = alternate(context.pairs, ours, theirs)
    what = f"{count} schedules at one instant: until all submissions are durable"
    note = f"processor time of the daemon {median(used):.2f} s"
    bound, reads = at_most(1.0, "s"), Ratio.RIVAL_OVER_OURS
    return paired_row(what, "s", mine, other, bound, rival_name="cron loop", reads=reads, note=note)


def _soon() -> int:
    """A whole second by which all schedules are added."""
    return int(time.time()) + 4


def _once(at: int) -> str:
    """The expression of an instant, with seconds, which comes again in a year."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment.second} {moment.minute} {moment.hour} {moment.day} {moment.month} *"


def _add(client: Client, expressions: dict[str, str]) -> None:
    """Add schedules, a hundred at once."""
    waiting = 0
    for name, when in expressions.items():
        client.send([PutSchedule(client.next_id(), Schedule(name, when, NewSubmission(bytes(16), 0)))])
        waiting += 1
        while waiting >= _IN_FLIGHT:
            waiting -= len(client.replies())
    while waiting:
        waiting -= len(client.replies())


def _until_made(client: Client, count: int, at: int) -> float:
    """Wait until all submissions are there; the seconds since the instant.

    Raises:
        RuntimeError: it had come before all schedules were added, or they are late.
    """
    if time.time() >= at:
        raise RuntimeError("the schedules were not added in time")
    time.sleep(max(0.0, at - time.time()))
    while client.call(Status(client.next_id()), DaemonState).total.submissions_count < count:
        if time.time() > at + _DEADLINE_S:
            raise RuntimeError(f"not all submissions were made within {_DEADLINE_S:g} s")
        time.sleep(_LOOK_EVERY_S)
    return time.time() - at


BENCHMARK = Benchmark("schedules", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
