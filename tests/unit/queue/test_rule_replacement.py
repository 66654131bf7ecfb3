"""Rules over shards: their revision, and the request that repairs a shard that missed a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import UsageError
from opsq.wire import messages as m
from unit.model.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def rules(rig: Rig) -> m.RulesState:
    return rig.only(rig.connect(), m.ShowRules(next(rig.ids)), m.RulesState)


def change(rig: Rig, request: m.Request) -> int:
    return rig.only(rig.connect(), request, m.Changed).count


def replace(rig: Rig, other: m.RulesState, revision: int | None = None) -> int:
    revision = other.revision if revision is None else revision
    return change(rig, m.PutRules(next(rig.ids), revision, other.pauses, other.limits, other.weights))


def test_each_change_raises_the_revision_and_a_restart_keeps_it(rig: Rig) -> None:
    assert rules(rig).revision == 0
    found = [0]
    for request in (
        m.Pause(next(rig.ids), {"tenant": "a"}),
        m.Resume(next(rig.ids), {"tenant": "a"}),
        m.Limit(next(rig.ids), "tenant", "a", 1),
        m.Unlimit(next(rig.ids), "tenant", "a"),
        m.Weight(next(rig.ids), "tenant", "a", 2.0),
    ):
        change(rig, request)
        found.append(rules(rig).revision)
    assert found == sorted(set(found))
    assert found[1] >= rig.now.wall
    rig.crash()
    assert rules(rig).revision == rig.engine.rules_revision == found[-1]


def test_revision_that_is_asked_for_is_taken_if_it_is_larger(rig: Rig) -> None:
    asked = rig.now.wall + 10**6
    change(rig, m.Pause(next(rig.ids), {"tenant": "a"}, revision=asked))
    assert rules(rig).revision == asked
    change(rig, m.Pause(next(rig.ids), {"tenant": "b"}, revision=asked))
    assert rules(rig).revision == asked + 1


def test_request_that_changes_nothing_raises_only_to_what_it_asks_for(rig: Rig) -> None:
    """Elsewhere the same request may have changed something, and shards with the same rules say the same."""
    change(rig, m.Pause(next(rig.ids), {"tenant": "a"}))
    before = rules(rig).revision
    assert change(rig, m.Pause(next(rig.ids), {"tenant": "a"})) == 0
    assert rules(rig).revision == before
    assert change(rig, m.Pause(next(rig.ids), {"tenant": "a"}, revision=before + 5)) == 0
    assert change(rig, m.Resume(next(rig.ids), {"tenant": "b"}, revision=before + 7)) == 0
    assert rules(rig).revision == before + 7


def test_lost_commit_takes_the_revision_back(rig: Rig) -> None:
    rig.send(rig.connect(), m.Pause(next(rig.ids), {"tenant": "a"}))
    rig.fail_commit()
    assert rules(rig).revision == rig.engine.rules_revision == 0


def test_newer_rules_replace_all_at_once_and_older_ones_nothing(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Rig(tmp_path / "other")
    other.pass_time(5)
    for one in (rig, other):
        change(one, m.Limit(next(one.ids), "tenant", None, 3))
        change(one, m.Pause(next(one.ids), {"tenant": "old"}))
        change(one, m.Weight(next(one.ids), "tenant", "old", 5.0))
    change(other, m.Resume(next(other.ids), {"tenant": "old"}))
    change(other, m.Pause(next(other.ids), {"tenant": "new", "n": 1}, by_operator=True, by_name="ada"))
    change(other, m.Unlimit(next(other.ids), "tenant"))
    change(other, m.Limit(next(other.ids), "tenant", "x", None, 2.5, 7, rate_span_s=60.0))
    change(other, m.Weight(next(other.ids), "tenant", "old", 1.0))
    change(other, m.Weight(next(other.ids), "tenant", "new", 4.0))
    wanted = rules(other)
    assert replace(rig, wanted) == 1
    found = rules(rig)
    assert (found.pauses, found.limits, found.weights) == (wanted.pauses, wanted.limits, wanted.weights)
    assert found.revision == wanted.revision
    assert replace(rig, m.RulesState(0, [], [], [], wanted.revision)) == 0
    rig.crash()
    found = rules(rig)
    assert (found.pauses, found.limits, found.weights) == (wanted.pauses, wanted.limits, wanted.weights)
    other.close()


def test_replaced_pause_holds_at_once_and_is_an_event(rig: Rig) -> None:
    rig.submit(1, metadata={"tenant": "a"})
    assert replace(rig, m.RulesState(0, [m.PauseState({"tenant": "a"}, False, "", 0)], [], []), 1) == 1
    assert rig.reserve(rig.connect()) == []
    assert replace(rig, m.RulesState(0, [], [], []), 2) == 1
    assert len(rig.reserve(rig.connect())) == 1
    assert [kind for (kind,) in rig.rows("SELECT kind FROM event")] == ["paused", "resumed"]


def test_replaced_rate_that_is_the_same_goes_on_with_the_tokens_that_it_had(rig: Rig) -> None:
    """A repair over shards is no way around a rate, nor is a lost commit of one."""
    rig.submit(3, metadata={"tenant": "a"})
    change(rig, m.Pause(next(rig.ids), {"tenant": "b"}))
    change(rig, m.Limit(next(rig.ids), "tenant", "a", None, 1 / 60, 1))
    assert len(rig.reserve(rig.connect())) == 1
    before, pauses = rules(rig), rig.rows("SELECT id FROM pause")
    assert replace(rig, before, before.revision + 1) == 1
    assert rig.reserve(rig.connect()) == []
    assert rig.rows("SELECT id FROM pause") == pauses
    rig.send(rig.connect(), m.PutRules(next(rig.ids), before.revision + 2, before.pauses, before.limits, []))
    rig.fail_commit()
    rig.advance(2)
    assert rig.reserve(rig.connect()) == []
    rig.advance(60)
    assert len(rig.reserve(rig.connect(), 3)) == 1


def test_replaced_rate_that_is_another_begins_with_a_full_burst(rig: Rig) -> None:
    rig.submit(3, metadata={"tenant": "a"})
    change(rig, m.Limit(next(rig.ids), "tenant", "a", None, 1 / 60, 1))
    assert len(rig.reserve(rig.connect())) == 1
    other = m.LimitState("tenant", "a", None, 1 / 60, 2, "", 0)
    assert replace(rig, m.RulesState(0, [], [other], []), rules(rig).revision + 1) == 1
    assert sum(len(ticket.indexes) for ticket in rig.reserve(rig.connect(), 3)) == 2


def test_weights_of_submissions_are_not_replaced_and_do_not_raise_the_revision(rig: Rig) -> None:
    rig.submit(1, metadata={"tenant": "a"}, weights={"tenant": 2.0})
    found = rules(rig)
    assert found.weights == [m.WeightState("tenant", "a", 2.0, True)]
    assert found.revision == 0
    assert replace(rig, m.RulesState(0, [], [], [m.WeightState("tenant", "b", 9.0, True)]), 1) == 1
    assert rules(rig).weights == [m.WeightState("tenant", "a", 2.0, True)]
    assert replace(rig, m.RulesState(0, [], [], [m.WeightState("tenant", "a", 3.0)]), 2) == 1
    assert rules(rig).weights == [m.WeightState("tenant", "a", 3.0)]


def test_impossible_rule_is_refused_and_nothing_replaced(rig: Rig) -> None:
    change(rig, m.Pause(next(rig.ids), {"tenant": "a"}))
    before = rules(rig)
    empty = m.LimitState("tenant", None, None, None, None, "", 0)
    with pytest.raises(UsageError):
        replace(rig, m.RulesState(0, [], [empty], []), before.revision + 1)
    with pytest.raises(UsageError):
        replace(rig, m.RulesState(0, [], [], [m.WeightState("tenant", "a", 1e6)]), before.revision + 1)
    assert rules(rig).pauses == before.pauses
    assert rules(rig).revision == before.revision
