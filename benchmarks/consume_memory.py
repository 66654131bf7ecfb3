"""The memory of `opsq consume` while results of 1 GB go through it: in a thousand pieces, and as one.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main
from ours import cli
from ours.client import connect
from ours.daemon import Daemon

_MIB = 1 << 20


def measure(context: Context) -> Iterator[Row]:
    """The most that the process ever had."""
    size_mib = context.size(1000, 100)
    records = context.folder("records") / "records"
    records.write_bytes(b"".join(b"%d\n" % number for number in range(size_mib)))
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()
        for what, submitted, size_bytes in (
            (f"{size_mib} results of 1 MiB", ("--lines", "1"), _MIB),
            (f"one result of {size_mib} MiB", (), size_mib * _MIB),
        ):
            context.say(what)
            submission = cli.printed(daemon.state_dir, "submit", *submitted, str(records))[0]
            command = ("consume", "-j2", "--until-empty", "--", "head", "-c", str(size_bytes), "/dev/zero")
            highest_bytes = cli.watched(daemon.state_dir, *command)
            cli.run(daemon.state_dir, "wait", submission)
            cli.run(daemon.state_dir, "rm", submission)
            yield Row(f"VmHWM of consume -j2, {what}", "bytes", highest_bytes, at_most(150 * _MIB, "bytes"))


BENCHMARK = Benchmark("consume_memory", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
