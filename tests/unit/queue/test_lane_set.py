"""Lane sets: one for all submissions with the same metadata, and a bounded number of them."""

from __future__ import annotations

import pytest

from opsq.queue import lane_set
from opsq.queue.lane_set import LaneSets
from opsq.store import lanes
from opsq.wire import messages as m
from unit.model.rig import Rig


def test_same_metadata_is_one_set_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_set, "SETS_KEPT", 2)
    a, b, c = (lanes.encode({"tenant": (number, f"t{number}")}) for number in (1, 2, 3))
    sets = LaneSets()
    first = sets.of(a)
    assert sets.of(bytes(a)) is first
    assert first.metadata == {"tenant": "t1"}
    sets.of(b)
    assert sets.of(c).lane_of == {"tenant": (3, "t3")}
    assert sets.of(a) is not first


def test_what_one_client_is_told_of_metadata_is_its_own_copy(rig: Rig) -> None:
    """An embedded queue hands the reply to the program, which may change it."""
    first, second = (rig.submit(1, metadata={"tenant": "a"}) for _ in range(2))
    peer = rig.connect()
    reply = rig.only(peer, m.Reserve(next(rig.ids), 1, "OldestFirst"), m.Reserved)
    reply.submissions[0].metadata.clear()
    assert (rig.show(first).metadata, rig.show(second).metadata) == ({"tenant": "a"}, {"tenant": "a"})
