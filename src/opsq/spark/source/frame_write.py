"""Makes a submission of a DataFrame in a job of its own, whose tasks send the driver the parts that they wrote.

That is what the data source does by way of Spark's writer, which cannot be told how to cut rows into batches, nor says
what it made. Of each partition Spark gives the driver the rows of one attempt only, so the parts of others never count.
This file must not know formats or the protocol (`commit` does).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as f

from opsq.spark.formats.schemas import arrow_schema
from opsq.spark.source.batch_bound import COLUMNS_MOST, bounded, unasked
from opsq.spark.source.batch_writer import plan_write, write_rows
from opsq.spark.source.commit import PartMessage, begin, submit_parts, withdraw

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from opsq.spark.source.source_options import WriteOptions


def write_frame(frame: DataFrame, options: WriteOptions) -> int:
    """Write the rows and submit them; durable when this returns.

    Args:
        frame: of a session that is not of Spark Connect, whose server may have another store in its sight.
        options: of the write.

    Returns:
        The id of the submission, as `submit_parts`.

    Raises:
        UsageError, Unreachable: as `plan_write`; nothing was written.
        PySparkException: the job failed.
        OpsqError: as `submit_parts`.

    Effects: after an error what was written is deleted, unless it was submitted after all.
    """
    schema = frame.schema
    plan = begin(plan_write(options, schema, overwrite=False))
    source, bound = bounded(frame)
    is_packed = len(source.columns) > COLUMNS_MOST + 1
    # mapInArrow asks the JVM for each column, and understands a.b as field b of a struct a.
    source = source.select(f.struct("*")) if is_packed else source.toDF(*map(str, range(len(source.columns))))

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = (pa.RecordBatch.from_struct_array(batch.column(0)) for batch in batches) if is_packed else batches
        wrote = write_rows(plan, schema, bound.rows_of(rows))
        yield pa.record_batch({"part": pa.array([msgspec.msgpack.encode(wrote)], pa.binary())})

    try:
        with nullcontext(source) if bound.asks else unasked(source) as limited:
            rows = limited.mapInArrow(write, "part BINARY").collect()
        parts = [msgspec.msgpack.decode(bytes(row.part), type=PartMessage) for row in rows]
        return submit_parts(plan, parts, arrow_schema(schema))
    except BaseException:
        withdraw(plan.daemon, plan.store, plan.request_key)
        raise
