"""Reserve calls that have not been answered, and lines of those with equal strategies. Must not serve them."""

from __future__ import annotations

from collections import OrderedDict

from opsq.clock import MonoNs, Now
from opsq.queue.live_submission import Part, Reservation
from opsq.queue.peer import Peer
from opsq.wire.messages import CompleteAndReserve, Reserve

_ENDLESS_S = float("inf")


class Call:
    """A reserve call that has not been answered."""

    __slots__ = (
        "deadline",
        "is_over",
        "parts",
        "peer",
        "request",
        "reservation",
        "shortest_s",
        "since",
        "text",
        "wanted",
    )

    def __init__(self, peer: Peer, request: Reserve | CompleteAndReserve, text: str, now: Now) -> None:
        self.peer = peer
        self.request = request
        self.text = text
        self.since: MonoNs = now.mono
        self.deadline: MonoNs | None = None
        self.is_over = False
        self.wanted = request.count
        self.reservation: Reservation | None = None
        self.parts: list[Part] = []
        """What was found for it so far; of a run that was interrupted some may have been taken away again."""
        self.shortest_s = _ENDLESS_S


class Line(OrderedDict[Call, None]):
    """Parked calls with equal strategies, the longest waiting first."""

    until_empty_count = 0
    no_wait_count = 0

    @property
    def first(self) -> Call:
        """The call that has waited longest."""
        return next(iter(self))

    def join(self, call: Call) -> None:
        """Append a call."""
        self[call] = None
        self.until_empty_count += call.request.until_empty
        self.no_wait_count += call.request.wait_s == 0

    def leave(self, call: Call) -> None:
        """Remove a call."""
        del self[call]
        self.until_empty_count -= call.request.until_empty
        self.no_wait_count -= call.request.wait_s == 0
