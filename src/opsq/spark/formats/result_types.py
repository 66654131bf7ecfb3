"""Gives the tables and frames that a function returns their declared column types, and makes frames that lose nothing.

This file must not import PySpark, nor know which chunk it serves. Types that are declared are the same in each result,
whatever the values of its rows are; types that pandas or Arrow find in values are not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from opsq.errors import UsageError
from opsq.spark.spark_errors import line_of

_EXACT_INTEGER = 1 << 53
"""Integers up to this one are floats without loss, and pandas makes floats of a column that has nulls."""
_MISFITS = (pa.ArrowException, ValueError, TypeError, ArithmeticError)
"""What Arrow and Python's conversions raise for a value that is not of a type."""


class ResultTypes:
    """The types of the columns of results: those of the chunks by name, and those of a declared schema.

    Args:
        of_chunks: the columns of the chunks; None: they are not tables.
        declared: further columns, and those that differ from the chunks'; each result must have all of them. None:
            nothing is declared, and columns that the chunks lack keep the types that they come with.
    """

    def __init__(self, of_chunks: pa.Schema | None = None, declared: pa.Schema | None = None) -> None:
        self._fields: dict[str, pa.Field] = {field.name: field.with_nullable(True) for field in of_chunks or ()}
        self._fields.update((field.name, field) for field in declared or ())
        self._declared = declared

    def table_of(self, returned: Any) -> pa.Table | None:
        """What a function returned as a table with these types; None: it is neither a table nor a frame.

        Raises:
            UsageError: a column does not fit its type, is missing, or has no type; it is named.
        """
        if isinstance(returned, pa.RecordBatch):
            returned = pa.Table.from_batches([returned])
        if isinstance(returned, pa.Table):
            return self._typed(returned) if returned.num_rows else returned
        pandas = sys.modules.get("pandas")  # a function that returns a frame has imported it
        if pandas is None or not isinstance(returned, pandas.DataFrame):
            return None
        names = [str(name) for name in returned.columns]
        if not len(returned):
            return pa.table({})
        self._check_names(names)
        columns = [self._of_series(name, returned.iloc[:, number]) for number, name in enumerate(names)]
        return pa.Table.from_arrays(columns, names=names)

    def _typed(self, table: pa.Table) -> pa.Table:
        names, columns = table.schema.names, table.columns
        self._check_names(names)
        typed = [self._of_column(name, column) for name, column in zip(names, columns, strict=True)]
        if all(after is before for before, after in zip(columns, typed, strict=True)):
            return table
        return pa.Table.from_arrays(typed, names=names)

    def _check_names(self, names: Sequence[str]) -> None:
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"The function returned two columns named {twice!r}.", hint="Rename one.")
        if self._declared is None:
            return
        for name in self._declared.names:
            if name not in names:
                raise UsageError(
                    f"The function returned no column {name!r}, which schema declares.",
                    hint=f"It returned {', '.join(names) or 'none'}.",
                )
        for name in names:
            if name not in self._fields:
                raise UsageError(
                    f"The function returned a column {name!r}, which neither schema nor the chunks have.",
                    hint="Declare it in schema, or leave it out.",
                )

    def _of_column(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        field = self._fields.get(name)
        if field is None:
            return column
        try:
            return _checked(_cast(column, field.type), field)
        except _MISFITS as error:
            raise _unfit(field, error) from error

    def _of_series(self, name: str, series: Any) -> pa.Array | pa.ChunkedArray:
        field = self._fields.get(name)
        try:
            if field is None:
                return pa.Array.from_pandas(series)
            return _checked(_array_of(series, field.type), field)
        except _MISFITS as error:
            if field is None:
                raise UsageError(
                    f"Arrow has no type for column {name!r}: {line_of(error)}.", hint="Declare it in schema."
                ) from error
            raise _unfit(field, error) from error


def frame_of(table: pa.Table) -> Any:
    """The pandas frame of a table; integers beside nulls stay exact.

    A column of integers with nulls is of floats, as pandas has it, unless one of them is too large for that: then it is
    pandas' own nullable integer. In nested values integers stay what they are.
    """
    frame = table.to_pandas(integer_object_nulls=True)
    for number, column in enumerate(table.columns):
        if column.null_count and pt.is_integer(column.type):
            frame.isetitem(number, _integers(column))
    return frame


def _integers(column: pa.ChunkedArray) -> Any:
    pandas = sys.modules["pandas"]
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None or (bounds["min"] >= -_EXACT_INTEGER and bounds["max"] <= _EXACT_INTEGER):
        return column.to_pandas()
    return column.cast(pa.int64()).to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)


def _array_of(series: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A series as Arrow: values of Python take the type at once, others are cast to it."""
    if series.dtype == object:
        try:
            return pa.Array.from_pandas(series, type=kind)
        except _MISFITS:  # numbers for a decimal, texts for a number: Arrow casts what it does not convert
            return _cast(pa.Array.from_pandas(series), kind)
    return _cast(pa.Array.from_pandas(series), kind)


def _cast(column: Any, kind: pa.DataType) -> Any:
    """A column cast to a type, if that loses nothing but digits of a float.

    Raises:
        ArrowException: a value does not fit.
    """
    if column.type.equals(kind):
        return column
    if pt.is_decimal(kind) and pt.is_integer(column.type):
        column = column.cast(pa.string())  # Arrow wants room for any integer, not for those that there are
    found = column.cast(kind)
    if pt.is_float32(kind) and pc.sum(pc.is_inf(found)).as_py() != pc.sum(pc.is_inf(column.cast(pa.float64()))).as_py():
        raise pa.ArrowInvalid("a value is too large")
    return found


def _checked(column: Any, field: pa.Field) -> Any:
    if not field.nullable and column.null_count:
        raise pa.ArrowInvalid("it has a null, and schema says NOT NULL")
    return column


def _unfit(field: pa.Field, error: Exception) -> UsageError:
    return UsageError(
        f"Column {field.name!r} of what the function returned is not {field.type}: {line_of(error)}.",
        hint="A column has the type of the chunks' column of its name, unless schema declares another.",
    )
