"""What the rivals and the machine do by themselves: a raw commit, a round trip, beanstalkd, the old schema, the shell.

It measures nothing of opsq and promises nothing; it is where to look when a ratio seems odd.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from harness import Benchmark, Context, Row, main, median, reported
from rivals import beanstalkd, commit, echo, shell
from rivals.programs import BEANSTALKD, CP, PARALLEL, SYNC, TR
from rivals.row_per_chunk import RowPerChunk

_FRAME_BYTES = 64


def _alone(what: str, unit: str, samples: list[float], note: str = "") -> Row:
    return Row(
        what, unit, None, reported(), rival=median(samples), rival_name="alone", note=note, samples={"alone": samples}
    )


def measure(context: Context) -> Iterator[Row]:
    """Measure each rival alone."""
    yield from _commit_and_trip(context)
    yield from _beanstalkd(context)
    yield from _row_per_chunk(context)
    yield from _shell(context)


def _commit_and_trip(context: Context) -> Iterator[Row]:
    context.say("one-row commits, empty round trips")
    count = context.size(4000, 500)
    commits = commit.OneRowCommits(context.folder("commit") / "file")
    yield _alone("raw one-row COMMIT", "s", commits.seconds(count))
    commits.close()
    with echo.serving(context.folder("echo"), request_bytes=_FRAME_BYTES, reply_bytes=_FRAME_BYTES) as client:
        yield _alone("empty round trip over a Unix socket", "s", client.seconds(count * 5))


def _beanstalkd(context: Context) -> Iterator[Row]:
    for option, fsync_ms, jobs_count in (
        ("-f0", 0, context.size(10_000, 2000)),
        ("-f50", 50, context.size(100_000, 10_000)),
    ):
        with beanstalkd.serving(context.folder("b"), fsync_ms=fsync_ms) as client:
            for in_flight in (1, 64):
                context.say(f"beanstalkd {option}, {jobs_count} jobs, {in_flight} in flight")
                client.put(jobs_count)
                rate = jobs_count / client.reserve_and_delete(jobs_count, in_flight=in_flight)
                yield _alone(f"beanstalkd {option}: reserve and delete, {in_flight} in flight", "chunks/s", [rate])


def _row_per_chunk(context: Context) -> Iterator[Row]:
    for submissions_count, chunks_count in ((1, context.size(1_000_000, 100_000)), (context.size(1000, 100), 1000)):
        context.say(f"row per chunk, {submissions_count} × {chunks_count} chunks")
        rival = RowPerChunk(context.folder("rows") / "file")
        total = submissions_count * chunks_count
        taken = rival.insert(chunks_count, [{}] * submissions_count)
        name = f"row per chunk, {submissions_count} submissions of {chunks_count} chunks"
        yield _alone(f"{name}: insert", "s", [taken])
        yield _alone(f"{name}: size", "bytes/chunk", [rival.size_bytes() / total])
        rival.close()


def _shell(context: Context) -> Iterator[Row]:
    size_bytes = context.size(1_000_000_000, 100_000_000)
    folder = context.folder("text")
    source, target = folder / "source", folder / "target"
    context.say(f"making {size_bytes} bytes of text")
    started = time.perf_counter()
    shell.make_text(source, size_bytes)
    shell.settle(source)
    yield _alone("make the text", "s", [time.perf_counter() - started])
    copies, uppers, starts = [], [], []
    for _ in range(context.pairs):
        context.say("cp and sync; parallel --pipe tr")
        shell.settle(source)
        copies.append(shell.copy_and_sync(source, target))
        target.unlink()
        uppers.append(shell.parallel_upper_case(source, target, jobs_count=2, home=folder))
        target.unlink()
        starts += [shell.empty_python() for _ in range(10)]
    yield _alone("cp --reflink=never && sync -f", "s", copies)
    yield _alone("parallel --pipe -k --block 1M -j2 tr a-z A-Z", "s", uppers)
    yield _alone("python -c pass", "s", starts)


BENCHMARK = Benchmark("floor", __doc__ or "", measure, (BEANSTALKD, CP, SYNC, PARALLEL, TR))

if __name__ == "__main__":
    main(BENCHMARK)
