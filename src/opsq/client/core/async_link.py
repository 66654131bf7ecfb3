"""The link of asyncio programs, and of routers: the same as `sync.link`, on one event loop.

What is pending and what is resent is decided in `pending_requests`, as for blocking callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from opsq.client.core.address import Target, show_address
from opsq.client.core.async_transport import AsyncTransport, open_transport
from opsq.client.core.pending_requests import Holdings, LinkBase, OnPush, OnReply, id_of, refused
from opsq.client.core.transport import DIAL_S, Backoff, expect, here
from opsq.errors import OpsqError, ProtocolError, Refused, TimedOut, Unreachable, UsageError
from opsq.wire.messages import VERSION, CancelWait, Claim, Heartbeat, Hello, Reply, Request, Welcome

R = TypeVar("R")


class AsyncLink(LinkBase):
    """Requests and answers over a connection that may break, for one event loop.

    It is made by `open`, or dials by itself from `keep_dialling` on. The arguments are those of `Link`, and `on_state`,
    which is told None when there is a connection, and why when it is lost or could not be made; `on_heard` is called
    when something arrives; `connect` makes a socket that is connected to the address.
    """

    def __init__(
        self,
        address: Target,
        *,
        name: str,
        token: str,
        connect: Callable[[Any], socket.socket],
        claim: Claim | None = None,
        reconnect_s: float | None = None,
        holdings: Holdings | None = None,
        lease_s: float | None = None,
        on_reclaimed: OnReply | None = None,
        on_push: OnPush | None = None,
        on_state: Callable[[OpsqError | None], None] | None = None,
        on_heard: Callable[[], None] | None = None,
        shortest_s: Callable[[], float] | None = None,
    ) -> None:
        self._address = address
        self._name = name
        self._token = token
        self._claim = claim
        self._connect = connect
        self._on_state = on_state
        self._on_heard = on_heard
        super().__init__(
            reconnect_s=reconnect_s,
            holdings=holdings,
            lease_s=lease_s,
            on_reclaimed=on_reclaimed,
            on_push=on_push,
            shortest_s=shortest_s,
        )
        self._transport: AsyncTransport | None = None
        self._unsent: list[Request] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._beat_at = 0.0
        self._beat_timer: asyncio.TimerHandle | None = None

    async def open(self) -> AsyncLink:
        """Dial and greet.

        Raises:
            OpsqError: as `Connection.open`.
        """
        self._begin(*await self._dial())
        return self

    def keep_dialling(self) -> None:
        """Make a connection as soon as that can be done; what is sent before waits for it."""
        self.spawn(self._reconnect())

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something beside until the link is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> None:
        """Send requests; each answer goes to `on_reply`. Never waits: see `drained`.

        Raises:
            UsageError: the link is closed, or a request is over the frame limit.
        """
        if self._is_closed:
            raise UsageError("This queue or consumer is closed.", hint="Use it inside its `async with` block.")
        if on_reply is not None:
            self._pending.enter(requests, on_reply)
        if self._transport is not None:
            try:
                self._transport.write(requests)
            except UsageError:
                self._pending.forget(requests)
                raise

    def send_soon(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> None:
        """As `send`, in one frame with all that is sent so in this turn of the event loop.

        Raises:
            UsageError: the link is closed.
        """
        if self._is_closed or self._transport is None:
            self.send(requests, on_reply)
            return
        if on_reply is not None:
            self._pending.enter(requests, on_reply)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_unsent)
        self._unsent += requests

    def cancel(self, request_ids: Sequence[int]) -> None:
        """End requests that wait, after what is sent in this turn; see `Link.cancel`."""
        self.send_soon(self._pending.cancel(request_ids))

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._write(unsent)

    def _write(self, requests: list[Request]) -> None:
        """Send requests; one that is too long for this daemon is answered with that."""
        if requests and self._transport is not None:
            for refusal in refused(self._transport.write, requests):
                self._deliver(refusal)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._transport is not None

    @property
    def is_writable(self) -> bool:
        """Whether the connection takes more; true without one."""
        return self._transport is None or self._transport.is_writable

    async def drained(self) -> None:
        """Wait until the connection takes more."""
        if self._transport is not None:
            await self._transport.drained()

    async def call(
        self, request: Request, kind: type[R], timeout_s: float | None = None, *, on_reply: OnReply | None = None
    ) -> R:
        """Send one request and wait for its answer; see `Link.call`."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(reply: Reply) -> None:
            if on_reply is not None:
                on_reply(reply)
            if not answer.done():
                answer.set_result(reply)

        self.send([request], answered)
        try:
            async with asyncio.timeout(timeout_s):
                await self.drained()
                return expect(await answer, kind)
        except TimeoutError as error:
            raise TimedOut(f"No answer within {timeout_s:g} s.") from error
        finally:
            if not answer.done() or answer.cancelled():
                self._pending.forget([request])
                if not self._is_closed:
                    self.send([CancelWait(id_of(request))])

    async def wait_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `is_done()`, checked whenever something arrives; False if it is not in `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_done():
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
        except TimeoutError:
            return is_done()
        return True

    def wake(self) -> None:
        """Have every `wait_until` check its condition."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """End the connection and all that runs beside; requests without an answer fail."""
        if self._is_closed:
            return
        self._send_unsent()
        self._is_closed = True
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        transport, self._transport = self._transport, None
        self._fail_all(Unreachable("The connection was closed by this process."))
        if transport is not None:
            transport.close()
            await transport.closed()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _dial(self) -> tuple[AsyncTransport, Welcome]:
        where = show_address(self._address)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()

        def greeted(replies: list[Reply]) -> None:
            if not answer.done():
                if replies:
                    answer.set_result(replies[0])
            else:
                self._received(replies)

        def ended(error: OpsqError) -> None:
            if not answer.done():
                answer.set_exception(error)
            else:
                self._ended(transport, error)

        transport, known = await open_transport(
            lambda: AsyncTransport(greeted, ended, self._address), self._address, self._connect
        )
        try:
            transport.write([Hello(self.next_id(), VERSION, self._name, self._token, self._claim, *here())])
            async with asyncio.timeout(DIAL_S):
                welcome = known(expect(await answer, Welcome))
        except TimeoutError as error:
            transport.close()
            await transport.closed()
            raise Unreachable(f"The daemon at {where} accepts but does not answer.") from error
        except OpsqError:
            transport.close()
            await transport.closed()
            raise
        except BaseException:
            transport.close()
            raise
        transport.set_limit(welcome.frame_limit_bytes)
        return transport, welcome

    def _begin(self, transport: AsyncTransport, welcome: Welcome) -> None:
        self.welcome = welcome
        self._unanswered_beats = 0
        self._transport = transport
        held, started = self._holdings() if self._holdings is not None else ([], [])
        again = self._pending.resent(held, started, self._lease_s, self._on_reclaimed)
        self._write(again)
        self._plan_beat()
        self._tell_state(None)

    def _received(self, replies: list[Reply]) -> None:
        self._unanswered_beats = 0
        if self._on_heard is not None:
            self._on_heard()
        for reply in replies:
            self._deliver(reply)
        self._plan_beat()
        self.wake()

    def _ended(self, transport: AsyncTransport, error: OpsqError) -> None:
        if self._transport is not transport or self._is_closed:
            return
        self._transport = None
        self._unsent.clear()  # what wants an answer is sent again with all that has none
        self._tell_state(error)
        if isinstance(error, ProtocolError) or self._reconnect_s == 0:
            self._fail_all(error)
        self.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        """Dial again and again; after `reconnect_s` what waits fails, but dialling goes on for what comes later."""
        pauses = Backoff()
        lost_at = time.monotonic()
        while self._transport is None:
            try:
                self._begin(*await self._dial())
            except (Unreachable, Refused) as error:
                self._tell_state(error)
                if self._reconnect_s is not None and time.monotonic() - lost_at >= self._reconnect_s:
                    lost_at = time.monotonic()
                    self._fail_all(error)
            except OpsqError as error:
                self._tell_state(error)
                self._fail_all(error)
            if self._transport is None:
                await asyncio.sleep(pauses.next_s())
        self.wake()

    def _plan_beat(self) -> None:
        """Have the next heartbeat sent when it is due, if that is sooner than planned."""
        beat_at = time.monotonic() + self._pause_s()
        if self._beat_timer is None or beat_at < self._beat_at:
            if self._beat_timer is not None:
                self._beat_timer.cancel()
            self._beat_at = beat_at
            self._beat_timer = asyncio.get_running_loop().call_later(self._pause_s(), self._beat)

    def _beat(self) -> None:
        self._beat_timer = None
        if self._is_closed:
            return
        if self._transport is not None and self._count_beat(time.monotonic()):
            self._transport.write([Heartbeat(self.next_id())])
        elif self._transport is not None:
            self._transport.abort()  # it may never take what is still to be sent
        self._plan_beat()

    def _tell_state(self, problem: OpsqError | None) -> None:
        if self._on_state is not None:
            self._on_state(problem)

    def _fail_all(self, error: OpsqError) -> None:
        super()._fail_all(error)
        self.wake()
