"""Filters of a query on the columns about the chunk, as Spark hands them: they say which chunks need no reading.

This file must not read anything. A filter that it does not understand is left to Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

_TESTS: dict[type[Filter], Callable[[int, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
    IsNotNull: operator.is_not,  # compared with None, and no value is None
    IsNull: operator.is_,
}


def divide(conditions: Iterable[Filter], columns: Iterable[str]) -> tuple[list[Filter], list[Filter]]:
    """The filters that compare one of these columns with whole numbers, and the others."""
    found: tuple[list[Filter], list[Filter]] = ([], [])
    for condition in conditions:
        found[0 if _is_understood(condition, columns) else 1].append(condition)
    return found


def are_met(conditions: Iterable[Filter], values: Mapping[str, int]) -> bool:
    """Whether filters that are understood let a chunk pass.

    Args:
        conditions: the filters.
        values: of the chunk, by column.
    """
    for condition in conditions:
        inner, is_negated = _parts(condition)
        value = values[inner.attribute[0]]
        if _TESTS[type(inner)](value, getattr(inner, "value", None)) == is_negated:
            return False
    return True


def _is_understood(condition: Filter, columns: Iterable[str]) -> bool:
    inner = _parts(condition)[0]
    if type(inner) not in _TESTS or len(inner.attribute) != 1 or inner.attribute[0] not in columns:
        return False
    if isinstance(inner, (IsNull, IsNotNull)):
        return True
    return all(type(one) is int for one in (inner.value if isinstance(inner, In) else [inner.value]))


def _parts(condition: Filter) -> tuple[Any, bool]:
    """The comparison in a filter, and whether it is negated."""
    return (condition.child, True) if isinstance(condition, Not) else (condition, False)
