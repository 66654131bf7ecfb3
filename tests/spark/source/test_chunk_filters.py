"""Filters on the columns about the chunk: which are understood, and which chunks they let pass. No JVM is needed."""

from __future__ import annotations

import pytest
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
    StringContains,
)

from opsq.spark.source.chunk_filters import are_met, divide

CHUNK = ("_chunk",)


@pytest.mark.parametrize(
    ("condition", "passed"),
    [
        (EqualTo(CHUNK, 2), [2]),
        (EqualNullSafe(CHUNK, 2), [2]),
        (Not(EqualTo(CHUNK, 2)), [0, 1, 3]),
        (GreaterThan(CHUNK, 1), [2, 3]),
        (GreaterThanOrEqual(CHUNK, 1), [1, 2, 3]),
        (LessThan(CHUNK, 1), [0]),
        (LessThanOrEqual(CHUNK, 1), [0, 1]),
        (In(CHUNK, (3, 0)), [0, 3]),
        (Not(In(CHUNK, (3, 0))), [1, 2]),
        (IsNull(CHUNK), []),
        (IsNotNull(CHUNK), [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_chunk_passes_a_filter_as_its_row_would_in_sql(condition: Filter, passed: list[int]) -> None:
    assert divide([condition], ["_chunk"]) == ([condition], [])
    assert [chunk for chunk in range(4) if are_met([condition], {"_chunk": chunk})] == passed


def test_all_filters_must_be_met() -> None:
    conditions = [GreaterThan(CHUNK, 0), EqualTo(("_attempts",), 2)]
    assert [are_met(conditions, {"_chunk": chunk, "_attempts": 2}) for chunk in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("n",), 2),
        EqualTo(("_chunk", "part"), 2),
        EqualTo(CHUNK, None),
        EqualTo(CHUNK, 2.5),
        In(CHUNK, (1, None)),
        StringContains(CHUNK, "2"),
    ],
    ids=str,
)
def test_filter_on_anything_else_is_left_to_spark(condition: Filter) -> None:
    assert divide([condition, Not(condition)], ["_chunk"]) == ([], [condition, Not(condition)])
