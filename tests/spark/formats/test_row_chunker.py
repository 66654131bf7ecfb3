"""Cutting Arrow batches into chunks, and every format there and back: order, types, nulls, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsq.errors import UsageError
from opsq.spark.fleet.chunk_function import encoded
from opsq.spark.formats.decoder import combined, decoder, sniff
from opsq.spark.formats.encoder import encoder, header_of
from opsq.spark.formats.parquet_join import TAIL_BYTES, Piece, footer_length, join
from opsq.spark.formats.result_types import ResultTypes
from opsq.spark.formats.row_chunker import cut
from opsq.spark.formats.schema_guess import schema_of

NUMBERS = pa.schema([("n", pa.int64()), ("text", pa.string())])


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    batches, start = [], 0
    for size in sizes:
        numbers = range(start, start + size)
        batches.append(
            pa.record_batch(
                [pa.array(numbers, pa.int64()), pa.array([f"row {n}" for n in numbers], pa.string())], schema=NUMBERS
            )
        )
        start += size
    return batches


def numbers_in(payloads: list[memoryview], chunk_format: str) -> list[list[int]]:
    decode = decoder(chunk_format, NUMBERS)
    header = header_of(chunk_format, NUMBERS)
    return [decode(header + bytes(payload)).column("n").to_pylist() for payload in payloads]


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 40))
@settings(max_examples=40)
def test_chunks_have_so_many_rows_and_the_last_what_is_left(sizes: list[int], rows_per_chunk: int):
    pieces = list(cut(batches_of(sizes), encoder("arrow", NUMBERS), rows_per_chunk=rows_per_chunk))
    found = numbers_in([piece.payload for piece in pieces], "arrow")
    assert [n for chunk in found for n in chunk] == list(range(sum(sizes)))
    assert all(len(chunk) == rows_per_chunk for chunk in found[:-1])
    assert [len(chunk) for chunk in found] == [piece.rows_count for piece in pieces]


@pytest.mark.parametrize("chunk_format", ["parquet", "arrow", "jsonl", "csv"])
def test_chunks_by_bytes_come_near_and_never_go_beyond_twice(chunk_format: str):
    wanted_bytes = 20_000
    pieces = list(cut(batches_of([10_000] * 20), encoder(chunk_format, NUMBERS), bytes_per_chunk=wanted_bytes))
    assert [n for chunk in numbers_in([piece.payload for piece in pieces], chunk_format) for n in chunk] == list(
        range(200_000)
    )
    sizes = [len(piece.payload) for piece in pieces]
    assert max(sizes) <= 2 * wanted_bytes
    settled = sizes[12:-1]  # Parquet's chunks of such regular rows come near after some that were small
    assert settled
    assert all(wanted_bytes / 2 < size for size in settled)


def test_rows_of_very_unequal_size_are_cut_in_two_until_they_fit():
    rows = ["x" * (5000 if n % 100 == 0 else 1) for n in range(1000)]
    [table] = [pa.table({"value": rows})]
    pieces = list(cut(table.to_batches(), encoder("text", table.schema), bytes_per_chunk=6000))
    assert b"".join(piece.payload for piece in pieces) == "".join(f"{row}\n" for row in rows).encode()
    assert max(len(piece.payload) for piece in pieces) <= 12_000


def test_a_row_above_the_wanted_size_is_a_chunk_of_its_own():
    table = pa.table({"value": ["a" * 100, "b" * 100]})
    pieces = list(cut(table.to_batches(), encoder("text", table.schema), bytes_per_chunk=10))
    assert [piece.rows_count for piece in pieces] == [1, 1]


@pytest.mark.parametrize("columns_count", [1, 1000])
def test_chunks_of_many_columns_are_larger_by_default(columns_count: int):
    """Else each would hold little but what Parquet keeps of its columns, and take as long as that."""
    count = 1_000_000 // columns_count
    noise = random.Random(7).randbytes(8 * count)
    values = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(noise)])
    table = pa.table({f"c{number}": values for number in range(columns_count)})
    sizes = [len(piece.payload) for piece in cut(table.to_batches(500), encoder("parquet", table.schema))]
    usual_bytes = (1 << 20) + 1024 * columns_count
    assert usual_bytes / 2 < sizes[-2] < 2 * usual_bytes


UTC = dt.UTC
INVALID_UTF8 = pa.array([b"\xff\xfe"]).view(pa.string())
FLAT: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None, False]),
    "byte": (pa.int8(), [-128, None, 127]),
    "long": (pa.int64(), [-(1 << 63), None, (1 << 63) - 1]),
    "float": (pa.float32(), [1.5, None, -0.0]),
    "double": (pa.float64(), [0.1 + 0.2, None, 1e300]),
    "decimal": (
        pa.decimal128(38, 18),
        [decimal.Decimal("12345678901234567890.123456789012345678"), None, decimal.Decimal("-1E-18")],
    ),
    "text": (pa.string(), ["", None, 'ä "quoted", \\ new\nline\r\n']),
    "date": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 3, 29, 1, 30, 0, 1, UTC), None, dt.datetime(1969, 12, 31, tzinfo=UTC)],
    ),
    "local": (pa.timestamp("us"), [dt.datetime(2026, 3, 29, 2, 30, 0, 123456), None, dt.datetime(1900, 1, 1)]),  # noqa: DTZ001
}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "binary": (pa.binary(), [b"\0\xff", None, b""]),
    "list": (pa.list_(pa.field("element", pa.int32())), [[1, None], None, []]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.5), ("b", None)], None, []]),
    "struct": (
        pa.struct(
            [("when", pa.timestamp("us", "UTC")), ("parts", pa.list_(pa.field("element", pa.decimal128(10, 2))))]
        ),
        [
            {"when": dt.datetime(2026, 1, 1, tzinfo=UTC), "parts": [decimal.Decimal("1.10"), None]},
            None,
            {"when": None, "parts": None},
        ],
    ),
}
WIDE = {"interval": (pa.duration("us"), [dt.timedelta(days=-1, microseconds=5), None, dt.timedelta(0)])}
HELD = {"parquet": FLAT | NESTED | WIDE, "arrow": FLAT | NESTED | WIDE, "jsonl": FLAT | NESTED, "csv": FLAT}


def table_of(columns: dict[str, tuple[pa.DataType, list[Any]]]) -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


@pytest.mark.parametrize("chunk_format", HELD)
def test_types_nulls_and_column_order_survive_each_format_that_holds_them(chunk_format: str):
    table = table_of(HELD[chunk_format])
    [piece] = cut(table.to_batches(), encoder(chunk_format, table.schema), rows_per_chunk=10)
    back = decoder(chunk_format, table.schema)(header_of(chunk_format, table.schema) + bytes(piece.payload))
    assert back.schema.equals(table.schema)
    assert back.to_pylist() == table.to_pylist()


MANY = 5000
PLAIN = FLAT | {
    "binary": NESTED["binary"],
    "large": (pa.large_string(), ["x" * 3000, None, ""]),
    "half": (pa.float16(), [1.5, None, -2.0]),
    "unsigned": (pa.uint64(), [(1 << 64) - 1, None, 0]),
    **{
        f"decimal {digits}": (pa.decimal128(digits, 1), [decimal.Decimal("0.5"), None, decimal.Decimal("-0.9")])
        for digits in (2, 9, 10, 18, 19)
    },
    "millis": (
        pa.timestamp("ms", "Europe/Berlin"),
        [dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None, dt.datetime(1, 1, 1, tzinfo=UTC)],
    ),
    "nanos": (pa.timestamp("ns"), [1, None, -1]),
}
NOT_PLAIN = WIDE | {
    "list": NESTED["list"],
    "digit": (pa.decimal128(1, 0), [decimal.Decimal(9), None, decimal.Decimal(-9)]),
    "na\0me": (pa.int64(), [1, None, 2]),
    "seconds": (pa.timestamp("s"), [dt.datetime(2026, 1, 1), None, dt.datetime(1, 1, 1)]),  # noqa: DTZ001
    "clock": (pa.time32("s"), [dt.time(1), None, dt.time(0)]),
}


@pytest.mark.parametrize("name", PLAIN | NOT_PLAIN)
def test_small_chunks_are_the_same_parquet_whoever_writes_them(name: str):
    """arro3 where it makes the same columns as Arrow, in a third of the time, and Arrow for the rest."""
    columns = table_of({name: (PLAIN | NOT_PLAIN)[name]})
    for table in (columns, pa.concat_tables([columns.slice(1), columns.slice(2), columns]), columns.slice(0, 0)):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        theirs = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
        ours = pq.ParquetFile(pa.BufferReader(encoder("parquet", table.schema)(table)))
        assert ours.metadata.created_by.startswith("parquet-rs" if name in PLAIN else "parquet-cpp")
        assert str(ours.schema.column(0).logical_type) == str(theirs.schema.column(0).logical_type)
        assert ours.read().equals(theirs.read(), check_metadata=True)


def test_small_chunks_keep_what_their_schema_says_of_itself():
    field = pa.field("n", pa.int64(), metadata={"comment": b"\xff"})
    for schema in (pa.schema([field]), pa.schema([field.remove_metadata()], metadata={"made": "by us"})):
        table = pa.table([pa.array([1])], schema=schema)
        found = pq.ParquetFile(pa.BufferReader(encoder("parquet", schema)(table))).read().schema
        assert found.equals(schema, check_metadata=True)


@pytest.mark.parametrize("digits", [5, 20])
@pytest.mark.parametrize("rows_count", [1, MANY])
def test_decimal_of_more_digits_than_its_column_has_is_refused_whoever_writes_it(digits: int, rows_count: int):
    far = pa.array([decimal.Decimal("1e20")] * rows_count, pa.decimal128(38, 2)).cast(
        pa.decimal128(digits, 2), safe=False
    )
    table = pa.table({"n": pa.array(range(rows_count)), "x": far})
    with pytest.raises(
        UsageError, match=rf"^Column 'x' is decimal128\({digits}, 2\) and cannot be written as parquet: .*precision"
    ):
        encoder("parquet", table.schema)(table)


@pytest.mark.parametrize("name", PLAIN | NOT_PLAIN)
def test_small_and_large_chunks_can_be_joined(name: str):
    small = table_of({name: (PLAIN | NOT_PLAIN)[name]})
    large = pa.concat_tables([small] * 1000)
    files = [bytes(encoder("parquet", table.schema)(table)) for table in (small, large, small)]
    pieces = [Piece(len(file), file[-TAIL_BYTES - footer_length(file[-TAIL_BYTES:]) : -TAIL_BYTES]) for file in files]
    whole = b"".join(files) + join(pieces)
    apart = [pq.ParquetFile(pa.BufferReader(file)).read() for file in files]
    assert pq.ParquetFile(pa.BufferReader(whole)).read().equals(pa.concat_tables(apart))


@pytest.mark.parametrize(("count", "codec"), [(1, "SNAPPY"), (100, "ZSTD")])
def test_few_rows_of_many_bytes_are_worth_zstd(count: int, codec: str):
    table = pa.table({"text": [f"{n} " * 500 for n in range(count)]})
    file = pq.ParquetFile(pa.BufferReader(encoder("parquet", table.schema)(table)))
    assert file.metadata.row_group(0).column(0).compression == codec
    assert file.read().equals(table)


def test_small_chunks_keep_text_that_is_no_utf_8():
    table = pa.table({"x": INVALID_UTF8})
    found = pq.ParquetFile(pa.BufferReader(encoder("parquet", table.schema)(table))).read()
    assert found.column("x").cast(pa.binary()).to_pylist() == [b"\xff\xfe"]


UNIQUE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [(n - MANY // 2) << 50 for n in range(MANY)]),
    "short": (pa.int16(), list(range(MANY))),
    "nothing": (pa.int32(), [n if n % 7 else None for n in range(MANY)]),
    "date": (pa.date32(), [dt.date(2000, 1, 1) + dt.timedelta(n) for n in range(MANY)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=n * n) for n in range(MANY)],
    ),
    "interval": (pa.duration("us"), [dt.timedelta(microseconds=n) for n in range(MANY)]),
    "double": (pa.float64(), [n / 7 for n in range(MANY)]),
    "text": (pa.string(), [f"row {n}" for n in range(MANY)]),
    "decimal": (pa.decimal128(38, 2), [decimal.Decimal(n).scaleb(-2) for n in range(MANY)]),
    "a.b": (pa.int64(), list(range(MANY))),
    "struct": (pa.struct([("b", pa.int64())]), [{"b": n} for n in range(MANY)]),
}
REPEATED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "word": (pa.string(), [f"word {n % 10}" for n in range(MANY)]),
    "number": (pa.int32(), [n % 10 for n in range(MANY)]),
    "null": (pa.null(), [None] * MANY),
    "list": (pa.list_(pa.field("element", pa.string())), [[f"word {n % 10}"] for n in range(MANY)]),
}


def test_large_chunks_have_dictionaries_where_values_come_again_and_the_same_values():
    table = table_of(UNIQUE | REPEATED)
    [piece] = cut(table.to_batches(), encoder("parquet", table.schema), rows_per_chunk=MANY)
    group = pq.ParquetFile(pa.BufferReader(piece.payload)).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    with_dictionary = {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}
    assert with_dictionary == {"word", "number", "null", "list.list.element", "struct.b"}
    assert decoder("parquet", table.schema)(bytes(piece.payload)).equals(table)


@pytest.mark.parametrize("inner", ["b", "c"])
def test_large_chunks_hold_a_struct_beside_a_column_called_like_a_field_of_it(inner: str):
    table = table_of(
        {
            "a": (pa.struct([(inner, pa.int64())]), [{inner: n % 10} for n in range(MANY)]),
            "a.b": (pa.int64(), list(range(MANY))),
            "n": (pa.int64(), list(range(MANY))),
        }
    )
    [piece] = cut(table.to_batches(), encoder("parquet", table.schema), rows_per_chunk=MANY)
    group = pq.ParquetFile(pa.BufferReader(piece.payload)).metadata.row_group(0)
    assert "DELTA_BINARY_PACKED" in group.column(2).encodings
    assert ("DELTA_BINARY_PACKED" in group.column(1).encodings) == (inner == "c")
    assert decoder("parquet", table.schema)(bytes(piece.payload)).equals(table)


@pytest.mark.parametrize("chunk_format", ["parquet", "arrow", "jsonl", "csv"])
def test_numbers_that_are_none_survive(chunk_format: str):
    table = pa.table({"x": pa.array([math.nan, math.inf, -math.inf, None, 1.0])})
    [piece] = cut(table.to_batches(), encoder(chunk_format, table.schema), rows_per_chunk=10)
    back = (
        decoder(chunk_format, table.schema)(header_of(chunk_format, table.schema) + bytes(piece.payload))
        .column("x")
        .to_pylist()
    )
    assert math.isnan(back[0])
    assert back[1:] == [math.inf, -math.inf, None, 1.0]


def test_json_lines_are_what_other_programs_expect():
    table = table_of(
        {name: FLAT[name] for name in ("long", "text", "moment", "local", "date")} | {"map": NESTED["map"]}
    )
    [piece] = cut(table.slice(0, 1).to_batches(), encoder("jsonl", table.schema), rows_per_chunk=10)
    assert bytes(piece.payload) == (
        b'{"long":-9223372036854775808,"text":"","moment":"2026-03-29T01:30:00.000001Z","local":"2026-03-29T02:30:00.123456",'
        b'"date":"0001-01-01","map":{"a":1.5,"b":null}}\n'
    )


def test_csv_has_its_names_in_the_header_and_not_in_the_chunk():
    table = pa.table({'a "b"': ["x", "", None], "n": [1, 2, 3]})
    [piece] = cut(table.to_batches(), encoder("csv", table.schema), rows_per_chunk=10)
    assert header_of("csv", table.schema) == b'"a ""b""","n"\n'
    assert bytes(piece.payload) == b'"x",1\n"",2\n,3\n'


@pytest.mark.parametrize(("value", "reason"), [(None, "has a null"), ("two\nlines", "line end in it")])
def test_text_refuses_what_a_line_cannot_say(value: str | None, reason: str):
    table = pa.table({"line": pa.array(["fine", value], pa.string())})
    with pytest.raises(UsageError, match=f"Column 'line' has a .*{reason[6:]}"):
        list(cut(table.to_batches(), encoder("text", table.schema), rows_per_chunk=10))


FAR = 400_000_000_000_000_000
"""Microseconds: the year 14645, which Spark has and Python has not."""


@pytest.mark.parametrize(
    ("chunk_format", "column", "message"),
    [
        (
            "jsonl",
            pa.array([FAR], pa.timestamp("us")),
            r"'x' is timestamp\[us\] and cannot be written as jsonl: .*out of range",
        ),
        ("jsonl", INVALID_UTF8, "'x' is string and cannot be written as jsonl: .*can't decode byte 0xff"),
        (
            "jsonl",
            pa.StructArray.from_arrays([pa.array([1])] * 2, ["a", "a"]),
            "'x' is struct<a: int64, a: int64> and cannot be",
        ),
        ("parquet", pa.array([{}], pa.struct([])), "'x' is struct<> and cannot be written as parquet"),
        (
            "parquet",
            pa.array([decimal.Decimal(100)], pa.decimal128(5, -2)),
            r"'x' is decimal128\(5, -2\) and cannot be written as parquet",
        ),
        ("csv", pa.array([[1]]), "'x' is list<item: int64> and cannot be written as csv"),
    ],
)
def test_column_that_cannot_be_written_is_named(chunk_format: str, column: pa.Array, message: str):
    table = pa.table({"n": [1], "x": column})
    with pytest.raises(UsageError, match=f"^Column {message}"):
        encoder(chunk_format, table.schema)(table)


def test_null_in_a_column_that_says_it_has_none_is_an_error_that_names_it():
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("x", pa.int64(), nullable=False)])
    with pytest.raises(UsageError, match=r"^Column 'x' is int64 and cannot be written as parquet: .*null"):
        encoder("parquet", schema)(pa.table([pa.array([None]), pa.array([None], pa.int64())], schema=schema))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": [1]}, "Column 'n' is int64, which lines of text cannot hold"),
        ({"a": ["x"], "b": ["y"]}, "Lines of text hold one column, not 2"),
        ({"x": INVALID_UTF8}, "Column 'x' is string and cannot be written as text"),
    ],
)
def test_table_that_is_no_lines_of_text_is_refused(columns: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        encoded(pa.table(columns), "text", ResultTypes())


def test_text_results_are_lines_with_or_without_a_last_line_end():
    decode = decoder("text", pa.schema([("value", pa.string())]))
    for result, lines in ((b"a\nb\n", ["a", "b"]), (b"a\n\nb", ["a", "", "b"]), (b"\n", [""])):
        assert decode(result).column("value").to_pylist() == lines


def test_binary_results_are_one_row_each():
    assert decoder("binary", pa.schema([("value", pa.binary())]))(b"\0x").to_pylist() == [{"value": b"\0x"}]


def test_results_with_other_arrow_types_are_cast_to_those_wanted():
    wanted = pa.schema(
        [pa.field("n", pa.int64(), nullable=False), ("text", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    )
    given = pa.table(
        {
            "at": pa.array([0], pa.timestamp("ms", "Europe/Berlin")),
            "text": pa.array(["x"], pa.large_string()).dictionary_encode(),
            "n": pa.array([7], pa.int32()),
            "more": [1],
        }
    )
    for chunk_format in ("parquet", "arrow"):
        [piece] = cut(given.to_batches(), encoder(chunk_format, given.schema), rows_per_chunk=10)
        back = decoder(chunk_format, wanted)(bytes(piece.payload))
        assert back.schema.equals(wanted)
        assert back.column("n").to_pylist() == [7]


@pytest.mark.parametrize(
    ("result_format", "result", "message"),
    [
        ("parquet", b"no such thing", "cannot be read as parquet"),
        ("arrow", b"no such thing", "cannot be read as arrow"),
        ("jsonl", b'{"n": 1}\n{"n": ', "is not JSON lines"),
        ("jsonl", b'{"n": "x"}\n', "Its column 'n' is not int64"),
        ("jsonl", b'{"n": 1.5}\n', "Its column 'n' is not int64"),
        ("csv", b"n,text\nx,y\n", "cannot be read as csv"),
        ("csv", b"n\n1\n", "It has no column 'text'; it has n."),
        ("text", b"\xff\n", "cannot be read as text"),
    ],
)
def test_result_that_is_not_of_its_format_says_what_is_wrong(result_format: str, result: bytes, message: str):
    wanted = pa.schema([("value", pa.string())]) if result_format == "text" else NUMBERS
    with pytest.raises(UsageError, match=message):
        decoder(result_format, wanted)(result)


@pytest.mark.parametrize("chunk_format", ["parquet", "arrow", "jsonl", "csv"])
def test_schema_is_found_in_the_first_result(chunk_format: str):
    [piece] = cut(batches_of([3]), encoder(chunk_format, NUMBERS), rows_per_chunk=10)
    found = schema_of(chunk_format, header_of(chunk_format, NUMBERS) + bytes(piece.payload))
    assert [(field.name, str(field.type)) for field in found] == [("n", "int64"), ("text", "string")]


def test_formats_with_a_magic_number_are_recognised():
    for chunk_format in ("parquet", "arrow"):
        [piece] = cut(batches_of([3]), encoder(chunk_format, NUMBERS), rows_per_chunk=10)
        assert sniff(bytes(piece.payload)) == chunk_format
    assert sniff(b'{"a": 1}\n') is None
    assert sniff(b"") is None


def test_many_small_tables_become_few_batches():
    tables = [pa.table({"n": [n]}) for n in range(250)]
    found = combined(tables, 100)
    assert [batch.num_rows for batch in found] == [100, 100, 50]
    assert [n for batch in found for n in batch.column(0).to_pylist()] == list(range(250))


def test_types_of_json_are_guessed_from_several_results():
    found = schema_of(
        "jsonl",
        b'{"n": 1, "none": null, "at": "2024-01-01T00:00:00Z", "local": "2024-01-01 10:00:00", "odd": 1, "row": {"a": '
        b'null, "l": []}}\n',
        b'{"n": 1.5, "at": "2024-01-01T00:00:00.5+01:00", "late": 7, "odd": "x", "row": {"a": 1, "l": [true]}}\n',
    )
    assert found == pa.schema(
        {
            "n": pa.float64(),
            "none": pa.string(),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "odd": pa.string(),
            "row": pa.struct({"a": pa.int64(), "l": pa.list_(pa.bool_())}),
            "late": pa.int64(),
        }
    )


def test_text_columns_of_json_hold_what_is_no_text_as_json():
    results = [
        b'{"odd": 1, "empty": {}}\n',
        b'{"odd": "x", "empty": {}}\n',
        b'{"odd": {"a": [1.50, null]}}\n',
        b'{"odd": null}\n',
    ]
    decode = decoder("jsonl", schema_of("jsonl", *results))
    rows = [row for result in results for row in decode(result).to_pylist()]
    assert [row["odd"] for row in rows] == ["1", "x", '{"a":[1.50,null]}', None]
    assert [row["empty"] for row in rows] == ["{}", "{}", None, None]


def test_types_of_csv_are_guessed_from_several_results():
    found = schema_of("csv", b"n,s,none,odd\n1,,,1\n", b"n,s,none,odd\n1.5,x,,x\n")
    assert found == pa.schema({"n": pa.float64(), "s": pa.string(), "none": pa.string(), "odd": pa.string()})


def test_row_of_csv_may_be_larger_than_a_block():
    rows = pa.table({"s": ["x" * (3 << 20), "y" * (2 << 20)], "n": [1, 2]})
    result = b"s,n\n" + b"".join(b'"%s",%d\n' % (row["s"].encode(), row["n"]) for row in rows.to_pylist())
    assert decoder("csv", rows.schema)(result).equals(rows)
    assert schema_of("csv", result).equals(rows.schema)
