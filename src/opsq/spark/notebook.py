"""What a notebook calls beside Spark's own reader and writer: registration, results, the id of a write, sweeping.

This file must not do what the data source does; it only asks Spark or the daemon.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from typing import TYPE_CHECKING

from opsq.content.manifest import PartTable
from opsq.content.manifest import decode as decode_content
from opsq.errors import InputUnreadable, Unreachable, UsageError
from opsq.spark.source.commit import STEM
from opsq.spark.source.daemon_address import resolve, store_of
from opsq.spark.source.result_fetch import Made, check_final, look_up
from opsq.spark.source.source_options import Reach, ReadOptions, parse_read
from opsq.wire.messages import Describe, Described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.queue import Queue
    from opsq.content.content_store import Store

SWEEP_AGE_S = 24 * 3600.0
"""An object that no submission names is left alone for this long: a task may still be writing it."""


def register(spark: SparkSession) -> None:
    """Tell a session of `format("opsq")`; needed only where opsq was installed after the session had looked for data sources.

    Effects: a server of Spark Connect, on which opsq must be installed, no longer shows the option `token` of this session's operations.
    """
    from opsq.spark.session.spark_session import hide_tokens
    from opsq.spark.source.data_source import OpsqDataSource

    hide_tokens(spark)
    spark.dataSource.register(OpsqDataSource)


def results(spark: SparkSession, submission: int | str, *, native: bool = True, **options: object) -> DataFrame:
    """The results of a submission as a DataFrame, by the fastest way there is.

    Args:
        spark: the session.
        submission: its id.
        native: have Parquet results in a store of files read by Spark's own reader, in no order of rows: the first call copies them
            into files that Spark can read, which go with the submission. False: by the data source, in the order of chunks.
        options: those of a read, as keywords: `state_dir="…"`, `metadata_columns="_chunk"`, `dead_chunks="skip"`,
            `columns=["a", "b"]`, …

    Raises:
        NotFinished: it has not ended.
        WorkFailed: a chunk has no result, and `dead_chunks` is not "skip".
        Unreachable: the daemon cannot be reached from here.

    Effects: warns of the number of chunks that are passed over. In a session of Spark Connect the data source reads, on the server and
        its executors. Their daemon is asked from here as well if options say where it is and it can be reached; else all errors
        are Spark's, when the frame is used.
    """
    from opsq.spark.session.spark_session import is_remote
    from opsq.spark.source.batch_reader import find_form
    from opsq.spark.source.joined_results import native_frame

    named = {_camel(name): _text(value) for name, value in options.items()}
    parsed = parse_read({**named, "path": str(submission)})
    if is_remote(spark):
        if parsed.reach.address or parsed.reach.state_dir:
            # The address, or the file of a token, may be one that only the server sees.
            with contextlib.suppress(Unreachable, InputUnreadable), resolve(parsed.reach).open() as queue:
                _check(queue, Made(queue.submission(parsed.submission).id, "", 0, None, store_of(queue)), parsed)
        return spark.read.format("opsq").options(**named).load(str(submission))
    frame = None
    with resolve(parsed.reach).open() as queue:
        made = look_up(queue, parsed.submission)
        _check(queue, made, parsed)
        if native and not parsed.metadata_columns and parsed.result_schema is None:
            frame = native_frame(spark, queue, made, find_form(queue, made, parsed))
    if frame is None:
        return spark.read.format("opsq").options(**named).load(str(submission))
    return frame if parsed.columns is None else frame.select(*map(quoted, parsed.columns))


def quoted(name: str) -> str:
    """The name of a column as Spark's `select` takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _check(queue: Queue, made: Made, options: ReadOptions) -> None:
    """See to it that the results are there; warn of those that are passed over."""
    state = check_final(queue, made, skips_dead=options.skips_dead)
    lacking = state.chunks_count - state.completed_count
    if lacking:
        told = f"{lacking} of {state.chunks_count} chunks of submission {made.submission_id} have no result."
        warnings.warn(told, stacklevel=3)


def submission_of(
    idempotency_key: str, *, state_dir: str | None = None, address: str | None = None, token: str | None = None
) -> int | None:
    """The id of the submission that a write with this `idempotencyKey` made; None if there is none (any more).

    Spark's writer returns nothing, so this is how a program learns what it has made.
    """
    with resolve(Reach(state_dir=state_dir, address=address, token=token)).open() as queue:
        found = queue.find(idempotency_key)
    return None if found is None else found.id


def sweep(
    *,
    state_dir: str | None = None,
    address: str | None = None,
    token: str | None = None,
    older_than_s: float = SWEEP_AGE_S,
) -> int:
    """Delete what attempts that lost have left beside the content of submissions; folders that no submission names are the daemon's care.

    Args:
        state_dir: of the daemon.
        address: of the daemon.
        token: for TCP.
        older_than_s: folders into which something was written since are left alone: a task may still be at it.

    Returns:
        How many objects were deleted.
    """
    if older_than_s < 0:
        raise UsageError("older_than_s is below 0.")
    deleted = 0
    with resolve(Reach(state_dir=state_dir, address=address, token=token)).open() as queue:
        store = queue.contents.store
        before = time.time() - older_than_s
        for folder in list(store.folders()):
            parts = [name for name in store.objects(folder) if name.startswith(f"{STEM}-") and name.count("-") >= 3]
            if not parts or not _is_key(folder) or (store.modified_at(folder) or before) > before:
                continue
            submission = queue.find_request(bytes.fromhex(folder))
            if submission is None:
                continue
            described = queue.link.call(Describe(queue.link.next_id(), [submission.id]), Described).submissions
            named = _names(store, described[0].content) if described else frozenset(parts)
            for name in parts:
                if name not in named:
                    store.delete_object(f"{folder}/{name}")
                    deleted += 1
    return deleted


def _names(store: Store, content: bytes) -> frozenset[str]:
    """The objects that a content is made of."""
    decoded = decode_content(content)
    table = PartTable(store, decoded)
    return frozenset(table[number].name.decode() for number in range(decoded.parts_count))


def _is_key(folder: str) -> bool:
    return len(folder) == 32 and all(digit in "0123456789abcdef" for digit in folder)


def _text(value: object) -> str:
    """The value of an option as Spark hands it on: some names as JSON, and true, not True."""
    if isinstance(value, (list, tuple)):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
