"""Makes a submission of Arrow batches in two steps: each task writes a part, the driver submits all parts.

This file must not import PySpark; `batch_writer` and `stream` call it with what Spark gave them. Nothing is visible
before the parts are submitted; parts that are not submitted are withdrawn for good and deleted, or left to the daemon's
sweep.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from opsq import traces
from opsq.content.content_store import Store
from opsq.content.multipart import PartWriter, WrittenPart, compose, digest_of
from opsq.errors import ChunkTooLarge, Conflict, ContentMissing, OpsqError, Unreachable, UsageError
from opsq.spark.formats import chunk_format
from opsq.spark.formats.chunk_format import ChunkFormat, read_chunk_format
from opsq.spark.formats.decoder import conform
from opsq.spark.formats.encoder import encoder, header_of
from opsq.spark.formats.row_chunker import cut
from opsq.spark.source.daemon_address import PATIENCE_S, Daemon, StoreAccess, content_of
from opsq.spark.source.source_options import WriteOptions

STEM = "part"


class PartMessage(NamedTuple):
    """What a task reports to the driver: which part of the content it wrote (None: it had no rows)."""

    partition: int
    request_key: bytes
    rows_count: int
    written: WrittenPart | None


class WritePlan(msgspec.Struct, frozen=True):
    """What all tasks and the commit of one write share.

    Attributes:
        options: of the write.
        daemon: receives the submission.
        store: receives the content.
        schema_json: of the DataFrame.
        request_key: of the submission; its hex digits name the folder. Each run of a write has its own, so that no part
            of one run can be mistaken for another's.
        has_folder: the driver has made the folder, so a task does not: one that comes after the write was withdrawn
            leaves nothing.
    """

    options: WriteOptions
    daemon: Daemon
    store: StoreAccess
    schema_json: str
    request_key: bytes
    has_folder: bool = False

    @property
    def folder(self) -> str:
        """The submission's folder in the store."""
        return self.request_key.hex()


def begin(plan: WritePlan) -> WritePlan:
    """Make the folder of a write, before any task."""
    plan.store.open().ensure_folder(plan.folder)
    return msgspec.structs.replace(plan, has_folder=True)


def write_part(
    plan: WritePlan, schema: pa.Schema, batches: Iterable[pa.RecordBatch], partition: int, attempt: int
) -> PartMessage:
    """Cut the rows of one partition into chunks and write them as one object, under a name unique to this attempt.

    Args:
        plan: of the write.
        schema: that batches are cast to.
        batches: the rows.
        partition: its number.
        attempt: part of the object's name.

    Raises:
        OpsqError: the part cannot be written; this attempt leaves nothing behind.
    """
    options, store = plan.options, plan.store.open()
    rows_count = 0
    with PartWriter(
        store,
        plan.folder,
        f"{STEM}-{partition:05d}-{attempt}",
        makes_folder=not plan.has_folder,
        chunk_limit_bytes=plan.store.chunk_limit_bytes,
        is_durable=plan.store.is_durable,
    ) as writer:
        pieces = cut(
            _conformed(batches, schema),
            encoder(options.chunk_format, schema),
            rows_per_chunk=options.rows_per_chunk,
            bytes_per_chunk=options.bytes_per_chunk,
        )
        try:
            for piece in pieces:
                writer.add_chunk(piece.payload)
                rows_count += piece.rows_count
        except ChunkTooLarge as error:
            raise ChunkTooLarge(
                f"In partition {partition}: {error.message}",
                hint="Give a smaller rowsPerChunk or bytesPerChunk, or raise the daemon's chunk_limit_bytes.",
            ) from error
        return PartMessage(partition, plan.request_key, rows_count, writer.finish())


def submit_parts(
    plan: WritePlan, messages: Sequence[PartMessage], schema: pa.Schema, *, is_replay_safe: bool = False
) -> int:
    """Make one submission of the parts, in the order of the partitions; durable when this returns.

    Args:
        plan: of the write.
        messages: of the attempts that count.
        schema: of the chunks.
        is_replay_safe: a repetition under the same key always has the same rows, so their bytes need not be compared.

    Returns:
        The id of the submission; with an idempotency key it may be an earlier one of the same chunks, and with a unique
        key the unfinished one that holds it, whatever its chunks.

    Raises:
        Conflict: the idempotency key belongs to a submission of other chunks, which is named.
        ContentMissing: a part no longer exists; nothing was submitted.
        OpsqError: as `Producer.submit`.
    """
    ordered = sorted(messages, key=lambda message: message.partition)
    parts = [message.written for message in ordered if message.written is not None]
    described = ChunkFormat(
        plan.options.chunk_format, plan.schema_json, sum(message.rows_count for message in ordered), digest_of(parts)
    )
    store = plan.store.open()
    _check_there(store, plan.folder, parts)
    content = compose(
        store,
        plan.folder,
        parts,
        header=header_of(plan.options.chunk_format, schema) if parts else b"",
        about=chunk_format.encode(described),
        is_durable=plan.store.is_durable,
    )
    trace = plan.options.traceparent or traces.current()
    with plan.daemon.open(is_planned=True) as queue, traces.given(trace):
        new = queue.describe(plan.request_key, content, **plan.options.rules)
        submission = queue.submit_many([new], wait_for_room=plan.options.wait_for_room)[0]
        if not content.is_stored:
            store.delete_folder(plan.folder)
        if submission.is_new:
            with contextlib.suppress(OpsqError):  # the submission exists; `sweep` finds what is left beside it
                delete_losing_parts(plan, {part.name for part in parts})
        elif not is_replay_safe and "unique_key" not in plan.options.rules:
            found = content_of(queue, submission.id)
            earlier = None if found is None else read_chunk_format(found.content, store)
            # A resent request finds its own submission, a repeated write the first one; both have the same chunks.
            if earlier is None or earlier.digest != described.digest:
                key = plan.options.rules.get("idempotency_key")
                raise Conflict(
                    f"The idempotencyKey {key!r} is held by submission {submission.id}, which has other chunks.",
                    hint=f"See `opsq show {submission.id}`; different rows, in a different order or cut differently, "
                    f"need another key.",
                )
        return submission.id


def _check_there(store: Store, folder: str, parts: Sequence[WrittenPart]) -> None:
    """Check that all parts still exist: a daemon deletes folders without a submission after a day."""
    missing = {part.name for part in parts}.difference(store.objects(folder)) if parts else set()
    if missing:
        raise ContentMissing(
            f"{len(missing)} of {len(parts)} parts are gone ({min(missing)} is one), so nothing was submitted.",
            hint="Write again. The daemon deletes parts that were not submitted if nothing is added to them for a day.",
        )


def delete_losing_parts(plan: WritePlan, names: set[str]) -> None:
    """Delete what losing attempts left in the folder; `sweep` finds what they write later."""
    store = plan.store.open()
    for name in list(store.objects(plan.folder)):
        if name.startswith(f"{STEM}-") and name not in names:
            store.delete_object(f"{plan.folder}/{name}")


def withdraw(daemon: Daemon, store: StoreAccess, request_key: bytes) -> int | None:
    """End a failed write: unless it has been submitted it never will be, and its content is deleted.

    Returns:
        The id of the submission, if it was submitted although Spark saw a failure: it goes on.
    """
    try:
        with daemon.open(patience_s=PATIENCE_S) as queue:
            submission = queue.withdraw(request_key)
    except Unreachable:
        return None  # it may have been submitted; if not, the daemon's own sweep finds its folder
    if submission is not None:
        return submission.id
    store.open().delete_folder(request_key.hex())
    return None


def _conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    """Spark's batches (timestamps in the session's time zone, perhaps large types) cast to the stored types."""
    for batch in batches:
        if batch.schema.equals(schema):
            yield batch
            continue
        table = pa.Table.from_batches([batch])
        if batch.schema.names != schema.names:
            table = table.rename_columns(schema.names)
        try:
            yield from conform(table, schema).to_batches()
        except (pa.ArrowException, UsageError) as error:
            raise OpsqError(f"Spark's rows do not fit its schema: {error}") from error
