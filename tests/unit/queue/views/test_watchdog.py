"""Who waits for long is looked after: whether anything is for them, and whether something was overlooked."""

from __future__ import annotations

import pytest

from opsq.queue.views.watchdog import Waiting
from opsq.wire import messages as m
from unit.model.rig import Rig


def looks(rig: Rig, seconds: int) -> list[Waiting]:
    """What is found in some seconds, with a look each second as the daemon has it."""
    found = []
    for _ in range(seconds):
        rig.advance(1)
        seen = rig.engine.watch(rig.now)
        rig.run_turns()
        found += [seen] if seen is not None else []
    return found


def test_consumer_for_whom_nothing_waits_is_named_once(rig: Rig) -> None:
    rig.submit(5, metadata={"kind": "b"})
    peer = rig.connect("reader")
    rig.park(peer, strategy="SelectOnly(kind=a)")
    [found] = looks(rig, 30)
    assert (found.strategy, found.consumers, found.is_overlooked) == ("SelectOnly(kind=a)", [peer.consumer], False)
    assert rig.engine._rooms.watchdog.unmatched == {"SelectOnly(kind=a)": None}
    rig.submit(1, metadata={"kind": "a"})
    assert looks(rig, 12) == []
    assert rig.engine._rooms.watchdog.unmatched == {}


@pytest.mark.parametrize("strategy", ["OldestFirst", "SelectOnly(kind=a)"])
def test_who_waits_for_what_is_reserved_paused_or_limited_is_not_named(rig: Rig, strategy: str) -> None:
    rig.submit(2, metadata={"kind": "a"})
    asker = rig.connect()
    rig.ask(asker, m.Limit(next(rig.ids), "kind", None, 1))
    rig.reserve(asker, 1, lease_s=1000.0)
    rig.park(rig.connect(), strategy=strategy)
    assert looks(rig, 12) == []
    rig.ask(asker, m.Pause(next(rig.ids), {"kind": "a"}))
    assert looks(rig, 12) == []


@pytest.mark.parametrize("strategy", ["OldestFirst", "Random", "Fair(kind)", "SelectOnly(kind=a)"])
def test_what_a_broken_wake_up_overlooks_is_told_with_the_plan_and_mended(
    rig: Rig, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = rig.connect("reader")
    request_id = rig.park(peer, strategy=strategy)
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine._state.fronts, "offer", lambda submission: None)
        patch.setattr(rig.engine._state, "note_news", lambda: None)
        patch.setattr(type(rig.engine._reserve_calls), "serve", lambda self, now, *, is_turn=False: None)
        rig.submit(3, metadata={"kind": "a"})
        assert looks(rig, 5) == []
    rig.engine._state.has_news = False
    [found] = looks(rig, 15)
    assert (found.strategy, found.consumers, found.is_overlooked) == (strategy, [peer.consumer], True)
    assert found.plan
    [reply] = rig.replies(peer, request_id)
    assert isinstance(reply, m.Reserved)
    assert len(reply.grants) == 1
