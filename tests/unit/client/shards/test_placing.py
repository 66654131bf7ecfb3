"""Where submissions go."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.client.shards.placement import Placement
from opsq.client.shards.placing import ROOM_ASKED, Placing
from opsq.client.shards.shard_order import rendezvous
from opsq.errors import Moved
from opsq.wire import messages as m
from unit.client.shards.fake_shards import FakeShard, FakeShards, submission_id


class Submits:
    """Submits to four shards, or more."""

    def __init__(self, *, count: int = 4, **options: Any) -> None:
        self.shards = FakeShards(*range(count), **options)
        self.placing = Placing(self.shards)  # type: ignore[arg-type]
        self.answers: list[Any] = []
        self.waits: list[Any] = []

    def submit(self, *submissions: m.NewSubmission, wait_s: float | None = 0.0) -> Placement | None:
        return self.placing.submit(m.Submit(1, list(submissions), wait_s), self.answers.append)

    def check_capacity(self, wait_s: float | None = 0.0, submission: m.NewSubmission | None = None) -> None:
        request = m.CheckCapacity(1, 5, wait_s=wait_s, submission=submission)
        self.placing.check_capacity(request, self.answers.append, lambda shard, _: self.waits.append(shard))

    def order(self, value: int | str | bytes) -> list[FakeShard]:
        return [self.shards[number] for number in rendezvous(value, self.shards.numbers)]

    @property
    def asked(self) -> list[FakeShard]:
        return [shard for shard in self.shards if shard.questions]

    def tell_rooms(self, *rooms: int | None) -> None:
        for shard, room in zip(self.shards, rooms, strict=True):
            shard.answer(m.Capacity(0, room), m.CheckCapacity)

    def tell_keys(self, *shards: FakeShard, known: FakeShard | None = None) -> None:
        for shard in shards:
            found = submission_id(shard.number) if shard is known else None
            shard.answer(m.Capacity(0, None, found), m.CheckCapacity)


def new(number: int = 1, **fields: Any) -> m.NewSubmission:
    return m.NewSubmission(number.to_bytes(16, "big"), 5, **fields)


def stored(shard: FakeShard) -> m.Submitted:
    return m.Submitted(0, [m.Created(submission_id(shard.number), is_new=True)])


FULL = m.ErrorReply(0, "no_room", "Full.")
DRAINS = m.ErrorReply(0, "draining", "It drains.")


def test_order_of_a_value_is_the_same_for_all_and_loses_nothing_but_a_shard_that_goes() -> None:
    whole = rendezvous("acme", range(100))
    assert sorted(whole) == list(range(100))
    assert rendezvous("acme", [one for one in reversed(range(100)) if one != 7]) == [one for one in whole if one != 7]
    assert rendezvous(1, range(100)) != rendezvous("1", range(100))


def test_values_are_spread_evenly() -> None:
    firsts = [rendezvous(f"tenant {number}", range(16))[0] for number in range(16_000)]
    counts = [firsts.count(shard) for shard in range(16)]
    assert 900 < min(counts) <= max(counts) < 1100


def test_submission_goes_where_there_is_most_room() -> None:
    submits = Submits()
    submits.submit(new())
    submits.tell_rooms(10, 500, 20, 0)
    [shard] = submits.asked
    assert shard.number == 1
    shard.answer(stored(shard))
    assert submits.answers[0].created[0].submission_id == submission_id(1)


def test_some_of_many_shards_are_asked_for_room_and_the_others_are_next() -> None:
    submits = Submits(count=30)
    submits.shards[4].is_away = True
    submits.submit(new())
    asked = submits.asked
    assert len(asked) == ROOM_ASKED
    assert submits.shards[4] not in asked
    for shard in asked:
        shard.answer(m.Capacity(0, 10 if shard is asked[5] else 0))
    tried = []
    while submits.asked:
        [shard] = submits.asked
        tried.append(shard)
        shard.answer(FULL)
    assert tried[0] is asked[5]
    assert len(set(tried)) == 29
    assert submits.answers[0].code == "no_room"


def test_value_of_the_chosen_key_says_the_shard() -> None:
    submits = Submits(shard_by="tenant")
    first, *_ = submits.order("acme")
    for number in range(3):
        submits.submit(new(number, metadata={"tenant": "acme", "part": number}))
    assert submits.asked == [first]
    assert len(first.questions) == 3


def test_full_shard_is_passed_over_to_the_next_in_order() -> None:
    submits = Submits(shard_by="tenant")
    first, second, *_ = submits.order("acme")
    submits.submit(new(metadata={"tenant": "acme"}))
    first.answer(FULL)
    assert submits.asked == [second]
    second.answer(stored(second))
    assert submits.answers[0].created[0].submission_id == submission_id(second.number)


def test_shard_that_is_away_is_passed_over() -> None:
    submits = Submits(shard_by="tenant")
    first, second, *_ = submits.order("acme")
    first.is_away = True
    submits.submit(new(metadata={"tenant": "acme"}))
    assert submits.asked == [second]


def test_submission_that_may_wait_does_so_at_its_first_shard_when_all_are_full() -> None:
    submits = Submits(shard_by="tenant")
    order = submits.order("acme")
    submits.submit(new(metadata={"tenant": "acme"}), wait_s=None)
    for shard in order[:-1]:
        assert [one.wait_s for one in shard.questions] == [0.0]  # type: ignore[union-attr]
        shard.answer(FULL)
    order[-1].answer(FULL)
    assert submits.asked == [order[0]]
    assert [one.wait_s for one in order[0].questions] == [None]  # type: ignore[union-attr]


def test_submission_that_may_not_wait_is_refused_when_all_are_full() -> None:
    submits = Submits(shard_by="tenant")
    submits.submit(new(metadata={"tenant": "acme"}))
    for shard in submits.order("acme"):
        shard.answer(FULL)
    [reply] = submits.answers
    assert reply.code == "no_room"


def test_other_errors_are_the_answer() -> None:
    submits = Submits(shard_by="tenant")
    submits.submit(new(metadata={"tenant": "acme"}))
    submits.order("acme")[0].answer(m.ErrorReply(0, "usage", "No."))
    [reply] = submits.answers
    assert reply.code == "usage"
    assert submits.asked == []


@pytest.mark.parametrize("key", [{"idempotency_key": "k"}, {"unique_key": "k"}])
def test_key_is_asked_for_at_its_first_shards_before_the_first_gets_it(key: dict[str, str]) -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(**key))
    assert set(submits.asked) == set(order[:3])
    submits.tell_keys(*order[:3])
    assert submits.asked == [order[0]]
    order[0].answer(stored(order[0]))
    assert submits.answers[0].created[0].is_new


def test_submission_whose_key_another_shard_has_is_given_to_that() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    submits.tell_keys(*order[:3], known=order[1])
    assert submits.asked == [order[1]]


def test_key_that_a_shard_out_of_reach_may_have_is_refused() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[1].answer(order[1].gone(), m.CheckCapacity)
    submits.tell_keys(order[0], order[2])
    [reply] = submits.answers
    assert (reply.code, reply.cause) == ("unreachable", "key_not_known")
    assert submits.asked == []


def test_key_that_is_known_needs_no_shard_that_is_out_of_reach() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[1].answer(order[1].gone(), m.CheckCapacity)
    submits.tell_keys(order[0], order[2], known=order[2])
    assert submits.asked == [order[2]]


def test_submission_with_a_key_is_not_given_to_another_shard_because_its_own_is_full() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    submits.tell_keys(*order[:3])
    order[0].answer(FULL)
    [reply] = submits.answers
    assert reply.code == "no_room"


def test_submission_with_a_key_passes_over_a_shard_that_drains() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[0].answer(DRAINS, m.CheckCapacity)
    submits.tell_keys(order[1], order[2])
    order[0].answer(DRAINS)
    assert submits.asked == [order[1]]


def test_key_cannot_be_placed_while_nobody_knows_which_shard_an_address_is() -> None:
    submits = Submits()
    submits.shards.all[2].number = None  # type: ignore[assignment]
    submits.submit(new(idempotency_key="k"))
    [reply] = submits.answers
    assert reply.cause == "key_not_known"


def test_submit_for_several_shards_is_divided_and_answered_in_order() -> None:
    submits = Submits(shard_by="tenant")
    tenants = ["a", "b", "c", "d", "e", "f"]
    submits.submit(*[new(number, metadata={"tenant": tenant}) for number, tenant in enumerate(tenants)])
    assert len(submits.asked) > 1
    for shard in submits.asked:
        [part] = shard.questions
        assert isinstance(part, m.Submit)
        created = [m.Created(submission_id(shard.number, one.request_key[-1] + 1), True) for one in part.submissions]
        shard.answer(m.Submitted(0, created))
    [reply] = submits.answers
    assert [one.submission_id >> 22 for one in reply.created] == [1, 2, 3, 4, 5, 6]


def test_submissions_without_a_value_stay_together() -> None:
    submits = Submits()
    submits.submit(new(1), new(2), new(3))
    submits.tell_rooms(None, None, None, None)
    [shard] = submits.asked
    [part] = shard.questions
    assert len(part.submissions) == 3  # type: ignore[union-attr]


def test_submission_goes_to_the_shard_of_what_it_waits_for() -> None:
    submits = Submits(shard_by="tenant")
    submits.submit(new(metadata={"tenant": "acme"}, after=[m.Dependency(submission_id(3))]))
    assert [shard.number for shard in submits.asked] == [3]


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        ([m.Dependency(submission_id(1)), m.Dependency(submission_id(2))], "dependencies_apart"),
        ([m.Dependency(submission_id(9))], "dependency_elsewhere"),
        ([m.Dependency(needs="ended", key="day", value=1)], "pair_over_shards"),
    ],
)
def test_submission_that_no_shard_could_start_in_time_is_refused(after: list[m.Dependency], cause: str) -> None:
    submits = Submits()
    submits.submit(new(after=after))
    [reply] = submits.answers
    assert (reply.code, reply.cause) == ("usage", cause)
    assert reply.error().message


def test_submit_of_nothing_is_answered() -> None:
    submits = Submits()
    submits.submit()
    submits.tell_rooms(None, None, None, None)
    [shard] = submits.asked
    shard.answer(m.Submitted(0, []))
    assert submits.answers[0].created == []


def test_room_is_that_of_the_shard_with_most() -> None:
    submits = Submits()
    submits.check_capacity()
    submits.tell_rooms(3, 70, 5, 0)
    assert submits.answers[0].left_count == 70


def test_room_is_refused_only_if_all_refuse() -> None:
    submits = Submits()
    submits.check_capacity()
    for shard in submits.shards:
        shard.answer(FULL)
    assert submits.answers[0].code == "no_room"


def test_room_for_a_submission_with_a_key_tells_the_one_that_has_it() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.check_capacity(submission=new(unique_key="k"))
    submits.tell_keys(*order[:3], known=order[2])
    assert submits.answers[0].submission_id == submission_id(order[2].number)


def test_room_is_waited_for_only_if_no_shard_has_any() -> None:
    submits = Submits()
    submits.check_capacity(wait_s=None)
    assert [one.wait_s for shard in submits.shards for one in shard.questions] == [0.0] * 4  # type: ignore[union-attr]
    for shard in submits.shards:
        shard.answer(FULL)
    assert submits.answers == []
    [shard] = submits.asked
    assert submits.waits == [shard]
    assert [one.wait_s for one in shard.questions] == [None]  # type: ignore[union-attr]
    shard.answer(m.Capacity(0, 7))
    assert submits.answers[0].left_count == 7


def test_key_is_not_waited_for_at_a_shard_that_is_full() -> None:
    submits = Submits()
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"), wait_s=None)
    assert {one.wait_s for shard in order[:3] for one in shard.questions} == {0.0}  # type: ignore[union-attr]
    order[1].answer(FULL, m.CheckCapacity)
    submits.tell_keys(order[0], order[2])
    assert submits.asked == [order[0]]


@pytest.mark.parametrize("value", [0, ""])
def test_value_that_says_little_says_the_shard_too(value: int | str) -> None:
    submits = Submits(shard_by="tenant")
    for number in range(4):
        submits.submit(new(number, metadata={"tenant": value}))
    assert submits.asked == [submits.order(value)[0]]


def test_submit_of_which_a_part_was_refused_says_that_others_are_stored() -> None:
    submits = Submits(shard_by="tenant")
    submits.submit(*[new(number, metadata={"tenant": tenant}) for number, tenant in enumerate("abcdef")])
    first, *others = submits.asked
    [part] = first.questions
    count = len(part.submissions)  # type: ignore[union-attr]
    first.answer(m.Submitted(0, [m.Created(submission_id(first.number), True)] * count))
    for shard in others:
        shard.answer(m.ErrorReply(0, "usage", "No."))
    [reply] = submits.answers
    assert (reply.code, reply.cause, reply.details["stored"], reply.details["count"]) == (
        "conflict",
        "partly_stored",
        count,
        6,
    )
    assert "No." in reply.error().message


def test_submit_that_waits_for_room_can_be_cancelled() -> None:
    submits = Submits(shard_by="tenant")
    order = submits.order("acme")
    placement = submits.submit(new(metadata={"tenant": "acme"}), wait_s=None)
    for shard in order:
        shard.answer(FULL)
    assert placement is not None
    placement.cancel()
    assert len(order[0].cancelled) == 1
    order[0].answer(FULL)
    [reply] = submits.answers
    assert reply.code == "no_room"


def moved_to(shard: int) -> m.ErrorReply:
    return m.ErrorReply.of(0, Moved(cause="moved", submission_id=submission_id(3), shard=shard, address="there"))


def test_submission_goes_where_what_it_waits_for_has_moved() -> None:
    submits = Submits()
    submits.submit(new(1, after=[m.Dependency(submission_id(3))]), new(2, after=[m.Dependency(submission_id(3, 9))]))
    submits.shards[3].answer(moved_to(1))
    assert sorted(shard.number for shard in submits.asked) == [1, 3]
    submits.shards[1].answer(moved_to(2))
    submits.shards[2].answer(stored(submits.shards[2]))
    submits.shards[3].answer(stored(submits.shards[3]))
    assert [one.submission_id for one in submits.answers[0].created] == [submission_id(2), submission_id(3)]


def test_submission_whose_dependencies_have_moved_apart_is_refused() -> None:
    submits = Submits()
    submits.submit(new(1, after=[m.Dependency(submission_id(3)), m.Dependency(submission_id(3, 9))]))
    submits.shards[3].answer(moved_to(1))
    assert [answer.cause for answer in submits.answers] == ["dependencies_apart"]


def test_dependency_that_each_shard_says_another_has_is_not_looked_for_for_ever() -> None:
    submits = Submits()
    submits.submit(new(1, after=[m.Dependency(submission_id(3))]))
    number, hops = 3, 0
    while submits.asked:
        number, hops = (1 if number == 3 else 3), hops + 1
        submits.asked[0].answer(moved_to(number))
    assert hops > 1
    assert [answer.code for answer in submits.answers] == [Moved.code]
