"""A program per chunk and per record: `opsq consume -j2 -- true` and `--each`, against `xargs` and `parallel`.

The daemon works on the same cores. What is submitted before is not timed: a queue is filled by others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import Benchmark, Context, Ratio, Row, alternate, main, paired_row, ratio_at_least
from ours import cli
from ours.client import connect
from ours.daemon import Daemon
from rivals import shell
from rivals.programs import PARALLEL, TRUE, XARGS

_JOBS = 2
_PAIRS = 3


def measure(context: Context) -> Iterator[Row]:
    """Chunks of one line, then records of large chunks, each in turn with both rivals."""
    folder = context.folder("records")
    chunks_count, records_count = context.size(5000, 500), context.size(100_000, 5000)
    # parallel takes milliseconds for each, so it is given no more than these, and its rate is taken.
    few_count = context.size(2000, 200)
    few, some, many = folder / "few", folder / "some", folder / "many"
    _write(few, few_count)
    _write(some, chunks_count)
    _write(many, records_count)
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()

        def ours(count: int, submitted: tuple[str, ...], *options: str) -> float:
            submission = cli.printed(daemon.state_dir, "submit", *submitted)[0]
            taken = cli.run(daemon.state_dir, "consume", f"-j{_JOBS}", "--until-empty", *options, "--", TRUE.find())
            cli.run(daemon.state_dir, "rm", submission)
            return count / taken

        def xargs(records: Path, count: int) -> float:
            return count / shell.xargs_each(records, TRUE.find(), jobs_count=_JOBS, home=folder)

        def parallel() -> float:
            return few_count / shell.parallel_each(few, TRUE.find(), jobs_count=_JOBS, home=folder)

        context.say(f"{chunks_count} chunks")
        chunks = alternate(
            _PAIRS,
            lambda: ours(chunks_count, ("--lines", "1", str(some))),
            lambda: xargs(some, chunks_count),
            parallel,
            warm_up=False,
        )
        context.say(f"{records_count} records")
        records = alternate(
            _PAIRS,
            lambda: ours(records_count, (str(many),), "--each"),
            lambda: xargs(many, records_count),
            parallel,
            warm_up=False,
        )
    for what, unit, (rates, by_xargs, by_parallel) in (
        (f"consume -j2 -- true, {chunks_count} chunks", "chunks/s", chunks),
        (f"consume -j2 --each -- true, {records_count} records", "records/s", records),
    ):
        yield paired_row(
            what, unit, rates, by_xargs, ratio_at_least(0.8), rival_name="xargs -P2 -n1", reads=Ratio.OURS_OVER_RIVAL
        )
        yield paired_row(
            what, unit, rates, by_parallel, ratio_at_least(5), rival_name="parallel -j2", reads=Ratio.OURS_OVER_RIVAL
        )


def _write(path: Path, count: int) -> None:
    path.write_bytes(b"".join(b"record-%d\n" % number for number in range(count)))


BENCHMARK = Benchmark("programs", __doc__ or "", measure, (XARGS, PARALLEL, TRUE))

if __name__ == "__main__":
    main(BENCHMARK)
