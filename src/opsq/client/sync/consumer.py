"""A consumer: reserves ahead, hands out chunks one by one or in bulk, and reports verdicts in few frames.

This file decides what to reserve and when, and waits for it; verdicts are sent in verdict_sender.py, what is held is
kept in ledger.py, resending and heartbeats are in link.py.

A chunk needs a verdict before the loop asks for the next one, unless the loop was opened with `overlapping=True`.
Leaving the loop by any way gives back what has no verdict. Verdicts are sent without waiting; what goes wrong with them
surfaces at the next call. A chunk that is taken away (its submission was cancelled, another consumer finished it) ends
no loop: it goes to `on_lost`, by default a warning in the log `opsq`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Unpack

from opsq.client.core import arguments
from opsq.client.core.consumer_base import RETRY_S, Ask, is_one_over, pop_over
from opsq.client.core.verdict_batch import FLUSH_S
from opsq.client.sync.chunk import Chunk, Reservation
from opsq.client.sync.verdict_sender import VerdictSender
from opsq.errors import UsageError

if TYPE_CHECKING:
    from opsq.client.core.consume_options import Mode, OnInterrupt, RunOptions
    from opsq.client.core.outcome import Tally
    from opsq.client.sync.child_process import Program
    from opsq.serialisation import Serialisation


class Consumer(VerdictSender):
    """One consumer with a connection of its own. Safe for use by many threads; `chunks` by one at a time.

    Args:
        open_wire: makes a greeted transport.
        strategy: the order in which chunks are wanted: text, or a tree of `opsq.strategy`.
        batch: how many chunks to reserve at once; None: about a quarter of a second of work.
        lease_s: reserve by leases of so many seconds, which outlive the connection; None: until the connection ends.
        reconnect_s: how many seconds to try again when the connection breaks; None: for ever.
        on_lost: called with each chunk that was taken away or whose report was refused, in the thread of the next call.
        is_polled: no thread of its own; see `poll`.
    """

    # --- chunk by chunk -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks()

    def chunks(
        self, *, until_empty: bool = True, until_idle: bool = False, overlapping: bool = False
    ) -> Iterator[Chunk]:
        """Reserve and hand out chunks, one by one.

        Args:
            until_empty: end when nothing that the strategy may serve is free, reserved by anyone, or waiting for a
                retry. False: wait for work for ever.
            until_idle: end at the first moment when nothing can be reserved.
            overlapping: chunks may get their verdict later than the next chunk is asked for, and from any thread.

        Raises:
            UsageError: the last chunk has no verdict (and `overlapping` is off).
            OpsqError: the daemon refused the strategy, or could not be reached again within `reconnect_s`.

        Effects: however the loop is left, what has no verdict is given back.
        """
        wait_s = 0.0 if until_idle else None
        chunk: Chunk | None = None
        self.is_ended = False  # of an earlier loop
        try:
            while True:
                if chunk is not None and not (overlapping or chunk.has_verdict):
                    raise UsageError(
                        f"Chunk {chunk.submission_id}/{chunk.index} was neither completed, failed nor released.",
                        hint="Complete, fail or release each chunk, or open the loop with overlapping=True.",
                    )
                chunk = self._next(wait_s, until_empty)
                if chunk is None:
                    self.flush()
                    return
                yield chunk
        finally:
            self._give_back()

    def run_each_chunk(
        self,
        f: Callable[[Any], Any] | Program,
        *,
        jobs: int = 1,
        concurrency: int = 1,
        mode: Mode = "threads",
        until_empty: bool = True,
        until_idle: bool = False,
        max_runtime_s: float | None = None,
        max_memory_bytes: int | None = None,
        grace_s: float | None = 10.0,
        on_interrupt: OnInterrupt = "raise",
    ) -> Tally:
        """Call `f(chunk)` for each chunk; what it returns is the result, what it raises fails the chunk.

        An exception fails the attempt, with the traceback as the reason; `Retry` and `Bury` say what is to come of it.
        `sys.exit` fails it too. KeyboardInterrupt, and an exit by the handler of a signal, fail nothing: they give all
        chunks back and are raised here. A chunk is taken only when it is started; how many wait here depends on how
        long they take.

        Args:
            f: gives the result, as bytes; None for an empty one, `Done` for one with follow-ups. In threads it gets the
                `Chunk`, and may also give it its verdict itself; in processes a view that can only be read, and it must
                stand at the top level of a module, or be packed already.
            jobs: how many chunks are worked on at once; with a coroutine function, how many processes await.
            concurrency: how many chunks each process awaits at once, with a coroutine function (`async def`), which
                needs processes and gets a view like an `AsyncChunk`. A chunk that takes too long is cancelled alone; a
                process that dies costs each chunk that it held an attempt.
            mode: "threads" (with one job: the calling thread), or "processes", for work that keeps the processor busy.
                A process that dies costs its chunk one attempt, with the signal named, and is replaced. If the consumer
                reserves by leases, the chunk stays reserved until `max_runtime_s` are over: a service that it had
                called may still be busy with it.
            until_empty: see `chunks`.
            until_idle: see `chunks`.
            max_runtime_s: a chunk that takes longer fails, and its process is killed; None: no limit. Only for
                processes.
            max_memory_bytes: a chunk whose process uses more memory fails, and the process is killed; None: no limit.
                Only for processes.
            grace_s: how long running processes may go on after the first signal before their chunks are given back, in
                seconds; None: as long as they like. Threads always finish what they have started.
            on_interrupt: what the first SIGINT leads to when the chunks at hand have ended: "raise" KeyboardInterrupt,
                so that what follows in a script or a notebook is not run, or "return", as after SIGTERM.

        Returns:
            How many chunks were completed, failed and given back, and the signal that ended the run if one did.

        Raises:
            UsageError: an argument makes no sense, or a worker process cannot import `f`.
            WorkFailed: a worker process ended before it was ready.
            OpsqError: see `chunks`.
            KeyboardInterrupt: SIGINT came; see `on_interrupt`.

        Effects: every verdict is durable on return. Run by the main thread of a program that has set no handlers of its
        own, the first SIGTERM or SIGINT lets the chunks at hand end before this returns or raises; the second raises
        SystemExit or KeyboardInterrupt at once.
        """
        from opsq.client.sync.function_runner import ChunkSource, run

        self.is_ended = False
        wait_s = 0.0 if until_idle else None
        source = ChunkSource(
            # An iterator of `chunks` would give back what other jobs work on when it ends.
            take=lambda: self._next(wait_s, until_empty),
            take_ready=lambda: self._ready(wait_s, until_empty),
            give_back=self._give_back,
            stop=self.stop,
            flush=self.flush,
            describe=self.describe,
            welcome=self._link.welcome,
            is_leased=self._lease_s is not None,
        )
        return run(
            source,
            f,
            jobs=jobs,
            concurrency=concurrency,
            mode=mode,
            max_runtime_s=max_runtime_s,
            max_memory_bytes=max_memory_bytes,
            grace_s=grace_s,
            on_interrupt=on_interrupt,
        )

    def run_each_operation(
        self,
        f: Callable[[Any], Any],
        *,
        serialisation: Serialisation | str = "bytes",
        result_serialisation: Serialisation | str | None = None,
        keeps_results: bool = True,
        **options: Unpack[RunOptions],
    ) -> Tally:
        """Call `f(operation)` for each record of each chunk; what it returns becomes the record of the result.

        An operation that raises fails its chunk, and the reason says which one it was. A chunk that cannot be decoded
        is dead at once: the next attempt would read the same bytes.

        Args:
            f: as for `run_each_chunk`, but for one operation.
            serialisation: "bytes" or "text" (lines), "json" (lines), "msgpack", or an object of `opsq.serialisation`.
            result_serialisation: of the results; None: the same.
            keeps_results: False: what `f` returns is dropped, and the results are empty.
            options: those of `run_each_chunk`.

        Returns:
            As `run_each_chunk`.

        Raises:
            UsageError: there is no such serialisation, or an argument makes no sense.
            WorkFailed, KeyboardInterrupt, OpsqError: see `run_each_chunk`.

        Cost: besides `f`, 0.1 to 0.5 µs an operation, in chunks of 1000 small ones; a chunk is in memory as a whole.
        """
        from opsq.client.core.operations import EachOperation
        from opsq.client.core.outcome import is_awaited

        each = EachOperation(f, serialisation, result_serialisation, keeps_results=keeps_results)
        return self.run_each_chunk(each.awaited if is_awaited(f) else each, **options)

    def want(self, count: int | None = None, *, wait_s: float | None = None, until_empty: bool = False) -> None:
        """Have chunks reserved ahead, unless a reserve is on its way; returns at once. `take` hands them out.

        Args:
            count: how many; None: as the pace says.
            wait_s: how long the daemon may wait for work, in seconds; None: without limit.
            until_empty: as for `reserve`.

        Effects: what goes wrong is raised by the next call.
        """
        if self._ask is None and not self._is_stopping and time.monotonic() >= self._ask_at:
            self.is_ended = False
            request = self._new_reserve(count or self._prefetch.next_count(), wait_s, until_empty)
            self._ask = Ask(request)
            self._flush(self._ask)

    def take(self) -> Chunk | None:
        """The next chunk that was reserved ahead; None if there is none.

        Raises:
            OpsqError: the daemon refused the strategy, or an earlier report could not be delivered.
        """
        self._surface()
        with self._lock:
            taken = self._ledger.take_chunk()
            is_fresh, self._is_fresh = self._is_fresh, False
        if taken is None:
            self._is_fresh = is_fresh
            return None
        self._prefetch.count_taken()
        if is_fresh:
            self._flush()  # the first of each reserve is reported at once: a chunk that kills its consumer is found
        else:
            self._link.flush_within(FLUSH_S)
        return Chunk(self, *taken)

    def _next(self, wait_s: float | None, until_empty: bool) -> Chunk | None:
        while not self._is_stopping:
            chunk = self._ready(wait_s, until_empty)
            if chunk is not None:
                return chunk
            if self._ask is None:
                if self.is_ended:
                    return None
                pause_s = self._ask_at - time.monotonic()
                if pause_s > 0:
                    self._flush()
                    self._link.wait_until(self._is_stopped, pause_s)
                else:
                    self.want(wait_s=wait_s, until_empty=until_empty)
                continue
            if self._verdicts.buffered_count:
                self._flush()
            self._link.wait_until(self._has_news)
        return None

    def _ready(self, wait_s: float | None, until_empty: bool) -> Chunk | None:
        """The next chunk that is here already, having more reserved if that is due."""
        if self._is_stopping:
            return None
        if self._prefetch.is_ahead_due(self._ledger.ready_count) and not self.is_ended:
            self.want(wait_s=wait_s, until_empty=until_empty)
        return self.take()

    # --- in bulk ------------------------------------------------------------------------------------------------------

    def reserve(self, count: int, *, wait_s: float | None = 0.0, until_empty: bool = False) -> Reservation:
        """Reserve up to `count` chunks at once; what waits to be reported travels along.

        Args:
            count: at most 1 000 000.
            wait_s: how long to wait while nothing is free, in seconds; None: without limit.
            until_empty: do not wait any more once nothing can come without a new submission.

        Raises:
            UsageError: the count is out of its range, or the consumer was closed meanwhile.
            OpsqError: see `chunks`.
        """
        self._surface()
        ask = self._send_bulk(count, wait_s, until_empty)
        try:
            self._link.wait_until(lambda: ask.is_over() or self._is_stopping)
        except BaseException:  # an interrupt, after which the consumer may be used
            self._abandon(ask)
            raise
        if not ask.is_over():
            self._abandon(ask)
        return self._reservation(ask)

    def reservations(
        self, count: int, *, ahead: int = 2, until_empty: bool = True, wait_s: float | None = None
    ) -> Iterator[Reservation]:
        """Reserve in bulk, again and again, with `ahead` reserves on their way; the fastest way through a backlog.

        Each reservation needs a verdict before the next is asked for. Ends when nothing can come any more; with
        `until_empty=False` never, and with `wait_s` when nothing came within so many seconds.

        Raises:
            UsageError: the count is out of its range, or `ahead` less than 1.
            OpsqError: see `chunks`.
        """
        ahead = arguments.count("ahead", ahead)
        asks: list[Ask] = []
        may_come = True
        try:
            while not self._is_stopping and (may_come or asks):
                self._surface()
                while may_come and len(asks) < ahead:
                    asks.append(self._send_bulk(count, wait_s, until_empty))
                self._link.wait_until(lambda: is_one_over(asks) or self._is_stopping)
                if self._is_stopping:
                    break
                reservation = self._reservation(pop_over(asks))
                may_come = bool(reservation.chunks_count) or not (reservation.is_empty or wait_s is not None)
                if reservation.chunks_count:
                    yield reservation
                elif may_come:
                    self._link.wait_until(self._is_stopped, RETRY_S)
            self.flush()
        finally:
            self._give_back()

    def _send_bulk(self, count: int, wait_s: float | None, until_empty: bool) -> Ask:
        ask = Ask(self._new_reserve(count, wait_s, until_empty))
        self._flush(ask)
        return ask

    def _abandon(self, ask: Ask) -> None:
        if self._give_up(ask):
            self._link.cancel([ask.request.id])

    def _reservation(self, ask: Ask) -> Reservation:
        if ask.error is not None:
            raise ask.error
        with self._lock:
            self._ledger.start_all(ask.blocks)
        if ask.blocks:
            self._link.flush_within(FLUSH_S)
        return Reservation(self, ask.blocks, is_empty=self._is_last(ask))
