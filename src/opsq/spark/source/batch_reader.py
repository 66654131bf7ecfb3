"""A batch read as Spark sees it: results of a submission as Arrow batches, in runs of chunks, and the schema they have.

This file must not know where bytes lie (`fetching`) nor formats (`decoding`). All it keeps can be pickled; connections are
made where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, InputPartition

from opsq.errors import OpsqError, UsageError
from opsq.spark.formats.decoder import combined, decoder, holds, schema_of, sniff
from opsq.spark.formats.schemas import arrow_schema, read_schema, selected, spark_schema
from opsq.spark.source.daemon_address import PATIENCE_S, Daemon, resolve
from opsq.spark.source.result_fetch import (
    FINAL_STATES,
    Fetched,
    Made,
    attempts_beyond_one,
    check_final,
    fetch,
    first_result,
    look_up,
    places,
    read_place,
    runs,
)
from opsq.spark.source.source_options import ColumnOptions, ReadOptions

if TYPE_CHECKING:
    from opsq.client.sync.queue import Queue

BATCH_ROWS = 1 << 17
BATCH_BYTES = 32 << 20
"""Results are gathered up to this many rows or bytes before they are given to Spark: each batch costs it a fixed time."""
LARGE_ROWS = 1 << 14
"""A result of so many rows is given as it is: to gather it would cost a copy."""
GUESSED_FORMATS = ("jsonl", "csv")
"""Formats that do not tell the types of their columns."""
SAMPLE_RESULTS = 16
SAMPLE_BYTES = 4 << 20
"""Of such formats, columns are guessed from this many results, or those that have this many bytes together."""
METADATA_TYPES: dict[str, t.DataType] = {
    "_submission": t.LongType(),
    "_chunk": t.LongType(),
    "_attempts": t.IntegerType(),
}


class ResultForm(NamedTuple):
    """How results look: their format, and all columns that they have (without those that tell of the chunk)."""

    result_format: str
    schema: t.StructType


class Run(InputPartition):
    """A run of chunks, and how many attempts those took that took more than one."""

    def __init__(self, first: int, end: int, attempts: Mapping[int, int]) -> None:
        super().__init__((first, end))
        self.first, self.end, self.attempts = first, end, attempts


def find_form(queue: Queue, made: Made, options: ReadOptions) -> ResultForm:
    """Find out how results look: what options say, else what the first results show, else as the chunks were.

    Where the format tells no types, columns that are called like those of the chunks have theirs, if the first results fit them.

    Raises:
        UsageError: nothing tells.
    """
    about = made.about
    stored = read_schema(about.schema) if about is not None else None
    said = options.result_schema
    if said is not None and said.strip().lower() == "same":
        if stored is None or about is None:
            raise UsageError(
                f"Submission {made.submission_id} was not made from a DataFrame, so there is no schema for resultSchema=same.",
                hint="Give one with .schema(...).",
            )
        return ResultForm(options.result_format or about.chunk_format, stored)
    sample = b"" if said is not None and options.result_format is not None else first_result(queue, made)
    result_format = options.result_format or guess_format(made, sample)
    if said is not None:
        return ResultForm(result_format, read_schema(said))
    if sample or result_format in ("text", "binary"):
        is_guessed = bool(sample) and result_format in GUESSED_FORMATS
        samples = _first_results(queue, made, sample) if is_guessed else [sample]
        schema = spark_schema(schema_of(result_format, *samples), what="the results")
        return ResultForm(
            result_format, _typed_as_chunks(result_format, samples, schema, stored) if is_guessed and stored else schema
        )
    if queue.submission(made.submission_id).state().state not in FINAL_STATES:
        raise UsageError(
            f"No chunk of submission {made.submission_id} has a result yet that would tell its columns.",
            hint="Give them with .schema(...), or the option resultSchema=same if they are those of the chunks.",
        )
    if stored is None:
        raise UsageError(
            f"No chunk of submission {made.submission_id} has a result that would tell its columns.",
            hint="Give them with .schema(...).",
        )
    return ResultForm(result_format, stored)


def _first_results(queue: Queue, made: Made, first: bytes) -> list[bytes]:
    """The first results that are not empty: so many, or so many bytes, as tell enough of columns that have to be guessed."""
    found, size_bytes, store = [first], len(first), None
    for place in islice(places(queue, made), 1, SAMPLE_RESULTS):
        size_bytes += len(place) if isinstance(place, bytes) else place[2]
        if size_bytes > SAMPLE_BYTES:
            break
        store = store or made.store.open()
        found.append(read_place(store, made, place))
    return found


def _typed_as_chunks(
    result_format: str, samples: list[bytes], guessed: t.StructType, stored: t.StructType
) -> t.StructType:
    """Columns that are called like one of the chunks, with its type where it holds just what the samples say.

    Bytes are not among them: JSON has them as base64, and any word of four letters would pass for that.
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
    """The schema of the DataFrame: the columns chosen, then those that tell of the chunk."""
    schema = form.schema if options.columns is None else selected(form.schema, options.columns)
    taken = [name for name in options.metadata_columns if name in schema.names]
    if taken:
        raise UsageError(f"There is a column {taken[0]!r} among the others.", hint="Leave it out of metadataColumns.")
    return t.StructType(
        [*schema.fields, *(t.StructField(name, METADATA_TYPES[name]) for name in options.metadata_columns)]
    )


def check_schema(schema: t.StructType, options: ColumnOptions) -> None:
    """See to it that a schema which the user gave agrees with the options."""
    types = {field.name: field.dataType for field in schema}
    for name in options.metadata_columns:
        if types.get(name) != METADATA_TYPES[name]:
            raise UsageError(
                f"metadataColumns names {name}, and the schema that was given lacks it.",
                hint=f"Add `{name} {METADATA_TYPES[name].simpleString().upper()}` to the schema.",
            )
    if options.columns is not None:
        for name in options.columns:
            if name not in types:
                raise UsageError(
                    f"columns names {name!r}, which is not in the schema that was given.", hint="Give one of the two."
                )


class Batches:
    """Turns results into Arrow batches of one schema. Everything in it can be pickled.

    Args:
        submission_id: of the results.
        result_format: of the results.
        schema: of the DataFrame, with the columns that tell of the chunk.
        metadata_columns: which of its columns those are.
        is_of_chunks: these are no results, but the chunks themselves; errors say so.
    """

    def __init__(
        self,
        submission_id: int,
        result_format: str,
        schema: t.StructType,
        metadata_columns: tuple[str, ...],
        *,
        is_of_chunks: bool = False,
    ) -> None:
        self.submission_id = submission_id
        self.result_format = result_format
        self.schema = schema
        self.metadata_columns = metadata_columns
        self.is_of_chunks = is_of_chunks

    def of(self, results: Iterable[Fetched], attempts: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        """The rows of results, in their order, gathered into batches that are neither tiny nor huge.

        Raises:
            UsageError: a result is not of the format; its chunk is named.
        """
        whole = arrow_schema(self.schema)
        own = pa.schema([field for field in whole if field.name not in self.metadata_columns])
        decode = decoder(self.result_format, own)
        waiting: list[pa.Table] = []
        rows_count = size_bytes = 0
        for chunk, result in results:
            if not result and self.result_format != "binary":
                continue
            try:
                table = decode(result)
            except OpsqError as error:
                raise self._unusable(chunk, error) from error
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

    def _unusable(self, chunk: int, error: OpsqError) -> UsageError:
        name = f"{self.submission_id}/{chunk}"
        if self.is_of_chunks:
            return UsageError(
                f"Chunk {name} cannot be used. {error.message}",
                hint="The options chunkFormat and columns, or .schema(...), say what chunks look like; the strategy says which are taken. "
                f"A query that is started again goes on without it after `opsq cancel {self.submission_id}` and `opsq rm`.",
            )
        hint = "The options resultFormat, resultSchema and columns, or .schema(...), say what results look like"
        if self.result_format in GUESSED_FORMATS:
            hint += (
                f"; without a schema, columns of {self.result_format} are guessed from the first results and the chunks"
            )
        return UsageError(
            f"The result of chunk {name} cannot be used. {error.message}",
            hint=f"{hint}. From a shell: --result-schema.",
        )

    def _with_metadata(self, table: pa.Table, whole: pa.Schema, chunk: int, attempts: Mapping[int, int]) -> pa.Table:
        told = {"_submission": self.submission_id, "_chunk": chunk, "_attempts": attempts.get(chunk, 1)}
        columns = [
            pa.repeat(pa.scalar(told[field.name], field.type), table.num_rows)
            if field.name in self.metadata_columns
            else table.column(field.name)
            for field in whole
        ]
        return pa.Table.from_arrays(columns, schema=whole)


class OpsqReader(DataSourceReader):
    """Reads the results of a submission that has ended.

    Args:
        options: of the read.
        schema: of the DataFrame.
        form: how results look, if that is known already.
    """

    def __init__(self, options: ReadOptions, schema: t.StructType, form: ResultForm | None) -> None:
        check_schema(schema, options)
        self.options = options
        self.daemon: Daemon = resolve(options.reach)
        with self.daemon.open() as queue:
            self.made: Made = look_up(queue, options.submission)
            if form is not None:
                result_format = form.result_format
            else:
                result_format = options.result_format or guess_format(self.made, first_result(queue, self.made))
        self.batches = Batches(self.made.submission_id, result_format, schema, options.metadata_columns)

    def partitions(self) -> list[InputPartition]:
        """Runs of chunks; an error if results are lacking and that is not to be passed over."""
        with self.daemon.open() as queue:
            check_final(queue, self.made, skips_dead=self.options.skips_dead)
            wants_attempts = "_attempts" in self.options.metadata_columns
            attempts = attempts_beyond_one(queue, self.made) if wants_attempts else {}
            cut = runs(queue, self.made, self.options.chunks_per_partition)
        return [
            Run(first, end, {index: attempts[index] for index in attempts if first <= index < end})
            for first, end in cut
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one run of chunks, on an executor."""
        if not isinstance(partition, Run):
            return  # Spark makes a partition of its own when there are no chunks
        with self.daemon.open(patience_s=PATIENCE_S) as queue:
            results = fetch(queue, self.made, partition.first, partition.end, skips_dead=self.options.skips_dead)
            yield from self.batches.of(results, partition.attempts)


def guess_format(made: Made, sample: bytes) -> str:
    """The format that a result shows, else that of the chunks, else lines of text."""
    shown = sniff(sample)
    if shown is not None:
        return shown
    if made.about is None:
        return "text"
    if sample and made.about.chunk_format in ("parquet", "arrow"):
        raise UsageError(
            f"The chunks of submission {made.submission_id} are {made.about.chunk_format}, and its results are not.",
            hint="Say what they are with the option resultFormat: jsonl, csv, text or binary.",
        )
    return made.about.chunk_format
