"""Peers whose connections are lost, until the engine has given back what they held: some in each turn of the loop.

All may go at once, as when a network fails; this file must not make the others wait for that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from opsq.queue.engine import Peer

TURN_PEERS = 64
"""How many peers leave in one turn of the event loop: a few milliseconds."""

TURN_S = 0.005
"""After so long no more leave in a turn: some hold or wait for hundreds of things."""


class Departures:
    """Peers that are leaving, in order.

    Args:
        leave: gives back what one of them held.
        soon: has a function called in the next turn.
        clock: seconds.
    """

    def __init__(
        self,
        leave: Callable[[Peer], None],
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leave = leave
        self._soon = soon
        self._clock = clock
        self._leaving: deque[Peer] = deque()

    def add(self, peer: Peer) -> None:
        """Have a peer leave soon."""
        if not self._leaving:
            self._soon(self._turn)
        self._leaving.append(peer)

    def finish(self) -> None:
        """Have all leave now."""
        while self._leaving:
            self._leave(self._leaving.popleft())

    def _turn(self) -> None:
        until_s = self._clock() + TURN_S
        for _ in range(min(TURN_PEERS, len(self._leaving))):
            self._leave(self._leaving.popleft())
            if self._clock() >= until_s:
                break
        if self._leaving:
            self._soon(self._turn)
