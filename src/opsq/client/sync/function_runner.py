"""Calls a function for each chunk that a consumer reserves: in the calling thread, in threads, or in worker processes.

This file decides who takes the next chunk, how work ends, and what is raised; what the function did is judged in
core/outcome.py, a worker process is watched in worker_pool.py.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opsq.client.core.drain_signals import DrainSignals
from opsq.client.core.outcome import Outcome, Tally, check_counts, is_awaited, log_failure, outcome_of
from opsq.content.manifest import known_input
from opsq.errors import OpsqError, UsageError
from opsq.units import counted

if TYPE_CHECKING:
    from opsq.client.core.consume_options import Mode, OnInterrupt
    from opsq.client.sync.child_process import Program
    from opsq.client.sync.chunk import Chunk
    from opsq.wire.messages import SubmissionContent, Welcome

_TICK_S = 0.25
"""How often is looked whether the grace is over."""


class Slot(Protocol):
    """Where one chunk at a time is worked on."""

    is_killable: bool
    """Whether the work at hand can be ended from outside."""

    @property
    def lot_count(self) -> int:
        """How many chunks it takes at once at most, as far as they are there; it still works on one at a time."""

    def prepare(self) -> None:
        """Get ready for the next chunk, before it is taken."""

    def work(self, chunks: Sequence[Chunk]) -> Iterator[Outcome | None]:
        """Work on them; gives what became of each in turn, None: it is to be given back."""

    def give_up(self) -> None:
        """Have the work at hand end soon, if that is possible; called by another thread."""

    def kill(self) -> None:
        """End the work at hand at once, if that is possible; called by another thread."""

    def close(self) -> None:
        """Let go of everything; called by the thread that works."""


class LocalSlot:
    """Calls the function in the thread that asks."""

    is_killable = False
    lot_count = 1

    def __init__(self, f: Callable[[Chunk], Any]) -> None:
        self._f = f

    def work(self, chunks: Sequence[Chunk]) -> Iterator[Outcome | None]:
        """See `Slot.work`."""
        for chunk in chunks:
            with chunk.tracing():
                outcome = outcome_of(self._f, chunk)
            yield outcome

    def prepare(self) -> None:
        """See `Slot.prepare`: nothing to prepare, end or close."""

    give_up = kill = close = prepare


class ChunkSource(NamedTuple):
    """What a run needs of a consumer.

    Attributes:
        take: waits for the next chunk; None when there is none to come. By one thread at a time.
        take_ready: the next chunk that need not be waited for; None if there is none. By one thread at a time.
        give_back: gives back all chunks without a verdict.
        stop: has `take` give nothing more.
        flush: waits until every verdict is durable.
        describe: what the daemon said of a submission; raises `NotFound` when it was removed.
        welcome: what the daemon said to the consumer.
        is_leased: reservations outlive the consumer.
    """

    take: Callable[[], Chunk | None]
    take_ready: Callable[[], Chunk | None]
    give_back: Callable[[], None]
    stop: Callable[[], None]
    flush: Callable[[], None]
    describe: Callable[[int], SubmissionContent]
    welcome: Welcome
    is_leased: bool


class Run:
    """One run: slots that take chunks from one consumer.

    Args:
        source: where chunks come from and go to.
        slots: one per job.
        grace_s: how long running chunks may take after the first signal before they are killed; None: without limit.
        on_failed: called with each chunk that has failed.
    """

    def __init__(
        self,
        source: ChunkSource,
        slots: Sequence[Slot],
        grace_s: float | None,
        on_failed: Callable[[Chunk], object] = bool,
    ) -> None:
        self._source = source
        self._threads: list[threading.Thread] = []
        self._slots = slots
        self._grace_s = grace_s
        self._on_failed = on_failed
        self._taking = threading.Lock()
        self._counting = threading.Lock()
        self._is_over = False
        self._failure: BaseException | None = None
        self._counts = {"completed": 0, "failed": 0, "released": 0}

    def run(self, *, is_inline: bool) -> Tally:
        """Work until nothing is to come.

        Args:
            is_inline: by the calling thread; for one slot.

        Raises:
            BaseException: what ended the run before; all chunks were given back.
        """
        with DrainSignals(self._source.stop) as signals:
            try:
                if is_inline:
                    self._loop(self._slots[0])
                else:
                    self._run_threads(signals)
                if self._failure is not None:
                    raise self._failure
                self._source.flush()
                self._source.give_back()
            except BaseException:
                self._abort()
                raise
        counts = self._counts
        return Tally(counts["completed"], counts["failed"], counts["released"], signals.last)

    def _run_threads(self, signals: DrainSignals) -> None:
        self._threads = [
            threading.Thread(target=self._guarded, args=(slot,), name="opsq-job", daemon=True) for slot in self._slots
        ]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_TICK_S)
                if (
                    signals.last is not None
                    and self._grace_s is not None
                    and time.monotonic() - signals.heard_at > self._grace_s
                ):
                    self._is_over = True
                    for slot in self._slots:
                        slot.give_up()

    def _guarded(self, slot: Slot) -> None:
        try:
            self._loop(slot)
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
            with self._counting:
                self._failure = self._failure or error
            self._is_over = True
            self._source.stop()

    def _loop(self, slot: Slot) -> None:
        try:
            while not self._is_over:
                slot.prepare()
                chunks = deque(self._take(slot.lot_count))
                if not chunks:
                    return
                try:
                    for outcome in slot.work(list(chunks)):
                        self._settle(chunks.popleft(), outcome)
                except BaseException:
                    self._release(chunks)
                    raise
        finally:
            slot.close()

    def _take(self, count: int) -> list[Chunk]:
        """The next chunks, when this thread is the next to get some: what was not started stays in the consumer."""
        with self._taking:
            chunk = None if self._is_over else self._source.take()
            chunks = []
            while chunk is not None:
                chunks.append(chunk)
                chunk = self._source.take_ready() if len(chunks) < count else None
            return chunks

    def _release(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self._count("released")
            with suppress(OpsqError):  # what ended the run is raised, not what follows from it
                if not chunk.has_verdict:
                    chunk.release()

    def _settle(self, chunk: Chunk, outcome: Outcome | None) -> None:
        if outcome is None:
            chunk.release()
            self._count("released")
        elif _give(chunk, outcome):
            self._count("failed")
            with self._counting:
                self._on_failed(chunk)
        else:
            self._count("completed" if outcome.result is not None else "released")

    def _count(self, what: str) -> None:
        with self._counting:
            self._counts[what] += 1

    def _abort(self) -> None:
        """Give back all chunks, those that threads are working on included."""
        self._is_over = True
        for slot in self._slots:
            slot.kill()
        self._source.stop()
        with suppress(OpsqError):
            self._source.give_back()
        for slot, thread in zip(self._slots, self._threads, strict=False):
            if slot.is_killable:
                thread.join()


def run(
    source: ChunkSource,
    f: Callable[[Any], Any] | Program,
    *,
    jobs: int,
    concurrency: int,
    mode: Mode,
    max_runtime_s: float | None,
    max_memory_bytes: int | None,
    grace_s: float | None,
    on_interrupt: OnInterrupt,
) -> Tally:
    """See `Consumer.run_each_chunk`."""
    if on_interrupt not in ("raise", "return"):
        raise UsageError(f"on_interrupt is {on_interrupt!r}; it must be 'raise' or 'return'.")
    awaited = is_awaited(f) if callable(f) else f.is_awaited
    check_counts(jobs, concurrency, awaited=awaited)
    slots: Sequence[Slot]
    on_failed: Callable[[Chunk], object] = bool
    if mode == "threads" and awaited:
        raise UsageError(
            f"{f!r} is a coroutine function, which no thread awaits.",
            hint="Give mode='processes', or await it on an event loop of yours: opsq.connect_async().",
        )
    if mode == "threads" and callable(f):
        if max_runtime_s is not None or max_memory_bytes is not None:
            name = "max_memory_bytes" if max_runtime_s is None else "max_runtime_s"
            raise UsageError(f"{name} needs mode='processes': a thread cannot be ended.")
        slots = [LocalSlot(f) for _ in range(jobs)]
        grace_s = None
    elif mode == "processes":
        from opsq.client.sync.child_process import Limits, program_of
        from opsq.client.sync.worker_pool import WorkerSlot

        program = program_of(f) if callable(f) else f
        limits, on_failed = Limits(max_runtime_s, max_memory_bytes, source.is_leased), program.on_failed
        of_process = (source.describe, source.welcome, program, limits)
        if awaited:
            from opsq.client.sync.awaiting_pool import AwaitingProcess

            processes = [AwaitingProcess(*of_process, lanes_count=concurrency) for _ in range(jobs)]
            slots = [lane for process in processes for lane in process.lanes]
        else:
            slots = [WorkerSlot(*of_process) for _ in range(jobs)]
    else:
        raise UsageError(f"mode is {mode!r}; it must be 'threads' or 'processes'.")
    tally = Run(source, slots, grace_s, on_failed).run(is_inline=mode == "threads" and jobs == 1)
    if tally.stop_signal == signal.SIGINT and on_interrupt == "raise":
        raise KeyboardInterrupt(f"completed {counted(tally.completed_count, 'chunk')}, failed {tally.failed_count}")
    return tally


def _give(chunk: Chunk, outcome: Outcome) -> bool:
    """Give a chunk its verdict, unless the function has given it one; returns whether it failed."""
    if chunk.has_verdict:
        return False
    if outcome.result is not None:
        chunk.complete(outcome.result, then=outcome.then, run_s=outcome.run_s, exit_status=outcome.exit_status)
        return False
    if chunk.is_revoked:  # its failure would be refused
        chunk.release()
        return False
    log_failure(chunk, outcome, known_input(lambda: chunk.input))
    chunk.fail(
        outcome.reason,
        delay_s=outcome.delay_s,
        retry=not outcome.is_final,
        run_s=outcome.run_s,
        exit_status=outcome.exit_status,
        signal=outcome.signal,
    )
    return True
