"""Streams results into a Delta table, in which every row is once, whatever is killed when.

Usage: lakehouse.py SUBMISSION COLUMNS CHECKPOINT TABLE CHUNKS     COLUMNS: such as 'n BIGINT, square BIGINT'

Run it as often as you like: each run takes what is completed by then, CHUNKS chunks at a time. A driver that is killed
between its commit to the table and the note in its checkpoint runs that micro-batch again. The commit that has the rows
names the query and the number of the batch, so the second time finds it, and writes nothing.

The package deltalake writes the table here, without Java. With Delta's jars, a line does what `store` does:

    batch.write.format("delta").mode("append").options(txnAppId=query_id, txnVersion=number).save(target)
"""

import os
import sys

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import opsq.spark

STATE_DIR = os.environ.get("OPSQ_STATE_DIR", os.path.expanduser("~/.local/state/opsq"))
submission, columns, checkpoint, target, chunks = sys.argv[1:]

# %%
spark = opsq.spark.build_session("local[*]")


def store(batch, number):
    """Append the rows of a micro-batch, on the driver; nothing if an earlier run has done so."""
    # It is kept in the checkpoint: the same in each run, and another one with another checkpoint.
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if DeltaTable.is_deltatable(target):
        last = DeltaTable(target).transaction_version(query_id)
        if last is not None and last >= number:
            return
    this_batch = CommitProperties(app_transactions=[Transaction(query_id, number)])
    write_deltalake(target, batch.toArrow(), mode="append", commit_properties=this_batch)


# %%
query = (
    spark.readStream.format("opsq")
    .options(stateDir=STATE_DIR, maxChunksPerTrigger=chunks)  # the rows of so many are in the driver's memory
    .schema(columns)
    .load(submission)
    .writeStream.foreachBatch(store)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% Spark without those jars reads the files that the table consists of now.
print(f"{spark.read.parquet(*DeltaTable(target).file_uris()).count()} rows")
