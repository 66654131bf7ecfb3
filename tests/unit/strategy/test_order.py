"""The order delivered equals the naive definition of the strategy, whatever comes and goes meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsq.ids import mask_indexes
from opsq.queue.chunks import reserve
from opsq.queue.engine import Peer
from opsq.queue.policy import Policy
from opsq.strategy.tree import Percent, Strategy
from opsq.wire import messages as m
from unit.model.rig import NO_RESULTS, Rig, Ticket, tickets_of
from unit.naive import Naive
from unit.strategy_trees import ORDERS, SORTED, trees

KEYS = ["a", "b"]
VALUES: list[int | str] = [1, "1", "x"]
MAXIMA = st.sampled_from([1, 2, 5, Percent(20), Percent(50), Percent(100)])
RATES = [0.5, 1.0, 2.0]

Step = tuple[str, int, int, int]


class Story:
    """The engine and the naive queue, told the same.

    Args:
        strategies: what consumers ask for.
    """

    def __init__(self, folder: Path, strategies: list[Strategy]) -> None:
        self.rig = Rig(folder, Policy(restart_lease_s=1e6))
        self.naive = Naive(self.now_s)
        self.strategies = strategies
        self.peers: list[Peer] = []
        self.held: list[tuple[int, Ticket, int]] = []
        self.parked: dict[tuple[Peer, int], tuple[Strategy, int]] = {}
        self._steps: dict[str, Callable[[int, int, int], None]] = {
            name.removeprefix("on_"): getattr(self, name) for name in dir(self) if name.startswith("on_")
        }

    @property
    def now_s(self) -> float:
        return self.rig.now.mono / 1e9

    def play(self, steps: list[Step]) -> None:
        """Tell both a step, one after the other."""
        for name, a, b, c in steps:
            self.naive.look_at_clock(self.now_s)
            self._steps[name](a, b, c)
            self.rig.settle()
            self.look()

    def look(self) -> None:
        """After each step: whoever was parked and has been answered was given what it may have.

        Whoever is parked may have nothing.
        """
        for (peer, request_id), (strategy, count) in list(self.parked.items()):
            for reply in self.rig.replies(peer, request_id):
                assert isinstance(reply, m.Reserved)
                del self.parked[peer, request_id]
                given = self._hold(reply)
                assert 0 < len(given) <= count
                for submission_id, index in given:
                    assert self.naive.may_give(strategy, submission_id), "a gate was exceeded"
                    self.naive.take(submission_id, index)
        for strategy, _ in self.parked.values():
            found = self.naive.pick(strategy, 1)
            assert found is None, f"{strategy} stays parked, though {found} is allowed"

    def _hold(self, reply: m.Reserved) -> list[tuple[int, int]]:
        tickets = tickets_of(reply)
        given = [(ticket.submission_id, index) for ticket in tickets for index in ticket.indexes]
        self.held += [(ticket.submission_id, ticket, index) for ticket in tickets for index in ticket.indexes]
        return given

    def _peer(self, number: int) -> Peer:
        if not self.peers or number % 4 == 0:
            self.peers.append(self.rig.connect())
        return self.peers[number % len(self.peers)]

    def _metadata(self, number: int) -> dict[str, int | str]:
        """Of each key one of the values, or none."""
        choices = [None, *VALUES]
        chosen = {key: choices[number // len(choices) ** at % len(choices)] for at, key in enumerate(KEYS)}
        return {key: value for key, value in chosen.items() if value is not None}

    # --- steps ---

    def on_submit(self, a: int, b: int, c: int) -> None:
        chunks_count = [1, 2, 3, 9, 70][b % 5]
        options: dict[str, Any] = {
            "metadata": self._metadata(a),
            "priority": c % 3,
            "max_attempts": 1000,
            "max_lost": 1000,
        }
        submission_id = self.rig.submit(chunks_count, **options)
        self.naive.submit(submission_id, chunks_count, options["metadata"], options["priority"])

    def on_reserve(self, a: int, b: int, c: int) -> None:
        """The heart of it: both give the same, in the same order."""
        strategy, count, peer = self.strategies[a % len(self.strategies)], [1, 1, 2, 5, 40][b % 5], self._peer(c)
        reply = self.rig.only(peer, m.Reserve(next(self.rig.ids), count, str(strategy)), m.Reserved)
        self.naive.consumers.add(peer)
        given, expected = self._hold(reply), self.naive.reserve(strategy, count)
        assert [one for one, _ in given] == [one for one, _ in expected]
        assert sorted(given) == sorted(expected)

    def on_follow(self, a: int, b: int, c: int) -> None:
        """Several completions in one batch, each with a reserve of one chunk that follows."""
        strategy, peer, requests = self.strategies[a % len(self.strategies)], self._peer(c), []
        for submission_id, held, index in self._some_held(a, b):
            request = m.CompleteAndReserve(next(self.rig.ids), [m.Completion(held, NO_RESULTS)], 1, str(strategy))
            self.rig.send(peer, request)
            self.naive.complete(submission_id, index)
            requests.append(request)
        self.rig.settle()
        for request in requests:
            given: list[tuple[int, int]] = []
            for reply in self.rig.replies(peer, request.id):
                given += self._hold(reply) if isinstance(reply, m.Reserved) else []
            self.naive.consumers.add(peer)
            assert given == self.naive.reserve(strategy, 1)

    def on_park(self, a: int, b: int, c: int) -> None:
        """The same, but what is given is only judged: see `look`."""
        strategy, peer, count = self.strategies[a % len(self.strategies)], self._peer(c), [1, 2, 40][b % 3]
        request_id = self.rig.park(peer, count, str(strategy))
        self.naive.consumers.add(peer)
        self.parked[peer, request_id] = strategy, count

    def _some_held(self, a: int, b: int) -> list[tuple[int, m.HeldChunks, int]]:
        """Up to three of the chunks that are held, taken out of the list."""
        found = []
        for _ in range(min(b % 3 + 1, len(self.held))):
            submission_id, ticket, index = self.held.pop(a % len(self.held))
            found.append((submission_id, ticket.held([index]), index))
        return found

    def on_complete(self, a: int, b: int, _: int) -> None:
        for submission_id, held, index in self._some_held(a, b):
            assert self.rig.complete(self._peer(1), held) == []
            self.naive.complete(submission_id, index)

    def on_release(self, a: int, b: int, _: int) -> None:
        for submission_id, held, index in self._some_held(a, b):
            assert self.rig.release(self._peer(1), held) == []
            self.naive.release(submission_id, index)

    def on_fail(self, a: int, b: int, c: int) -> None:
        for submission_id, held, index in self._some_held(a, b):
            delay_s = [1.0, 2.5, 4.0][c % 3]
            assert self.rig.fail(self._peer(1), held, delay_s=delay_s) == []
            self.naive.fail(submission_id, index, delay_s)

    def on_disconnect(self, a: int, _b: int, _c: int) -> None:
        if self.peers:
            peer = self.peers.pop(a % len(self.peers))
            own = {
                (*key[:2], index)
                for reservation in self.rig.engine._reservations.of_peer(peer)
                for key, part in reservation.parts.items()
                for index in _of(part)
            }
            self.rig.disconnect(peer)
            self.naive.consumers.discard(peer)
            self.parked = {key: call for key, call in self.parked.items() if key[0] is not peer}
            for entry in [entry for entry in self.held if (entry[0], entry[1].block, entry[2]) in own]:
                self.held.remove(entry)
                self.naive.release(entry[0], entry[2])

    def on_cancel(self, a: int, b: int, _: int) -> None:
        if self.naive.submissions and b % 2:
            submission_id = list(self.naive.submissions)[a % len(self.naive.submissions)]
            self.rig.ask(self.rig.connect(), m.Cancel(next(self.rig.ids), submission_id))
            self.naive.cancel(submission_id)
            self.held = [entry for entry in self.held if entry[0] != submission_id]

    def on_pass_time(self, a: int, _b: int, _c: int) -> None:
        for _ in range(a % 6 + 1):
            self.rig.pass_time(0.5)
            self.naive.look_at_clock(self.now_s)
            self.naive.tick()
            self.rig.tick()
            self.rig.settle()
            self.look()

    def on_pause(self, a: int, b: int, _: int) -> None:
        pairs = self._metadata(a) if b % 8 else {}
        self.rig.ask(self.rig.connect(), m.Pause(next(self.rig.ids), pairs))
        self.naive.pauses[frozenset(pairs.items())] = True

    def on_resume(self, a: int, _b: int, _c: int) -> None:
        if self.naive.pauses:
            pairs = list(self.naive.pauses)[a % len(self.naive.pauses)]
            self.rig.ask(self.rig.connect(), m.Resume(next(self.rig.ids), dict(pairs)))
            del self.naive.pauses[pairs]

    def on_limit(self, a: int, b: int, c: int) -> None:
        key = [*KEYS, "submission"][a % 3]
        value = [None, *VALUES][b % 4] if key != "submission" else None
        concurrency = [None, 1, 3][c % 3]
        rate_per_s, burst = [(None, None), (RATES[b % 3], None), (RATES[a % 3], 1)][c // 3 % 3]
        if concurrency is None and rate_per_s is None:
            return
        request = m.Limit(next(self.rig.ids), key, value, concurrency, rate_per_s, burst)
        self.rig.ask(self.rig.connect(), request)
        self.naive.limit((key, value), concurrency, rate_per_s, burst)

    def on_unlimit(self, a: int, _b: int, _c: int) -> None:
        if self.naive.limits:
            pair = list(self.naive.limits)[a % len(self.naive.limits)]
            self.rig.ask(self.rig.connect(), m.Unlimit(next(self.rig.ids), *pair))
            self.naive.unlimit(pair)

    def on_weight(self, a: int, b: int, c: int) -> None:
        pair, weight = (KEYS[a % 2], VALUES[b % 3]), [0.5, 1.0, 3.0][c % 3]
        self.rig.ask(self.rig.connect(), m.Weight(next(self.rig.ids), *pair, weight))
        self.naive.weights[pair] = weight

    def on_fold(self, _a: int, _b: int, _c: int) -> None:
        self.rig.engine.fold_all()
        self.rig.settle()
        self.rig.engine._folding.is_urgent = False

    def on_restart(self, a: int, b: int, _: int) -> None:
        if b % 3:
            return
        self.peers.clear()
        self.parked.clear()
        self.rig.restart(away_s=float(a % 3))
        self.naive.restart(self.now_s)
        self.naive.tick()


def _of(part: Any) -> list[int]:
    return list(mask_indexes(part.work.index, part.mask))


def steps(*more: str) -> st.SearchStrategy[list[Step]]:
    """What happens, mostly submits and reserves."""
    often = ["submit"] * 4 + list(more) * 5
    seldom = ["complete", "release", "fail", "pass_time"] * 2 + ["follow"] * ("reserve" in more)
    rarely = ["disconnect", "cancel", "pause", "resume", "resume", "limit", "unlimit", "weight", "fold", "restart"]
    names = st.sampled_from(often + seldom + rarely)
    number = st.integers(0, 63)
    return st.lists(st.tuples(names, number, number, number), min_size=5, max_size=60)


@contextmanager
def in_folder() -> Iterator[Path]:
    """A folder for one example of a property."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def play(strategies: list[Strategy], story: list[Step]) -> None:
    """Play a story in a folder of its own."""
    with in_folder() as folder:
        told = Story(folder, strategies)
        told.play(story)
        told.rig.close()


def sorted_trees() -> st.SearchStrategy[Strategy]:
    return trees(
        4, orders=SORTED, keys=st.sampled_from([*KEYS, "submission"]), values=st.sampled_from(VALUES), maxima=MAXIMA
    )


def any_trees() -> st.SearchStrategy[Strategy]:
    return trees(
        3, orders=ORDERS, keys=st.sampled_from([*KEYS, "submission"]), values=st.sampled_from(VALUES), maxima=MAXIMA
    )


@given(st.lists(sorted_trees(), min_size=1, max_size=3), steps("reserve"))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.timeout(600)
def test_order_delivered_equals_the_naive_definition(strategies: list[Strategy], story: list[Step]) -> None:
    play(strategies, story)


@given(
    st.lists(sorted_trees().filter(lambda tree: "Fair" not in str(tree)), min_size=1, max_size=3),
    steps("reserve"),
    st.integers(1, 9),
)
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    max_examples=40,
)
@pytest.mark.timeout(600)
def test_order_is_the_same_when_each_run_is_cut_into_many_turns(
    strategies: list[Strategy], story: list[Step], turn_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserve, "TURN_ROWS", turn_rows)
        play(strategies, story)


@given(st.lists(any_trees(), min_size=1, max_size=4), steps("park", "park", "reserve_any"))
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.timeout(600)
def test_nobody_stays_parked_while_something_is_allowed_and_no_gate_is_exceeded(
    strategies: list[Strategy], story: list[Step]
) -> None:
    play(strategies, [(name.replace("reserve_any", "park"), a, b, c) for name, a, b, c in story])
