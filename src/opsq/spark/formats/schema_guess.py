"""Finds the schema of results in their bytes: stored in Parquet and Arrow, guessed from values in JSON and CSV.

What is guessed does not depend on the order of results. This file must not know Spark or where the bytes come from.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from opsq.spark.formats.decoder import CSV_NULLS, json_rows, open_arrow, read_csv, unreadable

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])
BINARY_SCHEMA = pa.schema([pa.field("value", pa.binary())])
_INFERRED_BYTES = 1 << 20
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")


def schema_of(result_format: str, *results: bytes) -> pa.Schema:
    """The schema of results that are not empty: stored in the first one, or guessed from values for JSON and CSV.

    Guessed columns are in the order of the longest row, then of the others, and do not depend on the order of results;
    integers widen among other numbers, and what is always null or of several kinds is text. JSON is guessed from its
    values, since Arrow's own reader drops time zones and refuses columns that differ from result to result.

    Raises:
        UsageError: a result does not have that format.
    """
    try:
        if result_format == "parquet":
            return pq.read_schema(pa.BufferReader(results[0]))
        if result_format == "arrow":
            return open_arrow(results[0]).schema
        if result_format == "jsonl":
            return _guessed([row for result in results for row in json_rows(result[: _line_end(result)])])
        if result_format == "csv":
            return _unified([read_csv(result, convert=CSV_NULLS).schema for result in results])
    except pa.ArrowException as error:
        raise unreadable(result_format, error) from error
    return TEXT_SCHEMA if result_format == "text" else BINARY_SCHEMA


def ordered_names(lists: Iterable[tuple[str, ...]]) -> list[str]:
    """All names, in the order of the longest list and then of the others, in whatever order the lists come."""
    distinct = sorted(set(lists), key=lambda names: (-len(names), names))
    return list(dict.fromkeys(chain.from_iterable(distinct)))


def _unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all schemas, each with a type that holds all their values."""
    kinds: dict[str, dict[str, pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            kinds.setdefault(field.name, {})[str(field.type)] = field.type
    names = ordered_names(tuple(schema.names) for schema in schemas)
    return pa.schema([(name, _widest([kind for _, kind in sorted(kinds[name].items())])) for name in names])


def _widest(kinds: Sequence[pa.DataType]) -> pa.DataType:
    try:
        both = [pa.schema([("x", kind)]) for kind in kinds]
        found = pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return pa.string()
    return pa.string() if pt.is_null(found) else found


def _guessed(rows: Sequence[dict[str, Any]]) -> pa.Schema:
    """The columns of JSON rows, with types guessed from their values."""
    names = ordered_names(map(tuple, rows))
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


def _line_end(result: bytes) -> int:
    """The end of the first lines, enough to guess types from."""
    return len(result) if len(result) <= _INFERRED_BYTES else result.rfind(b"\n", 0, _INFERRED_BYTES) + 1 or len(result)
