"""Turns Arrow tables into the bytes of chunks: a small Parquet file, an Arrow stream, JSON lines, CSV or text.

This file must not know Spark or where the bytes go. `decoder` reads it back to the same values.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import arro3.io
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as pt

from opsq.errors import UsageError
from opsq.spark.formats.row_chunker import Encode

_MANY_ROWS = 2000
"""Fewer are written without dictionaries and delta encoding, whose fixed cost is that of many rows."""
_MANY_BYTES, _MANY_COLUMN_BYTES = 64 << 10, 1 << 10
"""Fewer, in all or in each column, are compressed with Snappy: setting up zstd takes 12 to 19 µs a column, more than
all else does for 100 values."""
_IS_PLAIN = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    lambda kind: pt.is_decimal128(kind) and kind.precision > 1 and kind.scale >= 0,
    pt.is_date32,
    pt.is_string,
    pt.is_large_string,
    pt.is_binary,
    pt.is_large_binary,
    lambda kind: pt.is_timestamp(kind) and kind.unit != "s",
)
"""Types for which arro3 and Arrow write the same Parquet column, so that files of both can be joined."""
_SAMPLE_ROWS = 4000
"""The number of values of a column that decide whether its values repeat."""
_JSON_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_REFUSALS = (ValueError, TypeError, OverflowError, OSError, pa.ArrowNotImplementedError)
"""What Arrow, Python's conversions and msgspec raise for what they cannot write; reraised with the column's name.

OSError is Arrow's for decimals of negative scale: no file is read or written here that could raise another.
"""
_REFUSED_HINT = "Cast the column, leave it out, or use another format."

WriteJson = Callable[[Any], Any]
"""Turns a Python value of a column into a JSON value."""


def encoder(chunk_format: str, schema: pa.Schema) -> Encode:
    """An encoder of tables into the bytes of chunks.

    Args:
        chunk_format: parquet, arrow, jsonl, csv or text.
        schema: of every table that it will get.

    Raises:
        UsageError: the format cannot hold these columns. The encoder raises it for values; both name the column.
    """
    try:
        encode = _bare_encoder(chunk_format, schema)
    except _REFUSALS as error:
        raise _refused(chunk_format, schema.empty_table(), error) from error

    def checked(table: pa.Table) -> memoryview:
        try:
            return encode(table)
        except _REFUSALS as error:
            raise _refused(chunk_format, table, error) from error

    return checked


def _bare_encoder(chunk_format: str, schema: pa.Schema) -> Encode:
    if chunk_format == "parquet":
        return _parquet_encoder(schema)
    if chunk_format == "arrow":
        return _arrow
    if chunk_format == "csv":
        return _csv
    if chunk_format == "text":
        return _text_encoder(schema)
    return _json_encoder(schema)


def _refused(chunk_format: str, table: pa.Table, error: Exception) -> UsageError:
    """The error for a table that cannot be encoded, naming the first column that cannot be encoded alone."""
    for number, name in enumerate(table.column_names):
        alone = table.select([number])
        try:
            _bare_encoder(chunk_format, alone.schema)(alone)
        except _REFUSALS as its_error:
            kind = alone.schema.field(0).type
            return UsageError(
                f"Column {name!r} is {kind} and cannot be written as {chunk_format}: {its_error}.", hint=_REFUSED_HINT
            )
    return UsageError(f"The table cannot be written as {chunk_format}: {error}.", hint=_REFUSED_HINT)


def header_of(chunk_format: str, schema: pa.Schema) -> bytes:
    """The start of each chunk: the column names of CSV."""
    if chunk_format != "csv":
        return b""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(
        schema.empty_table(), sink, pyarrow.csv.WriteOptions(include_header=True, quoting_style="needed")
    )
    return bytes(sink.getvalue().to_pybytes())


def _parquet_encoder(schema: pa.Schema) -> Encode:
    is_plain = not schema.metadata and all(map(_is_plain, schema))
    decimals = [number for number, kind in enumerate(schema.types) if pt.is_decimal(kind)]
    leaves = _leaves(schema)
    differing = {
        path
        for field in schema
        if pt.is_integer(field.type) or pt.is_temporal(field.type)
        for path in leaves[field.name]
    }

    def encode(table: pa.Table) -> memoryview:
        for number in decimals:  # more digits than the column has would be cut off
            table.column(number).validate(full=True)
        batches = table.to_batches()
        rows = batches[0] if len(batches) == 1 else table  # of a batch, all that follows is quicker
        has_many_rows = table.num_rows >= _MANY_ROWS
        has_many_bytes = rows.nbytes >= max(_MANY_BYTES, _MANY_COLUMN_BYTES * rows.num_columns)
        if is_plain and not has_many_rows and not has_many_bytes:
            return _small_parquet(rows)
        repetitive = {path for name in _repetitive(table) for path in leaves[name]} if has_many_rows else set()
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression="zstd" if has_many_bytes else "snappy",
            row_group_size=max(table.num_rows, 1),
            use_dictionary=list(repetitive) or False,
            column_encoding=dict.fromkeys(differing - repetitive, "DELTA_BINARY_PACKED") if has_many_rows else None,
            write_statistics=has_many_rows,
            store_decimal_as_integer=True,  # as arro3 and Spark do
        )
        return memoryview(sink.getvalue())

    return encode


def _is_plain(field: pa.Field) -> bool:
    """Whether arro3 keeps all of a column: it cuts names at a NUL, and refuses metadata that is not text."""
    return not field.metadata and "\0" not in field.name and any(is_kind(field.type) for is_kind in _IS_PLAIN)


def _small_parquet(rows: pa.RecordBatch | pa.Table) -> memoryview:
    """A Parquet file from the writer of Rust's Arrow.

    Arrow's own takes 120 µs before the first row, most of the time for a chunk of 100 rows; this one takes 40 µs in
    all. Its file is a fifth to a third larger, for statistics that it cannot leave out.
    """
    sink = io.BytesIO()
    try:
        arro3.io.write_parquet(rows, sink, compression="snappy", dictionary_enabled=False)
    except Exception as error:  # its errors are of no class of their own
        raise pa.ArrowInvalid(str(error)) from error
    return sink.getbuffer()


def _leaves(schema: pa.Schema) -> dict[str, list[str]]:
    """The Parquet paths of each column, several for a nested one; without those that two columns share.

    A column `a.b` has the same path as field `b` of a struct `a`, and options by path would apply to both.
    """
    found = [_paths(field) for field in schema]
    counts = Counter(path for paths in found for path in paths)
    return {
        name: [path for path in paths if counts[path] == 1] for name, paths in zip(schema.names, found, strict=True)
    }


def _paths(field: pa.Field) -> list[str]:
    if not pt.is_nested(field.type) and not isinstance(field.type, pa.BaseExtensionType):
        return [field.name]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.schema([field]).empty_table(), sink)
    made = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [made.column(number).path for number in range(len(made.names))]


def _repetitive(table: pa.Table) -> Iterator[str]:
    """The columns worth a dictionary: at least half of their first values repeat. Nested columns always get one.

    A useless dictionary is started, abandoned and left in the file: with it four columns of 10⁵ rows, three of them
    without repetition, took 26 ms and 1.07 MB; with delta encoding instead 9 ms and 0.12 MB. Spark reads both equally
    fast.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        sample = column.slice(0, _SAMPLE_ROWS)
        try:
            is_worth_it = pc.count_distinct(sample, mode="all").as_py() * 2 <= len(sample)
        except pa.ArrowNotImplementedError:  # Arrow cannot count nested types, nor all others
            is_worth_it = True
        if is_worth_it:
            yield name


def _arrow(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return memoryview(sink.getvalue())


def _csv(table: pa.Table) -> memoryview:
    """CSV lines; an empty text is quoted and a null is not."""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed"))
    return memoryview(sink.getvalue())


def _text_encoder(schema: pa.Schema) -> Encode:
    hint = "Leave one column of strings, or return the lines as bytes."
    if len(schema) != 1:
        raise UsageError(f"Lines of text hold one column, not {len(schema)}.", hint=hint)
    if not (pt.is_string(schema.types[0]) or pt.is_large_string(schema.types[0])):
        raise UsageError(
            f"Column {schema.names[0]!r} is {schema.types[0]}, which lines of text cannot hold.", hint=hint
        )

    def encode(table: pa.Table) -> memoryview:
        name = table.schema.names[0]
        column = table.column(0)
        if column.null_count:
            raise UsageError(
                f"Column {name!r} has a null, which lines of text cannot express.",
                hint="Use .na.fill, or another chunkFormat.",
            )
        if pc.any(pc.match_substring(column, "\n")).as_py():
            raise UsageError(
                f"Column {name!r} has a value with a line end in it, which would become two lines.",
                hint="Use jsonl or parquet.",
            )
        return memoryview("".join(f"{line}\n" for line in column.to_pylist()).encode())

    return encode


def _json_encoder(schema: pa.Schema) -> Encode:
    writers = [json_writer(field.type) for field in schema]
    names = schema.names
    encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines

    def encode(table: pa.Table) -> memoryview:
        columns = [
            values if write is None else [None if value is None else write(value) for value in values]
            for write, values in zip(writers, (column.to_pylist() for column in table.columns), strict=True)
        ]
        return memoryview(encode_lines([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]))

    return encode


def json_writer(kind: pa.DataType) -> WriteJson | None:
    """A converter of values of a type to JSON values; None: they are JSON values already."""
    if pt.is_floating(kind):
        return _float_text
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pt.is_timestamp(kind):
        return _timestamp_text
    if pt.is_list(kind) or pt.is_large_list(kind):
        element = json_writer(kind.value_type)
        return (
            None if element is None else lambda values: [None if value is None else element(value) for value in values]
        )
    if pt.is_map(kind):
        inner = json_writer(kind.item_type)
        return lambda pairs: {key: value if value is None or inner is None else inner(value) for key, value in pairs}
    if pt.is_struct(kind):
        fields = {field.name: write for field in kind if (write := json_writer(field.type)) is not None}
        if not fields:
            return None
        return lambda row: (
            row | {name: None if row[name] is None else write(row[name]) for name, write in fields.items()}
        )
    return None


def _float_text(value: float) -> float | str:
    """JSON has no NaN or infinity; Spark writes them as these words too."""
    return value if math.isfinite(value) else "NaN" if value != value else _JSON_FLOATS[value]  # noqa: PLR0124


def _timestamp_text(value: dt.datetime) -> str:
    text = value.isoformat(timespec="microseconds")
    return text.removesuffix("+00:00") + "Z" if value.tzinfo is not None else text
