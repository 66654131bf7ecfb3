"""The half of a consumer that talks: verdicts go out in few frames, answers come in, what is lost is told.

This file owns locks, the moment of sending, and large results on their way to the store; what to reserve, and when, is
decided in consumer.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from opsq.client.core.consumer_base import AGAIN_S, CLOSE_S, FLUSH_S, Ask, OnLost, log_lost, not_sent
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import Lot, Result
from opsq.client.core.ledger import BUFFERED_LIMIT_BYTES, BUFFERED_LIMIT_COUNT, UNANSWERED_LIMIT_COUNT, Ledger
from opsq.client.sync.link import Link
from opsq.errors import NotFound, OpsqError, TimedOut, from_code
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Attachment,
    CancelWait,
    ChunkMask,
    Completed,
    Describe,
    Described,
    Draining,
    ErrorReply,
    Extend,
    GetAttachment,
    HeldChunks,
    Reply,
    Reserved,
    Revoked,
    SubmissionContent,
)

if TYPE_CHECKING:
    from opsq.client.sync.connection import Dial
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.result_objects import ResultWriter


class Reporter:
    """What holds chunks over a link and reports on them. Safe for use by many threads.

    Args:
        open_wire: makes a greeted transport.
        reconnect_s: how long to try again when the connection breaks; None: for ever.
        on_lost: told of chunks that were taken away or whose report was refused, by the thread that makes the next
            call; None: a warning in the log `opsq`.
        is_driven: no thread of its own; the owner calls `poll` when `fileno` is readable, and at least as often as
            `next_poll_s` says.
    """

    def __init__(self, open_wire: Dial, *, reconnect_s: float | None, on_lost: OnLost | None, is_driven: bool) -> None:
        self._on_lost = on_lost or log_lost
        self._lock = threading.Lock()  # the ledger, _asks and _unsynced
        self._flushing = threading.RLock()  # requests leave in the order in which the ledger made them
        self._asks: dict[int, Ask] = {}
        self._is_stopping = False
        self._writers: dict[int, ResultWriter] = {}
        self._unsynced: set[int] = set()
        self._attachments: dict[int, bytes | None] = {}
        self._ledger = Ledger(self._next_id)
        self._link = Link(
            open_wire,
            reconnect_s=reconnect_s,
            holdings=self._holdings,
            on_reasserted=self._reasserted,
            on_push=self._pushed,
            on_flush=self._flush_quietly,
            is_driven=is_driven,
        )
        self._contents = Contents(self._link.welcome)

    @property
    def name(self) -> str:
        """The id under which the daemon knows this consumer now."""
        return self._link.welcome.consumer

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def complete_chunk(self, lot: Lot, bit: int, result: Result, run_s: float, exit_status: int | None) -> None:
        """See `Chunk.complete`."""
        if len(result) > RESULT_INLINE_BYTES:
            result = self._store_result(lot, result)
        with self._lock:
            self._ledger.complete(lot, 1 << bit, [result] if result else None, run_s=run_s, exit_status=exit_status)
        self._reported()

    def fail_chunk(
        self,
        lot: Lot,
        bit: int,
        reason: str,
        delay_s: float | None,
        is_final: bool,
        run_s: float,
        exit_status: int | None,
        signal: int | None,
    ) -> None:
        """See `Chunk.fail`."""
        with self._lock:
            self._ledger.fail(
                lot,
                1 << bit,
                reason,
                exit_status=exit_status,
                signal=signal,
                run_s=run_s,
                delay_s=delay_s,
                is_final=is_final,
            )
        self._reported()

    def complete_lots(self, lots: Sequence[Lot], results: Sequence[Result] | None, run_s: float) -> None:
        """See `Reservation.complete`."""
        if results is not None:
            large = [at for at, result in enumerate(results) if len(result) > RESULT_INLINE_BYTES]
            if large:
                results = self._store_results(lots, results)
        first = 0
        with self._lock:
            for lot in lots:
                count = lot.granted.bit_count()
                part = None if results is None else results[first : first + count]
                self._ledger.complete(lot, lot.granted, part, run_s=run_s / len(lots))
                first += count
        self._reported(is_bulk=True)

    def fail_lots(self, lots: Sequence[Lot], reason: str, delay_s: float | None, is_final: bool) -> None:
        """See `Reservation.fail`."""
        with self._lock:
            for lot in lots:
                self._ledger.fail(lot, lot.granted, reason, delay_s=delay_s, is_final=is_final)
        self._reported()

    def release_lots(self, lots: Sequence[Lot], mask: int | None = None) -> None:
        """See `Reservation.release` and `Chunk.release`."""
        with self._lock:
            for lot in lots:
                self._ledger.release(lot, lot.granted if mask is None else mask)
        self._reported()

    def extend(self, lot: Lot, mask: int, lease_s: float | None) -> None:
        """See `Chunk.extend`."""
        reply = self._link.call(Extend(self._link.next_id(), [lot.name(mask)], lease_s), Completed)
        for refusal in reply.refusals:
            raise from_code(refusal.code, refusal.message)

    # --- what is known of submissions ---------------------------------------------------------------------------------

    def describe(self, submission_id: int) -> SubmissionContent:
        """What the daemon said of a submission.

        Raises:
            NotFound: it was removed.
        """
        described = self._ledger.known(submission_id)
        if described is None:
            reply = self._link.call(Describe(self._link.next_id(), [submission_id]), Described)
            if not reply.submissions:
                raise NotFound(f"Submission {submission_id} was removed.")
            described = reply.submissions[0]
            with self._lock:
                self._ledger.learn(described)
        return described

    def reader(self, submission_id: int) -> ChunkReader:
        """What reads the chunks of a submission, for the calling thread."""
        return self._contents.reader(self.describe(submission_id))

    def attachment(self, submission_id: int) -> bytes | None:
        """The attachment of a submission; asked for once."""
        if submission_id not in self._attachments:
            if not self.describe(submission_id).has_attachment:
                return None
            reply = self._link.call(GetAttachment(self._link.next_id(), submission_id), Attachment)
            self._attachments = {submission_id: reply.attachment}
        return self._attachments[submission_id]

    # --- sending ------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every verdict is durable with the daemon.

        Raises:
            TimedOut: it was not within `timeout_s` seconds (None: waits without limit).
            OpsqError: a report could not be delivered; its chunks will be offered again.
        """
        self._flush()
        if not self._link.wait_until(self._is_settled, timeout_s):
            raise TimedOut(f"Some verdicts were not acknowledged within {timeout_s:g} s.")
        self._surface()

    def stop(self) -> None:
        """Reserve nothing any more: the loop ends after the chunk at hand. May be called from a signal handler."""
        self._is_stopping = True
        threading.Thread(target=self._abandon_all, name="opsq-stop", daemon=True).start()

    def close(self) -> None:
        """Send the last verdicts, give back what has none, and end the connection; waits a few seconds at most."""
        if self._link.is_closed:
            return
        self._is_stopping = True
        try:
            self._give_back()
        finally:
            count = self._ledger.unanswered_count
            if count:
                logging.getLogger("opsq").warning(
                    "Closed before the daemon acknowledged the chunks of %d blocks; they may be offered again.", count
                )
            self._link.close()
            self._contents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- for a selectors loop (is_driven) -----------------------------------------------------------------------------

    def poll(self) -> None:
        """Read what has arrived and send what is due, without waiting.

        Raises:
            OpsqError: what had to be raised since the last call.
        """
        self._link.poll()
        self._surface()

    def fileno(self) -> int:
        """The descriptor to watch for reading; -1 without a connection. It changes with each reconnect."""
        return self._link.fileno()

    def next_poll_s(self) -> float:
        """In how many seconds `poll` has something to do even if nothing arrives."""
        return self._link.next_poll_s()

    @property
    def unsettled_count(self) -> int:
        """How many reports were not sent, or were not answered."""
        return self._ledger.buffered_count + self._ledger.unanswered_count

    # --- inside -------------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        return self._link.next_id()

    def _is_settled(self) -> bool:
        if self._ledger.errors:
            return True
        if self._ledger.buffered_count:
            self._link.flush_within(0.0)
        return self._ledger.is_settled

    def _is_stopped(self) -> bool:
        return self._is_stopping or bool(self._ledger.errors)

    def _reported(self, *, is_bulk: bool = False) -> None:
        """After a verdict: send if enough has come together, wait if too much is unanswered."""
        ledger = self._ledger
        is_full = ledger.buffered_count >= BUFFERED_LIMIT_COUNT and not is_bulk
        if is_full or ledger.buffered_bytes >= BUFFERED_LIMIT_BYTES:
            self._flush()
        else:
            self._link.flush_within(FLUSH_S)
        if ledger.unanswered_count > UNANSWERED_LIMIT_COUNT:
            self._link.wait_until(self._has_room)
        self._surface()

    def _has_room(self) -> bool:
        return self._ledger.unanswered_count <= UNANSWERED_LIMIT_COUNT or bool(self._ledger.errors)

    def _surface(self) -> None:
        """Tell what was lost, raise what went wrong."""
        ledger = self._ledger
        while ledger.lost:
            self._on_lost(ledger.lost.popleft())
        if ledger.errors:
            raise ledger.errors.popleft()

    def _flush(self, ask: Ask | None = None) -> None:
        """Send all verdicts, and with them a reserve."""
        with self._flushing:
            with self._lock:
                requests = self._ledger.requests()
                unsynced, self._unsynced = self._unsynced, set()
                if ask is not None:
                    self._asks[ask.request.id] = ask
                    self._ledger.with_reserve(requests, ask.request)
            if not requests:
                return
            try:
                for submission_id in unsynced:
                    self._writers[submission_id].sync()
                self._link.send(requests, self._answered)
            except BaseException as error:
                with self._lock:
                    self._unsynced |= unsynced
                for reply in not_sent(requests, error):
                    self._answered(reply)
                if not isinstance(error, OpsqError):
                    raise

    def _flush_quietly(self) -> None:
        """Send all verdicts, from the link's thread; what goes wrong surfaces at the next call."""
        self._flush()

    def _answered(self, reply: Reply) -> None:
        """Take an answer; called by whichever thread reads."""
        with self._lock:
            ask = self._asks.get(getattr(reply, "id", 0))
            if not isinstance(reply, Reserved):
                self._ledger.answer(reply)
                if self._ledger.is_again_due:
                    self._link.flush_within(AGAIN_S)
                if ask is not None and isinstance(reply, ErrorReply):
                    del self._asks[reply.id]
                    ask.error = reply.error()
                    self._refused(ask, ask.error)
                return
            if ask is None or self._is_stopping:
                self._release_unasked(reply)
            if ask is not None:
                del self._asks[reply.id]
                ask.reply = reply if not self._is_stopping else Reserved(reply.id)
                ask.lots = self._ledger.add(ask.reply)
                self._reserved(ask, ask.reply)

    def _reserved(self, ask: Ask, reply: Reserved) -> None:
        """Take what was reserved; the lock is held."""

    def _refused(self, ask: Ask, error: OpsqError) -> None:
        """Take note that a reserve was refused; the lock is held."""

    def _release_unasked(self, reply: Reserved) -> None:
        for lot in self._ledger.add(reply):
            self._ledger.release(lot, lot.granted)
        self._link.flush_within(0.0)

    def _pushed(self, push: Revoked | Draining) -> None:
        if isinstance(push, Revoked):
            with self._lock:
                self._ledger.revoked(push)

    def _holdings(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        with self._lock:
            return self._ledger.holdings()

    def _reasserted(self, reply: Reply) -> None:
        with self._lock:
            self._ledger.reasserted(reply)

    def _store_result(self, lot: Lot, result: Result) -> Result:
        """Append a large result to the store; returns its place. It is synced before the place is told."""
        if isinstance(result, tuple):
            return result
        with self._flushing:
            writer = self._writers.get(lot.submission_id)
            if writer is None:
                writer = self._contents.result_writer(self.describe(lot.submission_id), self.name)
                self._writers[lot.submission_id] = writer
            stored = writer.append(result)
            with self._lock:
                self._unsynced.add(lot.submission_id)
        return (stored.object, stored.offset, stored.length)

    def _store_results(self, lots: Sequence[Lot], results: Sequence[Result]) -> list[Result]:
        owners = (lot for lot in lots for _ in range(lot.granted.bit_count()))
        return [
            self._store_result(lot, result) if len(result) > RESULT_INLINE_BYTES else result
            for lot, result in zip(owners, results, strict=True)
        ]

    def _abandon_all(self) -> None:
        with self._lock:
            asks = list(self._asks)
        if asks and not self._link.is_closed:
            self._link.send([CancelWait(request_id) for request_id in asks])

    def _give_back(self) -> None:
        """Release what has no verdict, and wait a little for the answers."""
        with self._lock:
            self._ledger.release_all()
            asks, self._asks = list(self._asks), {}
        self._flush()
        if asks:
            self._link.send([CancelWait(request_id) for request_id in asks])
        self._link.wait_until(self._is_settled, CLOSE_S)
