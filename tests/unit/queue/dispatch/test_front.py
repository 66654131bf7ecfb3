"""Fronts: which submission comes next, whatever becomes free when, without ever walking twice over the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.queue.dispatch import front
from opsq.queue.dispatch.front import Front
from opsq.queue.dispatch.ordered_fronts import NewestFront
from opsq.queue.dispatch.random_order import Deck
from opsq.queue.dispatch.walk import Walk
from opsq.strategy.arms import NEWEST_FIRST, OLDEST_FIRST, RANDOM, SHUFFLES, Arm, shuffle_of


class Row(NamedTuple):
    """A submission as far as orders look at it."""

    id: int
    shuffle: int
    priority: int = 0


class Alone:
    """What a front asks of the rest of the engine, when there is nothing else.

    Every submission is open, no gate is closed.
    """

    def __init__(self, reader: apsw.Connection | None) -> None:
        self.reader = reader
        self.rows_left = 1 << 30
        self.wanted = 1
        self.gates = self

    def submission(self, submission_id: int, beside: Iterable[int] = ()) -> Any:
        return SimpleNamespace(id=submission_id, is_offered=True)

    def strangers(self, submission_ids: list[int]) -> dict[int, Any]:
        return {}

    def look(self, gates: object, submission: object) -> tuple[None, int]:
        return None, 1


def peek(front: Front, reader: apsw.Connection) -> int | None:
    """The submission that comes next."""
    found = front.next(Alone(reader))
    return found[0].id if found else None


def drop(front: Front) -> None:
    """The submission that comes next has had its turn, and has nothing more."""
    front.served(Alone(None), 1, has_more=False)


def end_turn(front: Front) -> None:
    """The submission that comes next has had its turn, and has more."""
    front.served(Alone(None), 1, has_more=True)


def oldest() -> Front:
    return Front(Arm(OLDEST_FIRST), Walk(0))


def newest() -> Front:
    return NewestFront(Arm(NEWEST_FIRST), Walk(0))


def deck_of() -> Front:
    return Deck(Arm(RANDOM), Walk(0), random.Random(1))


@pytest.fixture
def reader() -> Iterator[apsw.Connection]:
    """An empty lane in memory."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE lane_submission (lane_id, submission_id, shuffle, rank)")
    yield connection
    connection.close()


def insert(reader: apsw.Connection, *rows: Row) -> None:
    reader.executemany("INSERT INTO lane_submission VALUES (0, ?, ?, ?)", rows)


def drain(front: Front, reader: apsw.Connection) -> list[int]:
    """Everything the front has, each submission once."""
    found = []
    while (submission_id := peek(front, reader)) is not None:
        found.append(submission_id)
        drop(front)
    return found


def test_oldest_first_of_a_lane_comes_in_order_of_ids(reader: apsw.Connection) -> None:
    insert(reader, *(Row(n, n) for n in range(1, 101)))
    assert drain(Front(Arm(OLDEST_FIRST), Walk(0)), reader) == list(range(1, 101))


def test_newest_first_of_a_lane_comes_in_reverse_order_of_ids(reader: apsw.Connection) -> None:
    insert(reader, *(Row(n, n) for n in range(1, 101)))
    assert drain(NewestFront(Arm(NEWEST_FIRST), Walk(0)), reader) == list(range(100, 0, -1))


@pytest.mark.parametrize("cut_at", ["below", "between", "above"])
def test_deck_cut_anywhere_gives_every_submission(reader: apsw.Connection, cut_at: str) -> None:
    """Also when all of them lie behind the cut, so that the first leg of the walk finds nothing."""

    class Cut(random.Random):
        def randrange(self, *_: object) -> int:
            return {"below": 0, "between": SHUFFLES // 2, "above": SHUFFLES - 1}[cut_at]

    rows = [Row(n, n * (SHUFFLES // 51)) for n in range(1, 51)]
    insert(reader, *rows)
    assert sorted(drain(Deck(Arm(RANDOM), Walk(0), Cut()), reader)) == [row.id for row in rows]


@pytest.mark.parametrize("make", [oldest, newest, deck_of])
def test_walk_reads_every_row_once_whatever_is_dropped_and_offered_again(
    reader: apsw.Connection, make: Callable[[], Front]
) -> None:
    rows = [Row(n, shuffle_of(n << 22)) for n in range(1, 501)]
    insert(reader, *rows)
    front = make()
    for _ in range(3):
        assert sorted(drain(front, reader)) == [row.id for row in rows]
        for row in rows:
            front.offer(row)
    assert front.rows_visited == 500


@pytest.mark.parametrize("make", [oldest, newest, deck_of])
def test_submission_offered_twice_is_in_the_front_once(reader: apsw.Connection, make: Callable[[], Front]) -> None:
    front = make()
    assert drain(front, reader) == []
    insert(reader, Row(7, 7))
    front.offer(Row(7, 7))
    front.offer(Row(7, 7))
    assert drain(front, reader) == [7]


def test_dry_front_costs_no_query() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE lane_submission (lane_id, submission_id, shuffle, rank)")
    front = Front(Arm(OLDEST_FIRST), Walk(0))
    assert peek(front, connection) is None
    connection.close()
    assert front.is_dry
    assert peek(front, connection) is None


def test_older_submission_that_becomes_free_below_the_level_comes_first(reader: apsw.Connection) -> None:
    insert(reader, *(Row(n, n) for n in range(1, 100)))
    front = Front(Arm(OLDEST_FIRST), Walk(0))
    for _ in range(50):
        peek(front, reader)
        drop(front)
    front.offer(Row(3, 3))
    assert peek(front, reader) == 3


def test_second_lap_of_a_deck_loads_with_a_submission_what_comes_after_it() -> None:
    """A backlog that memory does not hold is loaded again in each lap."""

    class Noting(Alone):
        def submission(self, submission_id: int, beside: Iterable[int] = ()) -> Any:
            self.beside = list(beside)
            return super().submission(submission_id)

    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE lane_submission (lane_id, submission_id, shuffle, rank)")
    insert(connection, *(Row(number, shuffle_of(number)) for number in range(1, 41)))
    deck = Deck(Arm(RANDOM), Walk(0), random.Random(1))
    for _ in range(40):
        assert peek(deck, connection) is not None
        end_turn(deck)
    noting = Noting(connection)
    assert deck.next(noting) is not None
    served = []
    for _ in range(front.LOADED_TOGETHER):
        served.append(peek(deck, connection))
        end_turn(deck)
    assert noting.beside[: len(served) - 1] == served[1:]


@given(
    rows=st.lists(st.integers(0, SHUFFLES - 1), min_size=1, max_size=20),
    seed=st.integers(0, 1 << 30),
    actions=st.lists(
        st.tuples(st.sampled_from(["serve", "finish", "offer", "new"]), st.integers(0, SHUFFLES - 1)), max_size=80
    ),
    walk_rows=st.integers(1, 8),
)
def test_deck_gives_every_submission_that_stays_one_turn_a_lap(
    rows: list[int], seed: int, actions: list[tuple[str, int]], walk_rows: int
) -> None:
    """Between two turns of one submission, every other that had work all the time has one.

    And no more unless the first was away.
    """
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE lane_submission (lane_id, submission_id, shuffle, rank)")
    known = {number: Row(number, shuffle) for number, shuffle in enumerate(rows, 1)}
    insert(connection, *known.values())
    deck = Deck(Arm(RANDOM), Walk(0), random.Random(seed))
    turns: dict[int, list[int]] = {number: [] for number in known}  # by submission: when it had its turns
    since: dict[int, int | None] = dict.fromkeys(known, 0)  # since when it has had work without a break
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "WALK_ROWS", walk_rows)
        for at, (action, number) in enumerate([*actions, *[("serve", 0)] * 50], 1):
            if action in {"serve", "finish"}:
                chosen = peek(deck, connection)
                has_work = [other for other, start in since.items() if start is not None]
                assert (chosen is None) == (not has_work)
                if chosen is None:
                    continue
                assert chosen in has_work
                last = turns[chosen][-1] if turns[chosen] else None
                if last is not None:
                    for other in has_work:
                        if other != chosen and (since[other] or 0) < last:
                            between = len([turn for turn in turns[other] if turn > last])
                            assert between == 1 or (between > 1 and (since[chosen] or 0) > last)
                turns[chosen].append(at)
                if action == "serve":
                    end_turn(deck)
                else:
                    drop(deck)
                    since[chosen] = None
            elif action == "offer":
                idle = [other for other, start in since.items() if start is None]
                if idle:
                    chosen = idle[number % len(idle)]
                    since[chosen] = at
                    deck.offer(known[chosen])
            else:
                row = Row(len(known) + 1, number)
                known[row.id], turns[row.id], since[row.id] = row, [], at
                insert(connection, row)
                deck.offer(row)
    connection.close()
