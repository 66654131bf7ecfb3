"""Reserve calls that have not been answered, and lines of those with equal strategies. Must not serve them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from opsq.clock import MonoNs, Now
from opsq.queue.live_submission import Part, Reservation
from opsq.queue.peer import Peer
from opsq.strategy.arms import Arm
from opsq.wire.messages import CompleteAndReserve, Reserve

_ENDLESS_S = float("inf")
FIRST_RANK = -1
"""Before all ranks that a request may have."""


class Plan(NamedTuple):
    """The canonical text of a strategy, and its arms, each under a name that equal arms share."""

    text: str
    arms: list[tuple[str, Arm]]


class Call:
    """A reserve call that has not been answered."""

    __slots__ = (
        "deadline",
        "is_over",
        "parts",
        "peer",
        "rank",
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
        self.rank = request.rank if isinstance(request, Reserve) else 0
        self.since: MonoNs = now.mono
        self.deadline: MonoNs | None = None
        self.is_over = False
        self.wanted = request.count
        self.reservation: Reservation | None = None
        self.parts: list[Part] = []
        """What was found for it so far; of a run that was interrupted some may have been taken away again."""
        self.shortest_s = _ENDLESS_S


class Line:
    """Parked calls with equal strategies: those of the lowest rank first, of one rank the longest waiting."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ranks: dict[int, OrderedDict[Call, None]] = {}
        self.until_empty_count = 0
        self.no_wait_count = 0

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))

    def __iter__(self) -> Iterator[Call]:
        for rank in sorted(self._ranks):
            yield from self._ranks[rank]

    @property
    def first(self) -> Call:
        """The call that is served next."""
        return next(iter(self._ranks[min(self._ranks)]))

    @property
    def since(self) -> MonoNs:
        """When the call began that has waited longest."""
        return min(next(iter(calls)).since for calls in self._ranks.values())

    def join(self, call: Call) -> None:
        """Append a call to those of its rank; one for which something was found already is served next."""
        if call.parts:
            call.rank = FIRST_RANK
        self._ranks.setdefault(call.rank, OrderedDict())[call] = None
        self.until_empty_count += call.request.until_empty
        self.no_wait_count += call.request.wait_s == 0

    def leave(self, call: Call) -> None:
        """Remove a call."""
        calls = self._ranks[call.rank]
        del calls[call]
        if not calls:
            del self._ranks[call.rank]
        self.until_empty_count -= call.request.until_empty
        self.no_wait_count -= call.request.wait_s == 0
