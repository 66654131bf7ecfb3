"""Calls a function for each chunk of an asyncio consumer: awaited, or in threads if it cannot be awaited.

This file decides who takes the next chunk and how work ends; what the function did is judged in core/outcome.py. It
sets no signal handlers: an event loop belongs to its program.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from opsq.client.core.arguments import seconds
from opsq.client.core.chunk_view import ChunkView
from opsq.client.core.outcome import (
    Outcome,
    Tally,
    check_counts,
    is_awaited,
    log_failure,
    outcome_awaited,
    outcome_of,
    overrun,
    reason_of,
)
from opsq.errors import OpsqError, UsageError

if TYPE_CHECKING:
    from opsq.client.aio.chunk import AsyncChunk
    from opsq.content.chunk_reader import ChunkReader
    from opsq.wire.messages import SubmissionContent

Work = Callable[["AsyncChunk"], Awaitable[Outcome]]


class AsyncChunkSource(NamedTuple):
    """What a run needs of a consumer; see `ChunkSource`.

    Attributes:
        reader: reads the chunks of a submission, for the calling thread, which may be any.
    """

    take: Callable[[], Awaitable[AsyncChunk | None]]
    give_back: Callable[[], Awaitable[None]]
    flush: Callable[[], Awaitable[None]]
    reader: Callable[[SubmissionContent], ChunkReader]


class AsyncRun:
    """One run: tasks that take chunks from one consumer.

    Args:
        source: where chunks come from and go to.
        work: works on a chunk; returns what became of it.
    """

    def __init__(self, source: AsyncChunkSource, work: Work) -> None:
        self._source = source
        self._work = work
        self._taking = asyncio.Lock()
        self._counts = {"completed": 0, "failed": 0, "released": 0}

    async def run(self, concurrency: int) -> Tally:
        """Work until nothing is to come.

        Raises:
            BaseException: what ended the run before; all chunks were given back.
        """
        tasks = [asyncio.create_task(self._loop()) for _ in range(concurrency)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            await self._source.flush()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._source.give_back()
        return Tally(self._counts["completed"], self._counts["failed"], self._counts["released"])

    async def _loop(self) -> None:
        while (chunk := await self._take()) is not None:
            try:
                outcome = await self._work(chunk)
            except BaseException:
                self._counts["released"] += 1
                with contextlib.suppress(OpsqError):  # what ended the run is raised, not what follows from it
                    if not chunk.has_verdict:
                        await chunk.release()
                raise
            await self._settle(chunk, outcome)

    async def _take(self) -> AsyncChunk | None:
        async with self._taking:
            return await self._source.take()

    async def _settle(self, chunk: AsyncChunk, outcome: Outcome) -> None:
        if chunk.has_verdict or outcome.result is not None:
            self._counts["completed"] += 1
            if not chunk.has_verdict:
                await chunk.complete(outcome.result or b"", then=outcome.then, run_s=outcome.run_s)
        elif chunk.is_revoked:
            self._counts["released"] += 1
            await chunk.release()
        else:
            self._counts["failed"] += 1
            found = None
            with contextlib.suppress(OpsqError):
                found = await chunk.input()
            log_failure(chunk, outcome, found)
            await chunk.fail(outcome.reason, delay_s=outcome.delay_s, retry=not outcome.is_final, run_s=outcome.run_s)


async def run(
    source: AsyncChunkSource, f: Callable[[Any], Any], *, jobs: int, concurrency: int, max_runtime_s: float | None
) -> Tally:
    """See `AsyncConsumer.run_each_chunk`."""
    is_coroutine = is_awaited(f)
    check_counts(jobs, concurrency, awaited=is_coroutine)
    if is_coroutine:
        if jobs > 1:
            raise UsageError(
                "jobs is for functions that are called in threads; this one is awaited.",
                hint="concurrency says for how many chunks at once.",
            )
        return await AsyncRun(source, _awaiting(f, seconds("max_runtime_s", max_runtime_s))).run(concurrency)
    if max_runtime_s is not None:
        raise UsageError("max_runtime_s needs a coroutine function (async def): a thread cannot be ended.")
    threads = ThreadPoolExecutor(jobs, "opsq-job")
    try:
        return await AsyncRun(source, _in_threads(f, source, threads)).run(jobs)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # what runs cannot be ended


def _awaiting(f: Callable[[Any], Awaitable[Any]], max_runtime_s: float | None) -> Work:
    async def work(chunk: AsyncChunk) -> Outcome:
        began_at = time.monotonic()
        limit = asyncio.timeout(max_runtime_s)
        try:
            with chunk.tracing():
                async with limit:
                    outcome = await outcome_awaited(f, chunk)
        except (TimeoutError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the run ends; else something within the function was cancelled
            outcome = Outcome(None, reason_of(error.__cause__ or error), run_s=time.monotonic() - began_at)
        if limit.expired() and outcome.result is None:
            outcome.reason = overrun(outcome.reason, max_runtime_s or 0.0)
        return outcome

    return work


def _in_threads(f: Callable[[ChunkView], Any], source: AsyncChunkSource, threads: ThreadPoolExecutor) -> Work:
    async def work(chunk: AsyncChunk) -> Outcome:
        loop = asyncio.get_running_loop()
        view = ChunkView(
            chunk.described,
            chunk.handle,
            lambda: source.reader(chunk.described),
            lambda: asyncio.run_coroutine_threadsafe(chunk.attachment(), loop).result(),
            lambda then: asyncio.run_coroutine_threadsafe(chunk.prepare(then), loop).result(),
        )
        with chunk.tracing():
            return await loop.run_in_executor(threads, copy_context().run, outcome_of, f, view)

    return work
