"""The distinct schemas of results, found in their footers and heads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opsq.errors import UsageError
from opsq.spark.formats.encoder import encoder
from opsq.spark.formats.stored_schemas import StoredSchemas

WIDE = pa.schema(
    [(f"a column with a rather long name, the one of number {number}", pa.int64()) for number in range(999)]
)


def found_in(result_format: str, *results: bytes) -> tuple[list[pa.Schema], int]:
    """The schemas, and how many bytes were read."""
    schemas, read_bytes = StoredSchemas(result_format), 0

    def reader(result: bytes) -> Callable[[int, int], bytes]:
        def read(offset: int, size: int) -> bytes:
            nonlocal read_bytes
            read_bytes += size
            return result[offset : offset + size]

        return read

    for result in results:
        schemas.add(len(result), reader(result))
    return schemas.found, read_bytes


def written(result_format: str, table: pa.Table) -> bytes:
    """A table as the encoder writes it."""
    return bytes(encoder(result_format, table.schema)(table))


@pytest.mark.parametrize("result_format", ["parquet", "arrow"])
def test_each_schema_is_found_once_whatever_rows_results_have(result_format: str):
    one = [pa.table({"n": pa.array(range(count)), "s": ["x"] * count}) for count in (1, 3, 2500, 70_000)]
    other = pa.table({"n": [1.5]})
    results = [written(result_format, table) for table in (*one, other, *one, other)]
    schemas, read_bytes = found_in(result_format, *results)
    assert schemas == [one[0].schema, other.schema]
    assert read_bytes < 10 * (16 << 10)


@pytest.mark.parametrize("result_format", ["parquet", "arrow"])
def test_schema_longer_than_what_is_read_at_first_is_found(result_format: str):
    table = pa.Table.from_arrays([pa.array([1])] * len(WIDE), schema=WIDE)
    result = written(result_format, table)
    assert found_in(result_format, result, result, written(result_format, pa.table({"n": [1]})))[0] == [
        WIDE,
        pa.schema({"n": pa.int64()}),
    ]


def test_types_that_only_arrows_own_schema_tells_apart_are_told_apart():
    duration = pa.table({"n": pa.array([dt.timedelta(seconds=1)], pa.duration("us"))})
    number = pa.table({"n": pa.array([1], pa.int64())})
    files = []
    for table, has_arrow in ((number, False), (duration, True), (number, True)):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, store_schema=has_arrow)
        files.append(sink.getvalue().to_pybytes())
    for order in (files, files[::-1]):
        assert {str(schema.field("n").type) for schema in found_in("parquet", *order)[0]} == {"duration[us]", "int64"}


def test_files_of_pandas_with_metadata_of_their_own_have_one_schema():
    files = []
    for count in range(1, 100):
        sink = pa.BufferOutputStream()
        pd.DataFrame({"n": range(count)}).to_parquet(sink)
        files.append(sink.getvalue().to_pybytes())
    assert found_in("parquet", *files)[0] == [pa.schema({"n": pa.int64()})]


def test_file_of_arrow_is_one_as_its_stream_is():
    sink = pa.BufferOutputStream()
    table = pa.table({"n": [1, 2]})
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    assert found_in("arrow", sink.getvalue().to_pybytes(), written("arrow", table))[0] == [table.schema]


@pytest.mark.parametrize("result", [b"n,s\n1,x\n", b"PAR1" + b"\xff" * 4 + b"PAR1", b"PAR1\0\0\0\0PAR1", b"x"])
@pytest.mark.parametrize("result_format", ["parquet", "arrow"])
def test_result_without_a_schema_is_refused(result_format: str, result: bytes):
    with pytest.raises(UsageError, match=r"It is not|It cannot be read as|The footer"):
        found_in(result_format, result)
