"""Functions for notebooks beside Spark's own reader and writer: registration, results, the id of a write, sweeping.

This file must not do the data source's work; it only calls Spark or the daemon.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
import warnings
from itertools import takewhile
from typing import TYPE_CHECKING, Unpack

from opsq.content.manifest import PartTable
from opsq.content.manifest import decode as decode_content
from opsq.errors import InputUnreadable, NotFound, Unreachable, UsageError
from opsq.spark.source.commit import STEM
from opsq.spark.source.daemon_address import content_of, resolve, store_of
from opsq.spark.source.result_fetch import SourceSubmission, check_final, find_source
from opsq.spark.source.rule_options import camel_case, keyword_option, number_text
from opsq.spark.source.source_options import (
    DaemonOptions,
    ReadKeywords,
    ReadOptions,
    WriteKeywords,
    check_keywords,
    parse_read,
    parse_write,
)
from opsq.units import counted
from opsq.wire.messages import UNFINISHED_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.queue import Queue
    from opsq.content.content_store import Store
    from opsq.spark.source.source_options import WriteOptions

SWEEP_AGE_S = 24 * 3600.0
"""Folders written to more recently are left alone: a task may still be writing."""


def register(spark: SparkSession) -> None:
    """Register `format("opsq")` with a session; needed if it looked for sources before opsq was installed.

    Effects: a server of Spark Connect, which needs opsq installed, no longer shows the option `token` of this session's
        operations.
    """
    from opsq.spark.session.spark_session import hide_tokens
    from opsq.spark.source.data_source import OpsqDataSource

    hide_tokens(spark)
    spark.dataSource.register(OpsqDataSource)


def write(frame: DataFrame, **options: Unpack[WriteKeywords]) -> int:
    """Write a DataFrame as one submission, durable when this returns.

    Args:
        frame: its rows.
        options: those of `Producer.submit` but the attachment, and those of a write that are its own:
            `rows_per_chunk=1000`, `chunk_format="jsonl"`, `state_dir="…"`, …

    Returns:
        The id of the submission. With an `idempotency_key` it may be an earlier one of the same rows, with a
        `unique_key` the unfinished one that holds the key.

    Raises:
        Unreachable: the daemon cannot be reached from here; nothing was written.
        UsageError: an option is unknown or not possible; nothing was written.
        Conflict: the `idempotency_key` belongs to a submission of other rows, which is named.
        OpsqError: nothing was submitted; over Spark Connect also, the submission was made, but is gone already.

    Effects: in a session of Spark Connect the data source writes, on the server. It does not tell which submission it
        made: with a `unique_key` the id may be that of one that has taken the key since, if the holder ends meanwhile.
    """
    return write_named(frame, named_options(**options))


def write_named(frame: DataFrame, named: dict[str, str]) -> int:
    """The same, with options as Spark has them."""
    from opsq.spark.session.spark_session import is_remote

    given = parse_write(named)
    if is_remote(frame.sparkSession):
        return _write_by_source(frame, given, named)
    from opsq.spark.source.frame_write import write_frame

    return write_frame(frame, given)


def _write_by_source(frame: DataFrame, given: WriteOptions, named: dict[str, str]) -> int:
    unique = given.rules.get("unique_key")
    if unique is None:
        named = {"idempotencyKey": f"spark-{uuid.uuid4().hex}"} | named
    with resolve(given.daemon).open() as queue:
        newest_id, holder_id = (0, None) if unique is None else _before_unique(queue, unique)
        frame.write.format("opsq").mode("append").options(**named).save()
        if unique is None:
            found = queue.find(named["idempotencyKey"])
            made: int | None = None if found is None else found.id
        else:
            since = takewhile(lambda state: state.submission_id > newest_id, queue.submissions())
            made = next((state.submission_id for state in since if state.unique_key == unique), holder_id)
    if made is None:
        raise NotFound("The submission was made, and is not known any more.", hint="`opsq history` has its events.")
    return made


def named_options(**options: Unpack[WriteKeywords]) -> dict[str, str]:
    """The options of a write, as Spark has them, for the keyword arguments of `write`.

    Raises:
        UsageError: one is unknown or cannot be, or two say the same.
    """
    check_keywords(options, WriteKeywords, "opsq.spark.write")
    named: dict[str, str] = {}
    keywords: dict[str, str] = {}
    for keyword, value in options.items():
        if value is None:
            continue
        name, written = keyword_option(keyword, value)
        if name in keywords:
            raise UsageError(f"{keywords[name]} and {keyword} cannot be combined.")
        keywords[name], named[name] = keyword, _write_text(name, written)
    return named


def _before_unique(queue: Queue, key: str) -> tuple[int, int | None]:
    """The newest submission, and the one that holds a unique key; ids grow with time."""
    newest = next(queue.submissions(), None)
    unfinished = queue.submissions(states=UNFINISHED_STATES)
    holders = (state.submission_id for state in unfinished if state.holds_unique_key and state.unique_key == key)
    return 0 if newest is None else newest.submission_id, next(holders, None)


def results(
    spark: SparkSession,
    submission: int | str | Sequence[int | str],
    *,
    native: bool = True,
    **options: Unpack[ReadKeywords],
) -> DataFrame:
    """The results of a submission as a DataFrame, read in the fastest way; or those of several together.

    Args:
        spark: the session.
        submission: its id, or a list of ids. Columns that some of several lack are null there; types that differ are
            widened as for the results of one.
        native: let Spark's own reader read Parquet results in a store of files, in no particular order: the first call
            copies them into files that Spark can read, which are removed with the submission. False: use the data
            source, in the order of chunks.
        options: of a read, as keywords: `state_dir="…"`, `metadata_columns="_chunk"`, `dead_chunks="skip"`,
            `columns=["a", "b"]`, …

    Raises:
        NotFinished: it has not ended.
        WorkFailed: a chunk has no result, and `dead_chunks` is not "skip".
        UsageError: no type holds what a column has in all results; it is named.
        Unreachable: the daemon cannot be reached from here.

    Effects: warns how many chunks are skipped. In a session of Spark Connect the data source reads, on the server and
        its executors. The daemon is also checked from here if options say where it is and it can be reached; otherwise
        all errors are Spark's, when the frame is used.
    """
    if isinstance(submission, (int, str)):
        return _results_of_one(spark, submission, native=native, **options)
    ids = list(dict.fromkeys(submission))
    if not ids:
        raise UsageError("No submission is named.", hint="Give one id, or a list of them.")
    frames = [_results_of_one(spark, one, native=native, **options) for one in ids]
    return _together(frames, f"the results of submissions {', '.join(map(str, ids))}") if len(ids) > 1 else frames[0]


def _together(frames: list[DataFrame], what: str) -> DataFrame:
    """All rows of the frames, in the columns of all."""
    from opsq.spark.formats.schema_merge import merged
    from opsq.spark.formats.schemas import nullable

    schema = merged([nullable(frame.schema) for frame in frames], what=what)
    whole = frames[0].sparkSession.createDataFrame([], schema)
    for frame in frames:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole


def _results_of_one(
    spark: SparkSession, submission: int | str, *, native: bool = True, **options: Unpack[ReadKeywords]
) -> DataFrame:
    from opsq.spark.session.spark_session import is_remote

    check_keywords(options, ReadKeywords, "opsq.spark.results")
    named = {camel_case(name): _text(value) for name, value in options.items() if value is not None}
    parsed = parse_read({**named, "path": str(submission)})
    if is_remote(spark):
        if parsed.daemon.address or parsed.daemon.state_dir:
            # The address, or the file of a token, may be one that only the server sees.
            with contextlib.suppress(Unreachable, InputUnreadable), resolve(parsed.daemon).open() as queue:
                _check(
                    queue,
                    SourceSubmission(queue.submission(parsed.submission).id, "", 0, None, store_of(queue)),
                    parsed,
                )
        return spark.read.format("opsq").options(**named).load(str(submission))
    from opsq.spark.source.batch_reader import find_form
    from opsq.spark.source.joined_results import native_frame  # needs py4j, which clients of Spark Connect may lack

    frame = None
    with resolve(parsed.daemon).open() as queue:
        source = find_source(queue, parsed.submission)
        _check(queue, source, parsed)
        if native and not parsed.metadata_columns and parsed.result_schema is None:
            frame = native_frame(spark, queue, source, find_form(queue, source, parsed))
    if frame is None:
        return spark.read.format("opsq").options(**named).load(str(submission))
    if parsed.columns is None:
        return frame
    from opsq.spark.formats.schemas import quoted

    return frame.select(*map(quoted, parsed.columns))


def _check(queue: Queue, source: SourceSubmission, options: ReadOptions) -> None:
    """Check that the results exist; warn about those that are skipped."""
    state = check_final(queue, source, skips_dead=options.skips_dead)
    lacking = state.chunks_count - state.completed_count
    if lacking:
        warning = (
            f"{lacking} of {counted(state.chunks_count, 'chunk')} of submission {source.submission_id} have no result."
        )
        warnings.warn(warning, stacklevel=4)


def submission_of(
    idempotency_key: str, *, state_dir: str | None = None, address: str | None = None, token: str | None = None
) -> int | None:
    """The id of the submission that a write with this `idempotencyKey` made; None if there is none (any more).

    Spark's writer returns nothing, so this is how a program finds its submission.

    Raises:
        Unreachable: the daemon cannot be reached from here.
    """
    with resolve(DaemonOptions(state_dir=state_dir, address=address, token=token)).open() as queue:
        found = queue.find(idempotency_key)
    return None if found is None else found.id


def sweep(
    *,
    state_dir: str | None = None,
    address: str | None = None,
    token: str | None = None,
    older_than_s: float = SWEEP_AGE_S,
) -> int:
    """Delete what losing attempts left beside the content of submissions.

    The daemon itself deletes folders without a submission.

    Args:
        state_dir: of the daemon.
        address: of the daemon.
        token: for TCP.
        older_than_s: leave folders alone that were written to in so many seconds: a task may still be writing.

    Returns:
        The number of deleted objects.

    Raises:
        UsageError: the age is negative.
        Unreachable, StoreNotVisible: the daemon or its store cannot be reached from here.
    """
    if older_than_s < 0:
        raise UsageError("older_than_s must not be negative.")
    deleted = 0
    with resolve(DaemonOptions(state_dir=state_dir, address=address, token=token)).open() as queue:
        store = queue.contents.store
        before = time.time() - older_than_s
        for folder in list(store.folders()):
            parts = [name for name in store.objects(folder) if name.startswith(f"{STEM}-") and name.count("-") >= 3]
            if not parts or not _is_key(folder) or (store.modified_at(folder) or before) > before:
                continue
            submission = queue.find_request(bytes.fromhex(folder))
            if submission is None:
                continue
            described = content_of(queue, submission.id)
            named = _names(store, described.content) if described is not None else frozenset(parts)
            for name in parts:
                if name not in named:
                    store.delete_object(f"{folder}/{name}")
                    deleted += 1
    return deleted


def _names(store: Store, content: bytes) -> frozenset[str]:
    """The objects that a content consists of."""
    decoded = decode_content(content)
    table = PartTable(store, decoded)
    return frozenset(table[number].name.decode() for number in range(decoded.parts_count))


def _is_key(folder: str) -> bool:
    return len(folder) == 32 and all(digit in "0123456789abcdef" for digit in folder)


def _text(value: object) -> str:
    """The value of an option as text for Spark: lists and mappings as JSON, floats in digits, and true, not True."""
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value)
    if isinstance(value, float):
        return number_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_text(name: str, value: object) -> str:
    """The same for an option of a write, of which one has several numbers in one text."""
    if name == "backoff" and isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return _text(value)
