"""A batch write as Spark sees it: made on the driver, sent to every task, committed or aborted on the driver.

This file must not know formats or the protocol (`commit` does). Spark pickles the writer once, so the request key made
in it belongs to the whole write, whatever is retried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from opsq.client.core.new_submission import new_request_key
from opsq.errors import UsageError
from opsq.spark.formats.schemas import arrow_schema, check_writable
from opsq.spark.source.commit import PartMessage, WritePlan, begin, submit_parts, withdraw, write_part
from opsq.spark.source.daemon_address import resolve, store_of
from opsq.spark.source.source_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Wrote(WriterCommitMessage):
    """What a finished task reports to the driver."""

    part: PartMessage


def plan_write(options: WriteOptions, schema: StructType, *, overwrite: bool) -> WritePlan:
    """Check what can be checked before a row is read.

    Raises:
        UsageError: the mode, an option or a column is not possible.
        Unreachable: the daemon does not answer.
    """
    if overwrite:
        raise UsageError('A queue has nothing to overwrite: each write makes a new submission. Write .mode("append").')
    check_writable(schema, options.chunk_format)
    daemon = resolve(options.daemon)
    with daemon.open() as queue:
        store = store_of(queue)
    return WritePlan(options, daemon, store, schema.json(), new_request_key())


def write_rows(plan: WritePlan, schema: StructType, batches: Iterator[pa.RecordBatch]) -> PartMessage:
    """Write the rows of this task."""
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
    return write_part(plan, arrow_schema(schema), batches, partition, attempt)


class OpsqWriter(DataSourceArrowWriter):
    """Makes one submission of a DataFrame.

    Args:
        options: of the write.
        schema: of the DataFrame.
        overwrite: Spark's mode "overwrite", which is refused.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self.schema = schema
        self.plan = begin(plan_write(options, schema, overwrite=overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        """Write one partition, on an executor."""
        return Wrote(write_rows(self.plan, self.schema, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Submit what the winning attempts wrote."""
        submit_parts(
            self.plan, [message.part for message in messages if isinstance(message, Wrote)], arrow_schema(self.schema)
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what a failed write wrote, unless it was submitted after all."""
        withdraw(self.plan.daemon, self.plan.store, self.plan.request_key)
