"""`opsq consume --server frames` with a child in Python that answers with the count of lines, over chunks of 100 lines.

The child is the least that the protocol allows, so what is measured is the way to it and back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_least, main, median
from ours import cli
from ours.client import connect
from ours.daemon import Daemon

_LINES_PER_CHUNK = 100
_RUNS = 3
_CHILD = """
import sys
chunks, answers = sys.stdin.buffer, sys.stdout.buffer
for line in chunks:
    answer = b"%d\\n" % chunks.read(int(line.split(b" ", 1)[0])).count(b"\\n")
    answers.write(b"%d 0\\n" % len(answer) + answer)
    answers.flush()
"""


def measure(context: Context) -> Iterator[Row]:
    """Two slots on the cores of the daemon; the results are counted."""
    chunks_count = context.size(100_000, 10_000)
    folder = context.folder("text")
    source, child = folder / "source", folder / "child.py"
    source.write_bytes(b"a line of text, as long as most\n" * (_LINES_PER_CHUNK * chunks_count))
    child.write_text(_CHILD)
    command = ("--server", "frames", "--", sys.executable, str(child))
    rates = []
    with Daemon(context.folder("opsq")) as daemon:
        connect(daemon).close()
        for number in range(_RUNS):
            context.say(f"run {number + 1} of {_RUNS}")
            submission = cli.printed(
                daemon.state_dir, "submit", "--lines", str(_LINES_PER_CHUNK), "--in-place", str(source)
            )[0]
            rates.append(chunks_count / cli.run(daemon.state_dir, "consume", "-j2", "--until-empty", *command))
            if cli.printed(daemon.state_dir, "results", submission) != [str(_LINES_PER_CHUNK)] * chunks_count:
                raise RuntimeError("the results are wrong")
            cli.run(daemon.state_dir, "rm", submission)
    what = f"consume -j2 --server frames, {chunks_count} chunks of {_LINES_PER_CHUNK} lines through Python"
    yield Row(what, "chunks/s", median(rates), at_least(5000, "chunks/s"), samples={"ours": rates})


BENCHMARK = Benchmark("server", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
