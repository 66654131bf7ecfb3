"""Which shard is given the rules of which."""

from __future__ import annotations

from msgspec.structs import replace

from opsq.client.shards.rules_repair import RulesRepair
from opsq.wire import messages as m
from unit.client.shards.fake_shards import WELCOME, FakeShard, FakeShards

LIMIT = m.LimitState("tenant", None, 3, None, None, "ada", 1)


class Repairs:
    """Three shards, whose rules have these revisions."""

    def __init__(self, *revisions: int) -> None:
        self.shards = FakeShards(*range(len(revisions)))
        self.repair = RulesRepair(self.shards)  # type: ignore[arg-type]
        for shard, revision in zip(self.shards, revisions, strict=True):
            shard.rules_revision = revision

    def tell(self, shard: FakeShard, revision: int) -> None:
        shard.answer(m.RulesState(0, [], [LIMIT], [], revision), m.ShowRules)

    @property
    def given(self) -> dict[int, int]:
        """The revisions that shards are given."""
        return {
            shard.number: one.revision
            for shard in self.shards
            for one in shard.questions
            if isinstance(one, m.PutRules) and one.limits == [LIMIT]
        }

    def returned(self, number: int) -> None:
        self.repair.returned(self.shards[number])  # type: ignore[arg-type]


def test_shards_that_agree_are_asked_nothing() -> None:
    repairs = Repairs(4, 4, 4)
    repairs.repair.compare()
    assert [shard.questions for shard in repairs.shards] == [[], [], []]


def test_shards_that_are_behind_are_given_the_newest_rules() -> None:
    repairs = Repairs(4, 9, 3)
    repairs.repair.compare()
    assert [bool(shard.questions) for shard in repairs.shards] == [False, True, False]
    repairs.tell(repairs.shards[1], 9)
    assert repairs.given == {0: 9, 2: 9}


def test_shard_that_returns_is_given_what_others_have_changed_meanwhile() -> None:
    """Nothing of this client's: it knows all of the same revision."""
    repairs = Repairs(4, 4, 4)
    repairs.returned(1)
    repairs.tell(repairs.shards[0], 8)
    repairs.tell(repairs.shards[1], 4)
    assert repairs.given == {1: 8, 2: 8}, "one that has them refuses an older revision, and the same"


def test_shard_that_returns_with_newer_rules_gives_them_to_the_others() -> None:
    repairs = Repairs(4, 4, 4)
    repairs.returned(1)
    repairs.tell(repairs.shards[0], 4)
    repairs.tell(repairs.shards[1], 6)
    assert repairs.given == {0: 6, 2: 6}


def test_shard_that_returns_as_it_was_is_given_nothing() -> None:
    repairs = Repairs(4, 4, 4)
    repairs.returned(2)
    repairs.tell(repairs.shards[0], 4)
    repairs.tell(repairs.shards[2], 4)
    assert repairs.given == {}


def test_shard_that_is_lost_meanwhile_keeps_nobody() -> None:
    repairs = Repairs(4, 4, 4)
    repairs.returned(1)
    repairs.shards[0].lose_patience()
    repairs.tell(repairs.shards[1], 5)
    assert repairs.given == {0: 5, 2: 5}


def test_only_shards_that_are_there_and_permit_it_are_asked() -> None:
    repairs = Repairs(4, 9, 3)
    repairs.shards[1].welcome = replace(WELCOME, is_operator=False)
    repairs.shards[2].is_away = True
    repairs.repair.compare()
    repairs.returned(1)
    repairs.returned(0)
    assert [shard.questions for shard in repairs.shards] == [[], [], []]


def test_rules_are_not_changed_while_a_shard_is_brought_up_to_date() -> None:
    """It would have the newest revision without what it missed."""
    repairs = Repairs(4, 9)
    changes: list[str] = []
    repairs.repair.then(lambda: changes.append("before"))
    repairs.repair.compare()
    repairs.repair.then(lambda: changes.append("after"))
    repairs.tell(repairs.shards[1], 9)
    assert changes == ["before"]
    repairs.shards[0].answer(m.Changed(0), m.PutRules)
    assert changes == ["before", "after"]


def test_rules_are_changed_though_the_shard_with_the_newest_does_not_answer() -> None:
    repairs = Repairs(4, 9)
    changes: list[str] = []
    repairs.repair.compare()
    repairs.repair.then(lambda: changes.append("after"))
    repairs.shards[1].lose_patience()
    assert changes == ["after"]
