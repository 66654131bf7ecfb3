"""A producer: submits the lines of a file in chunks, waits until they are done, and writes the results in input order.

Usage: producer.py INPUT OUTPUT
"""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import opsq

LINES = 100


def chunks(lines: BinaryIO) -> Iterator[bytes]:
    """Split a file into runs of lines, keeping only one in memory."""
    while chunk := b"".join(islice(lines, LINES)):
        yield chunk


def main(source: str, target: str) -> int:
    """Submit, wait, collect; returns 1 if a chunk died."""
    with opsq.connect(name="producer") as queue, open(source, "rb") as lines, open(target, "wb") as out:
        submission = queue.submit(chunks(lines), metadata={"tenant": "acme"}, on_dead="keep")
        state = submission.wait()
        for dead in submission.dead():
            print(f"chunk {dead.index} died: {dead.reason}", file=sys.stderr)
        out.writelines(submission.results(skip_dead=True))
    return 1 if state.dead_count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
