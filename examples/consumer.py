"""A consumer: processes chunks until the queue is empty, and reports the outcome of each.

Run as many of it as you like, on any machine that reaches the daemon. A chunk may come twice, when a consumer is lost:
`work` has no effect but its result, so that does no harm.
"""

import opsq


def work(data: bytes) -> bytes:
    """Square the number on each line."""
    return b"".join(b"%d\n" % int(line) ** 2 for line in data.splitlines())


def consume(queue: opsq.Queue) -> None:
    """Process all chunks; leaving the loop in any way releases chunks without an outcome."""
    for chunk in queue.consume("OldestFirst"):
        try:
            result = work(chunk.data)
        except ValueError as error:  # a retry would not help
            chunk.fail(str(error), retry=False)
        else:
            chunk.complete(result)


if __name__ == "__main__":
    with opsq.connect(name="consumer") as queue:
        consume(queue)
