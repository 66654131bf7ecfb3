"""Results that are Parquet, read by Spark's own reader: joined once into files of their own beside the results.

This file decides whether that is possible and lays the files out; where it is not, the data source reads as well. Results lie one
after the other in objects, which Spark cannot read by range; a copy with a common footer costs less than Python's part in a read
(0.2 s for 200 MB), is used again by later reads, and goes with the submission.
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
from opsq.errors import UsageError
from opsq.spark.formats.parquet_join import TAIL_BYTES, Piece, footer_length, join
from opsq.spark.source.result_fetch import Made, places, read_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.queue import Queue
    from opsq.content.content_store import Store
    from opsq.spark.source.batch_reader import ResultForm

LEAST_BYTES = 4 << 20
"""Less is read by the source at once: nothing would be won."""
RESULTS_LIMIT = 5_000
"""More results have too many footers: reading one takes a few tenths of a millisecond."""
_FILE_BYTES = 128 << 20


def native_frame(spark: SparkSession, queue: Queue, made: Made, form: ResultForm) -> DataFrame | None:
    """The results by way of Spark's Parquet reader; None if that is not possible or not worth it. Rows come in no order.

    Effects: the first time, copies the results into files beside them, in the store. The session is not of Spark Connect: whether its
        server sees the store at the same place is not known here.
    """
    store = made.store.open()
    place = store.path(made.folder)
    if form.result_format != "parquet" or place is None:
        return None
    results = []
    for result in places(queue, made):
        results.append(result)
        if len(results) > RESULTS_LIMIT:
            return None
    size_bytes = sum(map(_size_of, results))
    if size_bytes < LEAST_BYTES:
        return None
    target = Path(place, f"joined-{_name_of(results)}")
    try:
        if not target.exists():
            _lay_out(store, made, results, target, min(_FILE_BYTES, -(-size_bytes // (os.cpu_count() or 1))))
        frame = spark.read.parquet(*(_url_of(path) for path in sorted(target.iterdir())))
    except (UsageError, OSError, AnalysisException):
        # The columns of results differ, or one is no Parquet; there is no room for a copy; or Spark does not find it.
        return None  # the source reads, or says what is wrong
    return frame if frame.schema.simpleString() == form.schema.simpleString() else None


def _url_of(path: Path) -> str:
    """As Spark takes the path of a local file: with its scheme, as others may be the default, and no letter of it for a pattern."""
    return "file://" + re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", str(path.absolute()))


def _name_of(results: Sequence[Result]) -> str:
    """The same for the same results, as a requeue may change them."""
    return blake2b(msgspec.msgpack.encode(results), digest_size=8).hexdigest()


def _size_of(result: Result) -> int:
    return len(result) if isinstance(result, bytes) else result[2]


def _lay_out(store: Store, made: Made, results: Sequence[Result], target: Path, file_bytes: int) -> None:
    """Write the joined files under another name, then rename: who comes at the same time sees all of them or none."""
    beside = target.with_name(f"{target.name}.{os.urandom(4).hex()}.new")
    beside.mkdir(mode=0o700)
    try:
        rest = list(results)
        number = 0
        while rest:
            path = beside / f"{number:05d}.parquet"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                pieces: list[Piece] = []
                written_bytes = taken_count = 0
                for place in rest:
                    if written_bytes >= file_bytes:
                        break
                    result = read_place(store, made, place)
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
