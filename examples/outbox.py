"""Orders in a database, each worked on once, whatever is killed when: submissions and results commit with the orders.

    python outbox.py make              # the tables
    python outbox.py place tea milk    # two orders, and work for them, in one transaction
    opsq relay sqlite:shop.db &        # hands the work to the daemon
    python outbox.py work              # processes it; start as many as you like, and kill any

In front of the command, `postgresql://…` names a database of PostgreSQL: `pip install 'opsq[postgresql]'`.
"""

import contextlib
import sqlite3
import sys

import opsq

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, packed INTEGER NOT NULL)"


@contextlib.contextmanager
def transaction(url):
    """A cursor in a transaction that commits if nothing is raised, and rolls back otherwise."""
    if url.startswith("postgresql:"):
        import psycopg

        connection = psycopg.connect(url)
    else:
        connection = sqlite3.connect(url)
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


def run(connection, statement, *values):
    """Run a statement whose parameters are written `?`."""
    cursor = connection.cursor()
    marked = statement if isinstance(connection, sqlite3.Connection) else statement.replace("?", "%s")
    cursor.execute(marked, values)
    return cursor


def make(url):
    """Make the tables, or find them there."""
    statements = opsq.outbox.ddl("postgresql" if url.startswith("postgresql:") else "sqlite")
    with transaction(url) as connection:
        if isinstance(connection, sqlite3.Connection):
            connection.executescript("PRAGMA journal_mode = WAL;" + statements)
        else:
            connection.execute(statements)
        run(connection, ORDERS)


def place(url, *items):
    """Store orders, and submit work for each: all of it, or nothing."""
    with transaction(url) as connection:
        [last] = run(connection, "SELECT coalesce(max(id), 0) FROM orders").fetchone()
        for order_id, item in enumerate(items, start=last + 1):
            run(connection, "INSERT INTO orders VALUES (?, ?, 0)", order_id, item)
            opsq.outbox.submit(connection, [b"%d" % order_id], metadata={"kind": "order"})


def pack(url, chunk):
    """Work on an order, and say so in the same transaction; the result."""
    with transaction(url) as connection:
        result = opsq.outbox.completed(connection, chunk)
        if result is None:  # else a consumer was killed after its commit, and only the daemon does not know yet
            run(connection, "UPDATE orders SET packed = packed + 1 WHERE id = ?", int(chunk.data))
            result = b"packed order %s\n" % chunk.data
            opsq.outbox.complete(connection, chunk, result)
    return result


def work(url):
    """Process all orders that are in the queue."""
    with opsq.connect() as queue, queue.consumer("SelectOnly(kind=order)") as consumer:
        consumer.run_each_chunk(lambda chunk: pack(url, chunk))


if __name__ == "__main__":
    words = sys.argv[1:]
    database = words.pop(0) if words[:1] and words[0].startswith("postgresql:") else "shop.db"
    {"make": make, "place": place, "work": work}[words[0]](database, *words[1:])
