"""A consumer: reserves ahead, hands out chunks one by one or in bulk, and reports verdicts in few frames.

This file decides what to reserve and when, and waits for it; verdicts are sent in reporter.py, what is held and owed stands
in ledger.py, resending and heartbeats are in link.py.

A chunk needs a verdict before the loop asks for the next one, unless the loop was opened with `overlapping=True`.
Leaving the loop by any way gives back what has no verdict. Verdicts are sent without waiting; what goes wrong with them
surfaces at the next call. A chunk that is taken away (its submission was cancelled, another consumer finished it) ends no
loop: it goes to `on_lost`, by default a warning in the log `opsq`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opsq.client.chunk import Chunk, Reservation
from opsq.client.pace import Pace
from opsq.client.reporter import Reporter
from opsq.client.reporting import AGAIN_S, FLUSH_S, Ask, OnLost
from opsq.errors import OpsqError, Refused, UsageError
from opsq.wire.messages import Reserve, Reserved

if TYPE_CHECKING:
    from opsq.client.connection import Dial


class Consumer(Reporter):
    """One consumer with a connection of its own. Safe for use by many threads; `chunks` by one at a time.

    Args:
        open_wire: makes a greeted transport.
        strategy: the order in which chunks are wanted: text, or a tree of `opsq.strategy`.
        batch: how many chunks to reserve at once; None: as many as are worked off in about a quarter of a second.
        lease_s: reserve by leases of this length, which outlive the connection; None: until the connection ends.
        reconnect_s: how long to try again when the connection breaks; None: for ever.
        on_lost: told of chunks that were taken away or whose report was refused, by the thread that makes the next call.
        is_driven: no thread of its own; see `poll`.
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
        is_driven: bool = False,
    ) -> None:
        if batch is not None and batch < 1:
            raise UsageError(f"A batch of {batch} chunks is not possible: it starts at 1.")
        self.strategy = str(strategy)
        self.is_ended = False
        """Whether the daemon said that nothing can come any more (see `until_empty`)."""
        self._lease_s = lease_s
        self._pace = Pace(batch)
        self._ask: Ask | None = None
        self._ask_at = 0.0
        self._is_fresh = False
        super().__init__(open_wire, reconnect_s=reconnect_s, on_lost=on_lost, is_driven=is_driven)

    # --- chunk by chunk -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks()

    def chunks(self, *, until_empty: bool = True, until_idle: bool = False, overlapping: bool = False) -> Iterator[Chunk]:
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
        try:
            while True:
                if chunk is not None and not (overlapping or chunk.has_verdict):
                    raise UsageError(
                        f"Chunk {chunk.submission_id}/{chunk.index} was neither completed, failed nor released.",
                        hint="Give each chunk its verdict, or open the loop with overlapping=True.",
                    )
                chunk = self._next(wait_s, until_empty)
                if chunk is None:
                    self.flush()
                    return
                yield chunk
        finally:
            self._give_back()

    def want(self, count: int | None = None, *, wait_s: float | None = None, until_empty: bool = False) -> None:
        """Have chunks reserved ahead, unless a reserve is on its way; returns at once. `take` hands them out.

        Args:
            count: how many; None: as the pace says.
            wait_s: how long the daemon may wait for work; None: without limit.
        """
        if self._ask is None and not self._is_stopping and time.monotonic() >= self._ask_at:
            self.is_ended = False
            request = self._new_reserve(count or self._pace.next_count(), wait_s, until_empty)
            self._ask = Ask(request)
            self._flush(self._ask)

    def take(self) -> Chunk | None:
        """The next chunk that was reserved ahead; None if there is none."""
        self._surface()
        with self._lock:
            taken = self._ledger.take()
            is_fresh, self._is_fresh = self._is_fresh, False
        if taken is None:
            self._is_fresh = is_fresh
            return None
        self._pace.count()
        if is_fresh:
            self._flush()  # the first of each reserve is reported at once: a chunk that kills its consumer is found
        else:
            self._link.flush_within(FLUSH_S)
        return Chunk(self, *taken)

    def _next(self, wait_s: float | None, until_empty: bool) -> Chunk | None:
        while not self._is_stopping:
            if self._pace.is_ahead_due(self._ledger.ready_count) and not self.is_ended:
                self.want(wait_s=wait_s, until_empty=until_empty)
            chunk = self.take()
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
            if self._ledger.buffered_count:
                self._flush()
            self._link.wait_until(self._has_news)
        return None

    def _has_news(self) -> bool:
        return bool(self._ledger.ready_count or self._ask is None or self._is_stopped())

    def _reserved(self, ask: Ask, reply: Reserved) -> None:
        if ask is not self._ask:
            return
        self._ask = None
        if ask.lots:
            self._ledger.offer(ask.lots)
            self._is_fresh = True
        elif reply.is_empty or ask.request.wait_s is not None:
            self.is_ended = True
        else:  # drained: the daemon is about to end
            self._ask_at = time.monotonic() + AGAIN_S

    def _refused(self, ask: Ask, error: OpsqError) -> None:
        if ask is not self._ask:
            return
        self._ask = None
        if isinstance(error, Refused):
            self._ask_at = time.monotonic() + AGAIN_S
        else:
            self._ledger.errors.append(error)

    # --- in bulk ------------------------------------------------------------------------------------------------------

    def reserve(self, count: int, *, wait_s: float | None = 0.0, until_empty: bool = False) -> Reservation:
        """Reserve up to `count` chunks at once; what waits to be reported travels along.

        Args:
            count: at most 1 000 000.
            wait_s: how long to wait while nothing is free, in seconds; None: without limit.
            until_empty: do not wait any more once nothing can come without a new submission.
        """
        self._surface()
        ask = self._send_bulk(count, wait_s, until_empty)
        self._link.wait_until(ask.is_over)
        return self._reservation(ask)

    def reservations(self, count: int, *, ahead: int = 2, until_empty: bool = True, wait_s: float | None = None) -> Iterator[Reservation]:
        """Reserve in bulk, again and again, with `ahead` reserves on their way; the fastest way through a backlog.

        Each reservation needs a verdict before the next is asked for. Ends when nothing can come any more; with
        `until_empty=False` never, and with `wait_s` when nothing came within that time.
        """
        asks: list[Ask] = []
        try:
            while not self._is_stopping:
                self._surface()
                while len(asks) < ahead:
                    asks.append(self._send_bulk(count, wait_s, until_empty))
                self._link.wait_until(asks[0].is_over)
                reservation = self._reservation(asks.pop(0))
                if reservation.chunks_count:
                    yield reservation
                elif reservation.is_empty or wait_s is not None:
                    break
                else:
                    self._link.wait_until(self._is_stopped, AGAIN_S)
            self.flush()
        finally:
            self._give_back()

    def _send_bulk(self, count: int, wait_s: float | None, until_empty: bool) -> Ask:
        ask = Ask(self._new_reserve(count, wait_s, until_empty))
        self._flush(ask)
        return ask

    def _new_reserve(self, count: int, wait_s: float | None, until_empty: bool) -> Reserve:
        return Reserve(self._link.next_id(), count, self.strategy, wait_s, self._lease_s, until_empty)

    def _reservation(self, ask: Ask) -> Reservation:
        if ask.error is not None:
            raise ask.error
        if ask.reply is None:
            raise UsageError("The consumer was closed while it waited.")
        with self._lock:
            self._ledger.open_all(ask.lots)
        if ask.lots:
            self._link.flush_within(FLUSH_S)
        return Reservation(self, ask.lots, is_empty=ask.reply.is_empty)

    def _give_back(self) -> None:
        self._ask = None
        super()._give_back()
