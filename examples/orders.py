"""A producer that sends operations through the queue and reads their results in order, while work continues.

Usage: orders.py COUNT     (with operations.py running, before or after)

Neither the orders nor the totals are ever in memory as a whole. The key makes the same call, after an interrupt, take
up what it had handed over.
"""

import sys
from collections.abc import Iterator

import opsq


def orders(count: int) -> Iterator[dict[str, int]]:
    """Generate some orders."""
    for number in range(count):
        yield {"id": number, "price": number % 7, "count": 3}


def main(count: int) -> int:
    """Print the sum of all totals; returns 1 if a chunk died."""
    with opsq.connect(name="orders") as queue:
        try:
            totals = queue.run(orders(count), serialisation="json", unique_key=f"orders {count}")
            print(sum(total["total"] for total in totals))
        except opsq.errors.WorkFailed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
