"""Peers whose connections are lost, until the engine has given back what they held: some in each turn of the loop.

All may go at once, as when a network fails; this file must not make the others wait for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from opsq.queue.engine import Peer

TURN_PEERS = 64
"""How many peers leave in one turn of the event loop: a few milliseconds."""

THINGS_OF_PEER = 10
"""With so many calls that wait, or reservations, a peer takes as long again to leave."""


class Departures:
    """Peers that are leaving, in order.

    Args:
        leave: gives back what one of them held.
        soon: has a function called in the next turn.
    """

    def __init__(self, leave: Callable[[Peer], None], soon: Callable[[Callable[[], None]], object]) -> None:
        self._leave = leave
        self._soon = soon
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
        left = TURN_PEERS
        while self._leaving and left > 0:
            peer = self._leaving.popleft()
            left -= 1 + (peer.parked_count + len(peer.reservation_ids)) // THINGS_OF_PEER
            self._leave(peer)
        if self._leaving:
            self._soon(self._turn)
