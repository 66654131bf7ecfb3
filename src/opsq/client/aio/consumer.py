"""The consumer of asyncio programs: the same loop, ledger and pace as consumer.py, awaited.

This file owns when to send and what to wait for on an event loop; what is held and owed stands in ledger.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from opsq.client.aio.chunk import AsyncChunk
from opsq.client.aio.link import AsyncLink
from opsq.client.core.consumer_base import AGAIN_S, CLOSE_S, FLUSH_S, OnLost, log_lost, not_sent
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import Lot, Result
from opsq.client.core.ledger import BUFFERED_LIMIT_BYTES, BUFFERED_LIMIT_COUNT, UNANSWERED_LIMIT_COUNT, Ledger
from opsq.client.core.prefetch import Pace
from opsq.errors import NotFound, OpsqError, Refused, TimedOut, UsageError, from_code
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
    Reserve,
    Reserved,
    Revoked,
    SubmissionContent,
)

if TYPE_CHECKING:
    from opsq.client.sync.function_runner import Tally
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.result_objects import ResultWriter
    from opsq.serialisation import Serialisation

T = TypeVar("T")
MakeLink = Callable[..., AsyncLink]
"""Makes a link that is not open yet; takes the keyword arguments of `AsyncLink` that a consumer sets."""


class AsyncConsumer:
    """One consumer with a connection of its own, for one event loop. Use it in an `async with` block.

    The arguments are those of `Consumer`, but for the first.
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
        if batch is not None and batch < 1:
            raise UsageError(f"A batch of {batch} chunks is not possible: it starts at 1.")
        self.strategy = str(strategy)
        self.is_ended = False
        """Whether the daemon said that nothing can come any more."""
        self._lease_s = lease_s
        self._on_lost = on_lost or log_lost
        self._pace = Pace(batch)
        self._link = make_link(
            reconnect_s=reconnect_s,
            holdings=self._holdings,
            on_reasserted=self._reasserted,
            on_push=self._pushed,
        )
        self._ledger = Ledger(self._link.next_id)
        self._ask: Reserve | None = None
        self._ask_at = 0.0
        self._is_fresh = False
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._syncing = asyncio.Lock()
        self._writers: dict[int, ResultWriter] = {}
        self._unsynced: set[int] = set()
        self._attachments: dict[int, bytes | None] = {}

    async def __aenter__(self) -> Self:
        await self._link.open()
        self._contents = Contents(self._link.welcome)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def chunks(
        self, *, until_empty: bool = True, until_idle: bool = False, overlapping: bool = False
    ) -> AsyncIterator[AsyncChunk]:
        """Reserve and hand out chunks, one by one; see `Consumer.chunks`.

        An `async for` that is left early closes this iterator only when it is collected; what it holds is given back at
        the latest when the consumer is closed.
        """
        wait_s = 0.0 if until_idle else None
        chunk: AsyncChunk | None = None
        self.is_ended = False  # of an earlier loop
        try:
            while True:
                if chunk is not None and not (overlapping or chunk.has_verdict):
                    raise UsageError(
                        f"Chunk {chunk.submission_id}/{chunk.index} was neither completed, failed nor released.",
                        hint="Give each chunk its verdict, or open the loop with overlapping=True.",
                    )
                chunk = await self._next(wait_s, until_empty)
                if chunk is None:
                    await self.flush()
                    return
                yield chunk
        finally:
            await self._give_back()

    async def run_each_chunk(
        self, f: Callable[[Any], Any], *, concurrency: int = 1, until_empty: bool = True, until_idle: bool = False
    ) -> Tally:
        """Call `f` for each chunk, `concurrency` of them at once; see `Consumer.run_each_chunk`.

        A coroutine function gets the `AsyncChunk` and is awaited; any other is called in threads with a view of the chunk
        that can only be read. No signal handlers are set: `loop.add_signal_handler(SIGTERM, consumer.stop)` drains, and
        cancelling gives the chunks at hand back.
        """
        from opsq.client.aio.function_runner import AsyncHold, run

        self.is_ended = False
        hold = AsyncHold(lambda: self._next(0.0 if until_idle else None, until_empty), self._give_back)
        return await run(self, f, hold, concurrency=concurrency)

    async def run_each_operation(
        self,
        f: Callable[[Any], Any],
        *,
        serialisation: Serialisation | str = "bytes",
        result_serialisation: Serialisation | str | None = None,
        keeps_results: bool = True,
        **options: Any,
    ) -> Tally:
        """Call `f` for each operation; see `Consumer.run_each_operation`. Those of one chunk follow one another."""
        from opsq.client.aio.function_runner import is_awaited
        from opsq.client.core.operations import EachOperation

        each = EachOperation(f, serialisation, result_serialisation, keeps_results=keeps_results)
        return await self.run_each_chunk(each.awaited if is_awaited(f) else each, **options)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every verdict is durable with the daemon; see `Consumer.flush`."""
        await self._flush()
        if not await self._link.wait_until(lambda: self._ledger.is_settled or bool(self._ledger.errors), timeout_s):
            raise TimedOut(f"Some verdicts were not acknowledged within {timeout_s:g} s.")
        self._surface()

    def stop(self) -> None:
        """Reserve nothing any more: the loop ends after the chunk at hand."""
        self._is_stopping = True
        if self._ask is not None and not self._link.is_closed:
            self._link.send([CancelWait(self._ask.id)])
        self._link.wake()

    async def close(self) -> None:
        """Send the last verdicts, give back what has none, and end the connection; waits a few seconds at most."""
        if self._link.is_closed:
            return
        self._is_stopping = True
        try:
            await self._give_back()
        finally:
            count = self._ledger.unanswered_count
            if count:
                logging.getLogger("opsq").warning(
                    "Closed before the daemon acknowledged the chunks of %d blocks; they may be offered again.", count
                )
            if self._timer is not None:
                self._timer.cancel()
            await self._link.close()
            self._contents.close()

    # --- for chunks -----------------------------------------------------------------------------------------------------

    async def complete_chunk(
        self, described: SubmissionContent, lot: Lot, bit: int, result: Result, run_s: float, exit_status: int | None
    ) -> None:
        """See `AsyncChunk.complete`."""
        if len(result) > RESULT_INLINE_BYTES and isinstance(result, bytes):
            result = await self._store_result(described, result)
        self._ledger.complete(lot, 1 << bit, [result] if result else None, run_s=run_s, exit_status=exit_status)
        await self._reported()

    async def fail_chunk(
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
        """See `AsyncChunk.fail`."""
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
        await self._reported()

    async def release_chunk(self, lot: Lot, bit: int) -> None:
        """See `AsyncChunk.release`."""
        self._ledger.release(lot, 1 << bit)
        await self._reported()

    async def extend(self, lot: Lot, bit: int, lease_s: float | None) -> None:
        """See `AsyncChunk.extend`."""
        reply = await self._link.call(Extend(self._link.next_id(), [lot.name(1 << bit)], lease_s), Completed)
        for refusal in reply.refusals:
            raise from_code(refusal.code, refusal.message)

    async def read(self, described: SubmissionContent, index: int) -> bytes:
        """See `AsyncChunk.data`."""
        reader: ChunkReader = self._contents.reader(described)
        if reader.content.inline is not None:
            return reader.read(index)
        return await asyncio.to_thread(self.read_here, described, index)

    async def look(self, described: SubmissionContent, look: Callable[[ChunkReader], T]) -> T:
        """What a function finds in the reader of a submission, in a thread."""
        return await asyncio.to_thread(lambda: look(self._contents.reader(described)))

    def read_here(self, described: SubmissionContent, index: int) -> bytes:
        """The bytes of a chunk, read by the calling thread, which may be any."""
        return self._contents.reader(described).read(index)

    async def attachment(self, described: SubmissionContent) -> bytes | None:
        """See `AsyncChunk.attachment`."""
        submission_id = described.submission_id
        if described.has_attachment and submission_id not in self._attachments:
            reply = await self._link.call(GetAttachment(self._link.next_id(), submission_id), Attachment)
            self._attachments = {submission_id: reply.attachment}
        return self._attachments.get(submission_id)

    # --- inside ---------------------------------------------------------------------------------------------------------

    async def _next(self, wait_s: float | None, until_empty: bool) -> AsyncChunk | None:
        while not self._is_stopping:
            self._surface()
            if self._pace.is_ahead_due(self._ledger.ready_count) and not self.is_ended:
                await self._want(wait_s, until_empty)
            taken = self._ledger.take()
            if taken is not None:
                self._pace.count()
                is_fresh, self._is_fresh = self._is_fresh, False
                if is_fresh:
                    await self._flush()
                else:
                    self._flush_within(FLUSH_S)
                return AsyncChunk(self, *taken, await self._describe(taken[0].submission_id))
            if self._ask is not None:
                if self._ledger.buffered_count:
                    await self._flush()
                await self._link.wait_until(self._has_news)
            elif self.is_ended:
                return None
            elif (pause_s := self._ask_at - time.monotonic()) > 0:
                await self._flush()
                await self._link.wait_until(self._is_stopped, pause_s)
            else:
                await self._want(wait_s, until_empty)
        return None

    async def _want(self, wait_s: float | None, until_empty: bool) -> None:
        if self._ask is None and time.monotonic() >= self._ask_at:
            self.is_ended = False
            count = self._pace.next_count()
            self._ask = Reserve(self._link.next_id(), count, self.strategy, wait_s, self._lease_s, until_empty)
            await self._flush(self._ask)

    def _has_news(self) -> bool:
        return bool(self._ledger.ready_count or self._ask is None or self._is_stopped())

    def _is_stopped(self) -> bool:
        return self._is_stopping or bool(self._ledger.errors)

    async def _describe(self, submission_id: int) -> SubmissionContent:
        described = self._ledger.known(submission_id)
        if described is None:
            reply = await self._link.call(Describe(self._link.next_id(), [submission_id]), Described)
            if not reply.submissions:
                raise NotFound(f"Submission {submission_id} was removed.")
            described = reply.submissions[0]
            self._ledger.learn(described)
        return described

    async def _reported(self) -> None:
        ledger = self._ledger
        if ledger.buffered_count >= BUFFERED_LIMIT_COUNT or ledger.buffered_bytes >= BUFFERED_LIMIT_BYTES:
            await self._flush()
        else:
            self._flush_within(FLUSH_S)
        if ledger.unanswered_count > UNANSWERED_LIMIT_COUNT:
            await self._link.wait_until(
                lambda: ledger.unanswered_count <= UNANSWERED_LIMIT_COUNT or bool(ledger.errors)
            )
        self._surface()

    def _surface(self) -> None:
        while self._ledger.lost:
            self._on_lost(self._ledger.lost.popleft())
        if self._ledger.errors:
            raise self._ledger.errors.popleft()

    def _flush_within(self, delay_s: float) -> None:
        if self._timer is None and not self._link.is_closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._flush_by_timer)

    def _flush_by_timer(self) -> None:
        self._timer = None
        if not self._link.is_closed:
            self._link.spawn(self._flush())

    async def _flush(self, ask: Reserve | None = None) -> None:
        """Send all verdicts, and with them a reserve; results in the store are synced before."""
        async with self._syncing:
            requests = self._ledger.requests()
            unsynced, self._unsynced = self._unsynced, set()
            if ask is not None:
                self._ledger.with_reserve(requests, ask)
            if not requests:
                return
            try:
                for submission_id in unsynced:
                    await asyncio.to_thread(self._writers[submission_id].sync)
                self._link.send(requests, self._answered)
            except BaseException as error:
                self._unsynced |= unsynced
                for reply in not_sent(requests, error):
                    self._answered(reply)
                if not isinstance(error, OpsqError):
                    raise
        await self._link.drained()

    async def _store_result(self, described: SubmissionContent, result: bytes) -> Result:
        submission_id = described.submission_id
        async with self._syncing:
            writer = self._writers.get(submission_id)
            if writer is None:
                writer = self._contents.result_writer(described, self._link.welcome.consumer)
                self._writers[submission_id] = writer
            stored = await asyncio.to_thread(writer.append, result)
            self._unsynced.add(submission_id)
        return (stored.object, stored.offset, stored.length)

    def _answered(self, reply: Reply) -> None:
        ask = self._ask
        is_ask = ask is not None and getattr(reply, "id", 0) == ask.id
        if not isinstance(reply, Reserved):
            self._ledger.answer(reply)
            if self._ledger.is_again_due:
                self._flush_within(AGAIN_S)
            if is_ask and isinstance(reply, ErrorReply):
                self._ask = None
                error = reply.error()
                if isinstance(error, Refused):
                    self._ask_at = time.monotonic() + AGAIN_S
                else:
                    self._ledger.errors.append(error)
            return
        lots = self._ledger.add(reply)
        if not is_ask or self._is_stopping:
            for lot in lots:
                self._ledger.release(lot, lot.granted)
            self._flush_within(0.0)
        if ask is None or not is_ask:
            return
        self._ask = None
        if lots and not self._is_stopping:
            self._ledger.offer(lots)
            self._is_fresh = True
        elif reply.is_empty or ask.wait_s is not None:
            self.is_ended = True
        else:
            self._ask_at = time.monotonic() + AGAIN_S

    def _holdings(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        return self._ledger.holdings()

    def _reasserted(self, reply: Reply) -> None:
        self._ledger.reasserted(reply)

    def _pushed(self, push: Revoked | Draining) -> None:
        if isinstance(push, Revoked):
            self._ledger.revoked(push)

    async def _give_back(self) -> None:
        if self._link.is_closed:
            return
        self._ledger.release_all()
        ask, self._ask = self._ask, None
        await self._flush()
        if ask is not None:
            self._link.send([CancelWait(ask.id)])
        await self._link.wait_until(lambda: self._ledger.is_settled or bool(self._ledger.errors), CLOSE_S)
