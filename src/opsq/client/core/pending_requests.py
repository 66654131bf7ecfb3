"""Requests without an answer: who waits for what, what to send again on a new connection, what an answer ends.

This file does no I/O and takes no lock; blocking and asyncio links drive it alike.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence

from opsq.client.core.arguments import seconds
from opsq.client.core.missing_shards import MissingShards
from opsq.client.core.transport import MISSES
from opsq.errors import OpsqError, Unreachable, UsageError
from opsq.wire.messages import (
    CancelWait,
    ChunkMask,
    Complete,
    CompleteAndReserve,
    Completed,
    Draining,
    ErrorReply,
    HeldChunks,
    Reclaim,
    Reply,
    Request,
    Reserved,
    Revoked,
    ShardsMissing,
    Started,
    Welcome,
)

OnReply = Callable[[Reply], None]
"""Told each answer to a request, error replies included. Must be quick, and must not wait."""

OnPush = Callable[[Revoked | Draining], None]
"""Told what the daemon says unasked."""

Holdings = Callable[[], tuple[list[HeldChunks], list[ChunkMask]]]
"""What a consumer holds, and which of it was started."""


_PUSHES = (Revoked, Draining)

BEATS = 3
"""Heartbeats in the time of the shortest reservation that is held: one may be late, another lost."""
BEAT_MIN_S = 0.03
"""The shortest time between two, that keeps a reservation of 0.1 s."""


class PendingRequests:
    """The requests of one client that have no answer yet, over all its connections."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[Request, OnReply]] = {}
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        return len(self._pending)

    def next_id(self) -> int:
        """An id for the next request."""
        return next(self._ids)

    def enter(self, requests: Sequence[Request], on_reply: OnReply) -> None:
        """Remember who wants the answers to these requests."""
        for request in requests:
            if request_id := id_of(request):
                self._pending[request_id] = (request, on_reply)

    def forget(self, requests: Sequence[Request]) -> None:
        """Forget requests: their answers will be dropped."""
        for request in requests:
            self.give_up(id_of(request))

    def give_up(self, request_id: int) -> None:
        """Forget one request."""
        self._pending.pop(request_id, None)

    def cancel(self, request_ids: Sequence[int]) -> list[CancelWait]:
        """What ends requests that wait, to be sent now; each is answered all the same.

        Those without an answer are ended on the next connection too, should this one be lost.
        """
        self._cancelled.update(request_ids)
        self._cancelled.intersection_update(self._pending)
        return [CancelWait(request_id) for request_id in request_ids]

    def take_waiter(self, reply: Reply) -> OnReply | None:
        """Who waits for this answer; None: no caller. What it ends is forgotten.

        A daemon answers CompleteAndReserve with Completed first. A router may do so last: while a shard is away.
        """
        reply_id = id_of(reply)
        pending = self._pending.pop(reply_id, None)
        if pending is None:
            return None
        request, on_reply = pending
        if isinstance(reply, Completed) and isinstance(request, CompleteAndReserve):  # its second answer is still due
            self._pending[reply_id] = (request.second_half(), on_reply)
        elif isinstance(reply, Reserved) and isinstance(request, CompleteAndReserve):
            self._pending[reply_id] = (Complete(reply_id, request.completions), on_reply)
        return on_reply

    def resent(
        self,
        held: list[HeldChunks],
        started: list[ChunkMask],
        lease_s: float | None,
        on_reclaimed: OnReply | None,
    ) -> list[Request]:
        """What to send first on a new connection: a reclaim of what is held, then all that has no answer, in order.

        What was cancelled is sent too, and ended: it might have been done before.
        """
        self._pending = {
            request_id: pending for request_id, pending in self._pending.items() if not isinstance(pending[0], Reclaim)
        }
        requests: list[Request] = []
        unanswered = [request for request, _ in self._pending.values()]
        if held and on_reclaimed is not None:
            reclaim = Reclaim(self.next_id(), held, lease_s)
            self.enter([reclaim], on_reclaimed)
            requests.append(reclaim)
        if started:
            requests.append(Started(started))
        return requests + unanswered + self.cancel([*self._cancelled.intersection(self._pending)])

    def fail_all(self, error: OpsqError) -> list[tuple[OnReply, ErrorReply]]:
        """Forget all requests; returns the error reply for each of their waiters."""
        failed, self._pending = self._pending, {}
        return [(on_reply, ErrorReply.of(request_id, error)) for request_id, (_, on_reply) in failed.items()]


def id_of(message: Request | Reply) -> int:
    """The id of a message; 0 for those that travel one way."""
    found: int = getattr(message, "id", 0)
    return found


def refused(send: Callable[[Sequence[Request]], None], requests: Sequence[Request]) -> list[ErrorReply]:
    """Send requests but for those that cannot be sent, such as one over the frame limit; returns what answers these.

    Args:
        send: sends all that it is given, or raises UsageError and sends nothing.
    """
    try:
        send(requests)
    except UsageError as error:
        if len(requests) == 1:
            return [ErrorReply.of(request_id, error)] if (request_id := id_of(requests[0])) else []
        half = len(requests) // 2
        return refused(send, requests[:half]) + refused(send, requests[half:])
    return []


class LinkBase:
    """What blocking and asyncio links share: pending requests, and where each reply goes.

    Args:
        reconnect_s: how long to try after a loss, None for ever, 0 not at all.
        holdings: what to reclaim after a reconnect.
        lease_s: the length of its leases; None: it is held by the connection.
        on_reclaimed: is given the answer to that.
        on_push: is given `Revoked` and `Draining`.
        shortest_s: tells the shortest of the reservations that heartbeats have to keep, in seconds; infinite: none.
    """

    welcome: Welcome

    def __init__(
        self,
        *,
        reconnect_s: float | None = None,
        holdings: Holdings | None = None,
        lease_s: float | None = None,
        on_reclaimed: OnReply | None = None,
        on_push: OnPush | None = None,
        shortest_s: Callable[[], float] | None = None,
    ) -> None:
        self._shortest_s = shortest_s
        self._reconnect_s = seconds("reconnect_s", reconnect_s)
        self._holdings = holdings
        self._lease_s = lease_s
        self._on_reclaimed = on_reclaimed
        self._on_push = on_push
        self._state = threading.Lock()  # _pending, the transport and the order on the wire
        self._pending = PendingRequests()
        self.next_id = self._pending.next_id
        """Gives an id for the next request."""
        self._missing = MissingShards()
        self._unanswered_beats = 0
        self._silent_since = 0.0
        """When the first of the beats was sent that have no answer."""
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def give_up(self, request_id: int) -> None:
        """Drop the answer to a request, and do not send it again."""
        with self._state:
            self._pending.give_up(request_id)

    def _pause_s(self) -> float:
        """How long after a heartbeat the next is due: a third of the shortest reservation, or what the daemon says."""
        shortest_s = self._shortest_s() if self._shortest_s is not None else math.inf
        return min(self.welcome.heartbeat_s, max(shortest_s / BEATS, BEAT_MIN_S))

    def _count_beat(self, now: float) -> bool:
        """A heartbeat is due. False: the daemon has left so many unanswered, for so long, that it is gone."""
        if not self._unanswered_beats:
            self._silent_since = now
        elif self._unanswered_beats >= MISSES and now - self._silent_since >= MISSES * self.welcome.heartbeat_s:
            return False
        self._unanswered_beats += 1
        return True

    def _deliver(self, reply: Reply) -> None:
        if isinstance(reply, _PUSHES):
            if self._on_push is not None:
                self._on_push(reply)
            return
        if isinstance(reply, ShardsMissing):
            self._missing(reply)
            return
        if isinstance(reply, ErrorReply) and reply.id == 0:  # it concerns the connection as a whole
            error = reply.error()
            if not isinstance(error, Unreachable):  # a plain farewell: the end follows, and is reported
                self._fail_all(error)
                return
        with self._state:
            on_reply = self._pending.take_waiter(reply)
        if on_reply is not None:
            on_reply(reply)

    def _fail_all(self, error: OpsqError) -> None:
        with self._state:
            failed = self._pending.fail_all(error)
        for on_reply, reply in failed:
            on_reply(reply)
