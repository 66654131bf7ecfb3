"""The data source `opsq` as Spark knows it: options in, readers and writers out.

This file must not do any work itself; it is imported whenever a session looks for Python data sources, so everything
heavy is imported where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from opsq.spark.reader import OpsqReader, ResultForm
    from opsq.spark.stream import OpsqStreamReader, OpsqStreamWriter
    from opsq.spark.writer import OpsqWriter


class OpsqDataSource(DataSource):
    """Submissions and results of opsq as DataFrames.

    Name: `opsq`

    Options of both directions (names without regard to case):
        stateDir: the state folder of the daemon, for executors on the same machine. Neither this nor `address`: as settings say.
        address: a socket path, or host:port, which every executor must be able to reach.
        tokenFile, token: the token for TCP, as a file of the driver (better) or itself. It is never printed.

    Options of a write, which makes one submission; the mode must be "append":
        chunkFormat: parquet (default), arrow, jsonl, csv or text. A chunk of parquet is a whole small file.
        rowsPerChunk, bytesPerChunk: where chunks end; default about 1M.
        idempotencyKey: makes one submission for ever; the same rows written under it again are that submission.
        metadata, meta.KEY: strategic metadata, as a JSON object or one by one (KEY in lower case, as Spark gives it).
        priority, maxAttempts, onDead (fail or keep), expires, reservation: as of `opsq submit`.
        waitForRoom: `true`, or for how long, where the daemon bounds what is unfinished; default: the write fails at once.

    Options of a read:
        submission: the id, as in .load(ID).
        resultFormat: parquet, arrow, jsonl, csv, text or binary (one row for each result); default: what the first result shows, else
            that of the chunks.
        resultSchema: `same` as the DataFrame that was written, or a schema as JSON; default: what the first result says.
            .schema(...) goes before.
        columns: only these.
        metadataColumns: `true`, or some of _submission, _chunk, _attempts.
        deadChunks: fail (default) if a chunk has no result, or skip it.
        chunksPerPartition: default: so that a partition has about 32 MiB.
        maxChunksPerTrigger: of a stream: so many chunks in a micro-batch at most (more if they were completed together).

    A stream of results (`spark.readStream`) gives those of one submission in the order in which they are completed, with a checkpoint
    each once. A stream that is written (`df.writeStream`) makes a submission of each micro-batch that has rows, whatever is replayed.

    Examples:
        >>> df.write.format("opsq").mode("append").option("rowsPerChunk", 1000).option("meta.tenant", "acme").save()
        >>> spark.read.format("opsq").load("269737367961600000").show()
    """

    @classmethod
    def name(cls) -> str:
        """The short name for `format`."""
        return "opsq"

    def schema(self) -> StructType:
        """The columns of the results of a submission."""
        from opsq.spark.access import resolve
        from opsq.spark.fetching import look_up
        from opsq.spark.options import parse_read
        from opsq.spark.reader import find_form, whole_schema

        options = parse_read(self.options)
        with resolve(options.reach).open() as queue:
            form = find_form(queue, look_up(queue, options.submission), options)
        self._form = form
        return whole_schema(form, options)

    def reader(self, schema: StructType) -> OpsqReader:
        """Reads the results of a submission."""
        from opsq.spark.options import parse_read
        from opsq.spark.reader import OpsqReader

        form: ResultForm | None = getattr(self, "_form", None)
        return OpsqReader(parse_read(self.options), schema, form)

    def writer(self, schema: StructType, overwrite: bool) -> OpsqWriter:
        """Makes a submission of a DataFrame."""
        from opsq.spark.options import parse_write
        from opsq.spark.writer import OpsqWriter

        return OpsqWriter(parse_write(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> OpsqStreamReader:  # noqa: N802  # Spark's name
        """Reads results as they are completed."""
        from opsq.spark.options import parse_read
        from opsq.spark.stream import OpsqStreamReader

        return OpsqStreamReader(parse_read(self.options), schema, getattr(self, "_form", None))

    def streamWriter(self, schema: StructType, overwrite: bool) -> OpsqStreamWriter:  # noqa: N802  # Spark's name
        """Makes a submission of each micro-batch."""
        from opsq.spark.options import parse_write
        from opsq.spark.stream import OpsqStreamWriter

        return OpsqStreamWriter(parse_write(self.options), schema, overwrite)
