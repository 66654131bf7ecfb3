"""From Arrow batches to a submission, in the two places where that happens: a task writes a part, the driver hands all over.

This file must not import PySpark; `writer` and `stream` call it with what Spark gave them. Nothing is visible before the
hand-over, and what was not handed over is either withdrawn for good and deleted, or left to the daemon's sweep.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from opsq.content.content_store import Store
from opsq.content.multipart import PartWriter, WrittenPart, compose, digest_of
from opsq.errors import ChunkTooLarge, Conflict, ContentMissing, OpsqError, Unreachable
from opsq.spark.formats import chunk_format
from opsq.spark.formats.decoder import conform
from opsq.spark.formats.encoder import encoder, header_of
from opsq.spark.formats.row_chunker import cut
from opsq.spark.source.daemon_address import PATIENCE_S, Daemon, StoreAccess
from opsq.spark.source.source_options import WriteOptions
from opsq.wire.messages import Describe, Described

STEM = "part"


class PartMessage(NamedTuple):
    """What a task tells the driver: which part of the content it wrote (None: it had no rows)."""

    partition: int
    request_key: bytes
    rows_count: int
    written: WrittenPart | None


class WritePlan(msgspec.Struct, frozen=True):
    """What every task and the commit of one write know in common.

    Attributes:
        options: of the write.
        daemon: to whom the submission goes.
        store: where the content goes.
        schema_json: of the DataFrame.
        request_key: of the submission; its hex digits are the folder. New for each run of a write, so that nothing of one run
            can ever be taken for another's.
    """

    options: WriteOptions
    daemon: Daemon
    store: StoreAccess
    schema_json: str
    request_key: bytes

    @property
    def folder(self) -> str:
        """Of the submission in the store."""
        return self.request_key.hex()


def new_request_key() -> bytes:
    """Names one run of one write."""
    return os.urandom(16)


def submit_options(options: WriteOptions) -> dict[str, Any]:
    """What of the options goes with the submission, as `Producer.submit` calls it."""
    return {
        "metadata": options.metadata,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "on_dead": options.on_dead,
        "expires_s": options.expires_s,
        "reservation_s": options.reservation_s,
        "idempotency_key": options.idempotency_key,
    }


def write_part(
    plan: WritePlan, schema: pa.Schema, batches: Iterable[pa.RecordBatch], partition: int, attempt: int
) -> PartMessage:
    """Cut the rows of one partition into chunks and write them as one object, under a name that no other attempt has.

    Args:
        plan: of the write.
        schema: into which batches are cast.
        batches: the rows.
        partition: its number.
        attempt: makes the name of the object tell whose it is.

    Raises:
        OpsqError: it cannot be written; nothing of this attempt is left.
    """
    options, store = plan.options, plan.store.open()
    rows_count = 0
    with PartWriter(
        store,
        plan.folder,
        f"{STEM}-{partition:05d}-{attempt}",
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
                hint="Give a smaller rowsPerChunk or bytesPerChunk, or raise the daemon's chunk_limit.",
            ) from error
        return PartMessage(partition, plan.request_key, rows_count, writer.finish())


def hand_over(
    plan: WritePlan, messages: Sequence[PartMessage], schema: pa.Schema, *, is_replay_safe: bool = False
) -> int:
    """Make one submission of the parts, in the order of the partitions; durable when this returns.

    Args:
        plan: of the write.
        messages: of the attempts that count.
        schema: of the chunks.
        is_replay_safe: who repeats under the same key means the same rows, so their bytes need not be compared.

    Returns:
        The id of the submission; with an idempotency key it may be one that was made before, of the same chunks.

    Raises:
        Conflict: the idempotency key has made a submission of other chunks, which is named.
        ContentMissing: a part is not there any more; nothing was submitted.
        OpsqError: as `Producer.submit`.
    """
    ordered = sorted(messages, key=lambda message: message.partition)
    parts = [message.written for message in ordered if message.written is not None]
    told = chunk_format.About(
        plan.options.chunk_format, plan.schema_json, sum(message.rows_count for message in ordered), digest_of(parts)
    )
    store = plan.store.open()
    _check_there(store, plan.folder, parts)
    content = compose(
        store,
        plan.folder,
        parts,
        header=header_of(plan.options.chunk_format, schema) if parts else b"",
        about=chunk_format.encode(told),
        is_durable=plan.store.is_durable,
    )
    with plan.daemon.open(patience_s=PATIENCE_S) as queue:
        new = queue.describe(plan.request_key, content, **submit_options(plan.options))
        submission = queue.submit_many([new], wait_for_room=plan.options.wait_for_room)[0]
        if submission.is_new:
            with contextlib.suppress(OpsqError):  # it is made, whatever is left beside it: `sweep` finds that
                drop_losers(plan, {part.name for part in parts})
        elif not is_replay_safe:
            described = queue.link.call(Describe(queue.link.next_id(), [submission.id]), Described).submissions
            made = chunk_format.about_of(described[0].content, store) if described else None
            # A hand-over that was resent finds its own submission, a repeated one that of the first; both are of the same chunks.
            if made is None or made.digest != told.digest:
                raise Conflict(
                    f"The idempotencyKey {plan.options.idempotency_key!r} is held by submission {submission.id}, made of other chunks.",
                    hint=f"See `opsq show {submission.id}`; other rows, in another order or cut otherwise, need another key.",
                )
        return submission.id


def _check_there(store: Store, folder: str, parts: Sequence[WrittenPart]) -> None:
    """See to it that no part was deleted since it was written: a daemon deletes folders that no submission names after a day."""
    missing = {part.name for part in parts}.difference(store.objects(folder)) if parts else set()
    if missing:
        raise ContentMissing(
            f"{len(missing)} of {len(parts)} parts that were written are gone, {min(missing)} for one, so nothing was submitted.",
            hint="Write again. The daemon deletes what was written and not handed over if nothing is added to it for a day.",
        )


def drop_losers(plan: WritePlan, names: set[str]) -> None:
    """Delete what attempts that lost have left in the folder; what they write later is found by `sweep`."""
    store = plan.store.open()
    for name in list(store.objects(plan.folder)):
        if name.startswith(f"{STEM}-") and name not in names:
            store.delete_object(f"{plan.folder}/{name}")


def take_back(daemon: Daemon, store: StoreAccess, request_key: bytes) -> int | None:
    """End a write that failed: unless it has been handed over, it never will be, and its content is deleted.

    Returns:
        The id of the submission, if it was handed over although the caller heard of a failure: it goes on.
    """
    try:
        with daemon.open(patience_s=PATIENCE_S) as queue:
            submission = queue.withdraw(request_key)
    except Unreachable:
        return None  # whether it was handed over is not known: if not, the daemon's own sweep finds a folder that nobody names
    if submission is not None:
        return submission.id
    store.open().delete_folder(request_key.hex())
    return None


def _conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    """Spark's batches (moments in the zone of the session, perhaps large types) in the types that are kept."""
    for batch in batches:
        if batch.schema.equals(schema):
            yield batch
            continue
        table = pa.Table.from_batches([batch])
        if batch.schema.names != schema.names:
            table = table.rename_columns(schema.names)
        try:
            yield from conform(table, schema).to_batches()
        except pa.ArrowException as error:
            raise OpsqError(f"Spark's rows do not fit its schema: {error}") from error
