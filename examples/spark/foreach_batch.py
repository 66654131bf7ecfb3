"""Stores a stream of orders in a database, and submits work for them in the same transaction: each order once.

Usage: foreach_batch.py ORDERS-FOLDER CHECKPOINT DATABASE.db     then: opsq relay sqlite:DATABASE.db

Spark may run a micro-batch again after a crash. Its number is a row of the same transaction, so the second time finds
it and does nothing: neither are orders stored twice, nor is work for them submitted twice.
"""

import json
import sqlite3
import sys
from contextlib import closing

import opsq
import opsq.spark

folder, checkpoint, database = sys.argv[1:]
TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY);
"""

# %%
with closing(sqlite3.connect(database)) as connection:
    connection.executescript(TABLES + opsq.outbox.ddl("sqlite"))


# %% On the driver, with the rows of one micro-batch.
def store(batch, number):
    """Store the orders of a micro-batch, with the work for them: all of it, or nothing."""
    orders = [row.asDict() for row in batch.collect()]
    with closing(sqlite3.connect(database)) as connection, connection:  # commits at the end, or rolls back
        made = connection.execute("INSERT INTO batches VALUES (?) ON CONFLICT DO NOTHING", (number,))
        if orders and made.rowcount:
            connection.executemany("INSERT INTO orders VALUES (:id, :item)", orders)
            lines = b"".join(json.dumps(order).encode() + b"\n" for order in orders)
            opsq.outbox.submit(connection, [lines], metadata={"kind": "orders"})


# %%
spark = opsq.spark.build_session("local[*]")
query = (
    spark.readStream.schema("id BIGINT, item STRING")
    .json(folder)
    .writeStream.foreachBatch(store)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
