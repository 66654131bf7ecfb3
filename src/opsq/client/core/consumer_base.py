"""What blocking and asyncio consumers share: reserves on their way, answers to them and to verdicts, what was lost.

This file does no I/O but the log; when to send, and how to wait, differs in sync/ and aio/.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opsq.client.core.arguments import converted, delay
from opsq.client.core.consume_options import OnLost
from opsq.client.core.held_block import HeldBlock, Lost, Result
from opsq.client.core.ledger import Ledger
from opsq.client.core.pending_requests import id_of
from opsq.client.core.prefetch import Prefetch
from opsq.client.core.verdict_batch import UNANSWERED_LIMIT_COUNT, FailedRun, VerdictBatch
from opsq.errors import OpsqError, Refused, StorageFull, UsageError
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import (
    ChunkMask,
    Completed,
    Draining,
    ErrorReply,
    HeldChunks,
    Reply,
    Request,
    Reserve,
    Reserved,
    Revoked,
)

if TYPE_CHECKING:
    from opsq.client.core.content_access import Contents
    from opsq.content.result_objects import ResultWriter
    from opsq.wire.messages import SubmissionContent

RETRY_S = 1.0
"""After a refusal that may pass (no room, drained), the next try comes this much later."""
_WRITERS_LIMIT = 256
"""How many submissions have their writer of large results kept; one that comes back later gets another object."""
CLOSE_S = 5.0
"""How long `close` waits for the answers to the last verdicts."""


class Ask:
    """A reserve on its way."""

    __slots__ = ("blocks", "error", "reply", "request")

    def __init__(self, request: Reserve) -> None:
        self.request = request
        self.reply: Reserved | None = None
        self.blocks: list[HeldBlock] = []
        self.error: OpsqError | None = None

    def is_over(self) -> bool:
        """Whether its answer is there."""
        return self.reply is not None or self.error is not None


def is_one_over(asks: Iterable[Ask]) -> bool:
    """Whether the answer to any of them is there; not always that to the first: each waits at several shards."""
    return any(ask.is_over() for ask in asks)


def pop_over(asks: list[Ask]) -> Ask:
    """Take out the first whose answer is there; there must be one."""
    return asks.pop(next(place for place, ask in enumerate(asks) if ask.is_over()))


class ConsumerBase(ABC):
    """The state of one consumer.

    Args:
        strategy: the order in which chunks are wanted: text, or a tree of `opsq.strategy`.
        batch: how many chunks to reserve at once; None: about a quarter of a second of work.
        lease_s: reserve by leases of this length, which outlive the connection; None: until the connection ends.
        on_lost: is given chunks that were taken away or whose report was refused; None: a warning in the log `opsq`.
    """

    def __init__(self, strategy: object, batch: int | None, lease_s: float | None, on_lost: OnLost | None) -> None:
        if batch is not None and converted("batch", batch, operator.index, "a whole number, or None") < 1:
            raise UsageError(f"batch is {batch}; it must be at least 1, or None.")
        self.strategy = str(strategy)
        self.is_ended = False
        """Whether the daemon said that nothing can come any more (see `until_empty`)."""
        self._lease_s = lease_s
        self._on_lost = on_lost or log_lost
        self._lock = threading.Lock()  # _ledger, _verdicts and _asks
        self._prefetch = Prefetch(batch)
        self._ledger = Ledger()
        self._verdicts = VerdictBatch(self._ledger, self._next_id)
        self._asks: dict[int, Ask] = {}
        self._ask: Ask | None = None
        """The reserve on its way whose chunks are handed out one by one."""
        self._ask_at = 0.0
        self._is_fresh = False
        """Chunks have arrived and none of them was handed out."""
        self._is_stopping = False
        self._writers: dict[int, ResultWriter] = {}
        self._unsynced: set[int] = set()
        self._lost_objects: dict[str, OpsqError] = {}
        """What could not be synced: a completion that names it is never sent, whenever it is entered."""
        self._attachments: dict[int, bytes | None] = {}

    _contents: Contents

    @property
    @abstractmethod
    def name(self) -> str:
        """The id under which the daemon knows this consumer now."""

    @abstractmethod
    def _next_id(self) -> int:
        """An id for the next request."""

    @abstractmethod
    def _flush_within(self, delay_s: float) -> None:
        """Have the verdicts sent in at most `delay_s` seconds."""

    @property
    def expired(self) -> dict[tuple[int, int], int]:
        """By submission and block, the mask of chunks whose reservation ended by itself."""
        with self._lock:
            return dict(self._ledger.expired)

    @property
    def unsettled_count(self) -> int:
        """How many reports were not sent, or were not answered."""
        return self._verdicts.buffered_count + self._verdicts.unanswered_count

    # --- what a loop waits for ----------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        return bool(self._ledger.ready_count or self._ask is None or self._is_stopped())

    def _is_stopped(self) -> bool:
        return self._is_stopping or bool(self._verdicts.errors)

    def _is_waiting(self) -> bool:
        """Whether somebody waits for a chunk, for which the verdict on another one may make room."""
        return self._ask is not None and not self._ledger.ready_count

    def _has_room(self) -> bool:
        return self._verdicts.unanswered_count <= UNANSWERED_LIMIT_COUNT or bool(self._verdicts.errors)

    def _surface(self) -> None:
        """Report what was lost, raise what went wrong."""
        while self._ledger.lost:
            self._on_lost(self._ledger.lost.popleft())
        if self._verdicts.errors:
            raise self._verdicts.errors.popleft()

    # --- verdicts on blocks -------------------------------------------------------------------------------------------

    def _enter_completed(self, blocks: Sequence[HeldBlock], results: Sequence[Result] | None, run_s: float) -> None:
        """Enter that all chunks of some blocks are done."""
        whole_s = delay("run_s", run_s) or 0.0
        first = 0
        with self._lock:
            for block in blocks:
                count = block.granted.bit_count()
                part = None if results is None else results[first : first + count]
                self._verdicts.complete(block, block.granted, part, run_s=whole_s / len(blocks))
                first += count

    def _enter_failed(self, blocks: Sequence[HeldBlock], failed: FailedRun, mask: int | None) -> None:
        """Enter that attempts failed; None: at all chunks of the blocks."""
        with self._lock:
            for block in blocks:
                self._verdicts.fail(block, block.granted if mask is None else mask, failed)

    def _enter_released(self, blocks: Sequence[HeldBlock], mask: int | None) -> None:
        """Enter that chunks are given back; None: all of the blocks."""
        with self._lock:
            for block in blocks:
                self._verdicts.release(block, block.granted if mask is None else mask)

    def _lose(self, block: HeldBlock, bit: int, error: OpsqError) -> None:
        """Give back a chunk whose result has no place any more, and report it as lost."""
        with self._lock:
            self._verdicts.release(block, 1 << bit)
            self._ledger.lost.append(Lost(block.submission_id, block.handle(bit).index, error.code, error.message))

    def _let_go(self, blocks: Sequence[HeldBlock], mask: int | None = None) -> None:
        """Give back what has come and nobody gets, all of the blocks or a part: heartbeats would keep it reserved."""
        self._enter_released(blocks, mask)
        self._flush_within(0.0)

    def _give_up(self, ask: Ask) -> bool:
        """Give back what a reserve brings, now or later; whether its answer is still to come, and may be cancelled."""
        with self._lock:
            is_waiting = self._asks.pop(ask.request.id, None) is not None
        self._let_go(ask.blocks)
        return is_waiting

    def _is_last(self, ask: Ask) -> bool:
        """Whether a reserve brings nothing, and later ones would not either."""
        return not ask.blocks and (self._is_stopping or ask.reply is None or ask.reply.is_empty)

    # --- what is sent -------------------------------------------------------------------------------------------------

    def _new_reserve(self, count: int, wait_s: float | None, until_empty: bool, strategy: object = None) -> Reserve:
        """A reserve that can be sent: one that cannot would cost the verdicts that travel with it.

        Raises:
            UsageError: an argument is none.
        """
        wanted = self.strategy if strategy is None else str(strategy)
        return checked(Reserve(self._next_id(), count, wanted, wait_s, self._lease_s, until_empty))

    def _take_requests(self, ask: Ask | None) -> tuple[list[Request], set[int]]:
        """All verdicts, and with them a reserve; and the submissions whose results have to be synced before."""
        with self._lock:
            requests = self._verdicts.requests()
            if ask is not None:
                self._asks[ask.request.id] = ask
                self._verdicts.with_reserve(requests, ask.request)
            unsynced: set[int] = set()
            if requests:  # else nothing is sent, nor synced: a result may be stored whose verdict is yet to be given
                unsynced, self._unsynced = self._unsynced, unsynced
        return requests, unsynced

    def _writer_of(self, described: SubmissionContent) -> ResultWriter:
        """What appends the large results of a submission; they are synced before the next completions are sent."""
        submission_id = described.submission_id
        writer = self._writers.pop(submission_id, None) or self._contents.result_writer(described, self.name)
        self._writers[submission_id] = writer  # the last one used is the last
        self._unsynced.add(submission_id)
        if len(self._writers) > _WRITERS_LIMIT:
            synced = [each for each in self._writers if each not in self._unsynced]
            for each in synced[: len(self._writers) - _WRITERS_LIMIT]:
                del self._writers[each]
        return writer

    def _sync(self, submission_id: int) -> None:
        """Make the large results of a submission durable; what is lost is noted.

        Raises:
            OpsqError: they are not yet written, and kept for another try.
        """
        writer = self._writers[submission_id]
        try:
            writer.sync()
        except OpsqError as error:
            if not writer.lost:
                raise
            with self._lock:
                self._lost_objects.update(dict.fromkeys(writer.lost, error) | self._lost_objects)

    def _sendable(self, requests: list[Request]) -> list[Request]:
        """The requests without the completions that name lost results."""
        if not self._lost_objects:
            return requests
        with self._lock:
            kept = self._verdicts.withhold(requests, self._lost_objects)
            if self._verdicts.buffered_count:
                self._flush_within(0.0)
        return kept

    def _not_sent(self, requests: Sequence[Request], unsynced: set[int], error: BaseException) -> None:
        """Answer requests that could not be sent; an interrupt counts as a refusal that may pass."""
        with self._lock:
            self._unsynced |= unsynced
        known = error if isinstance(error, OpsqError) else StorageFull("Sending was interrupted.")
        for request in requests:
            if request_id := id_of(request):
                self._answered(ErrorReply.of(request_id, known))

    def _release_all(self) -> list[int]:
        """Give back what has no verdict; returns the ids of reserves on their way, which are to be cancelled."""
        with self._lock:
            self._verdicts.release_all()
            asks, self._asks = self._asks, {}
            for ask in asks.values():
                ask.error = UsageError("The consumer was closed, or its loop was left, while this waited.")
        self._ask = None
        return list(asks)

    def _warn_of_unanswered(self) -> None:
        count = self._verdicts.unanswered_count
        if count:
            logging.getLogger("opsq").warning(
                "Closed before the daemon acknowledged the chunks of %d blocks; they may be offered again.", count
            )

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _answered(self, reply: Reply) -> None:
        """Take an answer; called by whichever thread reads."""
        with self._lock:
            ask = self._asks.get(getattr(reply, "id", 0))
            if not isinstance(reply, Reserved):
                self._verdicts.answer(reply)
                if self._verdicts.is_again_due:
                    self._flush_within(RETRY_S)
                if ask is not None and isinstance(reply, ErrorReply):
                    del self._asks[reply.id]
                    ask.error = reply.error()
                    self._refused(ask, ask.error)
                return
            if ask is None or self._is_stopping:
                for block in self._ledger.add_grants(reply):
                    self._verdicts.release(block, block.granted)
                self._flush_within(0.0)
            if ask is not None:
                del self._asks[reply.id]
                ask.reply = reply if not self._is_stopping else Reserved(reply.id)
                ask.blocks = self._ledger.add_grants(ask.reply)
                self._reserved(ask, ask.reply)

    def _extended(self, block: HeldBlock, lease_s: float | None, reply: Reply) -> None:
        """Take the answer to an extension, by which heartbeats come from now on."""
        if lease_s is not None and isinstance(reply, Completed) and not reply.refusals:
            with self._lock:
                self._ledger.extended(block, lease_s)

    def _reserved(self, ask: Ask, reply: Reserved) -> None:
        """Take what was reserved; the lock is held."""
        if ask is not self._ask:
            return
        self._ask = None
        if ask.blocks:
            self._ledger.offer(ask.blocks)
            self._is_fresh = True
        elif reply.is_empty or ask.request.wait_s is not None:
            self.is_ended = True
        else:  # drained: the daemon is about to end
            self._ask_at = time.monotonic() + RETRY_S

    def _refused(self, ask: Ask, error: OpsqError) -> None:
        """Note that a reserve was refused; the lock is held."""
        if ask is not self._ask:
            return
        self._ask = None
        if isinstance(error, Refused):
            self._ask_at = time.monotonic() + RETRY_S
        else:
            self._verdicts.errors.append(error)

    def _shortest_s(self) -> float:
        """The shortest reservation that heartbeats keep; a lease needs none."""
        return self._ledger.shortest_s if self._lease_s is None else math.inf

    def _pushed(self, push: Revoked | Draining) -> None:
        if isinstance(push, Revoked):
            with self._lock:
                self._ledger.revoked(push)

    def _holdings(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        with self._lock:
            return self._ledger.holdings()

    def _reclaimed(self, reply: Reply) -> None:
        with self._lock:
            self._ledger.reclaimed(reply)


def log_lost(lost: Lost) -> None:
    """Say in the log `opsq` that a chunk was lost."""
    logging.getLogger("opsq").warning(
        "The reservation of chunk %d/%d was lost (%s): %s", lost.submission_id, lost.index, lost.code, lost.message
    )
