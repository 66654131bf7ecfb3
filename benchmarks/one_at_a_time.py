"""One chunk at a time, not pipelined, against the floor of one raw commit and one empty round trip.

The frames of the empty round trip are as long as those of the cycle. Then ten minutes of it, with checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness import Benchmark, Context, Ratio, Row, alternate, main, median, paired_row, quantile, ratio_at_most
from opsq.wire import frames
from opsq.wire.messages import CompleteAndReserve, Completed, Completion, Grant, HeldChunks, Reserved
from ours import loads
from ours.client import connect
from ours.daemon import Daemon
from rivals import beanstalkd, commit, echo
from rivals.programs import BEANSTALKD

_ID = 1 << 60
_MAC = 1 << 62
_STRATEGY = "OldestFirst"
_TURN_CYCLES = 300


def frame_sizes() -> tuple[int, int]:
    """The bytes of a typical cycle: of the request frame, and of the reply frame."""
    held = HeldChunks(_ID, 100, 1 << 40, 100_000, 0, 1 << 40, _MAC)
    request = CompleteAndReserve(100_000, [Completion(held)], 1, _STRATEGY)
    reserved = Reserved(100_000, 100_000, 600.0, [Grant(_ID, 100, 1 << 41, 0, _MAC)])
    return len(frames.encode([request])), len(frames.encode([Completed(100_000), reserved]))


def measure(context: Context) -> Iterator[Row]:
    """Cycles in turns of some hundreds, the three floors taking turns with them."""
    cycles_count = context.size(2000, 300)
    request_bytes, reply_bytes = frame_sizes()
    context.say(f"turns of {cycles_count} cycles; frames of {request_bytes} and {reply_bytes} bytes")
    commits = commit.OneRowCommits(context.folder("commit") / "file")
    with (
        Daemon(context.folder("opsq")) as daemon,
        connect(daemon) as client,
        beanstalkd.serving(context.folder("b"), fsync_ms=0) as rival,
        echo.serving(context.folder("echo"), request_bytes=request_bytes, reply_bytes=reply_bytes) as empty,
    ):

        def ours() -> float:
            client.submit(1, cycles_count + 1)
            return median(loads.cycles(client, cycles_count, strategy=_STRATEGY))

        def theirs() -> float:
            rival.put(cycles_count)
            return rival.reserve_and_delete(cycles_count, in_flight=1) / cycles_count

        cycle, one_commit, trip, job = alternate(
            context.pairs * 2,
            ours,
            lambda: median(commits.seconds(cycles_count)),
            lambda: median(empty.seconds(cycles_count)),
            theirs,
        )
    commits.close()
    floor = [a + b for a, b in zip(one_commit, trip, strict=True)]
    what = "one chunk at a time, a cycle of complete and reserve"
    note = f"the floor: a commit of {median(one_commit) * 1e6:.0f} µs, a round trip of {median(trip) * 1e6:.0f} µs"
    yield paired_row(what, "s", cycle, floor, ratio_at_most(2.0), rival_name="COMMIT + trip", note=note)
    bound = ratio_at_most(1.5)
    yield paired_row(f"{what}, against beanstalkd", "s", cycle, job, bound, rival_name="beanstalkd -f0")
    yield _for_long(context)


def _for_long(context: Context) -> Row:
    """How far the slow cycles are from the usual one while the log is copied."""
    load_s = context.size(600, 10)
    context.say(f"cycles for {load_s} s")
    taken: list[float] = []
    written_at: set[int] = set()
    with Daemon(context.folder("long")) as daemon, connect(daemon) as client:
        ends_at = time.monotonic() + load_s
        while time.monotonic() < ends_at:
            client.submit(1, _TURN_CYCLES + 1)
            taken += loads.cycles(client, _TURN_CYCLES, strategy=_STRATEGY)
            written_at.add(daemon.database_path.stat().st_mtime_ns)
    checkpoints_count = len(written_at) - 1
    if not checkpoints_count:
        raise RuntimeError(f"the database file was not written in {load_s} s, so no cycle met a checkpoint")
    p50, p99 = quantile(taken, 0.5), quantile(taken, 0.99)
    return Row(
        f"one chunk at a time for {load_s} s with checkpoints: p99 against p50",
        "s",
        p99,
        ratio_at_most(3.0),
        rival=p50,
        rival_name="p50",
        ratio=p99 / p50,
        ratio_reads=Ratio.OURS_OVER_RIVAL.value,
        note=f"{len(taken)} cycles, the longest {max(taken) * 1e3:.1f} ms; {checkpoints_count} checkpoints or more",
    )


BENCHMARK = Benchmark("one_at_a_time", __doc__ or "", measure, (BEANSTALKD,))

if __name__ == "__main__":
    main(BENCHMARK)
