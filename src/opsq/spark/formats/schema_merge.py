"""The one schema of results whose schemas differ: columns of all, with types that hold every value, or a refusal.

What comes out depends on the set of the schemas, not on their order, which is that in which chunks were cut or
completed. This file must not read results (`stored_schemas` does).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as t

from opsq.errors import UsageError
from opsq.spark.formats.schema_guess import ordered_names

_INTEGERS = (t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType())
_FLOATS = (t.FloatType(), t.DoubleType())
_MOST_DIGITS = 38


def merged(schemas: Sequence[t.StructType], *, what: str) -> t.StructType:
    """Merge schemas as Spark does with `mergeSchema`, and widen numbers.

    A column that some lack is null there. Integers widen to the longest, among floats to double, floats to double,
    decimals to the digits of both; void, a column of nothing but nulls, is of any type. The order of columns is that of
    the longest schema, and then of the others.

    Args:
        schemas: at least one.
        what: says whose they are, for the error.

    Raises:
        UsageError: no type holds the values of a column; it is named, with its types.
    """
    return _struct(sorted(set(schemas), key=_by_text), "", what)


def _by_text(kind: t.DataType) -> str:
    return kind.json()


def _struct(kinds: Sequence[t.StructType], path: str, what: str) -> t.StructType:
    if len(kinds) == 1:
        return kinds[0]
    found = []
    for name in ordered_names(tuple(kind.names) for kind in kinds):
        types = {kind[name].dataType for kind in kinds if name in kind.names}
        found.append(t.StructField(name, _wider(types, f"{path}.{name}" if path else name, what)))
    return t.StructType(found)


def _wider(kinds: set[t.DataType], path: str, what: str) -> t.DataType:
    """The type that holds the values of all these types."""
    others = sorted(kinds - {t.NullType()}, key=_by_text)
    if len(others) < 2:
        return others[0] if others else t.NullType()
    if all(kind in _INTEGERS for kind in others):
        return max(others, key=_INTEGERS.index)
    if all(kind in _INTEGERS or kind in _FLOATS for kind in others):
        return t.DoubleType()
    structs = [kind for kind in others if isinstance(kind, t.StructType)]
    arrays = [kind for kind in others if isinstance(kind, t.ArrayType)]
    maps = [kind for kind in others if isinstance(kind, t.MapType)]
    decimals = [kind for kind in others if isinstance(kind, t.DecimalType)]
    if len(structs) == len(others):
        return _struct(structs, path, what)
    if len(arrays) == len(others):
        return t.ArrayType(_wider({kind.elementType for kind in arrays}, f"{path}[]", what))
    if len(maps) == len(others):
        return t.MapType(
            _wider({kind.keyType for kind in maps}, f"{path}{{key}}", what),
            _wider({kind.valueType for kind in maps}, f"{path}{{value}}", what),
        )
    if len(decimals) == len(others):
        scale = max(kind.scale for kind in decimals)
        digits = max(kind.precision - kind.scale for kind in decimals) + scale
        if digits <= _MOST_DIGITS:
            return t.DecimalType(digits, scale)
    names = [kind.simpleString() for kind in others]
    raise UsageError(
        f"Column {path!r} of {what} is {', '.join(names[:-1])} in some and {names[-1]} in others.",
        hint="Give the columns with .schema(...), or leave this one out with the option columns. opsq.spark.consume "
        "declares the types of what a function returns with schema.",
    )
