"""Reserves that took long are named in the log, with what they walked."""

from __future__ import annotations

import pytest

from opsq.queue.chunks import reserve
from opsq.queue.dispatch import front
from opsq.wire import messages as m
from unit.adversaries import submit
from unit.model.rig import Rig

BOTH = "SelectOnly(a=1, SelectOnly(b=1, OldestFirst))"


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "TURN_ROWS", 8)
    monkeypatch.setattr(front, "WALK_ROWS", 4)
    monkeypatch.setattr(front, "WALK_GROWN", 1)


def run(rig: Rig, strategy: str, turn_s: float) -> None:
    """Reserve by a strategy, with turns of the event loop of that length."""
    peer = rig.connect()
    rig.engine.handle(peer, m.Reserve(next(rig.ids), 1, strategy), rig.now)
    while rig.engine.has_turn():
        rig.pass_time(turn_s)
        rig.engine.turn(rig.now)
    rig.run_turns()


def test_reserve_that_took_long_is_logged_with_its_plan_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    submit(rig, ({"ab"[n % 2]: 1} for n in range(100)))
    run(rig, BOTH, 0.01)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"A reserve by {BOTH} took 120 ms: OldestFirst walked 46 rows of ")
    assert "a=1, looking into b=1" in record.getMessage() or "b=1, looking into a=1" in record.getMessage()
    for seconds, count in ((1.0, 1), (60.0, 2)):
        fronts = rig.engine._state.fronts
        fronts.retire(fronts._by_name.popitem()[1])  # so that all is walked again
        rig.pass_time(seconds)
        run(rig, BOTH, 0.01)
        assert len(caplog.records) == count


def test_short_reserves_and_those_that_were_given_up_are_not_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    submit(rig, ({"ab"[n % 2]: 1} for n in range(100)))
    peer = rig.connect()
    request = m.Reserve(next(rig.ids), 1, BOTH, None)
    rig.engine.handle(peer, request, rig.now)
    assert rig.engine.has_turn()
    rig.engine.handle(peer, m.CancelWait(request.id), rig.now)
    rig.pass_time(10.0)
    run(rig, BOTH, 0.001)
    assert caplog.records == []
