"""Joined Parquet files read as one, whatever wrote them; what cannot be joined is refused."""

from __future__ import annotations

import datetime as dt
import io
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsq.errors import UsageError
from opsq.spark.formats.parquet_join import TAIL_BYTES, Piece, footer_length, join


def file_of(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def piece_of(file: bytes) -> Piece:
    length = footer_length(file[-TAIL_BYTES:])
    return Piece(len(file), file[-TAIL_BYTES - length : -TAIL_BYTES])


def joined(files: list[bytes]) -> bytes:
    return b"".join(files) + join([piece_of(file) for file in files])


def table_of(start: int, rows_count: int) -> pa.Table:
    numbers = range(start, start + rows_count)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "word": [f"w{n % 7}" for n in numbers],
            "maybe": pa.array([None if n % 3 else n / 7 for n in numbers], pa.float64()),
            "flag": [n % 2 == 0 for n in numbers],
            "amount": pa.array([Decimal(n) for n in numbers], pa.decimal128(20, 0)),
            "at": pa.array([dt.datetime.fromtimestamp(n, dt.UTC) for n in numbers], pa.timestamp("us", "UTC")),
            "tags": pa.array([[str(n)] * (n % 3) for n in numbers], pa.list_(pa.string())),
            "pairs": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        }
    )


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40),
    st.sampled_from(["zstd", "snappy", "none"]),
    st.sampled_from(["1.0", "2.6"]),
    st.booleans(),
    st.sampled_from([50, 10_000]),
)
@settings(max_examples=25, deadline=None)
def test_joined_files_hold_the_rows_of_all_in_order(
    sizes: list[int], compression: str, version: str, extras: bool, group_rows: int
):
    options = {
        "compression": compression,
        "version": version,
        "use_dictionary": extras,
        "write_page_index": extras,
        "row_group_size": group_rows,
        "data_page_version": "2.0" if extras else "1.0",
    }
    tables = [table_of(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
    whole = joined([file_of(table, **options) for table in tables])
    found = pq.ParquetFile(io.BytesIO(whole))
    assert found.metadata.num_rows == sum(sizes)
    assert found.read().equals(pa.concat_tables(tables))
    assert found.read_row_group(found.num_row_groups - 1).column("n")[-1].as_py() == sum(sizes) - 1


def test_statistics_of_each_row_group_stay(tmp_path: object):
    found = pq.ParquetFile(io.BytesIO(joined([file_of(table_of(0, 10)), file_of(table_of(100, 10))])))
    bounds = [
        (
            found.metadata.row_group(number).column(0).statistics.min,
            found.metadata.row_group(number).column(0).statistics.max,
        )
        for number in (0, 1)
    ]
    assert bounds == [(0, 9), (100, 109)]


def test_files_without_rows_are_joined_too():
    some = table_of(5, 2)
    none = some.slice(0, 0)
    found = pq.read_table(io.BytesIO(joined([file_of(none), file_of(some), file_of(none)])))
    assert found.column("n").to_pylist() == [5, 6]


@pytest.mark.parametrize(
    "other", [pa.table({"n": pa.array([1], pa.int32())}), pa.table({"m": pa.array([1], pa.int64())})]
)
def test_files_of_other_columns_are_refused(other: pa.Table):
    with pytest.raises(UsageError, match="columns differ"):
        joined([file_of(pa.table({"n": pa.array([1], pa.int64())})), file_of(other)])


def test_what_is_no_parquet_is_refused():
    with pytest.raises(UsageError, match="not a Parquet file"):
        footer_length(b"12345678")
    footer = piece_of(file_of(table_of(0, 3))).footer
    with pytest.raises(UsageError, match="no file to join"):
        join([])
    for cut in random.Random(1).sample(range(len(footer)), 50):
        with pytest.raises(UsageError):
            join([Piece(1000, footer[:cut])])
