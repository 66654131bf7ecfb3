"""Timers: due in their bucket and never before, and setting one costs the same whatever their number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsq.clock import MonoNs
from opsq.queue.timers import BUCKET_NS, TAKE_LIMIT, Timers


def timers_of(*dues: int) -> Timers[int]:
    timers: Timers[int] = Timers()
    for due in dues:
        timers.add(MonoNs(due), due)
    return timers


@given(
    dues=st.lists(st.integers(0, 10**10), max_size=50, unique=True), steps=st.lists(st.integers(0, 10**9), max_size=30)
)
def test_each_item_comes_once_not_before_it_is_due_and_within_a_bucket_after(dues: list[int], steps: list[int]) -> None:
    timers = timers_of(*dues)
    waiting = sorted(dues)
    now = 0
    for step in [*steps, 2 * 10**10]:
        now += step
        for due in timers.take(MonoNs(now)):
            assert due <= now
            waiting.remove(due)
        assert all(due > now - BUCKET_NS for due in waiting)
    assert waiting == []


def test_items_due_together_come_in_the_order_in_which_they_were_set() -> None:
    timers: Timers[str] = Timers()
    for name in "abc":
        timers.add(MonoNs(BUCKET_NS), name)
    assert list(timers.take(MonoNs(BUCKET_NS))) == ["a", "b", "c"]


def test_item_set_for_the_past_while_others_are_taken_comes_in_the_same_call() -> None:
    timers = timers_of(1)
    found = []
    for due in timers.take(MonoNs(BUCKET_NS)):
        found.append(due)
        if due == 1:
            timers.add(MonoNs(0), 0)
    assert found == [1, 0]


def test_next_due_is_the_earliest_bucket_and_none_without_items() -> None:
    assert timers_of().next_due() is None
    timers = timers_of(5 * BUCKET_NS, 3 * BUCKET_NS - 1)
    assert timers.next_due() == 3 * BUCKET_NS
    list(timers.take(MonoNs(3 * BUCKET_NS)))
    assert timers.next_due() == 5 * BUCKET_NS


def test_a_hundred_thousand_items_due_in_one_bucket_cost_one_place_in_the_order() -> None:
    """Setting one is a look-up and an append; only a new bucket enters the heap."""
    timers = timers_of(*range(1, BUCKET_NS, BUCKET_NS // 100_000))
    assert len(timers._order) == len(timers._buckets) == 1


def test_discarded_item_is_not_given_out_and_leaves_nothing_behind() -> None:
    timers = timers_of(*range(0, 10 * BUCKET_NS, BUCKET_NS // 4))
    for due in range(0, 10 * BUCKET_NS, BUCKET_NS // 4):
        timers.discard(MonoNs(due), due)
        timers.discard(MonoNs(due), due)
    assert timers.next_due() is None
    assert timers._buckets == {}
    assert list(timers.take(MonoNs(20 * BUCKET_NS))) == []


def test_take_stops_at_its_limit_and_the_rest_is_due_still() -> None:
    timers = timers_of(*range(1, TAKE_LIMIT + 11))
    assert len(list(timers.take(MonoNs(BUCKET_NS)))) == TAKE_LIMIT
    assert timers.next_due() == 0
    assert list(timers.take(MonoNs(BUCKET_NS))) == list(range(TAKE_LIMIT + 1, TAKE_LIMIT + 11))
