"""What a client hears from a router, and what that asks of shards."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.client.shards.shard import ERRAND_S, WORK_S
from opsq.errors import Moved
from opsq.wire import messages as m
from unit.client.shards.fake_shards import EMPTY, NOTHING, FakeShard, submission_id
from unit.client.shards.routed import NOW_MS, Routed


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
