"""The data source `opsq` as Spark knows it: options in, readers and writers out.

This file must not do any work itself; it is imported whenever a session looks for Python data sources, so everything
heavy is imported where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from opsq.spark.source.batch_reader import OpsqReader, ResultForm
    from opsq.spark.source.batch_writer import OpsqWriter
    from opsq.spark.source.chunk_stream import OpsqChunkReader
    from opsq.spark.source.stream import OpsqStreamReader, OpsqStreamWriter


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
        idempotencyKey: the same rows written under it again are the same submission, for as long as that is there.
        metadata: strategic metadata as a JSON object, such as {"Tenant": "acme", "run": 7}; keys are kept as they are.
        meta.KEY: a pair of it. Spark makes names of options lower case: `meta.Tenant` gives the key `tenant`; `metadata` keeps case.
        priority, maxAttempts, onDead (fail or keep), expires, reservation: as of `opsq submit`.
        waitForRoom: `true`, or for how long, where the daemon bounds what is unfinished; default: the write fails at once.

    Options of a read:
        submission: the id, as in .load(ID).
        resultFormat: parquet, arrow, jsonl, csv, text or binary (one row for each result); default: what the first result shows, else
            that of the chunks.
        resultSchema: `same` as the DataFrame that was written, or a schema as JSON; default: what the first results say.
            .schema(...) goes before.
        columns: only these.
        metadataColumns: `true`, or some of _submission, _chunk, _attempts.
        deadChunks: fail (default) if a chunk has no result, or skip it. A stream fails when all other results are read.
        chunksPerPartition: default: so that a partition has about 32 MiB.
        maxChunksPerTrigger: of a stream: so many chunks in a micro-batch at most (more if they were completed together).

    A stream of results (`spark.readStream`) gives those of one submission in the order in which they are completed, with a checkpoint
    each once. That order is in the history: a stream that has not read what is pruned of it (history_days, history_rows,
    `opsq history prune`) ends with an error, and spark.read still gives all results. A batch read gives 1 as _attempts of a chunk whose
    history is pruned.

    Options of a stream of chunks (`spark.readStream` with mode=chunks): the query is a consumer, and a micro-batch that is done completes
    its chunks, with empty results.
        consumer: what the query is called in `opsq status` and in the history. Needed.
        strategy: the order in which chunks are wanted; default Random.
        maxChunksPerTrigger: so many chunks in a micro-batch at most; default 1000.
        lease: for how long chunks stay reserved while the query is down; default 1h. While it runs they do not lapse.
        chunkFormat: parquet, arrow, jsonl, csv, text or binary (one row for each chunk); default: as the DataFrame was written that a
            submission was made from, else text.
        columns, metadataColumns, chunksPerPartition: as of a read; _attempts counts the present one.

    The columns are those of .schema(...), else those of the chunk that would come first now. The checkpoint names the chunks of each
    micro-batch before it is run, so one that failed is run again with exactly these. Chunks are acknowledged when Spark begins to look
    for the next micro-batch. A query that is down for longer than its lease, or is never started again, loses its chunks to others (and
    that counts as a loss); what it had processed and not yet acknowledged is then processed twice.

    Over Spark Connect all of this works as well, where opsq is installed on the server and its executors. There the options are looked at:
    without stateDir and address the settings of the server name the daemon, and tokenFile is a file of the server. A server shows the
    options of operations in its UI and its event log, so with `token` call `opsq.spark.register` first, which has it left out.
    `opsq.spark.results` reads by this source there, never by Spark's Parquet reader.

    A write in a thread of its own: Spark looks for data sources in the active session of the thread, and without one `.save()` ends with
    DATA_SOURCE_NOT_FOUND. `spark.createDataFrame([], "n int")`, once in that thread before, makes `spark` its active session. Reads and
    streams need nothing.

    A stream that is written (`df.writeStream`) makes a submission of each micro-batch that has rows, whatever is replayed.

    Examples:
        >>> df.write.format("opsq").mode("append").option("rowsPerChunk", 1000).option("meta.tenant", "acme").save()
        >>> spark.read.format("opsq").load("269737367961600000").show()
        >>> spark.readStream.format("opsq").option("mode", "chunks").option("consumer", "nightly").schema("value STRING").load()
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
        from opsq.spark.source.batch_reader import OpsqReader
        from opsq.spark.source.source_options import parse_read

        form: ResultForm | None = getattr(self, "_form", None)
        return OpsqReader(parse_read(self.options), schema, form)

    def writer(self, schema: StructType, overwrite: bool) -> OpsqWriter:
        """Makes a submission of a DataFrame."""
        from opsq.spark.source.batch_writer import OpsqWriter
        from opsq.spark.source.source_options import parse_write

        return OpsqWriter(parse_write(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> OpsqStreamReader | OpsqChunkReader:  # noqa: N802  # Spark's name
        """Reads results as they are completed, or takes chunks."""
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
