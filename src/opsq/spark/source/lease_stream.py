"""What a stream of chunks does without Spark: reserve chunks by lease, extend, acknowledge and reclaim them.

This file must not import PySpark. Reserved chunks are identified by tokens, which are stored in the query's checkpoint:
a replayed batch names its chunks by them, and the daemon knows nothing of the query but its leases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from opsq.client.sync.queue import Queue
from opsq.content.manifest import decode
from opsq.errors import NotFound, OpsqError, UsageError
from opsq.ids import mask_indexes
from opsq.spark.formats.chunk_format import ChunkFormat, read_chunk_format
from opsq.spark.source.daemon_address import Daemon, content_of
from opsq.spark.source.result_fetch import Fetched, Pieces
from opsq.wire.messages import (
    Complete,
    Completed,
    Completion,
    Explain,
    Explained,
    Extend,
    HeldChunks,
    Reclaim,
    Refusal,
    Reserve,
    Reserved,
    SubmissionContent,
)

_log = logging.getLogger("opsq")


class StreamPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a stream of chunks has come: an offset of Spark.

    Attributes:
        ordinal: how many chunks were reserved so far.
        held: those reserved last, since the position before, in the order of the strategy.
    """

    ordinal: int
    held: list[HeldChunks]

    def offset(self) -> dict[str, Any]:
        """As Spark writes it to the checkpoint, before it runs the batch."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def position_of(offset: dict[str, Any]) -> StreamPosition:
    """The position that an offset means.

    Raises:
        UsageError: it belongs to another kind of stream.
    """
    try:
        return msgspec.convert(offset, StreamPosition)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"The checkpoint does not belong to a stream of chunks: {error}.",
            hint="Give each query a checkpointLocation of its own.",
        ) from error


class LeaseStream:
    """The connection of a query, and a thread that extends its leases; for one process.

    Args:
        daemon: has the chunks.
        consumer: the name of the query in `status` and in the history.
        strategy: the order of the chunks.
        lease_s: how long chunks stay reserved when the query is gone.
    """

    def __init__(self, daemon: Daemon, consumer: str, strategy: str, lease_s: float) -> None:
        self._strategy = strategy
        self._lease_s = lease_s
        self._taken: list[HeldChunks] = []
        """The current batch, as its offset names it."""
        self._kept: list[HeldChunks] = []
        """The part of it that can be read."""
        self._is_over = threading.Event()
        self._queue = daemon.open(is_planned=True, name=consumer)
        self._keeper = threading.Thread(target=self._keep_on, name="opsq-keeper", daemon=True)
        self._keeper.start()

    def reserve(self, count: int, wait_s: float) -> list[HeldChunks]:
        """Reserve up to `count` chunks by one lease, waiting for the first; earlier leases are no longer extended."""
        link = self._queue.link
        reply = link.call(Reserve(link.next_id(), count, self._strategy, wait_s, self._lease_s), Reserved)
        self._taken = self._kept = [HeldChunks.of_grant(reply.reservation_id, grant) for grant in reply.grants]
        return self._kept

    def reclaim(self, held: list[HeldChunks]) -> list[HeldChunks]:
        """Reserve again what an earlier run of the query had reserved, unless another consumer has it now.

        Returns:
            All chunks that can still be read, in the same order, whichever consumer has them now: a replayed batch is
                the same batch.
            Chunks of submissions that were removed in the meantime cannot be read.
        """
        if held == self._taken:
            return self._kept
        removed = {number for number in {one.submission_id for one in held} if not self._is_known(number)}
        for number in sorted(removed):
            _log.warning("Submission %s was removed: its chunks are left out of the batch.", number)
        self._taken = held
        self._kept = [one for one in held if one.submission_id not in removed]
        self._keep(self._kept)
        return self._kept

    def acknowledge(self, held: Sequence[HeldChunks]) -> list[Refusal]:
        """Complete chunks with empty results; durable on return, and safe to repeat.

        Returns:
            The chunks whose reservation was lost: other consumers finished them, or their submission has ended.
        """
        if not held:
            return []
        link = self._queue.link
        completions = [Completion(one) for one in held]
        refusals = link.call(Complete(link.next_id(), completions), Completed).refusals
        for refusal in refusals:
            _log.warning(
                "The stream lost its reservation of chunks of submission %s: %s", refusal.submission_id, refusal.message
            )
        return refusals

    def waiting_count(self) -> int:
        """The number of waiting chunks, of all submissions."""
        return self._queue.status().total.waiting_count

    def close(self) -> None:
        """End connection and thread. The leases stay: the query may be restarted."""
        self._is_over.set()
        self._queue.close()
        self._keeper.join()

    def _keep_on(self) -> None:
        while not self._is_over.wait(self._lease_s / 3):
            try:
                self._keep(self._kept)
            except OpsqError as error:
                if not self._is_over.is_set():
                    _log.warning("The leases of the stream could not be extended: %s", error.message)

    def _keep(self, held: Sequence[HeldChunks]) -> None:
        """Reclaim chunks that no other consumer has, and extend them to a full lease from now."""
        if not held:
            return
        link = self._queue.link
        refused: dict[tuple[int, int], int] = {}
        for refusal in link.call(Reclaim(link.next_id(), list(held), self._lease_s), Completed).refusals:
            key = refusal.submission_id, refusal.block
            refused[key] = refused.get(key, 0) | refusal.mask
        # One token stands for its whole reservation.
        ours: dict[int, HeldChunks] = {}
        for one in held:
            mask = one.mask & ~refused.get((one.submission_id, one.block), 0)
            if mask:
                ours[one.reservation_id] = msgspec.structs.replace(one, mask=mask)
        if ours:
            link.call(Extend(link.next_id(), list(ours.values()), self._lease_s), Completed)

    def _is_known(self, submission_id: int) -> bool:
        try:
            self._queue.submission(submission_id).state()
        except NotFound:
            return False
        return True


def describe(queue: Queue, submission_id: int) -> SubmissionContent:
    """The description of a submission whose chunks are to be read.

    Raises:
        NotFound: it was removed.
    """
    described = content_of(queue, submission_id)
    if described is None:
        raise NotFound(
            f"Submission {submission_id} was removed while a stream had chunks of it; after a restart it continues "
            f"without them."
        )
    return described


def chunk_format_of(queue: Queue, described: SubmissionContent) -> ChunkFormat | None:
    """The format stored with a submission; None: it was not made from a DataFrame."""
    content = decode(described.content)
    return read_chunk_format(described.content, queue.contents.store) if content.about or content.about_object else None


def next_submission(queue: Queue, strategy: str) -> SubmissionContent | None:
    """The submission whose chunk would be handed out now; None: no chunk is waiting.

    Raises:
        InvalidStrategy: it cannot be parsed.
    """
    offers = queue.link.call(Explain(queue.link.next_id(), strategy, analyze=True), Explained).offers
    return describe(queue, offers[0].submission_id) if offers else None


def read_chunks(queue: Queue, described: SubmissionContent, pieces: Iterable[Pieces]) -> Iterator[Fetched]:
    """The bytes of chunks of one submission, in the order of the pieces."""
    reader = queue.contents.reader(described)
    for piece in pieces:
        payloads = reader.read_block(piece.block, piece.mask)
        for index, payload in zip(mask_indexes(piece.block, piece.mask), payloads, strict=True):
            yield Fetched(index, payload)
