"""Parquet results for Spark's own reader: joined once into files of their own beside the results.

This file decides whether that is possible and writes the files; otherwise the data source reads the results. Results
are stored one after the other in objects, which Spark cannot read by range; a copy with a common footer costs less than
Python's part in a read (0.2 s for 200 MB), is reused by later reads, and is removed with the submission.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import AnalysisException

from opsq.client.core.held_block import Result
from opsq.content.file_io import make_stored_folder, open_stored
from opsq.content.result_joiner import size_of
from opsq.errors import UsageError
from opsq.spark.formats.parquet_join import TAIL_BYTES, Piece, footer_length, join
from opsq.spark.source.result_fetch import ResultReader, SourceSubmission, places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.queue import Queue
    from opsq.spark.source.batch_reader import ResultForm

LEAST_BYTES = 1 << 20
"""Less is read by the data source at once: joining would gain nothing."""
LEAST_RESULT_BYTES = 8 << 10
"""Nor would it if results are smaller on average: each costs Spark some tenths of a millisecond, whatever it holds."""
RESULTS_LIMIT = 5_000
"""More results have too many footers: reading one takes a few tenths of a millisecond."""
_FILE_BYTES = 128 << 20


def native_frame(spark: SparkSession, queue: Queue, source: SourceSubmission, form: ResultForm) -> DataFrame | None:
    """The results through Spark's Parquet reader, in no particular order; None if that is impossible or not worth it.

    Args:
        spark: not of Spark Connect: its server may not see the store at the same place.

    Effects: the first time, copies the results into files beside them, in the store.
    """
    place = source.store.open().path(source.folder)
    if form.result_format != "parquet" or place is None:
        return None
    results = []
    for result in places(queue, source):
        results.append(result)
        if len(results) > RESULTS_LIMIT:
            return None
    size_bytes = sum(map(size_of, results))
    if size_bytes < max(LEAST_BYTES, LEAST_RESULT_BYTES * len(results)):
        return None
    target = Path(place, f"joined-{_name_of(results)}")
    try:
        if not target.exists():
            _lay_out(source, results, target, min(_FILE_BYTES, -(-size_bytes // (os.cpu_count() or 1))))
        frame = spark.read.parquet(*(_url_of(path) for path in sorted(target.iterdir())))
    except (UsageError, OSError, AnalysisException):
        # Results differ in columns, one is not Parquet, there is no room for a copy, or Spark does not find it.
        return None  # the data source reads, or reports what is wrong
    return frame if frame.schema.simpleString() == form.schema.simpleString() else None


def _url_of(path: Path) -> str:
    """A local path as Spark takes it: with its scheme, since another may be the default, and with patterns escaped."""
    return "file://" + re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", str(path.absolute()))


def _name_of(results: Sequence[Result]) -> str:
    """A name for these results: a requeue may change them."""
    return blake2b(msgspec.msgpack.encode(results), digest_size=8).hexdigest()


def _lay_out(source: SourceSubmission, results: Sequence[Result], target: Path, file_bytes: int) -> None:
    """Write the joined files under another name, then rename: concurrent readers see all of them or none."""
    beside = target.with_name(f"{target.name}.{os.urandom(4).hex()}.new")
    make_stored_folder(str(beside))
    reader = ResultReader(source)
    roots = source.store.open().roots
    try:
        rest = list(results)
        number = 0
        while rest:
            path = beside / f"{number:05d}.parquet"
            with open(open_stored(str(path), os.O_WRONLY, roots), "wb") as file:
                pieces: list[Piece] = []
                written_bytes = taken_count = 0
                for place in rest:
                    if written_bytes >= file_bytes:
                        break
                    result = reader.read(place)
                    length = footer_length(result[-TAIL_BYTES:])
                    pieces.append(Piece(len(result), result[-TAIL_BYTES - length : -TAIL_BYTES]))
                    file.write(result)
                    written_bytes += len(result)
                    taken_count += 1
                file.write(join(pieces))
            rest = rest[taken_count:]
            number += 1
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        if target.exists():
            return  # another reader was faster
        raise
