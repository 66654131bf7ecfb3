"""`opsq run -- tr a-z A-Z` over 1 GB, against `parallel --pipepart -k` for a file and `--pipe -k` for a stream.

Ours starts a daemon of its own and ends it; all write the same bytes into a file, which is checked after each run.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most
from ours import cli
from rivals import shell
from rivals.programs import PARALLEL, SYNC, TR

_PAIRS = 3


def measure(context: Context) -> Iterator[Row]:
    """The file, the file by parallel, the stream, the stream by parallel, in turn."""
    folder, state_dir = context.folder("text"), context.folder("opsq")
    source, target, wanted = folder / "source", folder / "target", folder / "wanted"
    size_bytes = context.size(1_000_000_000, 100_000_000)
    shell.make_text(source, size_bytes)
    with source.open("rb") as lines, wanted.open("wb") as out:
        while piece := lines.read(1 << 20):
            out.write(piece.upper())

    def checked(run: Callable[[Path], float]) -> float:
        shell.settle(source)
        taken = run(target)
        if not filecmp.cmp(target, wanted, shallow=False):
            raise RuntimeError("the results are wrong")
        return taken

    words = ("--", TR.find(), "a-z", "A-Z")
    context.say("file and stream, ours and parallel's")
    by_file, by_pipepart, by_stream, by_pipe = alternate(
        _PAIRS,
        lambda: checked(lambda out: cli.filtered(state_dir, None, out, "run", "-j2", str(source), *words)),
        lambda: checked(lambda out: shell.parallel_upper_case_of_file(source, out, jobs_count=2, home=folder)),
        lambda: checked(lambda out: cli.filtered(state_dir, source, out, "run", "-j2", "-", *words)),
        lambda: checked(lambda out: shell.parallel_upper_case(source, out, jobs_count=2, home=folder)),
        warm_up=False,
    )
    what = f"run -j2 -- tr a-z A-Z, {size_bytes // 1_000_000} MB"
    yield paired_row(
        f"{what}, a file", "s", by_file, by_pipepart, ratio_at_most(1.2), rival_name="parallel --pipepart -k"
    )
    yield paired_row(f"{what}, stdin", "s", by_stream, by_pipe, ratio_at_most(0.8), rival_name="parallel --pipe -k")


BENCHMARK = Benchmark("rounds", __doc__ or "", measure, (PARALLEL, SYNC, TR))

if __name__ == "__main__":
    main(BENCHMARK)
