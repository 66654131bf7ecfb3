"""The consumer of asyncio programs: the same loop as sync/consumer.py, awaited.

This file decides what to reserve and when, and waits for it; verdicts are sent in verdict_sender.py.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Unpack

from opsq.client.aio.chunk import AsyncChunk, AsyncReservation
from opsq.client.aio.verdict_sender import AsyncVerdictSender
from opsq.client.core import arguments
from opsq.client.core.consumer_base import RETRY_S, Ask, is_one_over, pop_over
from opsq.client.core.verdict_batch import FLUSH_S
from opsq.errors import UsageError
from opsq.ids import mask_indexes
from opsq.wire.messages import Reserve

if TYPE_CHECKING:
    from opsq.client.core.consume_options import AsyncRunOptions
    from opsq.client.core.outcome import Tally
    from opsq.serialisation import Serialisation


class AsyncConsumer(AsyncVerdictSender):
    """One consumer with a connection of its own, for one event loop. Use it in an `async with` block.

    The arguments are those of `Consumer`, but for the first.
    """

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
                        hint="Complete, fail or release each chunk, or open the loop with overlapping=True.",
                    )
                chunk = await self._next(wait_s, until_empty)
                if chunk is None:
                    await self.flush()
                    return
                yield chunk
        finally:
            await self._give_back()

    async def reserve_chunks(
        self, count: int, *, strategy: object = None, wait_s: float | None = 0.0
    ) -> list[AsyncChunk]:
        """Reserve up to `count` chunks at once; several calls may wait at the same time.

        Args:
            strategy: for this call; None: that of the consumer.
            wait_s: how long to wait while nothing is free, in seconds; None: without limit.

        Raises:
            UsageError, OpsqError: see `Consumer.reserve`.
        """
        request = self._new_reserve(count, wait_s, until_empty=False, strategy=strategy)
        reserved = await self._reserved_by(request)
        try:
            return [
                AsyncChunk(self, block, bit, await self.describe(block.submission_id))
                for block in reserved.held_blocks
                for bit in mask_indexes(0, block.granted)
            ]
        except BaseException:
            self._let_go(reserved.held_blocks)
            raise

    async def reserve(self, count: int, *, wait_s: float | None = 0.0, until_empty: bool = False) -> AsyncReservation:
        """Reserve up to `count` chunks at once, as one reservation; see `Consumer.reserve`."""
        return await self._reserved_by(self._new_reserve(count, wait_s, until_empty))

    async def reservations(
        self, count: int, *, ahead: int = 2, until_empty: bool = True, wait_s: float | None = None
    ) -> AsyncIterator[AsyncReservation]:
        """Reserve in bulk, again and again, with `ahead` reserves on their way; see `Consumer.reservations`."""
        ahead = arguments.count("ahead", ahead)
        asks: list[Ask] = []
        may_come = True
        try:
            while not self._is_stopping and (may_come or asks):
                self._surface()
                while may_come and len(asks) < ahead:
                    asks.append(Ask(self._new_reserve(count, wait_s, until_empty)))
                    await self._flush(asks[-1])
                await self._link.wait_until(lambda: is_one_over(asks) or self._is_stopping)
                if self._is_stopping:
                    break
                reservation = self._reservation(pop_over(asks))
                may_come = bool(reservation.chunks_count) or not (reservation.is_empty or wait_s is not None)
                if reservation.chunks_count:
                    yield reservation
                elif may_come:
                    await self._link.wait_until(self._is_stopped, RETRY_S)
            await self.flush()
        finally:
            await self._give_back()

    async def want(self, count: int | None = None, *, wait_s: float | None = None, until_empty: bool = False) -> None:
        """Have chunks reserved ahead, unless a reserve is on its way; see `Consumer.want`."""
        if self._ask is None and not self._is_stopping and time.monotonic() >= self._ask_at:
            self.is_ended = False
            ask = self._ask = Ask(self._new_reserve(count or self._prefetch.next_count(), wait_s, until_empty))
            try:
                await self._flush(ask)
            except BaseException:
                if self._ask is ask and ask.request.id not in self._asks:  # it was not sent, and never will be
                    self._ask = None
                raise

    async def take(self) -> AsyncChunk | None:
        """The next chunk that was reserved ahead; see `Consumer.take`."""
        self._surface()
        taken = self._ledger.take_chunk()
        if taken is None:
            return None
        self._prefetch.count_taken()
        block, bit = taken
        is_fresh, self._is_fresh = self._is_fresh, False
        try:
            if is_fresh:
                await self._flush()
            else:
                self._flush_within(FLUSH_S)
            return AsyncChunk(self, block, bit, await self.describe(block.submission_id))
        except BaseException:
            self._let_go([block], 1 << bit)
            raise

    async def run_each_chunk(
        self,
        f: Callable[[Any], Any],
        *,
        jobs: int = 1,
        concurrency: int = 1,
        until_empty: bool = True,
        until_idle: bool = False,
        max_runtime_s: float | None = None,
    ) -> Tally:
        """Call `f` for each chunk; see `Consumer.run_each_chunk`.

        A coroutine function gets the `AsyncChunk` and is awaited; any other is called in threads with a view of the
        chunk that can only be read. No signal handlers are set: `loop.add_signal_handler(SIGTERM, consumer.stop)`
        drains, and cancelling gives the chunks at hand back.

        Args:
            f: gives the result, as bytes; None for an empty one, `Done` for one with follow-ups.
            jobs: how many threads call a function that is no coroutine function.
            concurrency: how many chunks are awaited at once, by a coroutine function.
            until_empty: see `Consumer.chunks`.
            until_idle: see `Consumer.chunks`.
            max_runtime_s: a coroutine that takes longer, in seconds, is cancelled, and its chunk fails; None: no limit.
        """
        from opsq.client.aio.function_runner import AsyncChunkSource, run

        self.is_ended = False
        source = AsyncChunkSource(
            take=lambda: self._next(0.0 if until_idle else None, until_empty),
            give_back=self._give_back,
            flush=self.flush,
            reader=self.reader,
        )
        return await run(source, f, jobs=jobs, concurrency=concurrency, max_runtime_s=max_runtime_s)

    async def run_each_operation(
        self,
        f: Callable[[Any], Any],
        *,
        serialisation: Serialisation | str = "bytes",
        result_serialisation: Serialisation | str | None = None,
        keeps_results: bool = True,
        **options: Unpack[AsyncRunOptions],
    ) -> Tally:
        """Call `f` for each operation; see `Consumer.run_each_operation`. Those of one chunk follow one another."""
        from opsq.client.core.operations import EachOperation
        from opsq.client.core.outcome import is_awaited

        each = EachOperation(f, serialisation, result_serialisation, keeps_results=keeps_results)
        return await self.run_each_chunk(each.awaited if is_awaited(f) else each, **options)

    def stop(self) -> None:
        """Reserve nothing any more: the loop ends after the chunk at hand, and what waits for chunks gets none."""
        self._is_stopping = True
        if not self._link.is_closed:
            self._link.cancel([*self._asks])
        self._link.wake()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _next(self, wait_s: float | None, until_empty: bool) -> AsyncChunk | None:
        while not self._is_stopping:
            if self._prefetch.is_ahead_due(self._ledger.ready_count) and not self.is_ended:
                await self.want(wait_s=wait_s, until_empty=until_empty)
            chunk = await self.take()
            if chunk is not None:
                return chunk
            if self._ask is not None:
                if self._verdicts.buffered_count:
                    await self._flush()
                await self._link.wait_until(self._has_news)
            elif self.is_ended:
                return None
            elif (pause_s := self._ask_at - time.monotonic()) > 0:
                await self._flush()
                await self._link.wait_until(self._is_stopped, pause_s)
            else:
                await self.want(wait_s=wait_s, until_empty=until_empty)
        return None

    async def _reserved_by(self, request: Reserve) -> AsyncReservation:
        """What a reserve brings; several may wait at once, and one that is cancelled brings nothing."""
        self._surface()
        ask = Ask(request)
        try:
            await self._flush(ask)
            await self._link.wait_until(lambda: ask.is_over() or self._is_stopping)
        except BaseException:
            self._abandon(ask)
            raise
        if not ask.is_over():
            self._abandon(ask)
        return self._reservation(ask)

    def _abandon(self, ask: Ask) -> None:
        if self._give_up(ask) and not self._link.is_closed:
            self._link.cancel([ask.request.id])

    def _reservation(self, ask: Ask) -> AsyncReservation:
        if ask.error is not None:
            raise ask.error
        self._ledger.start_all(ask.blocks)
        if ask.blocks:
            self._flush_within(FLUSH_S)
        return AsyncReservation(self, ask.blocks, is_empty=self._is_last(ask))
