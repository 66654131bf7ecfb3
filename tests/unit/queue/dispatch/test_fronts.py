"""The table of fronts: what is kept of strategies that are asked no more, or never come to what they know."""

from __future__ import annotations

import pytest

from opsq.queue.chunks import reserve
from opsq.queue.dispatch import fronts
from opsq.wire import messages as m
from unit.model.rig import Rig

OFFERS = 20
TENANTS = range(12)


@pytest.mark.parametrize("strategy", ["NewestFirst", "Random", "Fair(tenant, NewestFirst)"])
def test_front_that_knows_mostly_what_has_ended_is_made_again_and_misses_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(fronts, "OFFERS_BETWEEN", OFFERS)
    peer = rig.connect()
    kept = [rig.submit(2, metadata={"tenant": 1}) for _ in range(3)]
    rig.release(peer, *(ticket.held() for ticket in rig.reserve(peer, 1, strategy)))
    table = rig.engine._state.fronts
    [name] = [name for name, _ in rig.engine._reserve_calls.plan(strategy).arms]

    def known_count() -> int:
        front = table.front_in_use(name)
        return 0 if front is None else sum(len(leaf.members) for leaf in front.leaves())

    before = 0
    for _ in range(10 * OFFERS):
        new = rig.submit(1, metadata={"tenant": 1})
        [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={new})")
        rig.complete(peer, ticket.held())
        before = max(before, known_count())
        rig.tick()
    assert before <= 3 * OFFERS
    taken = rig.reserve(peer, 100, strategy)
    assert {ticket.submission_id for ticket in taken} == set(kept)
    assert sum(len(ticket.indexes) for ticket in taken) == 6


def test_more_waiting_strategies_than_fronts_are_kept_are_all_looked_at_and_served(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front that is made again walks over what is reserved again."""
    monkeypatch.setattr(fronts, "FRONTS_KEPT", 4)
    monkeypatch.setattr(reserve, "TURN_ROWS", 20)
    for tenant in TENANTS:
        for _ in range(5):
            rig.submit(1, metadata={"tenant": tenant})
    assert len(rig.reserve(rig.connect(), 100)) == 5 * len(TENANTS)
    rig.turns_limit = 100
    peers = [rig.connect() for _ in TENANTS]
    calls = [
        rig.park(peer, strategy=f"SelectOnly(tenant={tenant})", wait_s=None if tenant else 1.0)
        for tenant, peer in zip(TENANTS, peers, strict=True)
    ]
    rig.submit(1, metadata={"tenant": TENANTS[-1]})
    [served] = rig.replies(peers[-1], calls[-1])
    assert isinstance(served, m.Reserved)
    assert len(served.grants) == 1
    rig.advance(2)
    assert rig.replies(peers[0], calls[0]) == [m.Reserved(calls[0])]


def test_fronts_of_calls_that_wait_no_more_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "FRONTS_KEPT", 4)
    peer = rig.connect()
    for tenant in TENANTS:
        rig.submit(1, metadata={"tenant": tenant})
    rig.reserve(peer, 100)
    calls = [rig.park(peer, strategy=f"SelectOnly(tenant={tenant})") for tenant in TENANTS]
    assert len(rig.engine._state.fronts._by_name) >= len(TENANTS)
    for call in calls:
        rig.send(peer, m.CancelWait(call))
    rig.tick()
    assert len(rig.engine._state.fronts._by_name) == 4
