"""A reserve call over several shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opsq.client.shards import parking
from opsq.client.shards.parking import PARKED_AT, RETRY_S, Parking
from opsq.wire import messages as m
from unit.client.shards.fake_shards import EMPTY, NOTHING, FakeShard, FakeShards, FakeTimer, granted


class Calls:
    """Reserve calls over shards 0, 1 and 2, or more."""

    def __init__(self, *, count: int = 3, **options: Any) -> None:
        self.shards = FakeShards(*range(count), **options)
        self.said: list[Any] = []
        self.missing: list[tuple[int, list[str]]] = []
        self.timers: list[FakeTimer] = []
        self.delays_s: list[float] = []
        self.parking = Parking(
            self.shards,  # type: ignore[arg-type]
            self.said.append,
            lambda call_id, shards: self.missing.append((call_id, [shard.name for shard in shards])),
            self._later,
        )

    def _later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(call))
        self.delays_s.append(seconds)
        return self.timers[-1]

    def reserve(self, call_id: int = 1, wait_s: float | None = None, **options: Any) -> None:
        self.parking.reserve(m.Reserve(call_id, 5, "Random", wait_s, **options))

    @property
    def asked(self) -> list[FakeShard]:
        return [shard for shard in self.shards if shard.questions]

    def park(self, **options: Any) -> None:
        """Begin a call for which no shard has anything."""
        self.reserve(**options)
        while [request.wait_s for shard in self.asked for request in shard.questions] == [0.0]:  # type: ignore[union-attr]
            self.asked[0].answer(NOTHING)

    def ranks(self) -> dict[int, int]:
        """With which rank calls wait, by shard."""
        return {shard.number: request.rank for shard in self.asked for request in shard.questions}  # type: ignore[union-attr]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_one_shard_is_asked_and_the_next_only_if_it_has_nothing(calls: Calls) -> None:
    calls.reserve()
    [first] = calls.asked
    assert [request.wait_s for request in first.questions] == [0.0]  # type: ignore[union-attr]
    first.answer(NOTHING)
    [second] = calls.asked
    assert second is not first
    second.answer(granted(second.number))
    assert calls.asked == []
    [reply] = calls.said
    assert reply.id == 1
    assert reply.grants == granted(second.number).grants


def test_calls_begin_at_another_shard_each_time(calls: Calls) -> None:
    firsts = []
    for call_id in range(6):
        calls.reserve(call_id)
        [shard] = calls.asked
        shard.answer(granted(shard.number))
        firsts.append(shard.number)
    assert sorted(firsts) == [0, 0, 1, 1, 2, 2]


def test_call_for_which_nobody_has_anything_parks_at_all_of_them(calls: Calls) -> None:
    calls.park()
    assert [request.wait_s for shard in calls.asked for request in shard.questions] == [None] * 3  # type: ignore[union-attr]
    calls.shards[1].answer(granted(1))
    assert [shard.number for shard in calls.shards if shard.cancelled] == [0, 2]
    [reply] = calls.said
    assert reply.grants == granted(1).grants


def test_what_a_second_shard_grants_is_given_back(calls: Calls) -> None:
    calls.park()
    calls.shards[0].answer(granted(0))
    calls.shards[2].answer(granted(2))
    assert len(calls.said) == 1
    [release] = calls.shards[2].questions
    assert isinstance(release, m.Release)
    assert [(held.submission_id, held.mask) for held in release.held] == [(granted(2).grants[0].submission_id, 1)]
    assert calls.shards[2].holdings.told() == ([], [])


def test_submission_that_was_described_with_chunks_given_back_is_described_with_the_next(calls: Calls) -> None:
    calls.park()
    calls.shards[0].answer(granted(0))
    calls.shards[2].answer(granted(2))
    calls.shards[1].answer(NOTHING)
    calls.reserve(2)
    [shard] = [shard for shard in calls.asked if any(isinstance(one, m.Reserve) for one in shard.questions)]
    shard.answer(m.Reserved(0, 8, 60.0, granted(shard.number).grants), m.Reserve)
    described = {one.submission_id for reply in calls.said for one in reply.submissions}
    assert granted(2).submissions[0].submission_id in described


def test_shards_that_had_nothing_are_not_asked_first(calls: Calls) -> None:
    calls.park()
    calls.shards[1].answer(granted(1))
    for number in (0, 2):
        calls.shards[number].answer(NOTHING)
    calls.reserve(2)
    assert [shard.number for shard in calls.asked] == [1]


def test_call_that_may_not_wait_asks_each_shard_once(calls: Calls) -> None:
    calls.reserve(wait_s=0.0)
    for _ in range(3):
        [shard] = calls.asked
        shard.answer(NOTHING)
    [reply] = calls.said
    assert not reply.grants
    assert not reply.is_empty


def test_call_is_answered_empty_only_when_every_shard_is(calls: Calls) -> None:
    calls.park(until_empty=True)
    calls.shards[0].answer(EMPTY)
    calls.shards[1].answer(EMPTY)
    assert not calls.said
    calls.shards[2].answer(EMPTY)
    [reply] = calls.said
    assert reply.is_empty


def test_call_until_empty_still_waits_at_a_shard_that_was_empty(calls: Calls) -> None:
    calls.park(until_empty=True)
    calls.shards[0].answer(EMPTY)
    [again] = calls.shards[0].questions
    assert isinstance(again, m.Reserve)
    assert not again.until_empty
    calls.shards[0].answer(granted(0))
    [reply] = calls.said
    assert reply.grants == granted(0).grants


def test_cancelled_call_is_answered_once_nobody_can_grant_anything(calls: Calls) -> None:
    calls.park()
    assert calls.parking.cancel(1)
    assert not calls.said
    calls.shards[0].answer(NOTHING)
    calls.shards[1].answer(NOTHING)
    assert not calls.said
    calls.shards[2].answer(NOTHING)
    [reply] = calls.said
    assert not reply.grants


def test_cancelled_call_gets_what_was_granted_before_it_was(calls: Calls) -> None:
    calls.park()
    calls.parking.cancel(1)
    calls.shards[0].answer(granted(0))
    calls.shards[1].answer(granted(1))
    [reply] = calls.said
    assert reply.grants == granted(0).grants
    assert isinstance(calls.shards[1].questions[0], m.Release)


def test_call_that_is_not_there_cannot_be_cancelled(calls: Calls) -> None:
    assert not calls.parking.cancel(5)


def test_shard_that_is_away_is_left_out_and_parked_at_when_it_returns(calls: Calls) -> None:
    calls.shards[1].is_away = True
    calls.reserve()
    for _ in range(2):
        [shard] = calls.asked
        shard.answer(NOTHING)
    assert [shard.number for shard in calls.asked] == [0, 2]
    calls.shards[1].is_away = False
    calls.parking.look_again()
    assert [shard.number for shard in calls.asked] == [0, 1, 2]
    calls.shards[1].answer(granted(1))
    assert calls.said[0].grants


def test_client_is_told_once_of_shards_that_it_waits_for_in_vain(calls: Calls) -> None:
    for shard in calls.shards:
        shard.is_away = True
    calls.reserve()
    calls.parking.look_again()
    [(call_id, names)] = calls.missing
    assert call_id == 1
    assert sorted(names) == [shard.name for shard in calls.shards]
    assert not calls.said


def test_call_ends_in_time_though_a_shard_went_away(calls: Calls) -> None:
    calls.park(wait_s=5.0)
    calls.shards[0].answer(NOTHING)
    for timer in calls.timers:
        timer()
    [reply] = calls.said
    assert not reply.grants


def test_error_of_a_shard_is_the_answer(calls: Calls) -> None:
    calls.reserve()
    [shard] = calls.asked
    shard.answer(m.ErrorReply(0, "invalid_strategy", "No."))
    [reply] = calls.said
    assert (reply.id, reply.code) == (1, "invalid_strategy")


def test_only_the_chosen_shards_are_asked() -> None:
    calls = Calls(served=frozenset({2}))
    calls.reserve()
    assert [shard.number for shard in calls.asked] == [2]
    calls.shards[2].answer(NOTHING)
    assert [shard.number for shard in calls.asked] == [2]


def test_chunks_are_held_until_they_are_given_away_but_not_those_of_leases(calls: Calls) -> None:
    calls.reserve()
    [shard] = calls.asked
    shard.answer(granted(shard.number, mask=3))
    held, _ = shard.holdings.told()
    assert [one.mask for one in held] == [3]
    calls.reserve(2, lease_s=60.0)
    [other] = calls.asked
    other.answer(granted(other.number))
    assert other.holdings.told()[0] == []


def test_submission_that_another_shard_hands_out_has_moved_there(calls: Calls) -> None:
    calls.reserve()
    [shard] = calls.asked
    elsewhere = (shard.number + 1) % 3
    shard.answer(granted(elsewhere))
    assert calls.shards.owner(granted(elsewhere).grants[0].submission_id) == shard.number


def test_each_shard_serves_another_call_first(calls: Calls) -> None:
    firsts = []
    for call_id in range(3):
        calls.park(call_id=call_id)
        ranks = calls.ranks()
        assert sorted(ranks.values()) == [0, 1, 2]
        firsts += [number for number, rank in ranks.items() if rank == 0]
        calls.shards[0].answer(granted(0))
        for shard in calls.shards[1], calls.shards[2]:
            shard.answer(NOTHING)
    assert sorted(firsts) == [0, 1, 2]


def test_call_that_waits_for_ever_is_parked_at_some_of_many_shards_and_moves_on_to_the_next() -> None:
    calls = Calls(count=PARKED_AT * 2)
    calls.park()
    before = calls.asked
    assert len(before) == PARKED_AT
    calls.timers[-1]()
    assert len(calls.asked) == PARKED_AT * 2
    assert [shard for shard in calls.shards if shard.cancelled] == before
    for shard in before:
        shard.answer(NOTHING)
    assert sorted(calls.ranks().values()) == list(range(PARKED_AT))
    assert not set(before) & set(calls.asked)
    calls.asked[3].answer(granted(calls.asked[3].number))
    calls.timers[-1]()
    assert len(calls.said) == 1


@pytest.mark.parametrize("options", [{"until_empty": True}, {"wait_s": 5.0}])
def test_call_that_ends_by_itself_is_parked_at_all_shards(options: dict[str, Any]) -> None:
    calls = Calls(count=PARKED_AT * 2)
    calls.park(**options)
    assert len(calls.asked) == PARKED_AT * 2


def test_another_shard_takes_the_place_of_one_that_is_away() -> None:
    calls = Calls(count=PARKED_AT + 1)
    calls.shards[3].is_away = True
    calls.park()
    assert [shard.number for shard in calls.asked] == [number for number in range(PARKED_AT + 1) if number != 3]


def test_call_waits_at_the_others_too_while_a_shard_that_was_asked_first_is_silent(calls: Calls) -> None:
    calls.reserve()
    [silent] = calls.asked
    [go_on] = calls.timers
    go_on()
    assert calls.asked == list(calls.shards)
    assert len(silent.questions) == 1
    another = next(shard for shard in calls.shards if shard is not silent)
    another.answer(granted(another.number))
    assert len(calls.said) == 1
    assert silent.cancelled
    for call_id in range(2, 5):
        calls.reserve(call_id)
    assert len(silent.questions) == 1
    silent.answer(granted(silent.number))
    assert isinstance(silent.questions[0], m.Release)


@pytest.mark.parametrize(("company", "delay_s"), [(0, 0.25), (3, 2.0), (1000, 30.0)])
def test_call_moves_on_the_sooner_the_fewer_others_wait(company: int, delay_s: float) -> None:
    calls = Calls(count=PARKED_AT * 20)
    calls.park()
    for _ in range(6):
        for shard in calls.asked:
            if shard.cancelled:
                shard.answer(m.Reserved(0, waiting_count=company))
        calls.timers[-1]()
    assert calls.delays_s[-1] == pytest.approx(delay_s, rel=0.1)


def test_shard_that_drains_is_not_asked(calls: Calls) -> None:
    calls.shards[1].is_draining = True
    calls.park()
    assert [shard.number for shard in calls.asked] == [0, 2]


def test_shard_that_hands_out_nothing_any_more_is_not_asked_again_and_again(calls: Calls) -> None:
    calls.park()
    calls.shards[1].is_draining = True
    calls.shards[1].answer(NOTHING)
    assert [shard.number for shard in calls.asked] == [0, 2]


def test_client_that_waits_until_empty_is_told_of_a_shard_that_is_away(calls: Calls) -> None:
    calls.shards[1].is_away = True
    calls.reserve(until_empty=True)
    for _ in range(2):
        [shard] = [one for one in calls.asked if one.questions[0].until_empty]  # type: ignore[union-attr]
        assert not calls.missing
        shard.answer(EMPTY)
    assert [names for _, names in calls.missing] == [[calls.shards[1].name]]
    assert not calls.said


def test_cancelled_call_ends_though_a_shard_does_not_answer(calls: Calls) -> None:
    calls.park()
    calls.parking.cancel(1)
    calls.timers[-1]()
    [reply] = calls.said
    assert not reply.grants


def test_wait_at_a_shard_that_is_taken_out_of_the_addresses_is_ended(calls: Calls) -> None:
    calls.park()
    gone = calls.shards.all.pop(1)
    calls.parking.chosen_anew()
    assert gone.cancelled
    gone.answer(granted(1))
    assert calls.said[0].grants, "what it hands out at the last moment is taken"


def test_call_that_may_not_wait_asks_one_after_the_other_those_that_had_nothing_last(calls: Calls) -> None:
    """Else two grant something, and a call that comes at once finds that neither free nor given back."""
    calls.reserve(wait_s=0.0)
    order = []
    for _ in range(3):
        [shard] = calls.asked
        order.append(shard)
        shard.answer(NOTHING)
    calls.reserve(2, wait_s=0.0)
    [first] = calls.asked
    first.answer(granted(first.number))
    assert len(calls.said) == 2
    calls.reserve(3, wait_s=0.0)
    assert len([shard for shard in calls.asked if any(isinstance(one, m.Reserve) for one in shard.questions)]) == 1


@pytest.mark.parametrize(("stay_s", "is_first"), [(1e9, True), (0.0, False)])
def test_call_that_follows_a_completion_asks_its_shard_first_but_moves_on_now_and_then(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, stay_s: float, is_first: bool
) -> None:
    monkeypatch.setattr(parking, "STAY_S", stay_s)
    firsts = []
    for call_id in range(6):
        last: Any = calls.shards[1]
        calls.parking.reserve(m.Reserve(call_id, 5, "Random", None), last if calls.parking.may_stay(last) else None)
        [shard] = calls.asked
        firsts.append(shard.number)
        shard.answer(granted(shard.number))
    assert (set(firsts) == {1}) is is_first


def test_what_is_wrong_with_one_shard_is_left_to_the_others(calls: Calls) -> None:
    calls.reserve()
    [first] = calls.asked
    timers_count = len(calls.timers)
    first.answer(m.ErrorReply(0, "storage_full", "The disk is full."))
    assert calls.said == []
    assert calls.delays_s[timers_count] == RETRY_S
    retry = calls.timers[timers_count]
    for _ in range(2):
        [shard] = calls.asked
        shard.answer(NOTHING)
    assert first not in calls.asked
    retry()
    assert first in calls.asked


def test_error_that_all_shards_have_is_the_answer(calls: Calls) -> None:
    calls.reserve()
    for _ in range(3):
        [shard] = calls.asked
        shard.answer(m.ErrorReply(0, "storage_full", "The disk is full."))
    [reply] = calls.said
    assert reply.code == "storage_full"


def test_answered_call_leaves_no_timer(calls: Calls) -> None:
    calls.reserve(wait_s=600.0)
    [shard] = calls.asked
    shard.answer(granted(shard.number))
    assert calls.timers
    assert all(timer.is_cancelled for timer in calls.timers)


def test_client_that_has_gone_waits_nowhere(calls: Calls) -> None:
    calls.park(wait_s=600.0)
    calls.parking.end()
    assert all(shard.cancelled for shard in calls.shards)
    assert all(timer.is_cancelled for timer in calls.timers)
    calls.shards[0].answer(granted(0))
    assert calls.said == []
    assert isinstance(calls.shards[0].questions[0], m.Release)


def test_call_that_waits_for_days_keeps_no_timer_that_has_rung() -> None:
    calls = Calls(count=PARKED_AT + 4)
    calls.park()
    rung = []
    for _ in range(5):
        rung.append(calls.timers[-1])
        rung[-1]()
    shard = calls.asked[0]
    shard.answer(granted(shard.number))
    assert calls.said
    assert not any(timer.is_cancelled for timer in rung)
