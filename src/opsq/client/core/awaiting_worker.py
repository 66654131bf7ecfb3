"""In a worker process: one event loop that awaits a coroutine function for each chunk that is there, all at once.

This file must not read the pipe (worker_process.py does) nor judge what the function did (outcome.py does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from opsq.client.core.chunk_view import ChunkView
from opsq.client.core.outcome import Outcome, outcome_awaited, reason_of
from opsq.client.core.worker_frames import Cancel, Enough, FromWorker, Interrupted, Lot, Ready, Work

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.manifest import InputRange
    from opsq.wire.messages import NewSubmission


class Worker(Protocol):
    """What is needed of the process."""

    is_orphan: bool
    is_busy: bool
    on_frame: Callable[[Lot | Cancel | Enough | None], object]

    def send(self, frame: FromWorker) -> None:
        """Send a frame, from any thread."""

    def view(self, work: Work) -> ChunkView:
        """A chunk, as the function sees it."""


def serve(worker: Worker, f: Callable[[Any], Awaitable[Any]]) -> None:
    """Await `f` for what comes, until the pipe closes or nothing is to come.

    Effects: what is not awaited to its end is cancelled then.
    """
    try:
        with asyncio.Runner() as runner:
            runner.run(_Lanes(worker, f).serve())
    except KeyboardInterrupt:
        if not worker.is_orphan:
            raise


class AwaitedView:
    """A chunk as a coroutine function sees it: reading is awaited, as of an `AsyncChunk`, and done in a thread.

    Attributes:
        view: the chunk.
    """

    def __init__(self, view: ChunkView) -> None:
        self.view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def __repr__(self) -> str:
        return repr(self.view)

    async def data(self) -> bytes:
        """Its bytes, read again on each call."""
        return await asyncio.to_thread(lambda: self.view.data)

    async def input(self) -> InputRange | None:
        """Its input; see `Chunk.input`."""
        return await asyncio.to_thread(lambda: self.view.input)

    async def attachment(self) -> bytes | None:
        """The attachment of its submission; None if it has none."""
        return await asyncio.to_thread(self.view.attachment)

    async def prepare(self, then: Iterable[Follower]) -> list[NewSubmission]:
        """Write the content of follow-ups; see `Chunk.prepare`."""
        return await asyncio.to_thread(self.view.prepare, then)


class _Lanes:
    """The tasks under way, a chunk each."""

    def __init__(self, worker: Worker, f: Callable[[Any], Awaitable[Any]]) -> None:
        self._worker = worker
        self._f = f
        self._aside: Callable[[], bytes | None] | None = getattr(f, "aside", None)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_over = asyncio.Event()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._worker.on_frame = lambda frame: loop.call_soon_threadsafe(self._take, frame)
        self._worker.send(Ready())
        await self._is_over.wait()
        self._worker.is_busy = False  # tasks get to clean up

    def _take(self, frame: Lot | Cancel | Enough | None) -> None:
        if isinstance(frame, Lot):
            for work in frame.chunks:
                self._worker.is_busy = True
                self._tasks[work.lane] = asyncio.create_task(self._work(work))
        elif isinstance(frame, Cancel):
            if frame.lane in self._tasks:
                self._tasks[frame.lane].cancel()
        else:
            self._is_over.set()

    async def _work(self, work: Work) -> None:
        started_at = time.monotonic()
        try:
            outcome = await outcome_awaited(self._f, AwaitedView(self._worker.view(work)))
        except asyncio.CancelledError as error:
            if self._is_over.is_set():
                raise
            outcome = Outcome(None, reason_of(error), run_s=time.monotonic() - started_at)
        except BaseException as error:
            if self._worker.is_orphan:
                raise
            self._worker.send(Interrupted.of(error))
            self._is_over.set()
            return
        del self._tasks[work.lane]
        self._worker.is_busy = bool(self._tasks)
        outcome.lane = work.lane
        if self._aside is not None:
            outcome.aside = self._aside()
        self._worker.send(outcome)
