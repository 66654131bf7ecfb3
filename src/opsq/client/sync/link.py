"""A link: many requests from many threads over one transport that is replaced when it breaks.

This file owns request matching, heartbeats, reconnecting and resending; it knows neither sockets nor what a consumer
holds (the owner of the link says what to reclaim). The thread that waits for an answer reads for all;
while none waits, a small thread does.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from opsq.client.core.own_process import own_pid
from opsq.client.core.pending_requests import Holdings, LinkBase, OnPush, OnReply, id_of, refused
from opsq.client.core.transport import Backoff, Dial, Wire, expect
from opsq.errors import OpsqError, Refused, TimedOut, Unreachable, UsageError
from opsq.wire.messages import CancelWait, ErrorReply, Heartbeat, Reply, Request

if TYPE_CHECKING:
    from concurrent.futures import Future

R = TypeVar("R")
_DIALLED_S = 0.02
"""How long a polled link waits for a dial that it begins; after that it looks as often whether that has ended."""


class Link(LinkBase):
    """Requests and answers over a transport that may break; safe for use by many threads.

    It is the process's that has made it: one that was forked from that finds it closed, and leaves the transport alone.

    Args:
        open_wire: makes a greeted transport; called now, and after every loss.
        reconnect_s, holdings, lease_s, on_reclaimed, on_push, shortest_s: see `LinkBase`.
        on_flush: called by the link's thread when the time asked for by `flush_within` has come.
        is_polled: no thread of its own but to dial after a loss, which may take seconds; the owner calls `poll` at
            least as often as `next_poll_s` says.

    Raises:
        OpsqError: the first attempt to open the transport failed.
    """

    def __init__(
        self,
        open_wire: Dial,
        *,
        reconnect_s: float | None = None,
        holdings: Holdings | None = None,
        lease_s: float | None = None,
        on_reclaimed: OnReply | None = None,
        on_push: OnPush | None = None,
        on_flush: Callable[[], None] | None = None,
        is_polled: bool = False,
        shortest_s: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(
            reconnect_s=reconnect_s,
            holdings=holdings,
            lease_s=lease_s,
            on_reclaimed=on_reclaimed,
            on_push=on_push,
            shortest_s=shortest_s,
        )
        self._open_wire = open_wire
        self._on_flush = on_flush
        self._seat = threading.Condition(threading.Lock())  # who reads
        self._is_taken = False
        self._waiters = 0
        self._wake = threading.Event()  # the link's own thread has something to do
        self._closing = threading.Event()
        self._flush_at: float | None = None
        self._pid = own_pid()
        self._is_polled = is_polled
        self._pauses = Backoff()
        self._lost_at: float | None = None
        self._retry_at = 0.0
        self._dialled: Future[Wire] | None = None
        """Of a polled link: the transport that is being opened."""
        self._wire: Wire | None = open_wire()
        self.welcome = self._wire.welcome
        self._beat_at = time.monotonic() + self.welcome.heartbeat_s
        if not is_polled:
            threading.Thread(target=_run, args=(weakref.ref(self), self._wake), name="opsq-link", daemon=True).start()

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> None:
        """Send requests; each answer goes to `on_reply`.

        A loss is not seen here: what is unanswered is sent again after the reconnect.

        Raises:
            UsageError: the link is closed, was made in another process, or a request is over the frame limit.
        """
        self._check_own()
        if self._is_closed:
            raise UsageError("This queue or consumer is closed.", hint="Use it inside its `with` block.")
        with self._state:
            if on_reply is not None:
                self._pending.enter(requests, on_reply)
            wire = self._wire
        if wire is None:
            self._wake.set()
            return
        try:
            wire.send(requests)
        except Unreachable:
            wire.close()
            self._wake.set()
        except UsageError:
            with self._state:
                self._pending.forget(requests)
            raise

    def call(
        self, request: Request, kind: type[R], timeout_s: float | None = None, *, on_reply: OnReply | None = None
    ) -> R:
        """Send one request and wait for its answer, of which `on_reply` is told before the next heartbeat is planned.

        Raises:
            TimedOut: no answer within `timeout_s` seconds (None: waits without limit); a parked request is abandoned.
            OpsqError: the daemon refused, or could not be reached again.
        """
        replies: list[Reply] = []

        def answered(reply: Reply) -> None:
            if on_reply is not None:
                on_reply(reply)
            replies.append(reply)

        self.send([request], answered)
        if not self.wait_until(lambda: bool(replies), timeout_s):
            with self._state:
                self._pending.forget([request])
            self.send([CancelWait(id_of(request))])
            raise TimedOut(f"No answer within {timeout_s:g} s.")
        return expect(replies[0], kind)

    def cancel(self, request_ids: Sequence[int]) -> None:
        """End requests that wait, now or on the next connection; each is answered all the same. Raises as `send`."""
        with self._state:
            cancels = self._pending.cancel(request_ids)
        if cancels:
            self.send(cancels)

    def flush_within(self, delay_s: float) -> None:
        """Have `on_flush` called in at most `delay_s` seconds. Raises `UsageError` after a fork, as `wait_until`."""
        self._check_own()
        if self._flush_at is None:
            self._flush_at = time.monotonic() + delay_s
            self._wake.set()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Read, for everybody, until `is_done()`.

        Args:
            timeout_s: how long at most, in seconds; None without limit.

        Returns:
            Whether it is done.

        Raises:
            UsageError: the link was made in another process, whose answers these are.
        """
        self._check_own()
        if is_done():
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._seat:
            self._waiters += 1
            try:
                while self._is_taken and not is_done():
                    left_s = _left_s(deadline)
                    if left_s == 0:
                        return False
                    self._seat.wait(left_s)
                if is_done():
                    return True
                self._is_taken = True
            finally:
                self._waiters -= 1
        try:
            while not is_done():
                left_s = _left_s(deadline)
                self._pump(left_s if not self._is_polled else _least_s(left_s, self.next_poll_s()))
                if self._is_polled:
                    self._flush_if_due()
                if self._waiters:
                    with self._seat:
                        self._seat.notify_all()
                if left_s == 0:
                    return is_done()
            return True
        finally:
            with self._seat:
                self._is_taken = False
                self._seat.notify_all()

    def poll(self) -> bool:
        """Read what is there without waiting, and send what is due; false if another thread reads already.

        Raises `UsageError` after a fork, as `wait_until`.
        """
        self._check_own()
        with self._seat:
            is_reader = not self._is_taken
            self._is_taken = True
        if is_reader:
            try:
                self._pump(0.0)
            finally:
                with self._seat:
                    self._is_taken = False
                    self._seat.notify_all()
        self._flush_if_due()
        return is_reader

    def next_poll_s(self) -> float:
        """In how many seconds `poll` has something to do even if nothing arrives."""
        at = self._beat_at if self._wire is not None else self._retry_at
        if self._flush_at is not None:
            at = min(at, self._flush_at)
        return max(at - time.monotonic(), 0.0)

    def fileno(self) -> int:
        """The descriptor to watch, -1 while there is no connection; another one after each reconnect."""
        wire = self._wire
        return -1 if wire is None else wire.fileno()

    @property
    def is_connected(self) -> bool:
        """Whether there is a transport, as far as is known."""
        return self._wire is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or the link was made in another process."""
        return self._is_closed or own_pid() != self._pid

    def close(self) -> None:
        """End the transport and the thread; requests without an answer fail."""
        if self.is_closed:
            return
        self._is_closed = True
        self._closing.set()
        self._wake.set()
        with self._state:
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        if self._dialled is not None:
            self._dialled.add_done_callback(_close_late)
        self._fail_all(Unreachable("The connection was closed by this process."))
        with self._seat:
            self._seat.notify_all()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _check_own(self) -> None:
        if own_pid() != self._pid:
            raise UsageError(
                "A connection cannot be used after a fork.", hint="Call opsq.connect in the process that uses it."
            )

    def _pump(self, timeout_s: float | None) -> None:
        """Read once, or try once to reconnect. Only by the thread that has the seat."""
        now = time.monotonic()
        wire = self._wire
        if wire is None:
            self._reconnect(timeout_s)
            return
        if now >= self._beat_at:
            self._beat(wire, now)
        until_beat_s = max(self._beat_at - now, 0.0)
        try:
            replies = wire.receive(until_beat_s if timeout_s is None else min(timeout_s, until_beat_s))
        except Unreachable as error:
            self._lose(wire, error)
            return
        except OpsqError as error:
            self._lose(wire, error)
            self._fail_all(error)
            return
        if replies:
            self._unanswered_beats = 0
        for reply in replies:
            self._deliver(reply)
        if replies:
            beat_at = time.monotonic() + self._pause_s()
            if beat_at < self._beat_at:
                self._beat_at = beat_at
                self._wake.set()  # the next reader

    def _beat(self, wire: Wire, now: float) -> None:
        self._beat_at = now + self._pause_s()
        if not self._count_beat(now):
            wire.close()  # the next receive finds it ended
            return
        try:
            wire.send([Heartbeat(self.next_id())])
        except Unreachable:
            wire.close()

    def _lose(self, wire: Wire, error: OpsqError) -> None:
        wire.close()
        with self._state:
            if self._wire is wire:
                self._wire = None
        self._lost_at = self._retry_at = time.monotonic()
        self._pauses = Backoff()
        if self._is_closed or self._reconnect_s == 0:
            self._fail_all(error)

    def _reconnect(self, timeout_s: float | None) -> None:
        """Try once, after the pause that is due (at most `timeout_s`)."""
        if self._is_closed:
            self._fail_all(Unreachable("The connection was closed by this process."))
            return
        now = time.monotonic()
        if self._retry_at > now:
            pause_s = self._retry_at - now
            if timeout_s is not None and timeout_s < pause_s:
                self._closing.wait(timeout_s)
                return
            self._closing.wait(pause_s)
        try:
            wire = self._opened() if self._is_polled else self._open_wire()
        except (Unreachable, Refused) as error:
            now = time.monotonic()
            self._retry_at = now + self._pauses.next_s()
            if self._lost_at is None:
                self._lost_at = now
            if self._reconnect_s is not None and now - self._lost_at >= self._reconnect_s:
                self._lost_at = None
                self._fail_all(error)
            return
        except OpsqError as error:
            self._retry_at = time.monotonic() + self._pauses.next_s()
            self._fail_all(error)
            return
        if wire is None:
            self._retry_at = time.monotonic() + _DIALLED_S
        else:
            self._resume(wire)

    def _opened(self) -> Wire | None:
        """A new transport, opened in another thread; None: that is not done yet. Raises as `open_wire`."""
        if self._dialled is None:
            self._dialled = _in_thread(self._open_wire)
            with suppress(TimeoutError):
                self._dialled.exception(_DIALLED_S)
        if not self._dialled.done():
            return None
        dialled, self._dialled = self._dialled, None
        return dialled.result()

    def _resume(self, wire: Wire) -> None:
        """Reclaim what is held, send again what is unanswered, and let everybody use the new transport.

        What is too long for this daemon is answered with that: nobody has compared it with its limit yet.
        """
        held, started = self._holdings() if self._holdings is not None else ([], [])
        refusals: list[ErrorReply] = []
        with self._state:
            again = self._pending.resent(held, started, self._lease_s, self._on_reclaimed)
            self.welcome = wire.welcome
            self._unanswered_beats = 0
            self._beat_at = time.monotonic() + self._pause_s()
            self._lost_at = None
            self._pauses = Backoff()
            self._wire = wire
            try:
                if again:
                    refusals = refused(wire.send, again)
            except Unreachable:
                wire.close()
        for refusal in refusals:
            self._deliver(refusal)

    def _flush_if_due(self) -> None:
        at = self._flush_at
        if at is not None and time.monotonic() >= at:
            self._flush_at = None
            if self._on_flush is not None:
                self._on_flush()


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _least_s(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)


def _in_thread(open_wire: Dial) -> Future[Wire]:
    from concurrent.futures import Future  # 5 ms that only this needs

    dialled: Future[Wire] = Future()

    def dial() -> None:
        try:
            dialled.set_result(open_wire())
        except BaseException as error:  # noqa: BLE001  # who asks for the result raises it
            dialled.set_exception(error)

    threading.Thread(target=dial, name="opsq-dial", daemon=True).start()
    return dialled


def _close_late(dialled: Future[Wire]) -> None:
    if dialled.exception() is None:
        dialled.result().close()


def _run(reference: weakref.ref[Link], wake: threading.Event) -> None:
    """Beat, flush and read for a link while no other thread does; ends with the link."""
    pause_s = 0.0
    while True:
        wake.wait(pause_s)
        wake.clear()
        link = reference()
        if link is None or link.is_closed:
            return
        was_reader = link.poll()
        pause_s = max(link.next_poll_s(), 0.0 if was_reader else 0.02)
        del link
