"""Requests without an answer: who waits for what, what to send again on a new connection, what an answer ends.

This file does no I/O and takes no lock; blocking and asyncio links drive it alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from opsq.errors import OpsqError, Unreachable
from opsq.wire.messages import (
    ChunkMask,
    CompleteAndReserve,
    Completed,
    Draining,
    ErrorReply,
    HeldChunks,
    Reclaim,
    Reply,
    Request,
    Reserve,
    Revoked,
    Started,
)

OnReply = Callable[[Reply], None]
"""Told each answer to a request, error replies included. Must be quick, and must not wait."""

OnPush = Callable[[Revoked | Draining], None]
"""Told what the daemon says unasked."""

Holdings = Callable[[], tuple[list[HeldChunks], list[ChunkMask]]]
"""What a consumer holds, and on what of it work has begun."""


class _Pending:
    """A request without its (last) answer."""

    __slots__ = ("on_reply", "request")

    def __init__(self, request: Request, on_reply: OnReply) -> None:
        self.request = request
        self.on_reply = on_reply


class PendingRequests:
    """The requests of one client that have no answer yet, over all its connections."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}

    def next_id(self) -> int:
        """An id for the next request."""
        return next(self._ids)

    def enter(self, requests: Sequence[Request], on_reply: OnReply) -> None:
        """Remember who wants the answers to these requests."""
        for request in requests:
            if request_id := id_of(request):
                self._pending[request_id] = _Pending(request, on_reply)

    def forget(self, requests: Sequence[Request]) -> None:
        """Forget requests: their answers will go to nobody."""
        for request in requests:
            self._pending.pop(id_of(request), None)

    def take_waiter(self, reply: Reply) -> OnReply | None:
        """Who wants this answer; None for nobody. What it ends is forgotten."""
        reply_id = id_of(reply)
        pending = self._pending.pop(reply_id, None)
        if pending is None:
            return None
        request = pending.request
        if isinstance(reply, Completed) and isinstance(request, CompleteAndReserve):  # its second answer is still due
            pending.request = Reserve(
                reply_id, request.count, request.strategy, request.wait_s, request.lease_s, request.until_empty
            )
            self._pending[reply_id] = pending
        return pending.on_reply

    def resent(self, held: list[HeldChunks], started: list[ChunkMask], on_reclaimed: OnReply | None) -> list[Request]:
        """What to send first on a new connection: take up what is held, then all that has no answer, in its old order."""
        for request_id, pending in list(self._pending.items()):
            if isinstance(pending.request, Reclaim):
                del self._pending[request_id]
        requests: list[Request] = []
        unanswered = [pending.request for pending in self._pending.values()]
        if held and on_reclaimed is not None:
            reclaim = Reclaim(self.next_id(), held)
            self.enter([reclaim], on_reclaimed)
            requests.append(reclaim)
        if started:
            requests.append(Started(started))
        return requests + unanswered

    def fail_all(self, error: OpsqError) -> list[tuple[OnReply, ErrorReply]]:
        """Forget all requests; returns who is to be told what."""
        failed, self._pending = self._pending, {}
        return [(pending.on_reply, ErrorReply.of(request_id, error)) for request_id, pending in failed.items()]


def id_of(message: Request | Reply) -> int:
    """The id of a message; 0 for those that travel one way."""
    found: int = getattr(message, "id", 0)
    return found


def connection_error(reply: Reply) -> OpsqError | None:
    """What an error that concerns the connection as a whole says; None for all other replies.

    A plain farewell counts as none: the end of the connection follows, and tells enough.
    """
    if isinstance(reply, ErrorReply) and reply.id == 0:
        error = reply.error()
        return None if isinstance(error, Unreachable) else error
    return None
