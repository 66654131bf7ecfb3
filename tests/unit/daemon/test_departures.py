"""Peers that leave together: all do, in order, and no turn of the loop takes all of them."""

from __future__ import annotations

from collections.abc import Callable

from opsq.clock import now
from opsq.daemon.departures import TURN_PEERS, TURN_S, Departures
from opsq.queue.engine import Peer


def test_many_leave_in_order_some_in_each_turn() -> None:
    gone: list[Peer] = []
    calls: list[Callable[[], None]] = []
    departures = Departures(gone.append, calls.append, lambda: 0.0)
    peers = [Peer("", now()) for _ in range(2 * TURN_PEERS + 1)]
    for peer in peers:
        departures.add(peer)
    assert gone == []
    for count in (TURN_PEERS, 2 * TURN_PEERS, 2 * TURN_PEERS + 1):
        calls.pop()()
        assert gone == peers[:count]
    assert calls == []
    departures.add(peers[0])
    departures.finish()
    assert gone[-1] is peers[0]
    calls.pop()()
    assert len(gone) == len(peers) + 1


def test_those_who_take_long_to_leave_leave_fewer_at_a_time() -> None:
    gone: list[Peer] = []
    calls: list[Callable[[], None]] = []
    departures = Departures(gone.append, calls.append, lambda: len(gone) * TURN_S / 2)
    peers = [Peer("", now()) for _ in range(3)]
    for peer in peers:
        departures.add(peer)
    calls.pop()()
    assert gone == peers[:2]
    calls.pop()()
    assert gone == peers
    assert calls == []
