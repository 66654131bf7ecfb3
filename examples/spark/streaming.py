"""Shows results as a stream: a table grows while executors still work, and has every result exactly once.

Usage: streaming.py ROWS CHECKPOINT OUTPUT.parquet
"""

import os
import sys
import uuid

from pyspark.sql import functions as f

import opsq.spark

STATE_DIR = os.environ.get("OPSQ_STATE_DIR", os.path.expanduser("~/.local/state/opsq"))
rows, checkpoint, target = sys.argv[1:]

# %%
spark = opsq.spark.build_session("local[*]")
key = f"streaming-{uuid.uuid4()}"
writer = (
    spark.range(int(rows))
    .select(f.col("id").alias("n"))
    .write.format("opsq")
    .mode("append")
    .option("stateDir", STATE_DIR)
)
writer.options(rowsPerChunk=100, idempotencyKey=key).save()
submission = opsq.spark.submission_of(key, state_dir=STATE_DIR)

# %% The stream starts before there is any result, so it needs the columns. After a restart it continues from its
# checkpoint.
results = (
    spark.readStream.format("opsq")
    .option("stateDir", STATE_DIR)
    .schema("n BIGINT, square BIGINT")
    .load(str(submission))
)
query = (
    results.writeStream.format("parquet")
    .option("checkpointLocation", checkpoint)
    .trigger(processingTime="1 second")
    .start(target)
)


# %%
def squares(table):
    """Add a column with the squares."""
    import pyarrow.compute as pc

    return table.append_column("square", pc.multiply(table.column("n"), table.column("n")))


summary = opsq.spark.consume(spark, function=squares, submission=submission, state_dir=STATE_DIR)
query.processAllAvailable()
query.stop()
print(f"{summary.completed} chunks")
