"""The data source `opsq` as Spark sees it: options in, readers and writers out.

This file must not do any work itself; it is imported whenever a session looks for Python data sources, so everything
heavy is imported where it is needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

_HANDS_FILTERS = "pyspark.sql.worker.data_source_pushdown_filters"
"""Spark plans reads in processes with this module where it hands filters to readers."""

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from opsq.spark.source.batch_reader import OpsqReader, ResultForm
    from opsq.spark.source.batch_writer import OpsqWriter
    from opsq.spark.source.chunk_stream import OpsqChunkReader
    from opsq.spark.source.stream import OpsqStreamReader, OpsqStreamWriter


class OpsqDataSource(DataSource):
    """Submissions and results of opsq as DataFrames.

    Name: `opsq`

    Options of reads and writes (names are case-insensitive):
        stateDir: the daemon's state folder, for executors on the same machine. Without it and `address`, the settings
            apply.
        address: a socket path, host:port, or tls://host:port?ca=FILE&cert=FILE&key=FILE, that every executor can reach.
            Each executor reads these files itself; the driver's settings tls_ca_file, tls_client_cert_file and
            tls_client_key_file name those that are left out.
        tokenFile, token: the token for TCP, as a file on the driver (better) or as text. It is never printed.

    Options of a write, which makes one submission; the mode must be "append":
        chunkFormat: parquet (default), arrow, jsonl, csv or text. A parquet chunk is a complete small file.
        rowsPerChunk, bytesPerChunk: the size of chunks; about 1M by default, and 1K more for each column.
        idempotencyKey: the same rows written again under this key are the same submission, as long as it exists.
        title: a line for people, which `opsq list` and `opsq show` show.
        metadata: strategic metadata as a JSON object, such as {"Tenant": "acme", "run": 7}; the case of keys is kept.
        meta.KEY: one pair of it. Spark turns option names to lower case: `meta.Tenant` gives the key `tenant`.
        priority, maxAttempts, maxLost, onDead (fail or keep), backoff (1s,2,5m), weight (KEY=N,KEY=N), delay, at,
            after (ID, ID:ended or KEY=VALUE), onFailedDependency (cancel, run or keep), expires, unique, uniqueUntil
            (start or done), keep, reservation: as in `opsq submit`. Several of `after` or `weight` stand between
            commas, or in a JSON array, whose words may contain commas: ["7:ended", "batch=a"]. With `unique` the rows
            are dropped while an unfinished submission has that key. A stream takes neither of the keys.
        traceparent: the trace that the work belongs to, as W3C Trace Context writes it; by default that of the
            environment of the driver.
        waitForRoom: `true` or a duration: wait if the daemon limits unfinished work; by default the write fails at
            once.

    Options of a read:
        submission: the id, as in .load(ID).
        resultFormat: parquet, arrow, jsonl, csv, text or binary (one row per result); default: the format of the first
            result if it shows, else that of the chunks.
        resultSchema: `same` as the DataFrame that was written, or a schema as JSON; default: the columns of all
            results, whatever their order: types that differ are widened, a column that some lack is null there, and one
            that no type holds is refused by name. That reads the footers of Parquet and Arrow results; columns of JSON
            lines and CSV are guessed from about 1 MiB of results. .schema(...) takes precedence.
        columns: only these.
        metadataColumns: `true`, or some of _submission, _chunk, _attempts.
        deadChunks: fail (default) if a chunk has no result, or skip it. A stream fails after reading all other results.
        chunksPerPartition: by default, enough for about 32 MiB per partition.
        maxChunksPerTrigger: for a stream: the most chunks in a micro-batch (more if they were completed together).

    A stream of results (`spark.readStream`) returns the results of one submission in the order of their completion,
    each exactly once with a checkpoint. That order is in the history: if history is pruned (history_days, history_rows,
    `opsq history prune`) before a stream has read it, the stream fails; spark.read still returns all results. A batch
    read returns 1 as _attempts of a chunk whose history is pruned.

    Options of a stream of chunks (`spark.readStream` with mode=chunks). The query is a consumer, and a finished
    micro-batch completes its chunks with empty results:
        consumer: the name of the query in `opsq status` and in the history. Required.
        strategy: the order of the chunks; default Random.
        maxChunksPerTrigger: the most chunks in a micro-batch; default 1000.
        lease: how long chunks stay reserved while the query is down; default 1h. They do not lapse while it runs.
        chunkFormat: parquet, arrow, jsonl, csv, text or binary (one row per chunk); default: the format of the
            DataFrame that a submission was made from, else text.
        columns, metadataColumns, chunksPerPartition: as for a read; _attempts includes the current one.

    The columns are those of .schema(...), else those of the chunk that would come first now. The checkpoint has the
    chunks of each micro-batch before it runs, so a failed one runs again with exactly the same chunks. Chunks are
    acknowledged when Spark asks for the next micro-batch. If a query is down longer than its lease, or never restarted,
    other consumers get its chunks (this counts as a loss); chunks that it had processed but not acknowledged are then
    processed twice.

    Filters on columns of metadataColumns (such as `_attempts > 1` or `_chunk IN (3, 5)`) choose the chunks to be read
    if spark.sql.python.filterPushdown.enabled is true, as in sessions of `opsq.spark.build_session`; otherwise, and for
    all other columns, Spark filters what was read. It tells a source in Python nothing of the columns that a query
    needs: name them in `columns`.

    In SQL, results are temporary views: CREATE TEMPORARY VIEW NAME USING opsq OPTIONS (submission 'ID', columns 'a,b').
    Spark tells a source in Python nothing of a table in its catalog, neither its name nor its options: CREATE TABLE
    without columns is refused. INSERT INTO, CREATE TABLE … AS SELECT and .saveAsTable() look like .save() to it, and
    make a submission. What such a table has is its columns; a query says of which submission:
    SELECT … FROM NAME WITH (submission = 'ID'). INSERT INTO NAME WITH (rowsPerChunk = 1000) SELECT … gives options of a
    write.

    A daemon that is away is waited for, in plans, tasks, commits and streams, and asked where it was found, whatever
    other ports it comes back with. After 30 seconds the log `opsq` of the process that waits has a warning (so the log
    of the driver or an executor), and another when it is back. One that the process has not met yet is an error, after
    5 seconds on the driver and 30 on another host. Stopping a written stream waits for a commit under way;
    spark.sql.streaming.stopTimeout bounds that.

    Over Spark Connect all of this works if opsq is installed on the server and its executors. Options are resolved
    there: without stateDir and address the server's settings name the daemon, and tokenFile is a file on the server. A
    server shows the options of operations in its UI and its event log, so with `token` call `opsq.spark.register`
    first, which has it redacted. `opsq.spark.results` reads with this source there, never with Spark's Parquet reader.

    Writing from another thread: Spark looks for data sources in the active session of the thread; without one
    `.save()` fails with DATA_SOURCE_NOT_FOUND. Calling `spark.createDataFrame([], "n int")` once in that thread makes
    `spark` its active session. Reads and streams do not need this.

    A written stream (`df.writeStream`) makes one submission per micro-batch that has rows, whatever is replayed.

    Examples:
        >>> df.write.format("opsq").mode("append").option("rowsPerChunk", 1000).option("meta.tenant", "acme").save()
        >>> spark.read.format("opsq").load("269737367961600000").show()
        >>> chunks = spark.readStream.format("opsq").option("mode", "chunks").option("consumer", "nightly")
        >>> chunks.schema("value STRING").load()
    """

    @classmethod
    def name(cls) -> str:
        """The short name for `format`."""
        return "opsq"

    def schema(self) -> StructType:
        """The columns of the results of a submission, or of chunks."""
        from opsq.spark.source.batch_reader import find_form, whole_schema
        from opsq.spark.source.daemon_address import resolve
        from opsq.spark.source.result_fetch import find_source
        from opsq.spark.source.source_options import parse_chunks, parse_read, reads_chunks

        if reads_chunks(self.options):
            from opsq.spark.source.chunk_stream import chunk_schema

            return chunk_schema(parse_chunks(self.options))
        options = parse_read(self.options)
        with resolve(options.daemon).open() as queue:
            form = find_form(queue, find_source(queue, options.submission), options)
        self._form = form
        return whole_schema(form, options)

    def reader(self, schema: StructType) -> OpsqReader:
        """Reads the results of a submission."""
        from opsq.spark.source.batch_reader import FilteredReader, OpsqReader
        from opsq.spark.source.source_options import parse_read

        form: ResultForm | None = getattr(self, "_form", None)
        kind = FilteredReader if _HANDS_FILTERS in sys.modules else OpsqReader
        return kind(parse_read(self.options), schema, form)

    def writer(self, schema: StructType, overwrite: bool) -> OpsqWriter:
        """Makes a submission of a DataFrame."""
        from opsq.spark.source.batch_writer import OpsqWriter
        from opsq.spark.source.source_options import parse_write

        return OpsqWriter(parse_write(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> OpsqStreamReader | OpsqChunkReader:  # noqa: N802  # Spark's name
        """Reads results as they are completed, or reserves chunks."""
        from opsq.spark.source.source_options import parse_chunks, parse_read, reads_chunks

        if reads_chunks(self.options):
            from opsq.spark.source.chunk_stream import OpsqChunkReader

            return OpsqChunkReader(parse_chunks(self.options), schema)
        from opsq.spark.source.stream import OpsqStreamReader

        return OpsqStreamReader(parse_read(self.options), schema, getattr(self, "_form", None))

    def streamWriter(self, schema: StructType, overwrite: bool) -> OpsqStreamWriter:  # noqa: N802  # Spark's name
        """Makes a submission of each micro-batch."""
        from opsq.spark.source.source_options import parse_write
        from opsq.spark.source.stream import OpsqStreamWriter

        return OpsqStreamWriter(parse_write(self.options), schema, overwrite)
