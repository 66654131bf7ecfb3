"""Submit 1 GB of text in chunks of 1 MiB against `cp --reflink=never` and `sync -f`; and the same without copying.

Both sides find the source in the page cache and leave nothing unwritten on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most
from ours import cli
from ours.client import connect
from ours.daemon import Daemon
from rivals import shell
from rivals.programs import CP, SYNC


def measure(context: Context) -> Iterator[Row]:
    """Submit, cp, submit --in-place in turn. What was written is removed between the runs, and not timed."""
    folder = context.folder("text")
    source = folder / "source"
    size_bytes = context.size(1_000_000_000, 100_000_000)
    shell.make_text(source, size_bytes)
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()

        def ours(*options: str) -> float:
            shell.settle(source)
            taken, (submission,) = cli.timed(daemon.state_dir, "submit", "--bytes", "1M", *options, str(source))
            cli.run(daemon.state_dir, "cancel", submission)
            cli.run(daemon.state_dir, "rm", submission)
            return taken

        def theirs() -> float:
            target = folder / "copy"
            shell.settle(source)
            taken = shell.copy_and_sync(source, target)
            target.unlink()
            return taken

        context.say("submit, cp, submit --in-place")
        copied, copies, in_place = alternate(context.pairs, ours, theirs, lambda: ours("--in-place"))
    rival = "cp + sync -f"
    what = f"submit {size_bytes // 1_000_000} MB of text"
    yield paired_row(f"{what}, --bytes 1M", "s", copied, copies, ratio_at_most(1.5), rival_name=rival)
    yield paired_row(f"{what}, --in-place", "s", in_place, copies, ratio_at_most(0.3), rival_name=rival)


BENCHMARK = Benchmark("submit_file", __doc__ or "", measure, (CP, SYNC))

if __name__ == "__main__":
    main(BENCHMARK)
