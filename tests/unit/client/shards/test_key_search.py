"""Who has a key: also the shard to which its submission has moved, and no more are asked than that takes."""

from __future__ import annotations

import pytest

from opsq.wire import messages as m
from unit.client.shards.fake_shards import FakeShard, submission_id
from unit.client.shards.test_placing import DRAINS, FULL, Submits, moved_to, new, stored

KEYS = [{"idempotency_key": "k"}, {"unique_key": "k"}]


def told(shard: FakeShard, known: int | None = None, moved: int | None = None, makers: tuple[int, ...] = ()) -> None:
    """A shard says what it knows of the key."""
    shard.answer(m.Capacity(0, None, known, moved, list(makers)), m.CheckCapacity)


def without_the_first(count: int = 6) -> tuple[Submits, FakeShard, list[FakeShard]]:
    """Shards of which the first in the order of the key is not among the addresses any more: itself, and the others."""
    submits = Submits(count=count)
    gone, *others = submits.order("k")
    submits.shards.all.remove(gone)
    return submits, gone, others


@pytest.mark.parametrize("key", KEYS)
def test_key_of_a_shard_that_was_removed_is_asked_for_where_its_submissions_are(key: dict[str, str]) -> None:
    submits, gone, order = without_the_first()
    heir = order[4]
    heir.makers = frozenset({gone.number})
    submits.submit(new(**key))
    assert set(submits.asked) == {*order[:3], heir}
    submits.tell_keys(*order[:3])
    told(heir, submission_id(gone.number), makers=(gone.number,))
    assert submits.asked == [heir]
    heir.answer(m.Submitted(0, [m.Created(submission_id(gone.number), is_new=False)]))
    assert submits.answers[0].created == [m.Created(submission_id(gone.number), is_new=False)]


def test_room_for_a_key_of_a_shard_that_was_removed_tells_the_submission_too() -> None:
    submits, gone, order = without_the_first()
    order[4].makers = frozenset({gone.number})
    submits.check_capacity(submission=new(unique_key="k"))
    submits.tell_keys(*order[:3])
    told(order[4], submission_id(gone.number))
    assert submits.answers[0].submission_id == submission_id(gone.number)


def test_key_is_refused_while_the_shard_is_away_that_has_the_submissions_of_one_that_was_removed() -> None:
    submits, gone, order = without_the_first()
    order[4].makers = frozenset({gone.number})
    submits.submit(new(idempotency_key="k"))
    submits.tell_keys(*order[:3])
    order[4].answer(order[4].gone(), m.CheckCapacity)
    assert [answer.cause for answer in submits.answers] == ["key_not_known"]


def test_shard_with_submissions_of_one_that_never_had_the_key_is_not_asked() -> None:
    submits = Submits(count=7)
    *order, last = submits.order("k")
    submits.shards.all.remove(last)
    order[5].makers = frozenset({last.number})
    submits.submit(new(idempotency_key="k"))
    assert set(submits.asked) == set(order[:3])


def test_shard_with_submissions_of_one_that_can_be_asked_itself_is_not_asked() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    order[5].makers = frozenset({order[0].number})
    submits.submit(new(idempotency_key="k"))
    assert set(submits.asked) == set(order[:3])


def test_each_shard_is_asked_once_after_one_was_removed_and_then_as_few_as_before() -> None:
    submits, gone, order = without_the_first()
    submits.placing.chosen_anew()
    assert set(submits.asked) == set(order)
    for shard in order[:4]:
        told(shard)
    told(order[4], makers=(gone.number,))
    submits.submit(new(idempotency_key="k"))
    assert set(submits.asked) == {*order[:3], order[4]}


def test_shard_that_has_not_said_since_one_was_removed_what_it_has_is_asked_for_each_key() -> None:
    submits, gone, order = without_the_first()
    submits.placing.chosen_anew()
    for shard in order[:3]:
        told(shard)
    for shard in order[3:]:
        shard.answer(DRAINS)
    submits.submit(new(1, idempotency_key="k"))
    assert set(submits.asked) == set(order)
    submits.tell_keys(*order[:4])
    told(order[4], makers=(gone.number,))
    order[0].answer(stored(order[0]))
    submits.submit(new(2, idempotency_key="k"))
    assert set(submits.asked) == {*order[:3], order[4]}


@pytest.mark.parametrize("key", KEYS)
def test_key_that_has_moved_is_asked_for_where_it_is(key: dict[str, str]) -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(**key))
    if "unique_key" in key:
        told(order[0], moved=order[4].number)
    else:
        order[0].answer(moved_to(order[4].number), m.CheckCapacity)
    submits.tell_keys(*order[1:3])
    assert submits.asked == [order[4]]
    told(order[4], moved=order[5].number)
    told(order[5], submission_id(3))
    assert submits.asked == [order[5]]
    order[5].answer(m.Submitted(0, [m.Created(submission_id(3), is_new=False)]))
    assert submits.answers[0].created == [m.Created(submission_id(3), is_new=False)]


def test_idempotency_key_that_is_free_where_it_has_moved_to_passes_over_the_shard_that_sends_there() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[0].answer(moved_to(order[4].number), m.CheckCapacity)
    submits.tell_keys(*order[1:3])
    told(order[4])
    assert submits.asked == [order[1]]
    order[1].answer(stored(order[1]))
    assert submits.answers[0].created[0].is_new


def test_unique_key_that_is_free_where_it_has_moved_to_goes_to_the_first() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(unique_key="k"))
    told(order[0], moved=order[4].number)
    submits.tell_keys(*order[1:3])
    told(order[4])
    assert submits.asked == [order[0]]


def test_key_that_is_on_its_way_to_a_shard_is_refused() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[0].answer(moved_to(order[4].number), m.CheckCapacity)
    submits.tell_keys(*order[1:3])
    order[4].answer(m.ErrorReply(0, "conflict", cause="moving_here", details={"submission_id": 1}))
    assert [answer.cause for answer in submits.answers] == ["moving_here"]


def test_key_that_has_moved_to_a_shard_that_is_not_among_the_addresses_is_refused() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[0].answer(moved_to(99), m.CheckCapacity)
    submits.tell_keys(*order[1:3])
    assert [(answer.code, answer.details["shard"]) for answer in submits.answers] == [("moved", 99)]


def test_submission_with_a_key_goes_where_what_it_waits_for_has_moved() -> None:
    submits = Submits()
    submits.submit(new(idempotency_key="k", after=[m.Dependency(submission_id(3))]))
    submits.shards[3].answer(moved_to(1), m.CheckCapacity)
    assert submits.asked == [submits.shards[3]]
    submits.shards[3].answer(moved_to(1))
    assert submits.asked == [submits.shards[1]]
    submits.shards[1].answer(stored(submits.shards[1]))
    assert submits.answers[0].created[0].submission_id == submission_id(1)


def test_shards_that_each_say_that_the_other_has_a_key_are_each_asked_once() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    order[0].answer(moved_to(order[1].number), m.CheckCapacity)
    order[1].answer(moved_to(order[0].number), m.CheckCapacity)
    told(order[2])
    assert submits.asked == [order[2]]


def test_key_that_moves_between_the_question_and_the_submit_is_asked_for_again() -> None:
    submits = Submits(count=6)
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    told(order[0], submission_id(3))
    submits.tell_keys(*order[1:3])
    order[0].answer(moved_to(order[4].number))
    order[0].answer(moved_to(order[4].number), m.CheckCapacity)
    told(order[4], submission_id(3))
    assert submits.asked == [order[4]]
    order[4].answer(m.Submitted(0, [m.Created(submission_id(3), is_new=False)]))
    assert submits.answers[0].created == [m.Created(submission_id(3), is_new=False)]


def test_key_that_is_nowhere_once_all_shards_have_sent_elsewhere_is_refused() -> None:
    submits = Submits(count=2)
    order = submits.order("k")
    submits.submit(new(idempotency_key="k"))
    for shard, other in (order, reversed(order)):
        shard.answer(moved_to(other.number), m.CheckCapacity)
    assert [answer.code for answer in submits.answers] == ["moved"]


def test_request_that_is_sent_again_after_its_submission_has_moved_is_answered_where_that_is() -> None:
    submits = Submits(shard_by="tenant")
    first, second, *_ = submits.order("acme")
    submits.submit(new(metadata={"tenant": "acme"}))
    first.answer(moved_to(second.number))
    assert submits.asked == [first]
    first.answer(moved_to(second.number), m.CheckCapacity)
    told(second, submission_id(3))
    assert submits.asked == [second]
    second.answer(FULL)
    assert [answer.code for answer in submits.answers] == ["no_room"]
