"""Turns the bytes of results into Arrow tables of one schema.

This file must not know Spark, where the bytes come from, nor how the schema is found (`schema_guess`). A result that
cannot be read raises an error that names what is wrong; the caller adds which chunk it belongs to.
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
import pyarrow.parquet as pq
import pyarrow.types as pt

from opsq.errors import UsageError
from opsq.spark.formats.encoder import encoder
from opsq.spark.spark_errors import line_of

Decode = Callable[[bytes], pa.Table]
"""Turns one result that is not empty into a table of the wanted schema."""

PARQUET_MAGIC = b"PAR1"
_ARROW_FILE_MAGIC = b"ARROW1"
_ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
_BLOCK_BYTES = 1 << 20


def sniff(result: bytes) -> str | None:
    """The format that the first bytes of a result show; None: any text format."""
    if result.startswith(PARQUET_MAGIC) and result.endswith(PARQUET_MAGIC):
        return "parquet"
    if result.startswith((_ARROW_FILE_MAGIC, _ARROW_STREAM_MAGIC)):
        return "arrow"
    return None


def decoder(result_format: str, wanted: pa.Schema, *, fills: bool = False) -> Decode:
    """A decoder of results into tables with the wanted columns, in their order.

    Args:
        result_format: parquet, arrow, jsonl, csv, text or binary.
        wanted: columns are found by name, and cast where their types differ without loss.
        fills: a column that a result lacks is null; otherwise that is an error, except for JSON.
    """
    decode = _parquet(wanted, fills) if result_format == "parquet" else _DECODERS[result_format](wanted)

    def checked(result: bytes) -> pa.Table:
        try:
            return conform(decode(result), wanted, fills=fills)
        except (pa.ArrowException, ValueError, OSError) as error:
            # a null in a NOT NULL column is a bare ValueError, a page that is damaged an OSError
            raise unreadable(result_format, error) from error

    return checked


def holds(result_format: str, wanted: pa.Schema, result: bytes) -> bool:
    """Whether columns of these types hold exactly the values of a result, nothing rounded and nothing left out."""
    try:
        table = decoder(result_format, wanted)(result)
        if result_format == "csv":  # other types than floats are errors if a value does not fit
            return _keeps_floats(result, table)
        again = json_rows(bytes(encoder("jsonl", wanted)(table)))
    except UsageError:
        return False
    return all(
        before.get(name) == after.get(name)
        for before, after in zip(json_rows(result), again, strict=True)
        for name in wanted.names
    )


def _keeps_floats(result: bytes, table: pa.Table) -> bool:
    """Whether the columns of floats have exactly the numbers that CSV has as text."""
    names = [field.name for field in table.schema if pt.is_floating(field.type)]
    texts = _csv(pa.schema([(name, pa.string()) for name in names]))(result)
    for name in names:
        kept = table.column(name).cast(pa.string()).to_pylist()  # the shortest text of each float
        for before, after in zip(texts.column(name).to_pylist(), kept, strict=True):
            if before != after and not _is_same_number(before, after):
                return False
    return True


def _is_same_number(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    try:
        return one.lower() == other.lower() or decimal.Decimal(one) == decimal.Decimal(other)
    except decimal.InvalidOperation:
        return False


def conform(table: pa.Table, wanted: pa.Schema, *, fills: bool = False) -> pa.Table:
    """The columns of `wanted`, cast to its types; with `fills` those that are missing are null.

    Raises:
        UsageError: a column is missing, has a null and must not, or has a value that does not fit.
    """
    for field in wanted:
        if not field.nullable and field.name in table.schema.names and table.column(field.name).null_count:
            raise UsageError(f"Its column {field.name!r} has a null, and the given schema says NOT NULL.")
    if table.schema.equals(wanted):
        return table
    if not wanted.names:
        return table.select([])  # which keeps the number of rows; a table made of no columns has none
    if table.schema.names != wanted.names:
        present = set(table.schema.names)
        if not fills:
            _check_names(wanted.names, table.schema.names)
        columns = [
            table.column(field.name) if field.name in present else pa.nulls(table.num_rows, field.type)
            for field in wanted
        ]
        table = pa.Table.from_arrays(columns, names=wanted.names)
    try:
        return table.cast(wanted)
    except pa.ArrowException as error:
        raise _misfit(table, wanted, error) from error


def _misfit(table: pa.Table, wanted: pa.Schema, error: Exception) -> Exception:
    """The error that names the first column that cannot be cast alone."""
    for column, field in zip(table.columns, wanted, strict=True):
        try:
            column.cast(field.type)
        except pa.ArrowException as its_error:
            return UsageError(
                f"Its column {field.name!r} is {column.type} and cannot be {field.type}: {line_of(its_error)}."
            )
    return error


def _check_names(wanted: Sequence[str], present: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise UsageError(f"It has no column {missing[0]!r}; it has {', '.join(present) or 'none'}.")


def _parquet(wanted: pa.Schema, fills: bool) -> Decode:
    names = wanted.names

    def decode(result: bytes) -> pa.Table:
        file = pq.ParquetFile(pa.BufferReader(result), pre_buffer=False)
        present = file.schema_arrow.names
        if not fills:
            _check_names(names, present)
        return file.read(
            columns=None if present == names else [name for name in names if name in present], use_threads=False
        )

    return decode


def _arrow(_: pa.Schema) -> Decode:
    return lambda result: open_arrow(result).read_all()


def open_arrow(result: bytes) -> Any:
    """A reader of Arrow's file or stream."""
    source = pa.BufferReader(result)
    return pa.ipc.open_file(source) if result.startswith(_ARROW_FILE_MAGIC) else pa.ipc.open_stream(source)


_NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
CSV_NULLS = pyarrow.csv.ConvertOptions(**_NULLS)


def _csv(wanted: pa.Schema) -> Decode:
    types = {field.name: field.type for field in wanted}
    convert = pyarrow.csv.ConvertOptions(column_types=types, true_values=["true"], **_NULLS)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    parse_one_column = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)

    def decode(result: bytes) -> pa.Table:
        table = read_csv(result, parse, convert)
        if table.num_columns != 1:
            return table
        return read_csv(result.lstrip(b"\r\n"), parse_one_column, convert)  # an empty line below its header is a null

    return decode


def read_csv(result: bytes, parse: Any = None, convert: Any = None) -> pa.Table:
    """Read as one block: a row longer than a block cannot be read."""
    block_bytes = min(max(len(result), _BLOCK_BYTES), (1 << 31) - 1)
    read = pyarrow.csv.ReadOptions(use_threads=False, block_size=block_bytes)
    return pyarrow.csv.read_csv(pa.BufferReader(result), read, parse, convert)


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
    fields = [(field.name, field.type, json_reader(field.type)) for field in wanted]

    def decode(result: bytes) -> pa.Table:
        rows = json_rows(result)
        columns = []
        for name, kind, read in fields:
            values = [row.get(name) for row in rows]
            try:
                columns.append(
                    pa.array(
                        values if read is None else [None if value is None else read(value) for value in values], kind
                    )
                )
            except (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError) as error:
                raise UsageError(f"Its column {name!r} is not {kind}: {error}.") from error
        if not fields:
            return pa.table({"row": pa.nulls(len(rows))})  # without a column there would be no rows
        return pa.Table.from_arrays(columns, schema=wanted)

    return decode


def json_rows(lines: bytes) -> list[dict[str, Any]]:
    """The rows of JSON lines; numbers with a decimal point keep all digits."""
    try:
        return _JSON.decode_lines(lines)
    except msgspec.DecodeError as error:
        raise UsageError(f"It is not JSON lines: {error}.") from error


def _read_number(text: str) -> decimal.Decimal:
    """Numbers with a decimal point keep all digits until their type is known."""
    return decimal.Decimal(text)


_JSON = msgspec.json.Decoder(dict[str, Any], float_hook=_read_number)
_write_json = msgspec.json.Encoder(decimal_format="number").encode


def json_reader(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """A converter of JSON values to a type; None: they have it already. The inverse of `encoder.json_writer`."""
    if pt.is_floating(kind):
        return float
    if pt.is_decimal(kind):
        return lambda value: decimal.Decimal(str(value))
    if pt.is_binary(kind):
        return base64.b64decode
    if pt.is_date(kind):
        return dt.date.fromisoformat
    if pt.is_timestamp(kind):
        return _timestamp_reader(kind.tz is not None)
    if pt.is_list(kind):
        element = json_reader(kind.value_type)
        return (
            None if element is None else lambda values: [None if value is None else element(value) for value in values]
        )
    if pt.is_map(kind):
        inner = json_reader(kind.item_type)
        return lambda row: [
            (key, value if value is None or inner is None else inner(value)) for key, value in row.items()
        ]
    if pt.is_struct(kind):
        fields = [(field.name, json_reader(field.type)) for field in kind]
        return lambda row: {
            name: value if (value := row.get(name)) is None or read is None else read(value) for name, read in fields
        }
    if pt.is_integer(kind):
        return _integer_of
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _text_of
    return None


def _text_of(value: Any) -> str:
    """Text as it is, anything else as JSON, as Spark's own reader does."""
    return value if type(value) is str else _write_json(value).decode()


def _integer_of(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _timestamp_reader(has_zone: bool) -> Callable[[str], dt.datetime]:
    def read(text: str) -> dt.datetime:
        moment = dt.datetime.fromisoformat(text)
        if has_zone:
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        if moment.tzinfo is not None:
            raise ValueError(f"{text!r} has a time zone, and the column has none")
        return moment

    return read


_DECODERS: dict[str, Callable[[pa.Schema], Decode]] = {
    "arrow": _arrow,
    "csv": _csv,
    "text": _text,
    "binary": _binary,
    "jsonl": _jsonl,
}


def unreadable(result_format: str, error: Exception) -> UsageError:
    """The error for a result that does not have its format."""
    return UsageError(f"It cannot be read as {result_format}: {line_of(error)}.")


def combined(tables: Sequence[pa.Table], rows_most: int) -> list[pa.RecordBatch]:
    """Small tables as few batches of at most `rows_most` rows."""
    if len(tables) == 1 or not tables[0].schema.names:  # put together, tables without columns would have no rows
        return [batch for table in tables for batch in table.to_batches(max_chunksize=rows_most)]
    return list(pa.concat_tables(tables).combine_chunks().to_batches(max_chunksize=rows_most))
