"""Results become batches that are neither tiny nor huge, in the order of chunks, without a JVM."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as t

from opsq.errors import UsageError
from opsq.spark.formats.schema_guess import schema_of
from opsq.spark.formats.schemas import arrow_schema, check_writable, read_schema, selected, spark_schema
from opsq.spark.source.batch_reader import BATCH_ROWS, LARGE_ROWS, METADATA_TYPES, Batches, _typed_as_chunks
from opsq.spark.source.result_fetch import Fetched

SCHEMA = t.StructType([t.StructField("n", t.LongType())])


def result(numbers: range) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), sink)
    return sink.getvalue()


def fetched(sizes: list[int]) -> list[Fetched]:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        Fetched(chunk, result(range(start, start + size)))
        for chunk, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([3] * 100, [300]),
        ([LARGE_ROWS, 5, 6, LARGE_ROWS, 7], [LARGE_ROWS, 11, LARGE_ROWS, 7]),
        ([BATCH_ROWS + 1], [BATCH_ROWS, 1]),
        ([LARGE_ROWS - 1] * 10, [(LARGE_ROWS - 1) * 8, (LARGE_ROWS - 1) * 2]),
    ],
)
def test_batches_are_gathered_and_keep_their_order(sizes: list[int], expected: list[int]):
    batches = list(Batches(1, "parquet", SCHEMA, ()).of(fetched(sizes), {}))
    assert [batch.num_rows for batch in batches] == expected
    assert [n for batch in batches for n in batch.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(batch.schema.equals(arrow_schema(SCHEMA)) for batch in batches)


def test_each_row_tells_of_its_chunk():
    schema = t.StructType(
        [t.StructField("_chunk", METADATA_TYPES["_chunk"]), *SCHEMA.fields, t.StructField("_attempts", t.IntegerType())]
    )
    [batch] = Batches(7, "parquet", schema, ("_chunk", "_attempts")).of(fetched([1, 0, 2]), {2: 4})
    assert batch.to_pylist() == [
        {"_chunk": 0, "n": 0, "_attempts": 1},
        {"_chunk": 2, "n": 1, "_attempts": 4},
        {"_chunk": 2, "n": 2, "_attempts": 4},
    ]


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


TWO_ROWS = {
    "parquet": result(range(2)),
    "arrow": arrow_stream(pa.table({"n": [0, 1]})),
    "jsonl": b'{"n": 0}\n{}\n',
    "csv": b"n,m\n0,1\n1,2\n",
    "text": b"a\nb\n",
}


@pytest.mark.parametrize("metadata_columns", [("_chunk",), ()])
@pytest.mark.parametrize(("result_format", "rows_count"), [*((name, 2) for name in TWO_ROWS), ("binary", 1)])
def test_rows_are_all_there_where_no_column_of_the_data_is_wanted(
    result_format: str, rows_count: int, metadata_columns: tuple[str, ...]
):
    schema = t.StructType([t.StructField(name, METADATA_TYPES[name]) for name in metadata_columns])
    results = [Fetched(chunk, TWO_ROWS.get(result_format, b"x")) for chunk in range(3)]
    for is_merged in (False, True):
        batches = list(Batches(1, result_format, schema, metadata_columns, is_merged=is_merged).of(results, {}))
        assert sum(batch.num_rows for batch in batches) == 3 * rows_count
        for name in metadata_columns:
            assert [n for batch in batches for n in batch[name].to_pylist()] == sorted([0, 1, 2] * rows_count)


def test_empty_results_have_no_rows_and_binary_ones_are_one_row_each():
    value = t.StructType([t.StructField("value", t.BinaryType())])
    results = [Fetched(0, b""), Fetched(1, b"x")]
    [batch] = Batches(1, "binary", value, ()).of(results, {})
    assert batch.column(0).to_pylist() == [b"", b"x"]
    assert list(Batches(1, "parquet", SCHEMA, ()).of(results[:1], {})) == []


def test_result_that_cannot_be_used_is_named_by_its_chunk():
    with pytest.raises(
        UsageError, match=r"The result of chunk 9/1 cannot be used. It cannot be read as parquet.*resultFormat"
    ):
        list(Batches(9, "parquet", SCHEMA, ()).of([Fetched(0, result(range(2))), Fetched(1, b"oops")], {}))


def test_result_with_a_damaged_page_is_named_by_its_chunk():
    damaged = bytearray(result(range(1000)))
    damaged[400:408] = bytes(8)
    with pytest.raises(UsageError, match=r"The result of chunk 9/0 cannot be used. It cannot be read as parquet: \w"):
        list(Batches(9, "parquet", SCHEMA, ()).of([Fetched(0, bytes(damaged))], {}))


@pytest.mark.parametrize("result_format", ["jsonl", "csv"])
def test_result_that_does_not_fit_guessed_columns_is_told_so(result_format: str):
    with pytest.raises(
        UsageError,
        match=r"chunk 9/0 cannot be used.*guessed from some of the results and the chunks. .*--result-schema",
    ):
        list(
            Batches(9, result_format, SCHEMA, ()).of(
                [Fetched(0, b'{"n": "x"}\n' if result_format == "jsonl" else b"n\nx\n")], {}
            )
        )


@pytest.mark.parametrize("result_format", ["jsonl", "parquet"])
def test_null_in_a_column_that_must_not_have_one_is_an_error_with_its_chunk(result_format: str):
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([1, None], pa.int64())}), sink)
    found = b'{"n": 1}\n{}\n' if result_format == "jsonl" else sink.getvalue()
    schema = t.StructType([t.StructField("n", t.LongType(), nullable=False)])
    with pytest.raises(UsageError, match=r"chunk 9/0 cannot be used. Its column 'n' has a null, and .* NOT NULL"):
        list(Batches(9, result_format, schema, ()).of([Fetched(0, found)], {}))
    [batch] = Batches(9, result_format, read_schema(schema.json()), ()).of([Fetched(0, found)], {})
    assert batch.column(0).to_pylist() == [1, None]


MAP = t.MapType(t.StringType(), t.DoubleType())
INNER = t.StructType([t.StructField("a", t.IntegerType())])
WIDER = t.StructType([t.StructField("a", t.LongType()), t.StructField("b", t.LongType())])
TYPED = [
    ("jsonl", b'{"x": 1.10}\n{"x": null}\n{}\n', t.DecimalType(10, 2), t.DecimalType(10, 2)),
    ("jsonl", b'{"x": 1.101}\n', t.DecimalType(10, 2), t.DoubleType()),
    ("jsonl", b'{"x": "free"}\n', t.DecimalType(10, 2), t.StringType()),
    ("jsonl", b'{"x": null}\n', t.DecimalType(10, 2), t.DecimalType(10, 2)),
    ("jsonl", b'{"x": 123456789012345678901234567890.12}\n', t.DecimalType(38, 2), t.DecimalType(38, 2)),
    ("jsonl", b'{"x": "2026-05-01"}\n', t.DateType(), t.DateType()),
    ("jsonl", b'{"x": "2026-05-01T12:00:00"}\n', t.DateType(), t.TimestampNTZType()),
    ("jsonl", b'{"x": "NaN"}\n{"x": 0.3333333432674408}\n', t.FloatType(), t.FloatType()),
    ("jsonl", b'{"x": 0.3333333333333}\n', t.FloatType(), t.DoubleType()),
    ("jsonl", b'{"x": {"a": 1.5}}\n', MAP, MAP),
    ("jsonl", b'{"x": {"a": 1}}\n', INNER, INNER),
    ("jsonl", b'{"x": {"a": 1, "b": 2}}\n', INNER, WIDER),
    ("jsonl", b'{"x": 17}\n', t.StringType(), t.LongType()),
    ("jsonl", b'{"x": "abcd"}\n', t.BinaryType(), t.StringType()),
    ("csv", b"x\n1.10\n", t.DecimalType(10, 2), t.DecimalType(10, 2)),
    ("csv", b"x\n1.101\n", t.DecimalType(10, 2), t.DoubleType()),
    ("csv", b"x\n01234\n", t.StringType(), t.StringType()),
    ("csv", b"x\n0.3333333333333\n", t.FloatType(), t.DoubleType()),
    ("csv", b"x\n0.1\n16777216\n1e+20\n", t.FloatType(), t.FloatType()),
    ("csv", b"x\n1e+20\n0.10\nNaN\n", t.FloatType(), t.FloatType()),
    ("csv", b"x\n16777217\n", t.FloatType(), t.LongType()),
    ("csv", b"x\n16777217\n", t.DoubleType(), t.DoubleType()),
    ("csv", b"x\n9007199254740993\n", t.DoubleType(), t.LongType()),
]


@pytest.mark.parametrize(("result_format", "result", "kind", "expected"), TYPED)
def test_columns_called_like_those_of_the_chunks_have_their_types_where_nothing_is_lost(
    result_format: str, result: bytes, kind: t.DataType, expected: t.DataType
):
    guessed = spark_schema(schema_of(result_format, result), what="the results")
    stored = t.StructType([t.StructField("other", t.DateType()), t.StructField("x", kind)])
    found = _typed_as_chunks(result_format, [result], guessed, stored)
    assert found == t.StructType([t.StructField("x", expected)])


@pytest.mark.parametrize(
    ("result", "wanted", "rows"),
    [
        (b"a,b\n1,2\n\n3,4\n\n", ["a"], [(1,), (3,)]),
        (b"a\n1\n\n3\n\n", ["a"], [(1,), (None,), (3,), (None,)]),
        (b"a\n1\n\n3\n\n", ["a", "b"], [(1, None), (None, None), (3, None), (None, None)]),
        (b"\r\na\r\n1\r\n\r\n", ["a"], [(1,), (None,)]),
    ],
    ids=["one wanted of two", "one", "two wanted of one", "with lines before the header"],
)
def test_empty_line_of_csv_is_a_null_where_the_result_has_one_column_whatever_is_wanted(
    result: bytes, wanted: list[str], rows: list[tuple[int | None, ...]]
):
    schema = t.StructType([t.StructField(name, t.LongType()) for name in wanted])
    [batch] = Batches(1, "csv", schema, (), is_merged=True).of([Fetched(0, result)], {})
    assert [tuple(row.values()) for row in batch.to_pylist()] == rows


def test_csv_that_ends_in_an_empty_line_keeps_the_types_of_the_chunks():
    sample = b"id,x\n1,0.5\n\n"
    guessed = spark_schema(schema_of("csv", sample), what="the results")
    stored = t.StructType([t.StructField("id", t.IntegerType()), t.StructField("x", t.FloatType())])
    assert _typed_as_chunks("csv", [sample], guessed, stored) == stored


def test_one_column_that_does_not_fit_costs_the_others_nothing():
    samples = [b'{"day": "2026-05-01", "price": 1.1, "more": 1}\n', b'{"day": "2026-05-02", "price": "x", "more": 2}\n']
    guessed = spark_schema(schema_of("jsonl", *samples), what="the results")
    found = _typed_as_chunks(
        "jsonl", samples, guessed, t.StructType([t.StructField("day", t.DateType()), t.StructField("price", MAP)])
    )
    assert found.simpleString() == "struct<day:date,price:string,more:bigint>"


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_schemas_of_arrow_become_those_of_spark_that_hold_the_same_values():
    kinds = {
        "small": (pa.uint8(), "smallint"),
        "medium": (pa.uint16(), "int"),
        "large": (pa.uint32(), "bigint"),
        "huge": (pa.uint64(), "decimal(20,0)"),
        "half": (pa.float16(), "float"),
        "word": (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        "day": (pa.date64(), "date"),
        "at": (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        "local": (pa.timestamp("s"), "timestamp_ntz"),
        "list": (pa.large_list(pa.uint8()), "array<smallint>"),
        "map": (pa.map_(pa.string(), pa.uint32()), "map<string,bigint>"),
        "row": (pa.struct([("a", pa.uint16())]), "struct<a:int>"),
    }
    found = spark_schema(pa.schema([(name, kind) for name, (kind, _) in kinds.items()]), what="the results")
    assert {field.name: field.dataType.simpleString() for field in found} == {
        name: text for name, (_, text) in kinds.items()
    }


def test_column_of_a_type_that_spark_has_not_is_named():
    with pytest.raises(
        UsageError, match=r"Column 'odd' of the results is month_day_nano_interval, and Spark has no such type"
    ):
        spark_schema(pa.schema([("odd", pa.month_day_nano_interval())]), what="the results")


@pytest.mark.parametrize(
    ("chunk_format", "kind", "message"),
    [
        ("parquet", t.CalendarIntervalType(), "Column 'x' is interval, which parquet cannot hold"),
        ("jsonl", t.MapType(t.IntegerType(), t.StringType()), "the keys of a JSON object are text"),
        (
            "jsonl",
            t.ArrayType(t.DayTimeIntervalType()),
            r"Column 'x\[\]' is interval day to second, which jsonl cannot hold",
        ),
        ("csv", t.BinaryType(), "Column 'x' is binary, which csv cannot hold"),
        (
            "arrow",
            t.StructType([t.StructField("y", t.YearMonthIntervalType())]),
            "Column 'x.y' is interval year to month",
        ),
        (
            "parquet",
            t.ArrayType(t.StructType([])),
            r"Column 'x\[\]' is a struct without fields, which parquet cannot hold",
        ),
        ("jsonl", t.StructType([t.StructField("y", t.LongType())] * 2), "Column 'x' has two fields named 'y'"),
    ],
)
def test_column_that_a_format_cannot_hold_is_named(chunk_format: str, kind: t.DataType, message: str):
    with pytest.raises(UsageError, match=message):
        check_writable(t.StructType([t.StructField("x", kind), t.StructField("n", t.LongType())]), chunk_format)


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(UsageError, match="Two columns are named 'n'"):
        check_writable(t.StructType([*SCHEMA.fields, *SCHEMA.fields]), "parquet")


def test_columns_are_selected_in_the_order_asked_for():
    schema = t.StructType([t.StructField(name, t.LongType()) for name in "abc"])
    assert selected(schema, ["c", "a"]).names == ["c", "a"]
    with pytest.raises(UsageError, match=r"There is no column 'd'\. The columns are a, b, c\."):
        selected(schema, ["d"])


@pytest.mark.parametrize("text", ["a INT", "{", "{}", '"x"', "[1]"])
def test_text_that_is_no_schema_is_refused(text: str):
    with pytest.raises(UsageError, match="cannot be understood"):
        read_schema(text)


def test_schema_that_is_read_has_nulls_at_any_depth():
    inner = t.StructType([t.StructField("y", t.ArrayType(t.LongType(), False), False)])
    schema = t.StructType([t.StructField("x", t.MapType(t.StringType(), inner, False), False)])
    assert schema.json().count("false") == 4
    assert read_schema(schema.json()).json().count("false") == 0
