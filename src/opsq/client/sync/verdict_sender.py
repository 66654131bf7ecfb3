"""The half of a consumer that sends: verdicts go out in few frames, content is read, large results go to the store.

This file owns locks, the moment of sending, and large results on their way to the store; what to reserve, and when, is
decided in consumer.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self

from opsq.client.core import arguments
from opsq.client.core.consume_options import OnLost
from opsq.client.core.consumer_base import CLOSE_S, Ask, ConsumerBase
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import HeldBlock, Result, granted_bits
from opsq.client.core.transport import Dial
from opsq.client.core.verdict_batch import (
    BUFFERED_LIMIT_BYTES,
    BUFFERED_LIMIT_COUNT,
    FLUSH_S,
    UNANSWERED_LIMIT_COUNT,
    FailedRun,
)
from opsq.client.sync.link import Link
from opsq.errors import ContentMissing, NotFound, OpsqError, TimedOut, from_code
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Attachment,
    Completed,
    Describe,
    Described,
    Extend,
    GetAttachment,
    NewSubmission,
    SubmissionContent,
)

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.result_objects import ResultWriter, Stored
    from opsq.traces import TraceContext


class VerdictSender(ConsumerBase):
    """What holds chunks over a link and reports on them.

    Safe for use by many threads. The arguments are those of `Consumer`.
    """

    def __init__(
        self,
        open_wire: Dial,
        strategy: object = "Random",
        *,
        batch: int | None = None,
        lease_s: float | None = None,
        reconnect_s: float | None = None,
        on_lost: OnLost | None = None,
        is_polled: bool = False,
    ) -> None:
        super().__init__(strategy, batch, lease_s, on_lost)
        self._flushing = threading.RLock()  # requests leave in the order in which the batch made them
        self._link = Link(
            open_wire,
            reconnect_s=reconnect_s,
            holdings=self._holdings,
            lease_s=lease_s,
            shortest_s=self._shortest_s,
            on_reclaimed=self._reclaimed,
            on_push=self._pushed,
            on_flush=self._flush,
            is_polled=is_polled,
        )
        self._contents = Contents(self._link.welcome)

    @property
    def name(self) -> str:
        """The id under which the daemon knows this consumer now."""
        return self._link.welcome.consumer

    # --- verdicts -----------------------------------------------------------------------------------------------------

    def prepare(self, then: Iterable[Follower], context: TraceContext | None) -> list[NewSubmission]:
        """See `Chunk.prepare`; `context` is what they belong to."""
        from opsq.client.core.follow_ups import prepared

        return prepared(then, self._contents, self._link.welcome, context)

    def complete_chunk(
        self,
        block: HeldBlock,
        bit: int,
        result: Result,
        run_s: float,
        exit_status: int | None,
        then: list[NewSubmission],
    ) -> None:
        """See `Chunk.complete`."""
        if type(result) is not bytes:  # the common case costs no call
            result = arguments.result(result)
        if len(result) > RESULT_INLINE_BYTES:
            result = self._store_result(block, bit, result)
        with self._lock:
            self._verdicts.complete(
                block, 1 << bit, [result] if result else None, run_s=run_s, exit_status=exit_status, then=then
            )
        self._send_if_full()

    def complete_blocks(self, blocks: Sequence[HeldBlock], results: Sequence[Result] | None, run_s: float) -> None:
        """See `Reservation.complete`."""
        results = None if results is None else [arguments.result(result) for result in results]
        if results is not None and max(map(len, results), default=0) > RESULT_INLINE_BYTES:
            results = self._store_results(blocks, results)
        self._enter_completed(blocks, results, run_s)
        self._send_if_full(is_bulk=True)

    def fail_blocks(self, blocks: Sequence[HeldBlock], failed: FailedRun, mask: int | None = None) -> None:
        """See `Reservation.fail` and `Chunk.fail`."""
        self._enter_failed(blocks, failed, mask)
        self._send_if_full()

    def release_blocks(self, blocks: Sequence[HeldBlock], mask: int | None = None) -> None:
        """See `Reservation.release` and `Chunk.release`."""
        self._enter_released(blocks, mask)
        self._send_if_full()

    def extend(self, block: HeldBlock, mask: int, lease_s: float | None) -> None:
        """See `Chunk.extend`."""
        request = Extend(self._link.next_id(), [block.name(mask)], lease_s)
        reply = self._link.call(request, Completed, on_reply=lambda reply: self._extended(block, lease_s, reply))
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
        """The attachment of a submission; asked for once, unless threads work on several submissions."""
        known = self._attachments
        if submission_id in known:
            return known[submission_id]
        if not self.describe(submission_id).has_attachment:
            return None
        reply = self._link.call(GetAttachment(self._link.next_id(), submission_id), Attachment)
        self._attachments = {submission_id: reply.attachment}
        return reply.attachment

    # --- sending ------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every verdict is durable with the daemon.

        Raises:
            TimedOut: it was not within `timeout_s` seconds (None: waits without limit).
            OpsqError: a report could not be delivered; its chunks will be offered again.
        """
        timeout_s = arguments.seconds("timeout_s", timeout_s)
        self._flush()
        if not self._link.wait_until(self._is_settled, timeout_s):
            raise TimedOut(f"Some verdicts were not acknowledged within {timeout_s:g} s.")
        self._surface()

    def stop(self) -> None:
        """Reserve nothing any more: the loop ends after the chunk at hand, and what waits for chunks gets none.

        May be called from a signal handler.
        """
        self._is_stopping = True
        threading.Thread(target=self._cancel_reserves, name="opsq-stop", daemon=True).start()

    def close(self) -> None:
        """Send the last verdicts, give back what has none, and end the connection; waits a few seconds at most."""
        if self._link.is_closed:
            return
        self._is_stopping = True
        try:
            self._give_back()
        finally:
            self._warn_of_unanswered()
            self._link.close()
            self._contents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- for a selectors loop (is_polled) -----------------------------------------------------------------------------

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

    # --- inside -------------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        return self._link.next_id()

    def _flush_within(self, delay_s: float) -> None:
        self._link.flush_within(delay_s)

    def _is_settled(self) -> bool:
        if self._verdicts.errors:
            return True
        if self._verdicts.buffered_count:
            self._link.flush_within(0.0)
        return self._verdicts.is_settled

    def _send_if_full(self, *, is_bulk: bool = False) -> None:
        """After a verdict: send if enough has come together, wait if too much is unanswered."""
        verdicts = self._verdicts
        is_full = verdicts.buffered_count >= BUFFERED_LIMIT_COUNT and not is_bulk
        if is_full or verdicts.buffered_bytes >= BUFFERED_LIMIT_BYTES or self._is_waiting():
            self._flush()
        else:
            self._link.flush_within(FLUSH_S)
        if verdicts.unanswered_count > UNANSWERED_LIMIT_COUNT:
            self._link.wait_until(self._has_room)
        self._surface()

    def _flush(self, ask: Ask | None = None) -> None:
        """Send all verdicts, and with them a reserve. What goes wrong surfaces at the next call."""
        with self._flushing:
            requests, unsynced = self._take_requests(ask)
            if not requests:
                return
            try:
                for submission_id in unsynced:
                    self._sync(submission_id)
                self._link.send(self._sendable(requests), self._answered)
            except BaseException as error:
                self._not_sent(requests, unsynced, error)
                if not isinstance(error, OpsqError):
                    raise

    def _store_result(self, block: HeldBlock, bit: int, result: Result) -> Result:
        """Append a large result to the store; returns its place, which is sent only after a sync."""
        if isinstance(result, tuple):
            return result
        return self._append_result(block, bit, lambda writer: writer.append(result))

    def _append_result(self, block: HeldBlock, bit: int, append: Callable[[ResultWriter], Stored]) -> Result:
        """Append a result, unless its chunk was taken away, or is let go because its submission was removed."""
        with self._flushing:
            if not block.open >> bit & 1:
                return b""
            try:
                stored = append(self._writer_of(self.describe(block.submission_id)))
            except (ContentMissing, NotFound) as error:
                self._lose(block, bit, error)
                return b""
        return (stored.object, stored.offset, stored.length)

    def _store_results(self, blocks: Sequence[HeldBlock], results: Sequence[Result]) -> list[Result]:
        return [
            self._store_result(block, bit, result) if len(result) > RESULT_INLINE_BYTES else result
            for (block, bit), result in zip(granted_bits(blocks), results, strict=True)
        ]

    def _cancel_reserves(self) -> None:
        with self._lock:
            asks = list(self._asks)
        if not self._link.is_closed:
            self._link.cancel(asks)

    def _give_back(self) -> None:
        """Release what has no verdict, and wait a little for the answers."""
        if self._link.is_closed:
            return
        asks = self._release_all()
        self._flush()
        self._link.cancel(asks)
        self._link.wait_until(self._is_settled, CLOSE_S)
