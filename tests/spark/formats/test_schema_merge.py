"""The schema of results whose schemas differ: the same for any order, with room for every value, or refused by name."""

from __future__ import annotations

import contextlib
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from opsq.errors import UsageError
from opsq.spark.fleet.chunk_function import encoded
from opsq.spark.formats.decoder import decoder
from opsq.spark.formats.result_types import ResultTypes, frame_of
from opsq.spark.formats.schema_guess import schema_of
from opsq.spark.formats.schema_merge import merged
from opsq.spark.formats.schemas import arrow_schema, spark_schema
from opsq.spark.formats.stored_schemas import StoredSchemas
from spark.formats.frames import chunks

FLAT = (
    t.ByteType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.StringType(),
    t.NullType(),
    t.DecimalType(9, 2),
    t.DecimalType(38, 0),
    t.DateType(),
)
KINDS = st.recursive(
    st.sampled_from(FLAT),
    lambda inner: (
        inner.map(t.ArrayType)
        | inner.map(lambda kind: t.MapType(t.StringType(), kind))
        | st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(
            lambda fields: t.StructType([t.StructField(name, kind) for name, kind in fields.items()])
        )
    ),
    max_leaves=3,
)
SCHEMAS = st.dictionaries(st.sampled_from("abc"), KINDS, min_size=1).map(
    lambda fields: t.StructType([t.StructField(name, kind) for name, kind in fields.items()])
)


def outcome(schemas: list[t.StructType]) -> str:
    """The merged schema as text, or the error."""
    try:
        return merged(schemas, what="the results").simpleString()
    except UsageError as error:
        return error.message


def read_schema(results: list[bytes], result_format: str) -> str:
    """The schema in which results are read, or the error."""
    if result_format not in ("parquet", "arrow"):
        return spark_schema(schema_of(result_format, *results), what="the results").simpleString()
    stored = StoredSchemas(result_format)
    for result in results:
        stored.add(len(result), lambda offset, size, result=result: result[offset : offset + size])
    return outcome([spark_schema(schema, what="the results") for schema in stored.found])


def worked_off(tables: list[pa.Table], result_format: str, types: ResultTypes) -> list[tuple[pa.Table, bytes]]:
    """The results of chunks whose pandas frames are given back, without those that are empty or whose chunk dies."""
    found = []
    for table in tables:
        with contextlib.suppress(UsageError):  # pandas knows no maps, and of what they hold Arrow finds no type
            if result := encoded(frame_of(table), result_format, types):
                found.append((table, result))
    return found


@given(st.lists(SCHEMAS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_merged_schema_does_not_depend_on_the_order_of_schemas(schemas: list[t.StructType], random):
    expected = outcome(schemas)
    random.shuffle(schemas)
    assert outcome(schemas) == expected
    assert outcome([*schemas, *schemas]) == expected


@pytest.mark.parametrize("is_declared", [True, False])
@given(chunks(), st.sampled_from(["parquet", "arrow", "jsonl"]), st.randoms(use_true_random=False))
def test_results_have_one_schema_whatever_the_order_of_chunks(
    is_declared: bool, tables: list[pa.Table], result_format: str, random
):
    types = ResultTypes(tables[0].schema if is_declared else None)
    results = [result for _, result in worked_off(tables, result_format, types)]
    if is_declared:
        assert len(results) == sum(bool(table.num_rows) for table in tables)
    if not results:
        return
    found = read_schema(results, result_format)
    if is_declared and result_format != "jsonl":
        assert found == spark_schema(tables[0].schema, what="the chunks").simpleString()
    random.shuffle(results)
    assert read_schema(results, result_format) == found


@given(chunks(), st.sampled_from(["parquet", "arrow"]))
def test_results_of_types_found_in_their_values_are_read_without_loss_or_refused(
    tables: list[pa.Table], result_format: str
):
    done = worked_off(tables, result_format, ResultTypes())
    try:
        schema = merged(
            [spark_schema(schema_of(result_format, result), what="the results") for _, result in done], what="them"
        )
    except (UsageError, IndexError):
        return
    decode = decoder(result_format, arrow_schema(schema), fills=True)
    for table, result in done:
        try:
            rows = decode(result).to_pylist()
        except UsageError as error:
            if re.match("Its column 'c[0-9]' is ", error.message):
                continue
            raise
        for row, before in zip(rows, table.to_pylist(), strict=True):
            for name, value in row.items():
                if isinstance(before[name], int | float | str | bool):
                    assert value == before[name]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["tinyint", "int"], "int"),
        (["int", "bigint", "void"], "bigint"),
        (["float", "double"], "double"),
        (["int", "float"], "double"),
        (["bigint", "double"], "double"),
        (["decimal(5,2)", "decimal(8,4)"], "decimal(8,4)"),
        (["decimal(9,2)", "decimal(9,7)"], "decimal(14,7)"),
        (["array<void>", "array<bigint>"], "array<bigint>"),
        (["map<string,void>", "map<string,array<int>>"], "map<string,array<int>>"),
        (["struct<a:int>", "struct<b:string,a:bigint>"], "struct<b:string,a:bigint>"),
    ],
)
def test_type_of_a_column_is_widened_to_hold_all_values(kinds: list[str], expected: str):
    found = merged([t.StructType([t.StructField("x", _kind(kind))]) for kind in kinds], what="the results")
    assert found.simpleString() == f"struct<x:{expected}>"


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["string", "bigint"], "Column 'x' of them is bigint in some and string in others"),
        (["date", "string", "int"], "Column 'x' of them is date, int in some and string in others"),
        (["struct<a:int>", "struct<a:string>"], "Column 'x.a' of them is int in some and string in others"),
        (["decimal(38,0)", "decimal(38,2)"], "Column 'x' of them is decimal"),
        (["array<int>", "int"], "Column 'x' of them is int in some and array<int> in others"),
    ],
)
def test_column_of_kinds_that_no_type_holds_is_refused_by_name(kinds: list[str], message: str):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        merged([t.StructType([t.StructField("x", _kind(kind))]) for kind in kinds], what="them")
    assert "with .schema(...)" in str(caught.value.hint)


def _kind(text: str) -> t.DataType:
    """A type from its simple text, without a JVM."""
    flat = {kind.simpleString(): kind for kind in (*FLAT, t.ShortType())}
    if text in flat:
        return flat[text]
    if text.startswith("decimal"):
        digits, scale = map(int, text[8:-1].split(","))
        return t.DecimalType(digits, scale)
    if text.startswith("array"):
        return t.ArrayType(_kind(text[6:-1]))
    if text.startswith("map"):
        return t.MapType(t.StringType(), _kind(text[len("map<string,") : -1]))
    fields = [field.split(":") for field in text[len("struct<") : -1].split(",")]
    return t.StructType([t.StructField(name, _kind(kind)) for name, kind in fields])
