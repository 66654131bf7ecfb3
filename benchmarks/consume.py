"""`consume -j2 -- tr a-z A-Z` over 1 GB of text, and `results`, against `parallel --pipe -k --block 1M -j2 tr a-z A-Z`.

Both end with the same bytes in a file; that is checked after each run.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterator

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most
from ours import cli
from ours.client import connect
from ours.daemon import Daemon
from rivals import shell
from rivals.programs import PARALLEL, SYNC, TR

PAIRS = 3


def measure(context: Context) -> Iterator[Row]:
    """Consume and results, timed together, in turn with parallel; the submit before has a row of its own."""
    folder = context.folder("text")
    source, mine, other = folder / "source", folder / "ours", folder / "rival"
    size_bytes = context.size(1_000_000_000, 100_000_000)
    shell.make_text(source, size_bytes)
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()

        def ours() -> float:
            submission = cli.printed(daemon.state_dir, "submit", "--bytes", "1M", str(source))[0]
            shell.settle(source)
            taken = cli.run(daemon.state_dir, "consume", "-j2", "--until-empty", "--", TR.find(), "a-z", "A-Z")
            taken += cli.run(daemon.state_dir, "results", submission, "-o", str(mine))
            cli.run(daemon.state_dir, "rm", submission)
            return taken

        def theirs() -> float:
            shell.settle(source)
            taken = shell.parallel_upper_case(source, other, jobs_count=2, home=folder)
            if not filecmp.cmp(mine, other, shallow=False):
                raise RuntimeError("opsq and parallel wrote different bytes")
            return taken

        context.say("consume and results, parallel")
        # The source is in the cache already, and a warm-up or more pairs would take minutes.
        worked, parallel = alternate(PAIRS, ours, theirs, warm_up=False)
    what = f"consume -j2 -- tr a-z A-Z and results, {size_bytes // 1_000_000} MB"
    yield paired_row(what, "s", worked, parallel, ratio_at_most(1.0), rival_name="parallel -j2")


BENCHMARK = Benchmark("consume", __doc__ or "", measure, (PARALLEL, SYNC, TR))

if __name__ == "__main__":
    main(BENCHMARK)
