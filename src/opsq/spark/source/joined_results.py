"""Parquet results for Spark's own reader: joined once into files of their own beside the results.

This file decides whether that is possible and writes the files; otherwise the data source reads the results. Results
are stored one after the other in objects, which Spark cannot read by range; a copy with a common footer costs less than
Python's part in a read (0.2 s for 200 MB, and the sync), is reused by later reads, and is removed with the submission.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from opsq.client.core.held_block import Result
from opsq.content.file_io import make_stored_folder
from opsq.content.result_joiner import size_of
from opsq.errors import OpsqError, UsageError
from opsq.fsync import sync_path
from opsq.spark.formats.parquet_join import TAIL_BYTES, Piece, footer_length, join
from opsq.spark.source.result_fetch import ResultReader, SourceSubmission, places

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.queue import Queue
    from opsq.content.content_store import ObjectWriter
    from opsq.spark.source.batch_reader import ResultForm

LEAST_BYTES = 1 << 20
"""Less is read by the data source at once: joining would gain nothing."""
LEAST_RESULT_BYTES = 8 << 10
"""Nor would it if results are smaller on average: each costs Spark some tenths of a millisecond, whatever it holds."""
RESULTS_LIMIT = 5_000
"""More results have too many footers: reading one takes a few tenths of a millisecond."""
ABANDONED_S = 3600.0
"""A copy that is not finished, and was not written to for so long, never will be: its reader was killed."""
_FILE_BYTES = 128 << 20
_COPY, _UNFINISHED = "joined-", ".new"


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
    target = Path(place, f"{_COPY}{_name_of(results)}")
    try:
        _remove_abandoned(target.parent)
        if not _is_whole(target, size_bytes):
            shutil.rmtree(target, ignore_errors=True)
            _lay_out(source, results, target, min(_FILE_BYTES, -(-size_bytes // (os.cpu_count() or 1))))
        frame = spark.read.parquet(*(_url_of(path) for path in sorted(target.iterdir())))
    except (OpsqError, OSError, PySparkException, Py4JJavaError):
        # Results differ in columns, one is not Parquet, there is no room for a copy, or Spark cannot find or read it.
        return None  # the data source reads, or reports what is wrong
    return frame if frame.schema.simpleString() == form.schema.simpleString() else None


def _url_of(path: Path) -> str:
    """A local path as Spark takes it: with its scheme, since another may be the default, and with patterns escaped."""
    return "file://" + re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", str(path.absolute()))


def _name_of(results: Sequence[Result]) -> str:
    """A name for these results: a requeue may change them."""
    return blake2b(msgspec.msgpack.encode(results), digest_size=8).hexdigest()


def _is_whole(target: Path, size_bytes: int) -> bool:
    """Whether there is a copy, and its files have all bytes of the results before their footers."""
    found_bytes = 0
    try:
        for path in target.iterdir():
            with path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(end - TAIL_BYTES, 0))
                found_bytes += end - TAIL_BYTES - footer_length(file.read())
    except (FileNotFoundError, UsageError):
        return False
    return found_bytes == size_bytes


def _remove_abandoned(place: Path) -> None:
    """Remove unfinished copies of readers that were killed, as far as this user may."""
    for beside in place.glob(f"{_COPY}*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            if max(path.lstat().st_mtime for path in (beside, *beside.iterdir())) < time.time() - ABANDONED_S:
                shutil.rmtree(beside)


def _lay_out(source: SourceSubmission, results: Sequence[Result], target: Path, file_bytes: int) -> None:
    """Write the joined files under another name, then rename: there are all of them or none.

    That holds for concurrent readers, and after a loss of power for later ones.
    """
    beside = target.with_name(f"{target.name}.{os.urandom(4).hex()}{_UNFINISHED}")
    make_stored_folder(str(beside))
    reader = ResultReader(source)
    try:
        rest = list(results)
        number = 0
        while rest:
            name = f"{source.folder}/{beside.name}/{number:05d}.parquet"
            file = reader.store.open_writer(name, is_durable=source.store.is_durable)
            try:
                taken_count = _write_joined(file, reader, rest, file_bytes)
                file.close()
            finally:
                file.abort()  # unless it is closed
            rest = rest[taken_count:]
            number += 1
        if source.store.is_durable:
            sync_path(str(beside))
        os.rename(beside, target)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not isinstance(error, OSError) or not _is_whole(target, sum(map(size_of, results))):
            raise  # otherwise another reader was faster


def _write_joined(file: ObjectWriter, reader: ResultReader, results: Sequence[Result], file_bytes: int) -> int:
    """Write the first results as one Parquet file of about that many bytes; returns how many they are."""
    pieces: list[Piece] = []
    written_bytes = 0
    for place in results:
        if written_bytes >= file_bytes:
            break
        result = reader.read(place)
        length = footer_length(result[-TAIL_BYTES:])
        pieces.append(Piece(len(result), result[-TAIL_BYTES - length : -TAIL_BYTES]))
        file.write(result)
        written_bytes += len(result)
    file.write(join(pieces))
    return len(pieces)
