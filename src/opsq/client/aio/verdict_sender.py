"""The half of an asyncio consumer that sends: sync/verdict_sender.py, awaited.

This file owns when to send and what to wait for on an event loop; what is held and owed is kept by core/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from opsq.client.core import arguments
from opsq.client.core.async_link import AsyncLink
from opsq.client.core.consume_options import OnLost
from opsq.client.core.consumer_base import CLOSE_S, Ask, ConsumerBase
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import HeldBlock, Result, granted_bits
from opsq.client.core.verdict_batch import (
    BUFFERED_LIMIT_BYTES,
    BUFFERED_LIMIT_COUNT,
    FLUSH_S,
    UNANSWERED_LIMIT_COUNT,
    FailedRun,
)
from opsq.errors import ContentMissing, NotFound, OpsqError, TimedOut, from_code
from opsq.wire.messages import (
    RESULT_INLINE_BYTES,
    Attachment,
    ChunkMask,
    Completed,
    Describe,
    Described,
    Extend,
    GetAttachment,
    NewSubmission,
    Release,
    Revoked,
    SubmissionContent,
)

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.chunk_reader import ChunkReader
    from opsq.traces import TraceContext

T = TypeVar("T")
MakeLink = Callable[..., AsyncLink]
"""Makes a link that is not open yet; takes the keyword arguments of `AsyncLink` that a consumer sets."""


class AsyncVerdictSender(ConsumerBase):
    """What holds chunks over a link and reports on them, for one event loop.

    The arguments are those of `VerdictSender`.
    """

    def __init__(
        self,
        make_link: MakeLink,
        strategy: object = "Random",
        *,
        batch: int | None = None,
        lease_s: float | None = None,
        reconnect_s: float | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        super().__init__(strategy, batch, lease_s, on_lost)
        self._link = make_link(
            reconnect_s=reconnect_s,
            holdings=self._holdings,
            lease_s=lease_s,
            shortest_s=self._shortest_s,
            on_reclaimed=self._reclaimed,
            on_push=self._pushed,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._syncing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._link.open()
        self._contents = Contents(self._link.welcome)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def name(self) -> str:
        """The id under which the daemon knows this consumer now."""
        return self._link.welcome.consumer

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every verdict is durable with the daemon; see `Consumer.flush`."""
        timeout_s = arguments.seconds("timeout_s", timeout_s)
        await self._flush()
        if not await self._link.wait_until(self._is_settled, timeout_s):
            raise TimedOut(f"Some verdicts were not acknowledged within {timeout_s:g} s.")
        self._surface()

    async def close(self) -> None:
        """Send the last verdicts, give back what has none, and end the connection; waits a few seconds at most."""
        if self._link.is_closed:
            return
        self._is_stopping = True
        try:
            await self._give_back()
        finally:
            self._warn_of_unanswered()
            await self._link.close()
            self._contents.close()

    # --- for chunks ---------------------------------------------------------------------------------------------------

    async def prepare(self, then: Iterable[Follower], context: TraceContext | None) -> list[NewSubmission]:
        """See `AsyncChunk.prepare`; `context` is what they belong to."""
        from opsq.client.core.follow_ups import prepared

        return await asyncio.to_thread(prepared, then, self._contents, self._link.welcome, context)

    async def complete_chunk(
        self,
        block: HeldBlock,
        bit: int,
        result: Result,
        run_s: float,
        exit_status: int | None,
        then: list[NewSubmission],
    ) -> None:
        """See `AsyncChunk.complete`."""
        result = arguments.result(result)
        if len(result) > RESULT_INLINE_BYTES:
            result = await self._store_result(block, bit, result)
        self._verdicts.complete(
            block, 1 << bit, [result] if result else None, run_s=run_s, exit_status=exit_status, then=then
        )
        await self._send_if_full()

    async def complete_blocks(
        self, blocks: Sequence[HeldBlock], results: Sequence[Result] | None, run_s: float
    ) -> None:
        """See `AsyncReservation.complete`."""
        results = None if results is None else [arguments.result(result) for result in results]
        if results is not None and max(map(len, results), default=0) > RESULT_INLINE_BYTES:
            results = await self._store_results(blocks, results)
        self._enter_completed(blocks, results, run_s)
        await self._send_if_full(is_bulk=True)

    async def fail_blocks(self, blocks: Sequence[HeldBlock], failed: FailedRun, mask: int | None = None) -> None:
        """See `AsyncReservation.fail` and `AsyncChunk.fail`."""
        self._enter_failed(blocks, failed, mask)
        await self._send_if_full()

    async def release_blocks(self, blocks: Sequence[HeldBlock], mask: int | None = None) -> None:
        """See `AsyncReservation.release` and `AsyncChunk.release`."""
        self._enter_released(blocks, mask)
        await self._send_if_full()

    async def share_chunk(self, block: HeldBlock, bit: int) -> None:
        """See `AsyncChunk.share`."""
        self._ledger.revoked(Revoked([ChunkMask(block.submission_id, block.number, 1 << bit)], "reservation_lost"))
        await self._link.call(Release(self._link.next_id(), [block.name(1 << bit)]), Completed)

    async def extend(self, block: HeldBlock, bit: int, lease_s: float | None) -> None:
        """See `AsyncChunk.extend`."""
        request = Extend(self._link.next_id(), [block.name(1 << bit)], lease_s)
        reply = await self._link.call(request, Completed, on_reply=lambda reply: self._extended(block, lease_s, reply))
        for refusal in reply.refusals:
            raise from_code(refusal.code, refusal.message)

    async def read(self, described: SubmissionContent, index: int) -> bytes:
        """See `AsyncChunk.data`."""
        reader = self.reader(described)
        if reader.content.inline is not None:
            return reader.read(index)
        return await self.look(described, lambda reader: reader.read(index))

    async def look(self, described: SubmissionContent, look: Callable[[ChunkReader], T]) -> T:
        """What a function finds in the reader of a submission, in a thread."""
        return await asyncio.to_thread(lambda: look(self.reader(described)))

    def reader(self, described: SubmissionContent) -> ChunkReader:
        """What reads the chunks of a submission, for the calling thread, which may be any."""
        return self._contents.reader(described)

    async def attachment(self, described: SubmissionContent) -> bytes | None:
        """See `AsyncChunk.attachment`."""
        submission_id = described.submission_id
        if described.has_attachment and submission_id not in self._attachments:
            reply = await self._link.call(GetAttachment(self._link.next_id(), submission_id), Attachment)
            self._attachments = {submission_id: reply.attachment}
        return self._attachments.get(submission_id)

    async def describe(self, submission_id: int) -> SubmissionContent:
        """What the daemon said of a submission.

        Raises:
            NotFound: it was removed.
        """
        described = self._ledger.known(submission_id)
        if described is None:
            reply = await self._link.call(Describe(self._link.next_id(), [submission_id]), Described)
            if not reply.submissions:
                raise NotFound(f"Submission {submission_id} was removed.")
            described = reply.submissions[0]
            self._ledger.learn(described)
        return described

    # --- inside -------------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        return self._link.next_id()

    def _is_settled(self) -> bool:
        return self._verdicts.is_settled or bool(self._verdicts.errors)

    async def _send_if_full(self, *, is_bulk: bool = False) -> None:
        """After a verdict: send if enough has come together, wait if too much is unanswered."""
        verdicts = self._verdicts
        is_full = verdicts.buffered_count >= BUFFERED_LIMIT_COUNT and not is_bulk
        if is_full or verdicts.buffered_bytes >= BUFFERED_LIMIT_BYTES or self._is_waiting():
            await self._flush()
        else:
            self._flush_within(FLUSH_S)
        if verdicts.unanswered_count > UNANSWERED_LIMIT_COUNT:
            await self._link.wait_until(self._has_room)
        self._surface()

    def _flush_within(self, delay_s: float) -> None:
        if self._timer is None and not self._link.is_closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._flush_by_timer)

    def _flush_by_timer(self) -> None:
        self._timer = None
        if not self._link.is_closed:
            self._link.spawn(self._flush())

    async def _flush(self, ask: Ask | None = None) -> None:
        """Send all verdicts, and with them a reserve; results in the store are synced before."""
        async with self._syncing:
            requests, unsynced = self._take_requests(ask)
            if not requests:
                return
            try:
                for submission_id in unsynced:
                    await asyncio.to_thread(self._sync, submission_id)
                self._link.send(self._sendable(requests), self._answered)
            except BaseException as error:
                self._not_sent(requests, unsynced, error)
                if not isinstance(error, OpsqError):
                    raise
        await self._link.drained()

    async def _store_result(self, block: HeldBlock, bit: int, result: Result) -> Result:
        """See `VerdictSender._append_result`."""
        if isinstance(result, tuple):
            return result
        async with self._syncing:
            if not block.open >> bit & 1:
                return b""
            try:
                writer = self._writer_of(await self.describe(block.submission_id))
                stored = await asyncio.to_thread(writer.append, result)
            except (ContentMissing, NotFound) as error:
                self._lose(block, bit, error)
                return b""
        return (stored.object, stored.offset, stored.length)

    async def _store_results(self, blocks: Sequence[HeldBlock], results: Sequence[Result]) -> list[Result]:
        return [
            await self._store_result(block, bit, result) if len(result) > RESULT_INLINE_BYTES else result
            for (block, bit), result in zip(granted_bits(blocks), results, strict=True)
        ]

    async def _give_back(self) -> None:
        """Release what has no verdict, and wait a little for the answers."""
        if self._link.is_closed:
            return
        asks = self._release_all()
        await self._flush()
        self._link.cancel(asks)
        await self._link.wait_until(self._is_settled, CLOSE_S)
