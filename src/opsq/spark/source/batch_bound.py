"""Keeps Spark's Arrow batches small in bytes without its question after each row how large the batch has become.

That question walks all columns, and takes longer than to write a short row. Spark does not ask if only the number of
rows is limited; so here long rows count for several: each is followed by empty rows that stand for its bytes. This
file must not know what becomes of the batches.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import types as t

from opsq.spark.formats.schemas import quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str((1 << 31) - 1)
"""Without a limit Spark asks nothing."""
_BATCH_ROWS, _BATCH_BYTES = 1 << 14, 1 << 24
"""Of a batch, which has up to twice as many bytes and one row. Spark's own 64 MiB, and rows to match, took twice as
long for texts of 2 kB to 20 MB, most of it for fresh memory; short rows are written as fast with either.
"""
COLUMNS_MOST = 64
"""Of more columns Spark compiles no code, and would copy a long row for each row that stands for its bytes."""
_PYTHON = re.compile(r"Python|InPandas|InArrow")
"""In the names of operators that hand rows to Python functions, in batches of their own which must stay bounded."""
_MARK = "opsq is a row"
_WIDTHS: dict[type[t.DataType], int] = {
    t.BooleanType: 1,
    t.ByteType: 1,
    t.ShortType: 2,
    t.IntegerType: 4,
    t.LongType: 8,
    t.FloatType: 4,
    t.DoubleType: 8,
    t.DecimalType: 16,
    t.DateType: 4,
    t.TimestampType: 8,
    t.TimestampNTZType: 8,
    t.DayTimeIntervalType: 8,
}
_OF_TEXT = (t.StringType, t.BinaryType)
_OFFSET_BYTES = 4


class Bound(NamedTuple):
    """What to do with the batches of a bounded frame. It can be pickled.

    Attributes:
        asks: Spark has to ask: the schema does not tell how long a row is, there are too many columns, or the rows come
            from Python functions.
        is_padded: there are empty rows, and a last column that says which rows are none of them.
    """

    asks: bool
    is_padded: bool = False

    def rows_of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the frame as it was."""
        return _without_padding(batches) if self.is_padded else batches


def _without_padding(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        last = batch.num_columns - 1
        mark = batch.column(last)
        rows = batch.select(list(range(last)))
        yield rows if mark.true_count == batch.num_rows else rows.filter(mark)


def bounded(frame: DataFrame) -> tuple[DataFrame, Bound]:
    """The frame so that its batches can be bounded by their number of rows, and how to undo that; if it is possible."""
    spark, columns = frame.sparkSession, frame.schema.fields
    widths = [_width(field.dataType) for field in columns]
    if None in widths or sum(width or 0 for width in widths) * _BATCH_ROWS > _BATCH_BYTES:
        return frame, Bound(asks=True)
    if _PYTHON.search(frame._jdf.queryExecution().optimizedPlan().toString()):
        return frame, Bound(asks=True)
    texts = [field.name for field in columns if isinstance(field.dataType, _OF_TEXT)]
    if not texts:
        return frame, Bound(asks=False)
    names = [field.name for field in columns]
    compiles = spark.conf.get("spark.sql.codegen.wholeStage") == "true" and len(columns) <= COLUMNS_MOST
    if not compiles or len({name.lower() for name in [*names, _MARK]}) <= len(names):
        return frame, Bound(asks=True)
    row_bytes = _BATCH_BYTES // _BATCH_ROWS
    length = " + ".join(f"coalesce(octet_length({quoted(name)}), 0L)" for name in texts)
    count = f"({length}) div {row_bytes}"
    padding = f"concat(array(true), array_repeat(false, int(least({count}, {_BATCH_ROWS}))))"
    marks = f"explode(CASE WHEN {count} = 0 THEN array(true) ELSE {padding} END) AS {quoted(_MARK)}"
    kept = [f"IF({quoted(_MARK)}, {quoted(name)}, NULL) AS {quoted(name)}" for name in names]
    return frame.selectExpr("*", marks).selectExpr(*kept, quoted(_MARK)), Bound(asks=False, is_padded=True)


def _width(kind: t.DataType) -> int | None:
    """The bytes of a value in Arrow, without those of a text itself; None: its type does not tell."""
    if isinstance(kind, t.StructType):
        widths = [_width(field.dataType) for field in kind]
        has_text = any(isinstance(field.dataType, _OF_TEXT) for field in kind)
        return None if has_text or None in widths else 1 + sum(width or 0 for width in widths)
    if isinstance(kind, _OF_TEXT):
        return 1 + _OFFSET_BYTES
    width = _WIDTHS.get(type(kind))
    return None if width is None else 1 + width


@contextlib.contextmanager
def unasked(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame in a session of its own that limits batches by rows alone; all other settings are those of its session.

    A property of the calling thread would not do: some of Spark's operators read the setting from the session. Other
    jobs of the frame's session must keep their limit, so it cannot be changed there.
    """
    spark = frame.sparkSession
    name = f"opsq_{uuid.uuid4().hex}"
    frame.createGlobalTempView(name)
    try:
        own = spark.newSession()
        settings, defaults = spark.conf.getAll, own.conf.getAll
        for key in settings.keys() | defaults.keys():
            if settings.get(key) == defaults.get(key) or not own.conf.isModifiable(key):
                continue
            if key in settings:
                own.conf.set(key, settings[key])
            else:
                own.conf.unset(key)
        own.conf.set(_ROWS, str(_BATCH_ROWS))
        own.conf.set(_BYTES, _NO_LIMIT)
        yield own.table(f"{spark.conf.get('spark.sql.globalTempDatabase', 'global_temp')}.{name}")
    finally:
        spark.catalog.dropGlobalTempView(name)
