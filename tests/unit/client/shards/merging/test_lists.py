"""Lists over shards against a naive merge of whole lists, with shards whose pages are short or empty."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opsq.client.shards.merging import Cursors, Members, gathering
from opsq.client.shards.merging.cursors import HANDLES_KEPT
from opsq.client.shards.merging.pages import PAGE_BYTES
from opsq.errors import UsageError
from opsq.ids import SHARD_MAX
from opsq.wire import messages as m

R = TypeVar("R", bound=m.Reply)

Shard = Callable[[Any], Any]
"""Answers a request."""

SHARDS = st.lists(st.integers(0, SHARD_MAX), min_size=1, max_size=4, unique=True)
LIMITS = st.integers(1, 8)


def listed(request: Any, shards: dict[int, Shard], go_on: Callable[[Any, Any], Any]) -> Iterator[Any]:
    """All pages of a list, each asked for as a client does."""
    cursors = Cursors()
    addresses = dict.fromkeys(shards, "host:1")
    while request is not None:
        found = gathering(request, Members(addresses), cursors)
        assert found is not None
        asked = found.ask(list(shards))
        assert all(sent.limit <= request.limit for sent in asked.values())
        page = found.merged({shard: shards[shard](sent) for shard, sent in asked.items()})
        assert page.id == request.id
        yield page
        request = go_on(request, page)


# --- places that all shards have in common ----------------------------------------------------------------------------


def state(submission_id: int) -> m.SubmissionState:
    return msgspec.convert(
        [submission_id, "open", 1, 0, 0, 0, 0, 0, {}, 0, 1, 1, [], False, 1.0, 0, None, None, None, None, False, ""],
        m.SubmissionState,
    )


@given(st.data(), SHARDS, LIMITS)
def test_submissions_of_all_shards_come_newest_first_each_once(
    data: st.DataObject, numbers: list[int], limit: int
) -> None:
    ids = data.draw(st.sets(st.integers(0, 60), max_size=40))
    owner = {number: data.draw(st.sampled_from(numbers)) for number in sorted(ids)}

    def shard(shard_number: int) -> Shard:
        def answer(request: m.List) -> m.Listed:
            before = 1 << 62 if request.before is None else request.before
            mine = sorted((i for i in owner if owner[i] == shard_number and i < before), reverse=True)
            looked = mine[: data.draw(st.integers(1, request.limit))]
            shown = [number for number in looked if number % 3]
            return m.Listed(5, [state(number) for number in shown], looked[-1] if len(mine) > len(looked) else None)

        return answer

    pages = list(
        listed(
            m.List(9, limit=limit),
            {number: shard(number) for number in numbers},
            lambda request, page: None if page.next_before is None else replace(request, before=page.next_before),
        )
    )
    found = [row.submission_id for page in pages for row in page.submissions]
    assert found == sorted((number for number in ids if number % 3), reverse=True)
    assert all(len(page.submissions) <= limit for page in pages)


@given(st.data(), SHARDS, LIMITS)
def test_dead_chunks_of_all_shards_come_by_name_each_once(data: st.DataObject, numbers: list[int], limit: int) -> None:
    places = st.tuples(st.integers(0, 9), st.integers(0, 9))
    owner = {place: data.draw(st.sampled_from(numbers)) for place in sorted(data.draw(st.sets(places, max_size=40)))}

    def shard(shard_number: int) -> Shard:
        def answer(request: m.Dead) -> m.DeadChunks:
            mine = [place for place in owner if owner[place] == shard_number and place > request.after]
            looked = mine[: data.draw(st.integers(1, request.limit))]
            shown = [m.DeadChunk(*place, 1, 0, 0, "reason", None, None) for place in looked if sum(place) % 3]
            return m.DeadChunks(5, shown, looked[-1] if len(mine) > len(looked) else None)

        return answer

    pages = list(
        listed(
            m.Dead(9, limit=limit),
            {number: shard(number) for number in numbers},
            lambda request, page: None if page.next_after is None else replace(request, after=page.next_after),
        )
    )
    found = [(row.submission_id, row.index) for page in pages for row in page.chunks]
    assert found == [place for place in owner if sum(place) % 3]
    assert all(len(page.chunks) <= limit for page in pages)


def schedule(name: str) -> m.ScheduleState:
    template = m.NewSubmission(bytes(16), 1)
    return m.ScheduleState(
        m.Schedule(name, "@daily", template), 0, None, [], 0, 0, 0, 0, [], None, None, None, None, "", ""
    )


@given(st.data(), SHARDS, LIMITS)
def test_schedules_come_by_name_even_if_several_shards_have_one(
    data: st.DataObject, numbers: list[int], limit: int
) -> None:
    names = st.sets(st.sampled_from("abcdefghij"))
    known = {number: sorted(data.draw(names)) for number in numbers}

    def shard(shard_number: int) -> Shard:
        def answer(request: m.ShowSchedules) -> m.Schedules:
            mine = known[shard_number][bisect_right(known[shard_number], request.after) :]
            return m.Schedules(5, [schedule(name) for name in mine[: request.limit]], len(mine) > request.limit)

        return answer

    pages = listed(
        m.ShowSchedules(9, limit=limit),
        {number: shard(number) for number in numbers},
        lambda request, page: replace(request, after=page.schedules[-1].schedule.name) if page.has_more else None,
    )
    found = [row.schedule.name for page in pages for row in page.schedules]
    assert found == sorted(name for mine in known.values() for name in mine)


# --- places of each shard's own ---------------------------------------------------------------------------------------


def event(seq: int, at: int, submission_id: int) -> m.HistoryEvent:
    return m.HistoryEvent(seq, at, "failed", submission_id, 0, 1, 0, "c", 0.0, 0.0, 0.0, None, None, "reason")


class EventShard:
    """A shard with events, of which a page looks at some, and has those that are asked for among them."""

    def __init__(self, data: st.DataObject, instants: list[int], *, knows_instants: bool) -> None:
        self._draw = data.draw
        self._knows_instants = knows_instants
        seqs = range(1, 2 * len(instants), 2)
        self.events = [event(seq, at, seq) for seq, at in zip(seqs, instants, strict=True)]

    @property
    def matching(self) -> list[m.HistoryEvent]:
        """Those that are asked for."""
        return [event for event in self.events if event.seq % 3]

    def answer(self, request: m.History) -> m.HistoryRows:
        """A page."""
        events = self.events[::-1] if request.newest_first else self.events
        if request.after is not None:
            sign = -1 if request.newest_first else 1
            events = [event for event in events if sign * event.seq > sign * request.after]
        looked = events[: self._draw(st.integers(1, request.limit))]
        rows = [event for event in looked if event.seq % 3]
        if len(looked) == len(events):
            return m.HistoryRows(5, rows, None, {})
        reached_at = looked[-1].at if self._knows_instants else None
        return m.HistoryRows(
            5, rows, looked[-1].seq, {row.submission_id: {"a": row.seq} for row in rows}, {}, reached_at
        )


def event_shards(data: st.DataObject, numbers: list[int], *, is_rising: bool) -> dict[int, EventShard]:
    found = {}
    for number in numbers:
        instants = data.draw(st.lists(st.integers(0, 20), max_size=15))
        found[number] = EventShard(
            data, sorted(instants) if is_rising else instants, knows_instants=data.draw(st.booleans())
        )
    return found


def history(shards: dict[int, EventShard], limit: int, *, newest_first: bool) -> list[m.HistoryRows]:
    return list(
        listed(
            m.History(9, limit=limit, newest_first=newest_first),
            {number: shard.answer for number, shard in shards.items()},
            lambda request, page: None if page.next_after is None else replace(request, after=page.next_after),
        )
    )


@given(st.data(), SHARDS, LIMITS, st.booleans())
def test_events_of_all_shards_come_by_instant_each_once(
    data: st.DataObject, numbers: list[int], limit: int, newest_first: bool
) -> None:
    shards = event_shards(data, numbers, is_rising=True)
    pages = history(shards, limit, newest_first=newest_first)
    naive = sorted(
        ((row.at, number, row.seq) for number, shard in shards.items() for row in shard.matching), reverse=newest_first
    )
    rows = [row for page in pages for row in page.rows]
    assert [(row.at, row.seq % 1024, row.seq // 1024) for row in rows] == naive
    assert all(len(page.rows) <= limit for page in pages)
    assert all(page.metadata.keys() <= {row.submission_id for row in page.rows} for page in pages)


@given(st.data(), SHARDS, LIMITS, st.booleans())
def test_no_event_is_lost_and_each_shard_keeps_its_order_though_clocks_were_set_back(
    data: st.DataObject, numbers: list[int], limit: int, newest_first: bool
) -> None:
    shards = event_shards(data, numbers, is_rising=False)
    rows = [row for page in history(shards, limit, newest_first=newest_first) for row in page.rows]
    for number, shard in shards.items():
        found = [row.seq // 1024 for row in rows if row.seq % 1024 == number]
        assert found == sorted((event.seq for event in shard.matching), reverse=newest_first)
    assert len(rows) == sum(len(shard.matching) for shard in shards.values())


@given(st.data(), SHARDS, LIMITS)
def test_what_runs_at_all_shards_comes_longest_first_each_once(
    data: st.DataObject, numbers: list[int], limit: int
) -> None:
    running = {
        number: sorted(data.draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=15)))
        for number in numbers
    }

    def shard(shard_number: int) -> Shard:
        def answer(request: m.Running) -> m.RunningChunks:
            mine = [(since, number, 7, 0, 1) for since, number in running[shard_number]]
            mine = [place for place in mine if request.after is None or place > request.after]
            shown = mine[: request.limit]
            rows = [m.RunningChunk(7, 0, 1, 0, "c", "", 0, 9.0 - place[0], False, *place[:2]) for place in shown]
            return m.RunningChunks(5, rows, shown[-1] if len(mine) > len(shown) else None, {7: {"shard": shard_number}})

        return answer

    pages = list(
        listed(
            m.Running(9, limit=limit),
            {number: shard(number) for number in numbers},
            lambda request, page: None if page.next_after is None else replace(request, after=page.next_after),
        )
    )
    rows = [(row.run_s, row.reservation_id) for page in pages for row in page.rows]
    naive = sorted((since, number, place) for number in numbers for since, place in running[number])
    assert rows == [(9.0 - since, place) for since, _, place in naive]
    assert [len(page.rows) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert len(pages[-1].rows) <= limit


def test_an_empty_page_of_one_shard_holds_back_only_what_may_come_after_it() -> None:
    found = gathering(m.History(1), Members({0: "a:1", 1: "b:1"}), Cursors())
    assert found is not None
    found.ask([0, 1])
    page = found.merged(
        {
            0: m.HistoryRows(1, [], 9, {}, {}, reached_at=15),
            1: m.HistoryRows(1, [event(1, 10, 1), event(2, 20, 1)], None, {}),
        }
    )
    assert isinstance(page, m.HistoryRows)
    assert [row.at for row in page.rows] == [10]


def test_a_page_of_the_only_shard_that_has_more_is_given_whole() -> None:
    found = gathering(m.History(1), Members({0: "a:1", 1: "b:1"}), Cursors())
    assert found is not None
    found.ask([0, 1])
    rows = [event(1, 10, 1), event(2, 20, 1)]
    page = found.merged({0: m.HistoryRows(1, rows, 9, {}, {}, reached_at=30), 1: m.HistoryRows(1, [], None, {})})
    assert isinstance(page, m.HistoryRows)
    assert ([row.at for row in page.rows], page.reached_at) == ([10, 20], 30)


def test_a_page_ends_where_its_reasons_become_too_long_and_goes_on_there() -> None:
    reason = "x" * (PAGE_BYTES // 2)
    rows = {shard: [replace(event(seq, 10 * seq + shard, seq), reason=reason) for seq in (1, 2)] for shard in (0, 1)}

    def shard(number: int) -> Shard:
        return lambda request: m.HistoryRows(
            1, [row for row in rows[number] if row.seq > (request.after or 0)], None, {}
        )

    pages = listed(
        m.History(1),
        {0: shard(0), 1: shard(1)},
        lambda request, page: None if page.next_after is None else replace(request, after=page.next_after),
    )
    assert [[row.at for row in page.rows] for page in pages] == [[10, 11, 20], [21]]


# --- places that were given out ---------------------------------------------------------------------------------------


def next_page(cursors: Cursors) -> int:
    found = gathering(m.History(1), Members({0: "a:1", 1: "b:1"}), cursors)
    assert found is not None
    found.ask([0, 1])
    rows = m.HistoryRows(1, [event(1, 10, 1)], 1, {})
    page = found.merged({0: rows, 1: m.HistoryRows(1, [], None, {})})
    assert isinstance(page, m.HistoryRows)
    assert page.next_after is not None
    return page.next_after


def test_shards_that_have_no_more_or_did_not_answer_are_not_asked_for_the_next_page() -> None:
    cursors = Cursors()
    found = gathering(m.History(1, after=next_page(cursors)), Members({0: "a:1", 1: "b:1"}), cursors)
    assert found is not None
    asked = found.ask([0, 1])
    assert {shard: request.after for shard, request in asked.items() if isinstance(request, m.History)} == {0: 1}


def test_a_shard_that_is_gone_is_not_asked_for_the_next_page() -> None:
    cursors = Cursors()
    found = gathering(m.History(1, after=next_page(cursors)), Members({1: "b:1"}), cursors)
    assert found is not None
    assert found.ask([1]) == {}
    assert found.merged({}) == m.HistoryRows(1, [], None, {})


def test_a_page_can_be_asked_for_twice() -> None:
    cursors = Cursors()
    number = next_page(cursors)
    for _ in range(2):
        found = gathering(m.History(1, after=number), Members({0: "a:1", 1: "b:1"}), cursors)
        assert found is not None
        assert found.ask([0, 1]).keys() == {0}


@pytest.mark.parametrize(
    "request_",
    [m.History(1, after=17), m.Running(1, after=(17, 0, 0, 0, 0))],
    ids=lambda request: type(request).__name__,
)
def test_a_place_at_one_shard_is_none_of_all(request_: m.Request) -> None:
    with pytest.raises(UsageError, match="each shard counts for itself"):
        gathering(request_, Members({0: "a:1"}), Cursors())


def test_a_place_in_the_history_is_none_among_what_runs() -> None:
    cursors = Cursors()
    number = next_page(cursors)
    with pytest.raises(UsageError):
        gathering(m.Running(1, after=(number, 0, 0, 0, 0)), Members({0: "a:1"}), cursors)


def test_the_newest_places_are_kept() -> None:
    cursors = Cursors()
    first, *others = [next_page(cursors) for _ in range(HANDLES_KEPT + 1)]
    with pytest.raises(UsageError):
        gathering(m.History(1, after=first), Members({0: "a:1"}), cursors)
    assert gathering(m.History(1, after=others[0]), Members({0: "a:1"}), cursors) is not None
    assert gathering(m.History(1, after=others[-1]), Members({0: "a:1"}), cursors) is not None


# --- who is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        m.Dead(1, 5),
        m.Running(1, 5),
        m.Requeue(1, 5),
        m.Drop(1, 5),
        m.History(1, m.HistoryFilter(5)),
        m.Show(1, 5),
        m.Submit(1, []),
        m.Stop(1),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_one_shard_answers_is_not_put_together(request_: m.Request) -> None:
    assert gathering(request_, Members({0: "a:1"}), Cursors()) is None


def test_a_page_of_many_shards_is_asked_for_in_parts() -> None:
    found = gathering(m.List(1, limit=10_000), Members({}), Cursors())
    assert found is not None
    asked = [request.limit for request in found.ask(range(100)).values() if isinstance(request, m.List)]
    assert asked == [200] * 100
