"""What a client does with chunks over a router: what shards are asked, and in which order it is answered."""

from __future__ import annotations

import math
from typing import Any

import pytest

from opsq.client.shards.shard import WORK_S
from opsq.ids import Handle, SubmissionId, Token
from opsq.wire import messages as m
from unit.client.shards.fake_shards import NOTHING, granted, submission_id
from unit.client.shards.routed import Routed, done, held


@pytest.fixture
def routed() -> Routed:
    return Routed()


# --- verdicts ---


def test_completions_go_each_to_its_shard_and_their_refusals_come_together(routed: Routed) -> None:
    routed.take(m.Complete(4, [done(0), done(2)]))
    assert routed.asked == [0, 2]
    refusal = m.Refusal(submission_id(2), 0, 1, "already_finished", "completed")
    routed.shards[0].answer(m.Completed(0))
    assert not routed.said
    routed.shards[2].answer(m.Completed(0, [refusal]))
    assert routed.said == [m.Completed(4, [refusal])]


@pytest.mark.parametrize(
    "request_",
    [
        m.Fail(4, [m.Failure(held(0)), m.Failure(held(1))]),
        m.Release(4, [held(0), held(1)]),
        m.Extend(4, [held(0), held(1)]),
        m.Reclaim(4, [held(0), held(1)]),
    ],
    ids=lambda request: type(request).__name__,
)
def test_verdicts_are_divided(routed: Routed, request_: Any) -> None:
    routed.take(request_)
    for number in (0, 1):
        after = m.AfterFailure(submission_id(number), 0, 1, 1, 5, 1.0)
        routed.shards[number].answer(m.Completed(0, failures=[after]), type(request_))
    assert [reply.id for reply in routed.said] == [4]
    assert [one.submission_id for one in routed.said[0].failures] == [submission_id(0), submission_id(1)]


def test_chunk_of_a_shard_that_is_not_known_is_refused_and_the_others_completed(routed: Routed) -> None:
    routed.take(m.Complete(4, [done(0), done(9)]))
    routed.shards[0].answer(m.Completed(0))
    [reply] = routed.said
    assert [(one.submission_id, one.cause) for one in reply.refusals] == [(submission_id(9), "shard_not_known")]
    assert reply.refusals[0].message
    routed.take(m.Complete(5, [done(9)]))
    assert len(routed.said[1].refusals) == 1


def test_consumer_waits_with_its_verdicts_until_the_shard_is_back_and_others_do_not(routed: Routed) -> None:
    routed.give(1)
    routed.take(m.Complete(4, [done(1)]))
    routed.take(m.Complete(5, [done(2)]))
    assert list(routed.shards[1].patience_s.values())[-1] == math.inf
    assert list(routed.shards[2].patience_s.values())[-1] == WORK_S


def say_started(routed: Routed) -> None:
    routed.take(m.Started([m.ChunkMask(submission_id(1), 0, 1)]))


def complete_and_reserve_one(routed: Routed) -> None:
    complete_and_reserve(routed, 0, number=3)


@pytest.mark.parametrize("work", [say_started, complete_and_reserve_one])
def test_consumer_by_leases_waits_with_its_verdicts_until_the_shard_is_back(routed: Routed, work: Any) -> None:
    one = routed.give(1, lease_s=60.0)
    work(routed)
    routed.take(m.Fail(4, [m.Failure(one)]))
    assert list(routed.shards[1].patience_s.values())[-1] == math.inf


def test_who_brings_the_handle_of_a_lease_hears_soon_that_its_shard_is_away(routed: Routed) -> None:
    one = routed.give(1, lease_s=60.0)
    routed.take(m.Complete(4, [m.Completion(one)]))
    assert list(routed.shards[1].patience_s.values())[-1] == WORK_S


def test_shard_hears_of_leases_and_how_long_they_may_last(routed: Routed) -> None:
    one = routed.give(1, lease_s=0.0)
    routed.give(1, mask=2)
    for lease_s in (None, 90.0):
        routed.take(m.Extend(4, [one], lease_s))
        routed.shards[1].answer(m.Completed(0))
    assert routed.shards[1].leases_s == [60.0, 0.0, 90.0]
    assert [held.mask for held in routed.shards[1].holdings.told()[0]] == [2], "leases are not reclaimed"


def test_verdict_for_a_shard_that_stays_away_is_refused_without_that_of_another(routed: Routed) -> None:
    routed.take(m.Complete(4, [done(0), done(2)]))
    routed.shards[0].answer(m.Completed(0, created=[m.Created(submission_id(0, 5), True)]))
    routed.shards[2].lose_patience()
    [reply] = routed.said
    assert [(one.submission_id, one.code) for one in reply.refusals] == [(submission_id(2), "unreachable")]
    assert reply.refusals[0].message
    assert len(reply.created) == 1


def test_client_is_told_that_its_verdicts_wait_for_a_shard_unless_that_is_back_soon(routed: Routed) -> None:
    routed.take(m.Complete(4, [done(0), done(1)]))
    routed.shards[0].answer(m.Completed(0))
    routed.lose(0)
    assert not routed.timers, "nothing waits for that one"
    routed.lose(1)
    routed.timers.pop()()
    assert routed.said == [m.ShardsMissing(4, [routed.shards[1].name], "waiting")]
    routed.lose(1)
    routed.shards[1].is_away = False
    routed.timers.pop()()
    assert len(routed.said) == 1


def test_handle_of_a_shard_that_stays_away_is_an_error(routed: Routed) -> None:
    handle = Handle(SubmissionId(submission_id(2)), 0, Token(7, 0, 1, 99))
    routed.take(m.Release(4, [m.HeldChunks.of(handle)]))
    routed.shards[2].lose_patience()
    assert [reply.code for reply in routed.said] == ["unreachable"]


def test_what_is_ended_is_held_no_more_and_what_is_extended_is(routed: Routed) -> None:
    one = routed.give(1, mask=3)
    routed.take(m.Extend(4, [one]))
    routed.shards[1].answer(m.Completed(0))
    assert routed.shards[1].holdings.told()[0] == [one]
    routed.take(m.Release(5, [one]))
    routed.shards[1].answer(m.Completed(0))
    assert routed.shards[1].holdings.told()[0] == []


def test_chunks_that_a_client_brings_from_an_earlier_router_are_held(routed: Routed) -> None:
    lost = m.Refusal(submission_id(1), 0, 2, "reservation_lost", "free")
    routed.take(m.Reclaim(4, [held(1, mask=3)]))
    routed.shards[1].answer(m.Completed(0, [lost]))
    assert [one.mask for one in routed.shards[1].holdings.told()[0]] == [1]


def test_leases_that_a_client_brings_are_not_held_by_its_connection(routed: Routed) -> None:
    """Else they would be taken up again as no leases, whenever their shard comes back."""
    routed.take(m.Reclaim(4, [held(1)], 60.0))
    assert routed.shards[1].questions[0].lease_s == 60.0
    routed.shards[1].answer(m.Completed(0))
    assert routed.shards[1].holdings.told()[0] == []


def test_start_of_work_is_told_to_the_shards_of_the_chunks(routed: Routed) -> None:
    chunks = [m.ChunkMask(submission_id(0), 0, 1), m.ChunkMask(submission_id(2), 0, 1), m.ChunkMask(999, 0, 1)]
    routed.take(m.Started(chunks))
    assert [shard.told for shard in routed.shards][:3] == [[chunks[0], chunks[2]], [], [chunks[1]]]


# --- CompleteAndReserve ---


def complete_and_reserve(routed: Routed, shard: int, number: int = 4) -> None:
    routed.take(m.CompleteAndReserve(number, [done(shard)], 1, wait_s=None))


def test_completed_comes_before_reserved_in_either_order_of_the_shards(routed: Routed) -> None:
    complete_and_reserve(routed, 1)
    [first, *_] = [shard for shard in routed.shards if any(isinstance(one, m.Reserve) for one in shard.questions)]
    first.answer(granted(first.number), m.Reserve)
    assert not routed.said
    routed.shards[1].answer(m.Completed(0), m.Complete)
    assert [type(reply) for reply in routed.said] == [m.Completed, m.Reserved]
    assert {reply.id for reply in routed.said} == {4}


def test_shard_that_is_away_does_not_keep_a_consumer_from_the_chunks_of_others(routed: Routed) -> None:
    complete_and_reserve(routed, 1)
    [first, *_] = [shard for shard in routed.shards if any(isinstance(one, m.Reserve) for one in shard.questions)]
    first.answer(granted(first.number), m.Reserve)
    routed.lose(1)
    assert [type(reply) for reply in routed.said] == [m.Reserved]
    routed.shards[1].answer(m.Completed(0), m.Complete)
    assert [type(reply) for reply in routed.said] == [m.Reserved, m.Completed]


def test_chunks_of_a_call_whose_completions_fail_are_given_back(routed: Routed) -> None:
    complete_and_reserve(routed, 1)
    [first, *_] = [shard for shard in routed.shards if any(isinstance(one, m.Reserve) for one in shard.questions)]
    first.answer(granted(first.number), m.Reserve)
    routed.shards[1].answer(m.ErrorReply(0, "storage_full", "Full."), m.Complete)
    assert [reply.code for reply in routed.said] == ["storage_full"]
    assert any(isinstance(one, m.Release) for one in first.questions)
    assert first.holdings.told()[0] == []


def test_call_whose_completions_fail_reserves_nothing_later(routed: Routed) -> None:
    complete_and_reserve(routed, 1)
    routed.shards[1].answer(m.ErrorReply(0, "storage_full", "Full."), m.Complete)
    asked = [shard for shard in routed.shards if any(isinstance(one, m.Reserve) for one in shard.questions)]
    assert asked
    for shard in asked:
        assert shard.cancelled
        shard.answer(granted(shard.number), m.Reserve)
        assert any(isinstance(one, m.Release) for one in shard.questions)
    assert len(routed.said) == 1


def test_completions_that_are_refused_at_once_do_not_keep_from_reserving(routed: Routed) -> None:
    complete_and_reserve(routed, 9)
    assert [type(reply) for reply in routed.said] == [m.Completed]
    assert routed.asked


@pytest.fixture
def whole(routed: Routed, monkeypatch: pytest.MonkeyPatch) -> m.CompleteAndReserve:
    """What shard 1 is asked for a client that completes its chunk there and wants another."""
    monkeypatch.setattr("opsq.client.shards.parking.STAY_S", 1e9)
    one = routed.give(1)
    routed.take(m.CompleteAndReserve(4, [m.Completion(one)], 1, wait_s=None))
    [asked] = routed.shards[1].questions
    assert routed.asked == [1]
    assert isinstance(asked, m.CompleteAndReserve)
    assert asked.wait_s == 0.0
    return asked


def test_shard_that_had_more_completes_and_grants_in_one_request(routed: Routed, whole: m.CompleteAndReserve) -> None:
    assert whole.completions == [done(1)]
    routed.shards[1].answer(m.Completed(0))
    assert routed.said == [m.Completed(4)]
    routed.shards[1].answer(granted(1, mask=2))
    assert [type(reply) for reply in routed.said] == [m.Completed, m.Reserved]
    assert {reply.id for reply in routed.said} == {4}
    assert routed.asked == []
    assert routed.shards[1].holdings.told()[0] == [held(1, mask=2)]


def test_others_are_asked_when_the_shard_that_had_more_has_nothing(routed: Routed, whole: m.CompleteAndReserve) -> None:
    routed.shards[1].answer(m.Completed(0))
    routed.shards[1].answer(NOTHING)
    [other] = routed.asked
    assert other != 1
    routed.shards[other].answer(granted(other))
    assert [type(reply) for reply in routed.said] == [m.Completed, m.Reserved]


def test_others_are_asked_when_the_shard_that_had_more_is_lost_and_it_keeps_what_it_is_to_complete(
    routed: Routed, whole: m.CompleteAndReserve
) -> None:
    assert list(routed.shards[1].patience_s.values())[-1] == math.inf
    routed.lose(1)
    for timer in list(routed.timers):
        timer()
    other = next(number for number in routed.asked if number != 1)
    routed.shards[other].answer(granted(other))
    assert [type(reply) for reply in routed.said] == [m.ShardsMissing, m.Reserved]
    routed.shards[1].is_away = False
    routed.shards[1].answer(m.Completed(0))
    routed.shards[1].answer(granted(1))
    assert [type(reply) for reply in routed.said[2:]] == [m.Completed]
    assert any(isinstance(one, m.Release) for one in routed.shards[1].questions)


@pytest.mark.parametrize("is_completed", [False, True])
def test_limited_wait_ends_though_the_shard_that_had_more_is_lost(
    routed: Routed, monkeypatch: pytest.MonkeyPatch, is_completed: bool
) -> None:
    monkeypatch.setattr("opsq.client.shards.parking.STAY_S", 1e9)
    one = routed.give(1)
    routed.take(m.CompleteAndReserve(4, [m.Completion(one)], 1, wait_s=0.0))
    if is_completed:
        routed.shards[1].answer(m.Completed(0))
    routed.lose(1)
    for timer in list(routed.timers):
        timer()
    for number in (0, 2):
        routed.shards[number].answer(NOTHING)
    for timer in list(routed.timers):
        timer()
    assert m.Reserved(4) in routed.said


def test_client_is_told_that_it_waits_when_all_are_lost_after_the_completion(
    routed: Routed, whole: m.CompleteAndReserve
) -> None:
    routed.shards[1].answer(m.Completed(0))
    for number in (0, 1, 2):
        routed.lose(number)
    for timer in list(routed.timers):
        timer()
    names = [shard.name for shard in routed.shards]
    assert routed.said[1:] == [m.ShardsMissing(4, names, "waiting")]


def test_nothing_is_reserved_when_the_shard_that_had_more_fails_to_complete(
    routed: Routed, whole: m.CompleteAndReserve
) -> None:
    routed.shards[1].answer(m.ErrorReply(0, "storage_full", "Full."))
    assert [(reply.id, reply.code) for reply in routed.said] == [(4, "storage_full")]
    assert routed.asked == []


def test_verdict_is_refused_and_others_are_asked_when_the_shard_that_had_more_will_never_be_back(
    routed: Routed, whole: m.CompleteAndReserve
) -> None:
    routed.shards[1].is_away = True
    routed.shards[1].lose_patience()
    [completed] = routed.said
    assert [one.code for one in completed.refusals] == ["unreachable"]
    [other] = routed.asked
    routed.shards[other].answer(granted(other))
    assert [type(reply) for reply in routed.said] == [m.Completed, m.Reserved]


def test_chunks_of_two_shards_are_completed_at_each(routed: Routed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsq.client.shards.parking.STAY_S", 1e9)
    routed.take(m.CompleteAndReserve(4, [done(0), done(1)], 1, wait_s=None))
    assert [[type(one) for one in routed.shards[number].questions] for number in (0, 1)] == [
        [m.Complete],
        [m.Complete, m.Reserve],
    ]
