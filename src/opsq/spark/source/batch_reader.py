"""A batch read as Spark sees it: results of a submission as Arrow batches, in runs of chunks, and their schema.

This file must not know where bytes are stored (`result_fetch`) nor formats (`decoder`). All that it keeps can be
pickled; connections are made where they are used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from opsq.content.result_joiner import size_of
from opsq.errors import OpsqError, UsageError
from opsq.spark.formats.decoder import combined, decoder, holds, sniff
from opsq.spark.formats.schema_guess import schema_of
from opsq.spark.formats.schema_merge import merged
from opsq.spark.formats.schemas import arrow_schema, read_schema, selected, spark_schema
from opsq.spark.formats.stored_schemas import STORED_FORMATS, StoredSchemas
from opsq.spark.source.chunk_filters import are_met, divide
from opsq.spark.source.daemon_address import Daemon, resolve
from opsq.spark.source.result_fetch import (
    FINAL_STATES,
    Fetched,
    Pieces,
    ResultReader,
    SourceSubmission,
    attempts_beyond_one,
    check_final,
    fetch,
    find_source,
    first_result,
    indexed_places,
    runs,
    sample,
)
from opsq.spark.source.source_options import ColumnOptions, ReadOptions

if TYPE_CHECKING:
    from opsq.client.core.held_block import Result
    from opsq.client.sync.queue import Queue

BATCH_ROWS = 1 << 17
BATCH_BYTES = 32 << 20
"""Results are combined up to this many rows or bytes before Spark gets them: each batch costs it a fixed time."""
LARGE_ROWS = 1 << 14
"""A result with this many rows is passed on as it is: combining it would cost a copy."""
GUESSED_FORMATS = ("jsonl", "csv")
"""Formats without column types."""
SAMPLE_BYTES = 1 << 20
"""For such formats, column types are guessed from results that have about this many bytes together."""
_READERS_COUNT = 16
"""Footers read at once from a store where each read takes long."""
METADATA_TYPES: dict[str, t.DataType] = {
    "_submission": t.LongType(),
    "_chunk": t.LongType(),
    "_attempts": t.IntegerType(),
}


class ResultForm(NamedTuple):
    """The format of results, and all their columns (without those about the chunk).

    Attributes:
        result_format: parquet, arrow, jsonl, csv, text or binary.
        schema: the columns.
        is_merged: they are those of all results; one that a result lacks is null there.
    """

    result_format: str
    schema: t.StructType
    is_merged: bool = False


class ChunkRun(InputPartition):
    """Consecutive chunks, and the attempts of those that took more than one."""

    def __init__(self, first: int, end: int, attempts: Mapping[int, int]) -> None:
        super().__init__((first, end))
        self.first, self.end, self.attempts = first, end, attempts


class ChunkPieces(InputPartition):
    """Some chunks, in pieces of blocks."""

    def __init__(self, pieces: list[Pieces]) -> None:
        super().__init__(len(pieces))
        self.pieces = pieces


def find_form(queue: Queue, source: SourceSubmission, options: ReadOptions) -> ResultForm:
    """Find the form of results: what options say, else what the results show, else that of the chunks.

    Columns are those of all results, whatever their order; types that differ are widened. Where the format has no
    types, columns named like those of the chunks get their types, if a sample of the results fits.

    Raises:
        UsageError: the columns cannot be determined, or differ too much; the column is named.
    """
    chunk_format = source.chunk_format
    stored = read_schema(chunk_format.schema) if chunk_format is not None else None
    said = options.result_schema
    if said is not None and said.strip().lower() == "same":
        if stored is None or chunk_format is None:
            raise UsageError(
                f"Submission {source.submission_id} was not made from a DataFrame, so there is no schema for "
                f"resultSchema=same.",
                hint="Give one with .schema(...).",
            )
        return ResultForm(options.result_format or chunk_format.name, stored)
    first = b"" if said is not None and options.result_format is not None else first_result(queue, source)
    result_format = options.result_format or guess_format(source, first)
    if said is not None:
        return ResultForm(result_format, read_schema(said))
    if first and result_format in STORED_FORMATS:
        return ResultForm(result_format, _stored_schema(queue, source, result_format, options), is_merged=True)
    if first and result_format in GUESSED_FORMATS:
        samples = sample(queue, source, SAMPLE_BYTES)
        try:
            guessed = spark_schema(schema_of(result_format, *samples), what="the results")
        except UsageError as error:
            what = f"A result of submission {source.submission_id}"
            raise _unusable(what, result_format, error) from error
        schema = _typed_as_chunks(result_format, samples, guessed, stored) if stored else guessed
        return ResultForm(result_format, schema, is_merged=True)
    if first or result_format in ("text", "binary"):
        return ResultForm(result_format, spark_schema(schema_of(result_format, first), what="the results"))
    if queue.submission(source.submission_id).state().state not in FINAL_STATES:
        raise UsageError(
            f"Submission {source.submission_id} has no result yet to take the columns from.",
            hint="Give them with .schema(...), or the option resultSchema=same if they are those of the chunks.",
        )
    if stored is None:
        raise UsageError(
            f"Submission {source.submission_id} has no result to take the columns from.",
            hint="Give them with .schema(...).",
        )
    return ResultForm(result_format, stored)


def _stored_schema(queue: Queue, source: SourceSubmission, result_format: str, options: ReadOptions) -> t.StructType:
    """The columns of all results, merged; only the wanted ones, if the others cannot be."""
    found = _distinct_schemas(queue, source, result_format)
    what = f"the results of submission {source.submission_id}"
    try:
        return merged([spark_schema(schema, what=what) for schema in found], what=what)
    except UsageError:
        if options.columns is None:
            raise
    wanted = [pa.schema([field for field in schema if field.name in options.columns]) for schema in found]
    return merged([spark_schema(schema, what=what) for schema in wanted], what=what)


def _distinct_schemas(queue: Queue, source: SourceSubmission, result_format: str) -> list[pa.Schema]:
    schemas, reader = StoredSchemas(result_format), ResultReader(source)

    def add(item: tuple[int, Result]) -> None:
        chunk, place = item
        try:
            schemas.add(size_of(place), lambda offset, size: reader.read_part(place, offset, size))
        except UsageError as error:
            raise Batches(source.submission_id, result_format, t.StructType(), ()).unusable(chunk, error) from error

    if reader.store.path(source.folder) is not None:  # opened here once, not by each thread
        for item in indexed_places(queue, source):
            add(item)
        return schemas.found
    with ThreadPoolExecutor(_READERS_COUNT) as pool:
        items = indexed_places(queue, source)
        while part := list(islice(items, _READERS_COUNT * 64)):
            list(pool.map(add, part))
    return schemas.found


def _typed_as_chunks(
    result_format: str, samples: list[bytes], guessed: t.StructType, stored: t.StructType
) -> t.StructType:
    """The guessed columns; one named like a column of the chunks gets its type if the samples fit it exactly.

    Except for bytes: in JSON they are base64, and any word of four letters would pass for that.
    """

    def is_held(fields: list[t.StructField]) -> bool:
        wanted = arrow_schema(t.StructType(fields))
        return all(holds(result_format, wanted, sample) for sample in samples)

    types = {field.name: field for field in stored if '"binary"' not in field.dataType.json()}
    alike = [
        types[field.name] for field in guessed if field.name in types and types[field.name].dataType != field.dataType
    ]
    if not alike:
        return guessed
    if not is_held(alike):
        alike = [field for field in alike if is_held([field])]
    chosen = {field.name: field for field in alike}
    return t.StructType([chosen.get(field.name, field) for field in guessed])


def whole_schema(form: ResultForm, options: ColumnOptions) -> t.StructType:
    """The schema of the DataFrame: the selected columns, then those about the chunk."""
    schema = form.schema if options.columns is None else selected(form.schema, options.columns)
    taken = [name for name in options.metadata_columns if name in schema.names]
    if taken:
        raise UsageError(f"The data has a column {taken[0]!r} of its own.", hint="Leave it out of metadataColumns.")
    return t.StructType(
        [*schema.fields, *(t.StructField(name, METADATA_TYPES[name]) for name in options.metadata_columns)]
    )


def check_schema(schema: t.StructType, options: ColumnOptions) -> None:
    """Check that a schema given by the user agrees with the options."""
    types = {field.name: field.dataType for field in schema}
    for name in options.metadata_columns:
        if types.get(name) != METADATA_TYPES[name]:
            raise UsageError(
                f"metadataColumns names {name}, which the given schema lacks.",
                hint=f"Add `{name} {METADATA_TYPES[name].simpleString().upper()}` to the schema.",
            )
    if options.columns is not None:
        for name in options.columns:
            if name not in types:
                raise UsageError(
                    f"columns names {name!r}, which is not in the given schema.", hint="Give one of the two."
                )


class Batches(NamedTuple):
    """Turns results into Arrow batches of one schema. Everything in it can be pickled.

    Attributes:
        submission_id: of the results.
        result_format: of the results.
        schema: of the DataFrame, with the columns about the chunk.
        metadata_columns: which of its columns those are.
        is_of_chunks: these are not results but the chunks themselves; errors say so.
        is_merged: a column that a result lacks is null.
    """

    submission_id: int
    result_format: str
    schema: t.StructType
    metadata_columns: tuple[str, ...]
    is_of_chunks: bool = False
    is_merged: bool = False

    def of(self, results: Iterable[Fetched], attempts: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        """The rows of results, in order, in batches that are neither tiny nor huge.

        Raises:
            UsageError: a result does not have the format; its chunk is named.
        """
        whole = arrow_schema(self.schema)
        own = pa.schema([field for field in whole if field.name not in self.metadata_columns])
        decode = decoder(self.result_format, own, fills=self.is_merged)
        waiting: list[pa.Table] = []
        rows_count = size_bytes = 0
        for chunk, result in results:
            if not result and self.result_format != "binary":
                continue
            try:
                table = decode(result)
            except OpsqError as error:
                raise self.unusable(chunk, error) from error
            if self.metadata_columns:
                table = self._with_metadata(table, whole, chunk, attempts)
            is_large = table.num_rows >= LARGE_ROWS
            if waiting and (is_large or rows_count + table.num_rows > BATCH_ROWS or size_bytes >= BATCH_BYTES):
                yield from combined(waiting, BATCH_ROWS)
                waiting, rows_count, size_bytes = [], 0, 0
            if is_large:
                yield from table.to_batches(max_chunksize=BATCH_ROWS)
            else:
                waiting.append(table)
                rows_count += table.num_rows
                size_bytes += table.nbytes
        if waiting:
            yield from combined(waiting, BATCH_ROWS)

    def unusable(self, chunk: int, error: OpsqError) -> UsageError:
        """The error for the result of a chunk."""
        name = f"{self.submission_id}/{chunk}"
        if self.is_of_chunks:
            return UsageError(
                f"Chunk {name} cannot be used. {error.message}",
                hint="The options chunkFormat and columns, or .schema(...), describe the chunks; the strategy selects "
                f"them. After `opsq cancel {self.submission_id}` and `opsq rm` a restarted query continues without it.",
            )
        return _unusable(f"The result of chunk {name}", self.result_format, error)

    def _with_metadata(self, table: pa.Table, whole: pa.Schema, chunk: int, attempts: Mapping[int, int]) -> pa.Table:
        values = metadata_of(self.submission_id, chunk, attempts)
        columns = [
            pa.repeat(pa.scalar(values[field.name], field.type), table.num_rows)
            if field.name in self.metadata_columns
            else table.column(field.name)
            for field in whole
        ]
        return pa.Table.from_arrays(columns, schema=whole)


def metadata_of(submission_id: int, chunk: int, attempts: Mapping[int, int]) -> dict[str, int]:
    """What the columns about the chunk have in its rows."""
    return {"_submission": submission_id, "_chunk": chunk, "_attempts": attempts.get(chunk, 1)}


def guess_format(source: SourceSubmission, sample: bytes) -> str:
    """The format that a result shows, else that of the chunks, else text."""
    shown = sniff(sample)
    if shown is not None:
        return shown
    if source.chunk_format is None:
        return "text"
    if sample and source.chunk_format.name in ("parquet", "arrow"):
        raise UsageError(
            f"The chunks of submission {source.submission_id} are {source.chunk_format.name}, and its results are not.",
            hint="Give their format with the option resultFormat: jsonl, csv, text or binary.",
        )
    return source.chunk_format.name


class ResultRead:
    """What batch and stream readers know of the results they read. Everything in it can be pickled.

    Args:
        options: of the read.
        schema: of the DataFrame.
        form: of the results, if it is known already.
    """

    def __init__(self, options: ReadOptions, schema: t.StructType, form: ResultForm | None) -> None:
        check_schema(schema, options)
        self.options = options
        self.daemon: Daemon = resolve(options.daemon)
        with self.daemon.open() as queue:
            self.source: SourceSubmission = find_source(queue, options.submission)
            result_format = form.result_format if form is not None else options.result_format
            if result_format is None:
                result_format = guess_format(self.source, first_result(queue, self.source))
        self.batches = Batches(
            self.source.submission_id,
            result_format,
            schema,
            options.metadata_columns,
            is_merged=form is not None and form.is_merged,
        )


class OpsqReader(ResultRead, DataSourceReader):
    """Reads the results of a submission that has ended."""

    conditions: Sequence[Filter] = ()
    """On the columns about the chunk; a chunk that does not meet them is not read."""

    def partitions(self) -> list[InputPartition]:
        """Runs of chunks; an error if results are missing and may not be skipped."""
        with self.daemon.open() as queue:
            check_final(queue, self.source, skips_dead=self.options.skips_dead)
            wants_attempts = "_attempts" in self.options.metadata_columns
            attempts = attempts_beyond_one(queue, self.source) if wants_attempts else {}
            cut = runs(queue, self.source, self.options.chunks_per_partition)
        retried = sorted(attempts)
        found: list[InputPartition] = []
        for first, end in cut:
            own = {index: attempts[index] for index in retried[bisect_left(retried, first) : bisect_left(retried, end)]}
            wanted = [index for index in range(first, end) if self._wants(index, own)] if self.conditions else [first]
            if wanted:
                found.append(ChunkRun(wanted[0], wanted[-1] + 1 if self.conditions else end, own))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one run of chunks, on an executor."""
        if not isinstance(partition, ChunkRun):
            return  # Spark makes a partition of its own when there are no chunks
        first, end, attempts = partition.first, partition.end, partition.attempts
        wants = (lambda index: self._wants(index, attempts)) if self.conditions else None
        with self.daemon.open(is_planned=True) as queue:
            results = fetch(queue, self.source, first, end, skips_dead=self.options.skips_dead, wants=wants)
            yield from self.batches.of(results, attempts)

    def _wants(self, chunk: int, attempts: Mapping[int, int]) -> bool:
        return are_met(self.conditions, metadata_of(self.source.submission_id, chunk, attempts))


class FilteredReader(OpsqReader):
    """The same in a session that hands filters over; in any other, Spark refuses a reader that takes them."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Take the filters on columns about the chunk; Spark applies the others."""
        self.conditions, others = divide(filters, self.options.metadata_columns)
        return others


def _unusable(what: str, result_format: str, error: OpsqError) -> UsageError:
    hint = "The options resultFormat, resultSchema and columns, or .schema(...), describe the results"
    if result_format in GUESSED_FORMATS:
        hint += f"; without a schema, columns of {result_format} are guessed from some of the results and the chunks"
    return UsageError(f"{what} cannot be used. {error.message}", hint=f"{hint}. From a shell: --result-schema.")
