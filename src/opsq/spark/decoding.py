"""Turns the bytes of results into Arrow tables of one schema, and finds that schema where the bytes tell it.

This file must not know Spark or where the bytes come from. A result that cannot be read as told is an error that names
what is wrong with it; whoever calls adds which chunk it is of.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pyarrow.types as pt

from opsq.errors import UsageError

Decode = Callable[[bytes], pa.Table]
"""Turns one result, which is not empty, into a table of the schema wanted."""

PARQUET_MAGIC = b"PAR1"
_ARROW_FILE_MAGIC = b"ARROW1"
_ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])
BINARY_SCHEMA = pa.schema([pa.field("value", pa.binary())])
_INFERRED_BYTES = 1 << 20


def sniff(result: bytes) -> str | None:
    """The format that the first bytes of a result show; None: it may be any of text."""
    if result.startswith(PARQUET_MAGIC) and result.endswith(PARQUET_MAGIC):
        return "parquet"
    if result.startswith((_ARROW_FILE_MAGIC, _ARROW_STREAM_MAGIC)):
        return "arrow"
    return None


def schema_of(result_format: str, result: bytes) -> pa.Schema:
    """The schema of one result that is not empty: what its footer or header says, for JSON and CSV what its values look like.

    Raises:
        UsageError: it is not of that format.
    """
    try:
        if result_format == "parquet":
            return pq.read_schema(pa.BufferReader(result))
        if result_format == "arrow":
            return _open_arrow(result).schema
        if result_format == "jsonl":
            return pyarrow.json.read_json(pa.BufferReader(result[: _line_end(result)])).schema
        if result_format == "csv":
            return pyarrow.csv.read_csv(pa.BufferReader(result), convert_options=_CSV_NULLS).schema
    except pa.ArrowException as error:
        raise _unreadable(result_format, error) from error
    return TEXT_SCHEMA if result_format == "text" else BINARY_SCHEMA


def decoder(result_format: str, wanted: pa.Schema) -> Decode:
    """What turns results of a format into tables with the columns wanted, in their order.

    Args:
        result_format: parquet, arrow, jsonl, csv, text or binary.
        wanted: columns are found by name, and cast where their types differ without loss.
    """
    decode = _DECODERS[result_format](wanted)

    def checked(result: bytes) -> pa.Table:
        try:
            return conform(decode(result), wanted)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(result_format, error) from error

    return checked


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The columns of `wanted`, cast to its types.

    Raises:
        UsageError: a column is missing.
        ArrowException: a value does not fit.
    """
    if table.schema.equals(wanted):
        return table
    if table.schema.names != wanted.names:
        _check_names(wanted.names, table.schema.names)
        table = table.select(wanted.names)
    return table.cast(wanted)


def _check_names(wanted: Sequence[str], present: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise UsageError(f"It has no column {missing[0]!r}; it has {', '.join(present) or 'none'}.")


def _parquet(wanted: pa.Schema) -> Decode:
    names = wanted.names

    def decode(result: bytes) -> pa.Table:
        file = pq.ParquetFile(pa.BufferReader(result), pre_buffer=False)
        present = file.schema_arrow.names
        _check_names(names, present)
        return file.read(columns=None if present == names else names, use_threads=False)

    return decode


def _arrow(_: pa.Schema) -> Decode:
    return lambda result: _open_arrow(result).read_all()


def _open_arrow(result: bytes) -> Any:
    source = pa.BufferReader(result)
    return pa.ipc.open_file(source) if result.startswith(_ARROW_FILE_MAGIC) else pa.ipc.open_stream(source)


_CSV_NULLS = pyarrow.csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)


def _csv(wanted: pa.Schema) -> Decode:
    types = {field.name: field.type for field in wanted}
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False, true_values=["true"]
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(types) != 1)  # of one column, it is a null
    read = pyarrow.csv.ReadOptions(use_threads=False)
    return lambda result: pyarrow.csv.read_csv(pa.BufferReader(result), read, parse, convert)


def _text(wanted: pa.Schema) -> Decode:
    name = wanted.names[0] if wanted.names else "value"

    def decode(result: bytes) -> pa.Table:
        lines = result.decode().split("\n")
        if not lines[-1]:
            lines.pop()
        return pa.table({name: pa.array(lines, pa.string())})

    return decode


def _binary(wanted: pa.Schema) -> Decode:
    name = wanted.names[0] if wanted.names else "value"
    return lambda result: pa.table({name: pa.array([result], pa.binary())})


def _jsonl(wanted: pa.Schema) -> Decode:
    decode_lines = msgspec.json.Decoder(dict[str, Any], float_hook=_read_number).decode_lines
    fields = [(field.name, field.type, hearer(field.type)) for field in wanted]

    def decode(result: bytes) -> pa.Table:
        try:
            rows = decode_lines(result)
        except msgspec.DecodeError as error:
            raise UsageError(f"It is no JSON lines: {error}.") from error
        columns = []
        for name, kind, hear in fields:
            values = [row.get(name) for row in rows]
            try:
                columns.append(pa.array(values if hear is None else [None if value is None else hear(value) for value in values], kind))
            except (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError) as error:
                raise UsageError(f"Its column {name!r} is not {kind}: {error}.") from error
        return pa.Table.from_arrays(columns, schema=wanted)

    return decode


def _read_number(text: str) -> decimal.Decimal:
    """Numbers with a point keep all their digits until it is known what they are to be."""
    return decimal.Decimal(text)


def hearer(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """How a value that JSON gave becomes one of a type; None: it is one already. The inverse of `encoding.sayer`."""
    if pt.is_floating(kind):
        return float
    if pt.is_decimal(kind):
        return lambda value: decimal.Decimal(str(value))
    if pt.is_binary(kind):
        return base64.b64decode
    if pt.is_date(kind):
        return dt.date.fromisoformat
    if pt.is_timestamp(kind):
        return _timestamp_hearer(kind.tz is not None)
    if pt.is_list(kind):
        element = hearer(kind.value_type)
        return None if element is None else lambda values: [None if value is None else element(value) for value in values]
    if pt.is_map(kind):
        inner = hearer(kind.item_type)
        return lambda row: [(key, value if value is None or inner is None else inner(value)) for key, value in row.items()]
    if pt.is_struct(kind):
        fields = [(field.name, hearer(field.type)) for field in kind]
        return lambda row: {name: value if (value := row.get(name)) is None or hear is None else hear(value) for name, hear in fields}
    if pt.is_integer(kind):
        return _hear_integer
    return None


def _hear_integer(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _timestamp_hearer(has_zone: bool) -> Callable[[str], dt.datetime]:
    def hear(text: str) -> dt.datetime:
        moment = dt.datetime.fromisoformat(text)
        if has_zone:
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        if moment.tzinfo is not None:
            raise ValueError(f"{text!r} has a zone, and the column has none")
        return moment

    return hear


_DECODERS: dict[str, Callable[[pa.Schema], Decode]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "text": _text,
    "binary": _binary,
    "jsonl": _jsonl,
}


def _line_end(result: bytes) -> int:
    """Where the first lines end, as many as are needed to see what values look like."""
    return len(result) if len(result) <= _INFERRED_BYTES else result.rfind(b"\n", 0, _INFERRED_BYTES) + 1 or len(result)


def _unreadable(result_format: str, error: Exception) -> UsageError:
    lines = str(error).splitlines()
    return UsageError(f"It cannot be read as {result_format}: {lines[0] if lines else type(error).__name__}.")


def combined(tables: Sequence[pa.Table], rows_most: int) -> list[pa.RecordBatch]:
    """Small tables as few batches of at most so many rows."""
    whole = pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]
    return list(whole.to_batches(max_chunksize=rows_most))
