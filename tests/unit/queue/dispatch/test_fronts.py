"""The table of fronts: what is kept of strategies that are asked no more, or never come to what they know."""

from __future__ import annotations

import pytest

from opsq.queue.dispatch import fronts
from unit.model.rig import Rig

OFFERS = 20


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
