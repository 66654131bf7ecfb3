"""Turns the bytes of results into Arrow tables of one schema, and finds that schema if the bytes have it.

This file must not know Spark or where the bytes come from. A result that cannot be read raises an error that names what
is wrong; the caller adds which chunk it belongs to.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pyarrow.types as pt

from opsq.errors import UsageError
from opsq.spark.formats.encoder import encoder

Decode = Callable[[bytes], pa.Table]
"""Turns one result that is not empty into a table of the wanted schema."""

PARQUET_MAGIC = b"PAR1"
_ARROW_FILE_MAGIC = b"ARROW1"
_ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])
BINARY_SCHEMA = pa.schema([pa.field("value", pa.binary())])
_INFERRED_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")


def sniff(result: bytes) -> str | None:
    """The format that the first bytes of a result show; None: any text format."""
    if result.startswith(PARQUET_MAGIC) and result.endswith(PARQUET_MAGIC):
        return "parquet"
    if result.startswith((_ARROW_FILE_MAGIC, _ARROW_STREAM_MAGIC)):
        return "arrow"
    return None


def schema_of(result_format: str, *results: bytes) -> pa.Schema:
    """The schema of results that are not empty: stored in the first one, or guessed from values for JSON and CSV.

    Guessed columns are in the order in which they first occur; integers widen among other numbers, and what is always
    null or of several kinds is text. JSON is guessed from its values, since Arrow's own reader drops time zones and
    refuses columns that differ from result to result.

    Raises:
        UsageError: a result does not have that format.
    """
    try:
        if result_format == "parquet":
            return pq.read_schema(pa.BufferReader(results[0]))
        if result_format == "arrow":
            return _open_arrow(results[0]).schema
        if result_format == "jsonl":
            return _guessed([row for result in results for row in _json_rows(result[: _line_end(result)])])
        if result_format == "csv":
            return _unified([_read_csv(result, convert=_CSV_NULLS).schema for result in results])
    except pa.ArrowException as error:
        raise _unreadable(result_format, error) from error
    return TEXT_SCHEMA if result_format == "text" else BINARY_SCHEMA


def _unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all schemas, each with a type that holds all their values."""
    kinds: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            kinds[field.name] = _wider(kinds.get(field.name, field.type), field.type)
    return pa.schema([(name, pa.string() if pt.is_null(kind) else kind) for name, kind in kinds.items()])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    try:
        both = [pa.schema([("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return pa.string()


def _guessed(rows: Sequence[dict[str, Any]]) -> pa.Schema:
    """The columns of JSON rows, with types guessed from their values."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, _kind([row.get(name) for row in rows])) for name in names])


def _kind(values: Sequence[Any]) -> pa.DataType:
    """The type of JSON values, some of which may be null."""
    met = [value for value in values if value is not None]
    kinds = {type(value) for value in met}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(-(1 << 63) <= value < 1 << 63 for value in met):
        return pa.int64()
    if kinds and kinds <= {int, decimal.Decimal}:
        return pa.float64()
    if kinds == {list}:
        return pa.list_(_kind([value for values in met for value in values]))
    if kinds == {dict} and any(met):
        return pa.struct(list(_guessed(met)))
    if kinds == {str}:
        zoned = {_has_zone(value) for value in met}
        if len(zoned) == 1 and None not in zoned:
            return pa.timestamp("us", "UTC" if True in zoned else None)
    return pa.string()


def _has_zone(text: str) -> bool | None:
    """Whether the text of a timestamp has a time zone; None: it is not a timestamp."""
    if _MOMENT.fullmatch(text) is None:
        return None
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return None


def decoder(result_format: str, wanted: pa.Schema) -> Decode:
    """A decoder of results into tables with the wanted columns, in their order.

    Args:
        result_format: parquet, arrow, jsonl, csv, text or binary.
        wanted: columns are found by name, and cast where their types differ without loss.
    """
    decode = _DECODERS[result_format](wanted)

    def checked(result: bytes) -> pa.Table:
        try:
            return conform(decode(result), wanted)
        except (pa.ArrowException, ValueError) as error:  # a null in a NOT NULL column is a bare ValueError
            raise _unreadable(result_format, error) from error

    return checked


def holds(result_format: str, wanted: pa.Schema, result: bytes) -> bool:
    """Whether columns of these types hold exactly the values of a result, nothing rounded and nothing left out."""
    try:
        table = decoder(result_format, wanted)(result)
        if result_format == "csv":  # decimals and instants that do not fit are errors
            return not any(map(pt.is_float32, wanted.types))
        again = _json_rows(bytes(encoder("jsonl", wanted)(table)))
    except UsageError:
        return False
    return all(
        before.get(name) == after.get(name)
        for before, after in zip(_json_rows(result), again, strict=True)
        for name in wanted.names
    )


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The columns of `wanted`, cast to its types.

    Raises:
        UsageError: a column is missing, or has a null and must not.
        ArrowException: a value does not fit.
    """
    for field in wanted:
        if not field.nullable and field.name in table.schema.names and table.column(field.name).null_count:
            raise UsageError(f"Its column {field.name!r} has a null, and the given schema says NOT NULL.")
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


_NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
_CSV_NULLS = pyarrow.csv.ConvertOptions(**_NULLS)


def _csv(wanted: pa.Schema) -> Decode:
    types = {field.name: field.type for field in wanted}
    convert = pyarrow.csv.ConvertOptions(column_types=types, true_values=["true"], **_NULLS)
    # with one column, an empty line is a null
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(types) != 1)
    return lambda result: _read_csv(result, parse, convert)


def _read_csv(result: bytes, parse: Any = None, convert: Any = None) -> pa.Table:
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
        rows = _json_rows(result)
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
        return pa.Table.from_arrays(columns, schema=wanted)

    return decode


def _json_rows(lines: bytes) -> list[dict[str, Any]]:
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
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "text": _text,
    "binary": _binary,
    "jsonl": _jsonl,
}


def _line_end(result: bytes) -> int:
    """The end of the first lines, enough to guess types from."""
    return len(result) if len(result) <= _INFERRED_BYTES else result.rfind(b"\n", 0, _INFERRED_BYTES) + 1 or len(result)


def _unreadable(result_format: str, error: Exception) -> UsageError:
    lines = str(error).splitlines()
    return UsageError(f"It cannot be read as {result_format}: {lines[0] if lines else type(error).__name__}.")


def combined(tables: Sequence[pa.Table], rows_most: int) -> list[pa.RecordBatch]:
    """Small tables as few batches of at most `rows_most` rows."""
    whole = pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0]
    return list(whole.to_batches(max_chunksize=rows_most))
