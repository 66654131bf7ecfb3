"""A consumer that calls a function for each operation, here a JSON line, in two worker processes.

Usage: operations.py

Ctrl-C or SIGTERM lets chunks in progress finish; a worker process that dies costs its chunk one attempt, and is
replaced. The function stands at the top level, where a new process can import it, and the work below `__main__`, which
a new process leaves out.
"""

import sys

import opsq


def total(order: dict[str, int]) -> dict[str, int]:
    """Compute the total of an order."""
    if order["count"] < 0:
        raise opsq.Bury(f"order {order['id']} has a negative count")  # another attempt would not help
    return {"id": order["id"], "total": order["price"] * order["count"]}


def main() -> int:
    """Process chunks until the queue is empty; returns 1 if an attempt failed."""
    with opsq.connect(name="operations") as queue, queue.consumer("OldestFirst") as consumer:
        tally = consumer.run_each_operation(
            total, serialisation="json", mode="processes", jobs=2, on_interrupt="return"
        )
    print(f"{tally.completed_count} chunks completed, {tally.failed_count} attempts failed", file=sys.stderr)
    return 1 if tally.failed_count else 0


if __name__ == "__main__":
    sys.exit(main())
