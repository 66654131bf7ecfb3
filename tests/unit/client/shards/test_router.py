"""What a client hears from a router, and what that asks of shards."""

from __future__ import annotations

import math
from typing import Any

import pytest

from opsq.client.shards.router import Router
from opsq.client.shards.shard import ERRAND_S, WORK_S
from opsq.errors import Moved
from opsq.ids import Handle, SubmissionId, Token
from opsq.wire import messages as m
from unit.client.shards.fake_shards import EMPTY, NOTHING, FakeShard, FakeShards, FakeTimer, granted, submission_id

NOW_MS = 5_000


class Routed:
    """A router over three shards, and what it says."""

    def __init__(self, *numbers: int) -> None:
        self.shards = FakeShards(*(numbers or (0, 1, 2)))
        self.said: list[Any] = []
        self.timers: list[FakeTimer] = []
        self.router = Router(
            self.shards,  # type: ignore[arg-type]
            self.said.append,
            lambda: NOW_MS,
            self._later,
        )

    def _later(self, _: float, call: Any) -> FakeTimer:
        self.timers.append(FakeTimer(call))
        return self.timers[-1]

    def take(self, request: Any) -> None:
        self.router.take(request)

    def give(self, shard: int, mask: int = 1, request_id: int = 90) -> m.HeldChunks:
        """Have the client reserve chunks of a shard."""
        for one in self.shards:
            one.is_draining = one.number != shard
        self.take(m.Reserve(request_id, 64))
        self.shards[shard].answer(granted(shard, mask), m.Reserve)
        for one in self.shards:
            one.is_draining = False
        self.said.clear()
        return held(shard, mask)

    def lose(self, shard: int) -> None:
        self.shards[shard].is_away = True
        self.router.changed(self.shards[shard])  # type: ignore[arg-type]

    @property
    def asked(self) -> list[int]:
        return [shard.number for shard in self.shards if shard.questions]


def held(shard: int, mask: int = 1) -> m.HeldChunks:
    grant = granted(shard, mask).grants[0]
    return m.HeldChunks.of_grant(7, grant)


def done(shard: int, mask: int = 1) -> m.Completion:
    return m.Completion(held(shard, mask))


@pytest.fixture
def routed() -> Routed:
    return Routed()


# --- one shard ---


@pytest.mark.parametrize(
    "request_",
    [
        m.Show(4, submission_id(1)),
        m.Wait(4, submission_id(1)),
        m.Results(4, submission_id(1)),
        m.GetAttachment(4, submission_id(1)),
        m.Cancel(4, submission_id(1)),
        m.Remove(4, submission_id(1)),
        m.ExplainWork(4, submission_id(1)),
        m.Dead(4, submission_id(1)),
        m.Running(4, submission_id(1)),
        m.Requeue(4, submission_id(1)),
        m.Drop(4, submission_id(1)),
        m.History(4, m.HistoryFilter(submission_id=submission_id(1))),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_concerns_a_submission_goes_to_its_shard_and_its_answer_back(routed: Routed, request_: Any) -> None:
    routed.take(request_)
    assert routed.asked == [1]
    assert type(routed.shards[1].questions[0]) is type(request_)
    routed.shards[1].answer(m.Changed(0, 3))
    assert routed.said == [m.Changed(4, 3)]


def test_waits_have_as_long_as_a_restart_may_take(routed: Routed) -> None:
    routed.take(m.Wait(1, submission_id(1)))
    routed.take(m.Results(2, submission_id(1), wait_s=None))
    routed.take(m.Show(3, submission_id(1)))
    assert list(routed.shards[1].patience_s.values()) == [WORK_S, WORK_S, ERRAND_S]


def moved_to(shard: int) -> m.ErrorReply:
    return m.ErrorReply.of(0, Moved(cause="moved", submission_id=submission_id(0), shard=shard, address="there"))


def test_submission_that_has_moved_is_asked_for_where_it_is_and_later_there_at_once(routed: Routed) -> None:
    routed.take(m.Show(4, submission_id(0)))
    routed.shards[0].answer(moved_to(2))
    assert routed.asked == [2]
    routed.shards[2].answer(m.Changed(0))
    assert routed.said == [m.Changed(4)]
    routed.take(m.Show(5, submission_id(0)))
    assert routed.asked == [2]


def test_submission_that_has_moved_twice_is_found(routed: Routed) -> None:
    routed.take(m.Show(4, submission_id(0)))
    routed.shards[0].answer(moved_to(1))
    routed.shards[1].answer(moved_to(2))
    routed.shards[2].answer(m.Changed(0))
    assert routed.said == [m.Changed(4)]


def test_submission_that_each_of_two_shards_says_the_other_has_is_not_looked_for_for_ever(routed: Routed) -> None:
    routed.take(m.Show(4, submission_id(0)))
    for number in (1, 0, 1, 0):
        if routed.asked:
            routed.shards[routed.asked[0]].answer(moved_to(number))
    assert [reply.code for reply in routed.said] == [Moved.code]
    assert routed.asked == []


def test_submission_of_a_shard_that_is_not_among_the_addresses_is_not_found(routed: Routed) -> None:
    routed.take(m.Show(4, submission_id(9)))
    [reply] = routed.said
    assert (reply.code, reply.cause) == ("not_found", "submission_elsewhere")
    assert "0, 1, 2" in reply.error().message


def test_submission_may_be_of_a_shard_that_was_never_reached(routed: Routed) -> None:
    routed.shards.all[2].number = None  # type: ignore[assignment]
    routed.take(m.Show(4, submission_id(9)))
    assert [reply.code for reply in routed.said] == ["unreachable"]


def test_shard_that_is_away_too_long_is_the_answer(routed: Routed) -> None:
    routed.take(m.Show(4, submission_id(1)))
    routed.shards[1].lose_patience()
    [reply] = routed.said
    assert (reply.id, reply.code) == (4, "unreachable")


def test_wait_at_one_shard_can_be_cancelled(routed: Routed) -> None:
    routed.take(m.Wait(4, submission_id(1)))
    routed.take(m.CancelWait(4))
    assert routed.shards[1].cancelled == [1]
    routed.take(m.CancelWait(77))  # of nothing: nobody minds


# --- chunks ---


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


# --- all shards ---


def test_changes_of_rules_have_the_same_revision_everywhere(routed: Routed) -> None:
    routed.take(m.Pause(4, {"tenant": "a"}))
    assert routed.asked == [0, 1, 2]
    assert [shard.questions[0].revision for shard in routed.shards] == [NOW_MS] * 3  # type: ignore[union-attr]
    for shard in routed.shards:
        shard.answer(m.Changed(0))
    assert routed.said == [m.Changed(4)]


def test_answer_without_a_shard_that_is_away_says_so_first(routed: Routed) -> None:
    routed.take(m.List(4))
    for number in (0, 2):
        routed.shards[number].answer(m.Listed(0, [], None))
    routed.shards[1].lose_patience()
    missing, listed = routed.said
    assert missing == m.ShardsMissing(4, [routed.shards[1].name])
    assert listed == m.Listed(4, [], None)


@pytest.mark.parametrize(
    ("request_", "effect"),
    [(m.Pause(4), "rules"), (m.Vacuum(4), "unchanged"), (m.Requeue(4, None), "unchanged"), (m.Dead(4), "missing")],
    ids=lambda value: type(value).__name__,
)
def test_what_the_absence_of_a_shard_means_is_told(routed: Routed, request_: Any, effect: str) -> None:
    routed.take(request_)
    routed.shards[1].lose_patience()
    for number in (0, 2):
        routed.shards[number].answer(m.DeadChunks(0, [], None) if effect == "missing" else m.Changed(0))
    assert routed.said[0] == m.ShardsMissing(4, [routed.shards[1].name], effect)  # type: ignore[arg-type]


def test_schedule_is_not_unknown_while_a_shard_that_may_have_it_is_away(routed: Routed) -> None:
    routed.take(m.ShowSchedules(4, "nightly"))
    for number in (0, 2):
        routed.shards[number].answer(m.ErrorReply(0, "not_found", "No."))
    routed.shards[1].lose_patience()
    assert [reply.cause for reply in routed.said] == ["schedule_not_known"]


def test_shard_that_was_never_reached_is_missing_in_lists(routed: Routed) -> None:
    routed.shards.all[1].number = None  # type: ignore[assignment]
    routed.take(m.List(4))
    assert not routed.shards.all[1].questions
    for number in (0, 2):
        routed.shards[number].answer(m.Listed(0, [], None))
    assert [type(reply) for reply in routed.said] == [m.ShardsMissing, m.Listed]


def test_list_is_an_error_when_no_shard_answers(routed: Routed) -> None:
    routed.take(m.List(4))
    for shard in routed.shards:
        shard.lose_patience()
    assert [reply.code for reply in routed.said] == ["unreachable"]


@pytest.mark.parametrize(
    "request_",
    [m.Stop(4), m.Backup(4, "/b"), m.Events(4), m.PutRules(4, 1, [], [], [])],
    ids=lambda one: type(one).__name__,
)
def test_request_that_concerns_one_daemon_is_refused_with_words(routed: Routed, request_: Any) -> None:
    routed.take(request_)
    [reply] = routed.said
    assert (reply.id, reply.code, reply.cause) == (4, "usage", "one_shard_only")
    error = reply.error()
    assert error.message.split()[0] != type(request_).__name__
    assert "--address" in error.hint
    assert routed.asked == []


def test_withdrawal_is_known_only_when_all_have_answered(routed: Routed) -> None:
    key = b"k" * 16
    routed.take(m.Withdraw(4, key))
    for shard in routed.shards:
        assert not routed.said
        shard.answer(m.Found(0, None, True))
    assert routed.said == [m.Found(4, None, True)]


def test_withdrawal_finds_the_submission_though_a_shard_is_away(routed: Routed) -> None:
    routed.take(m.Withdraw(4, b"k" * 16))
    routed.shards[0].lose_patience()
    routed.shards[1].answer(m.Found(0, submission_id(1), False))
    routed.shards[2].answer(m.Found(0, None, True))
    assert routed.said == [m.Found(4, submission_id(1), False)]


def test_withdrawal_without_the_answer_of_a_shard_is_an_error(routed: Routed) -> None:
    routed.take(m.Withdraw(4, b"k" * 16))
    routed.shards[0].lose_patience()
    for number in (1, 2):
        routed.shards[number].answer(m.Found(0, None, True))
    assert [reply.code for reply in routed.said] == ["unreachable"]


# --- the rest ---


def test_heartbeat_is_answered_and_passed_on(routed: Routed) -> None:
    routed.take(m.Heartbeat(4))
    assert routed.said == [m.Alive(4)]
    assert [shard.beats_count for shard in routed.shards] == [1, 1, 1]


def test_client_hears_of_the_end_when_the_last_shard_ends_and_of_what_is_revoked_at_once(routed: Routed) -> None:
    revoked = m.Revoked([m.ChunkMask(submission_id(0), 0, 1)], "cancelled")
    routed.router.pushed(routed.shards[0], revoked)  # type: ignore[arg-type]
    assert routed.said == [revoked]
    for shard in routed.shards:
        assert routed.said == [revoked]
        shard.is_draining = True
        routed.router.pushed(shard, m.Draining(1.0))  # type: ignore[arg-type]
    assert routed.said == [revoked, m.Draining(1.0)]


def test_consumer_does_not_wait_at_a_shard_that_drains_and_asks_it_no_more(routed: Routed) -> None:
    drained = routed.shards[1]
    routed.take(m.Reserve(4, 1, wait_s=None))
    for _ in range(3):
        for shard in routed.shards:
            if shard.questions and not shard.cancelled:
                shard.answer(NOTHING)
                break
    drained.is_draining = True
    routed.router.pushed(drained, m.Draining(1.0))  # type: ignore[arg-type]
    if drained.questions:
        drained.answer(NOTHING)
    assert not drained.questions
    assert not routed.said


def test_end_of_all_work_is_told_when_each_shard_has_said_so(routed: Routed) -> None:
    routed.take(m.Reserve(4, 1, wait_s=None, until_empty=True))
    answered: set[int] = set()
    while len(answered) < 3:
        shard: FakeShard = next(one for one in routed.shards if one.questions and one.number not in answered)
        assert not routed.said
        shard.answer(EMPTY)
        answered.add(shard.number)
    assert [reply.is_empty for reply in routed.said] == [True]


def test_ids_of_shards_are_those_in_their_submissions() -> None:
    routed = Routed(1023, 0)
    routed.take(m.Show(4, submission_id(1023)))
    assert routed.asked == [1023]
