"""What a stream of chunks does without Spark: take chunks by lease, keep them, acknowledge them, read them again.

This file must not import PySpark. What was taken is named by tokens, which travel in the checkpoint of the query: a batch that
is replayed names its chunks by them, and nothing about the query is kept in the daemon but its leases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from opsq.client.sync.queue import Queue
from opsq.errors import NotFound, OpsqError, UsageError
from opsq.ids import mask_indexes
from opsq.spark.formats.chunk_format import About, about_of
from opsq.spark.source.daemon_address import PATIENCE_S, Daemon
from opsq.spark.source.result_fetch import Fetched
from opsq.wire.messages import (
    Complete,
    Completed,
    Completion,
    Describe,
    Described,
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


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a stream of chunks stands: an offset of Spark.

    Attributes:
        ordinal: how many chunks were taken so far.
        held: those that were taken last, from the place before to this one, in the order of the strategy.
    """

    ordinal: int
    held: list[HeldChunks]

    def offset(self) -> dict[str, Any]:
        """As Spark writes it into the checkpoint, before the batch is run."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def place_of(offset: dict[str, Any]) -> Place:
    """The place that an offset stands for.

    Raises:
        UsageError: it is of another kind of stream.
    """
    try:
        return msgspec.convert(offset, Place)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"The checkpoint is not one of a stream of chunks: {error}.",
            hint="Give each query a checkpointLocation of its own.",
        ) from error


class Taker:
    """The connection of a query, and a thread that keeps what was taken from lapsing; for one process.

    Args:
        daemon: whose chunks.
        consumer: what the query is called in `status` and in the history.
        strategy: in which order.
        lease_s: for how long chunks stay reserved when the query is gone.
    """

    def __init__(self, daemon: Daemon, consumer: str, strategy: str, lease_s: float) -> None:
        self._strategy = strategy
        self._lease_s = lease_s
        self._taken: list[HeldChunks] = []
        """The batch at hand, as its offset names it."""
        self._kept: list[HeldChunks] = []
        """What of it can be read."""
        self._is_over = threading.Event()
        self._queue = daemon.open(patience_s=PATIENCE_S, name=consumer)
        self._keeper = threading.Thread(target=self._keep_on, name="opsq-keeper", daemon=True)
        self._keeper.start()

    def take(self, count: int, wait_s: float) -> list[HeldChunks]:
        """Reserve up to so many chunks by one lease; waits for the first of them. What was taken before is kept no more."""
        link = self._queue.link
        reply = link.call(Reserve(link.next_id(), count, self._strategy, wait_s, self._lease_s), Reserved)
        self._taken = self._kept = [
            HeldChunks(
                grant.submission_id, grant.block, grant.mask, reply.reservation_id, grant.attempt, grant.mask, grant.mac
            )
            for grant in reply.grants
        ]
        return self._kept

    def take_again(self, held: list[HeldChunks]) -> list[HeldChunks]:
        """Take up what an earlier run of the query had taken, also where its lease has lapsed and nobody else has it.

        Returns:
            All of it that can still be read, in the same order, whoever has it now: a batch that is replayed is the same batch. Chunks
            of submissions that were removed meanwhile cannot be read.
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
        """Complete chunks, with empty results; durable on return, and may be repeated.

        Returns:
            Which were taken away meanwhile: others have finished them, or their submission is over.
        """
        if not held:
            return []
        link = self._queue.link
        completions = [Completion(one) for one in held]
        refusals = link.call(Complete(link.next_id(), completions), Completed).refusals
        for refusal in refusals:
            _log.warning(
                "Chunks of submission %s were taken away from the stream: %s", refusal.submission_id, refusal.message
            )
        return refusals

    def waiting_count(self) -> int:
        """How many chunks wait, of any submission."""
        return self._queue.status().total.waiting_count

    def close(self) -> None:
        """End connection and thread. The leases stay: the query may be started again."""
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
        """Take up what is not others', and move its deadline to a full lease from now."""
        if not held:
            return
        link = self._queue.link
        refused: dict[tuple[int, int], int] = {}
        for refusal in link.call(Reclaim(link.next_id(), list(held)), Completed).refusals:
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
    """What is needed to read the chunks of a submission.

    Raises:
        NotFound: it was removed.
    """
    described = queue.link.call(Describe(queue.link.next_id(), [submission_id]), Described).submissions
    if not described:
        raise NotFound(
            f"Submission {submission_id} was removed while a stream had chunks of it; started again, it goes on without them."
        )
    return described[0]


def form_of(queue: Queue, described: SubmissionContent) -> About | None:
    """What a DataFrame told of the chunks of a submission; None: it was not made from one."""
    from opsq.content.manifest import decode

    content = decode(described.content)
    return about_of(described.content, queue.contents.store) if content.about or content.about_object else None


def next_submission(queue: Queue, strategy: str) -> SubmissionContent | None:
    """The submission whose chunk would be handed out now; None: there is nothing.

    Raises:
        InvalidStrategy: it cannot be parsed.
    """
    offers = queue.link.call(Explain(queue.link.next_id(), strategy, analyze=True), Explained).offers
    return describe(queue, offers[0].submission_id) if offers else None


def read_chunks(queue: Queue, described: SubmissionContent, chosen: Iterable[tuple[int, int]]) -> Iterator[Fetched]:
    """The bytes of the chunks that (block, mask) pairs name, in that order."""
    reader = queue.contents.reader(described)
    for block, mask in chosen:
        for index, payload in zip(mask_indexes(block, mask), reader.read_block(block, mask), strict=True):
            yield Fetched(index, payload)
