"""Shows a consumer: works through chunks until nothing is left, and says of each what became of it.

Run as many of it as you like, on any machine that reaches the daemon. A chunk may come twice, when a consumer is lost:
`work` has no effect but its result, so that does no harm.
"""

import opsq


def work(data: bytes) -> bytes:
    """Square the number on each line."""
    return b"".join(b"%d\n" % int(line) ** 2 for line in data.splitlines())


def consume(queue: opsq.Queue) -> None:
    """Work through all chunks; leaving the loop in any way gives back what has no verdict."""
    for chunk in queue.consume("OldestFirst"):
        try:
            result = work(chunk.data)
        except ValueError as error:  # it would be no number the next time either
            chunk.fail(str(error), retry=False)
        else:
            chunk.complete(result)


if __name__ == "__main__":
    with opsq.connect(name="consumer") as queue:
        consume(queue)
