"""The columns of what a function returns: the types of the chunks and those that are declared, or an error by name."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.errors import UsageError
from opsq.spark.fleet.chunk_function import encoded
from opsq.spark.formats.decoder import decoder
from opsq.spark.formats.result_types import ResultTypes, frame_of
from opsq.spark.formats.schema_guess import schema_of
from spark.formats.frames import chunks

MAP = pa.map_(pa.string(), pa.int64())


@given(chunks(), st.sampled_from(["parquet", "arrow"]), st.booleans())
def test_frames_given_back_have_the_types_and_values_of_the_chunks(
    tables: list[pa.Table], chunk_format: str, is_pandas: bool
):
    types = ResultTypes(tables[0].schema)
    for table in tables:
        result = encoded(frame_of(table) if is_pandas else table, chunk_format, types)
        if not table.num_rows:
            assert result == b""
            continue
        assert schema_of(chunk_format, result).equals(table.schema)
        assert decoder(chunk_format, table.schema)(result).equals(table)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (MAP, [[("a", 1)], None]),
        (pa.string(), [None, None]),
        (pa.decimal128(20, 6), [Decimal("1.5"), Decimal("12345.678901")]),
        (pa.int64(), [1, None]),
        (pa.int64(), [(1 << 60) + 1, None]),
        (pa.list_(pa.int64()), [[(1 << 60) + 1, None], None]),
        (pa.list_(MAP), [[None], []]),
    ],
)
def test_pandas_function_that_gives_its_frame_back_keeps_each_column(kind: pa.DataType, values: list[Any]):
    table = pa.table({"c": pa.array(values, kind)})
    result = encoded(frame_of(table), "parquet", ResultTypes(table.schema))
    assert schema_of("parquet", result).field("c").type == kind
    assert decoder("parquet", table.schema)(result).equals(table)


def test_integers_with_nulls_are_floats_for_pandas_unless_that_would_change_them():
    frame = frame_of(pa.table({"small": pa.array([7, None]), "large": pa.array([(1 << 53) + 1, None])}))
    assert [str(kind) for kind in frame.dtypes] == ["float64", "Int64"]
    assert frame["large"][0] == (1 << 53) + 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), pd.Series([1.5, 2.0])),
        (pa.int64(), pd.Series(["one", "two"])),
        (pa.decimal128(5, 2), pd.Series([Decimal("1.234"), None])),
        (pa.decimal128(5, 2), pd.Series([Decimal("12345.00"), None])),
        (pa.float32(), pd.Series([1e300, 2.0])),
        (MAP, pd.Series([[("a", "x")], None])),
        (pa.list_(pa.int64()), pd.Series([1, 2])),
        (pa.timestamp("us"), pd.Series(["soon", "later"])),
    ],
)
@pytest.mark.parametrize("make", [lambda frame: frame, pa.Table.from_pandas])
def test_column_that_does_not_fit_fails_by_its_name(kind: pa.DataType, values: Any, make: Callable[..., Any]):
    frame = make(pd.DataFrame({"good": [1, 2], "bad": values}))
    types = ResultTypes(pa.schema({"good": pa.int64(), "bad": kind}))
    with pytest.raises(UsageError, match=r"^Column 'bad' of what the function returned is not ") as caught:
        encoded(frame, "parquet", types)
    assert "unless schema declares another" in str(caught.value.hint)


@pytest.mark.parametrize("make", [lambda frame: frame, pa.Table.from_pandas])
def test_numbers_of_another_kind_become_those_of_the_column_if_nothing_is_lost(make: Callable[..., Any]):
    frame = make(pd.DataFrame({"price": [1, 20], "n": [3.0, float("nan")], "ratio": [1, 2], "note": [None, None]}))
    wanted = pa.schema(
        {"price": pa.decimal128(6, 2), "n": pa.int32(), "ratio": pa.float32(), "note": pa.string()},
    )
    result = decoder("parquet", wanted)(encoded(frame, "parquet", ResultTypes(wanted)))
    assert result.to_pylist() == [
        {"price": Decimal("1.00"), "n": 3, "ratio": 1.0, "note": None},
        {"price": Decimal("20.00"), "n": None, "ratio": 2.0, "note": None},
    ]


def test_declared_columns_have_their_types_whatever_values_a_chunk_has():
    types = ResultTypes(pa.schema({"id": pa.int64()}), pa.schema({"score": pa.float64(), "tag": MAP}))
    for frame in (
        pd.DataFrame({"id": [1], "score": [None], "tag": [None]}),
        pd.DataFrame({"id": [2], "score": [7], "tag": [{"a": 1}]}),
        pa.table({"id": pa.array([3], pa.int16()), "score": pa.nulls(1), "tag": pa.nulls(1)}),
    ):
        found = schema_of("parquet", encoded(frame, "parquet", types))
        assert found == pa.schema({"id": pa.int64(), "score": pa.float64(), "tag": MAP})


def test_declared_type_takes_the_place_of_that_of_the_chunks():
    types = ResultTypes(pa.schema({"id": pa.int64()}), pa.schema({"id": pa.string()}))
    assert schema_of("parquet", encoded(pd.DataFrame({"id": ["a-1"]}), "parquet", types)) == pa.schema(
        {"id": pa.string()}
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": [1]}, "returned no column 'score', which schema declares"),
        ({"score": [1.0], "scroe": [2.0]}, "returned a column 'scroe', which neither schema nor the chunks have"),
        ({"score": [None]}, "Column 'score' .* is not double: it has a null, and schema says NOT NULL"),
    ],
)
@pytest.mark.parametrize("make", [pd.DataFrame, pa.table])
def test_result_that_is_not_as_declared_fails_by_the_name_of_the_column(
    columns: dict[str, Any], message: str, make: Callable[..., Any]
):
    declared = pa.schema([pa.field("score", pa.float64(), nullable=False)])
    with pytest.raises(UsageError, match=message):
        encoded(make(columns), "parquet", ResultTypes(pa.schema({"id": pa.int64()}), declared))


def test_two_columns_of_one_name_are_refused_by_it():
    with pytest.raises(UsageError, match="two columns named 'a'"):
        encoded(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), "parquet", ResultTypes())
