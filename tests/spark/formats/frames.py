"""Rows of every kind for property tests: columns with nulls, nested values, chunks without rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TEXT = st.text("aé\"',\n 0", max_size=4)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
PAIRS = pa.map_(pa.string(), pa.int64())
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): LONG,
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=3),
    pa.decimal128(12, 4): st.decimals(-(10**7), 10**7, places=4),
    pa.date32(): st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1)),
    pa.timestamp("us", "UTC"): st.integers(-(10**15), 10**15).map(
        lambda micros: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    ),
    pa.list_(pa.int64()): st.lists(st.none() | LONG, max_size=3),
    PAIRS: st.dictionaries(TEXT, st.none() | LONG, max_size=3).map(lambda found: list(found.items())),
    pa.struct({"a": pa.int64(), "d": pa.decimal128(9, 2), "m": PAIRS}): st.fixed_dictionaries(
        {
            "a": st.none() | LONG,
            "d": st.none() | st.decimals(-(10**5), 10**5, places=2).map(Decimal),
            "m": st.none() | st.just([]) | LONG.map(lambda number: [("k", number)]),
        }
    ),
}


@st.composite
def chunks(draw: st.DrawFn) -> list[pa.Table]:
    """Chunks of the same columns; in some a column is null throughout, and some have no rows."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    made = []
    for count in draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)):
        columns = []
        for kind in kinds:
            values = st.just(None) if draw(st.booleans()) else st.none() | KINDS[kind]
            columns.append(pa.array([draw(values) for _ in range(count)], kind))
        made.append(pa.Table.from_arrays(columns, schema=schema))
    return made
