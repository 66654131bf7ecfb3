"""Explain of a strategy: a dry reservation finds what the next calls get and changes nothing; names of strategies."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsq.errors import InvalidStrategy
from opsq.queue.engine import Engine, Peer
from opsq.queue.policy import Policy
from opsq.store.database import Database
from opsq.strategy.tree import Fair, Percent, Strategy
from opsq.wire import messages as m
from unit.model.rig import START, Rig, Ticket
from unit.strategy_trees import trees

KEYS = st.sampled_from(["tenant", "kind", "submission", "absent"])
VALUES = st.sampled_from(["a", "b", 7])
MAXIMA = st.sampled_from([1, 2, 5, Percent(50)])


def analyzed(rig: Rig, strategy: str) -> m.Explained:
    """A strategy tried out."""
    return rig.only(rig.connect("asker"), m.Explain(next(rig.ids), strategy, True), m.Explained)


def offered(reply: m.Explained) -> list[tuple[int, int]]:
    return [(offer.submission_id, offer.index) for offer in reply.offers]


def next_chunks(rig: Rig, peer: Peer, strategy: str, count: int) -> list[tuple[int, int]]:
    """What that many calls for one chunk each get."""
    tickets = [ticket for _ in range(count) for ticket in rig.reserve(peer, 1, strategy)]
    return [(ticket.submission_id, index) for ticket in tickets for index in ticket.indexes]


def state_of(engine: Engine) -> Any:
    """What a trial must leave alone, as far as the engine has it in memory."""
    state = engine._state
    fronts = {name: front.describe() for name, front in state.fronts._by_name.items()}
    supplies = {
        submission.id: (submission.reserved_count, submission.cursor, sorted(submission.returned))
        for submission in state.live.values()
    }
    busy = {submission_id: entry for submission_id, entry in supplies.items() if entry != (0, 0, [])}
    passes = {
        front.scope: (front._served_pass, [share.place for share in front._shares.values()])
        for front in state.fronts._fair
    }
    buckets = {key: bucket.tokens for key, bucket in state.gates._buckets.items() if bucket.tokens < bucket.burst}
    lanes = {lane_id: len(fronts) for lane_id, fronts in state.fronts._by_lane.items()}
    return (
        fronts,
        busy,
        passes,
        dict(state.gates._live),
        buckets,
        lanes,
        state.rng.getstate(),
        state.rows_left,
        dict(state.consumers),
    )


# --- the dry reservation ---


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Submissions and what happened to them before somebody asks."""
    submits = draw(
        st.lists(
            st.tuples(
                st.just("submit"),
                st.sampled_from([1, 3, 70]),
                st.dictionaries(st.sampled_from(["tenant", "kind"]), VALUES, max_size=2),
                st.integers(-1, 1),
            ),
            min_size=1,
            max_size=6,
        )
    )
    strategy = trees(2, keys=KEYS, values=VALUES, maxima=MAXIMA)
    others = st.one_of(
        st.tuples(st.just("reserve"), strategy, st.sampled_from([1, 5])),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("complete"), st.integers(0, 9)),
        st.tuples(st.just("pause"), VALUES),
        st.tuples(st.just("limit"), st.sampled_from([(1, None), (3, None), (None, 2.0), (2, 0.5)])),
        st.tuples(st.just("fold")),
    )
    return [*submits, *draw(st.lists(others, max_size=12))]


def happen(rig: Rig, peer: Peer, history: list[tuple[Any, ...]]) -> None:
    """Make a history."""
    held: list[Ticket] = []
    for kind, *details in history:
        if kind == "submit":
            rig.submit(details[0], metadata=details[1], priority=details[2])
        elif kind == "reserve":
            held += rig.reserve(peer, details[1], str(details[0]))
        elif kind == "pause":
            rig.ask(peer, m.Pause(next(rig.ids), {"tenant": details[0]}))
        elif kind == "limit":
            concurrency, rate = details[0]
            rig.ask(peer, m.Limit(next(rig.ids), "tenant", None, concurrency, rate))
        elif kind == "fold":
            rig.fold()
        elif held:
            ticket = held.pop(details[0] % len(held))
            {"release": rig.release, "fail": rig.fail, "complete": rig.complete}[kind](peer, ticket.held())


@settings(max_examples=settings.default.max_examples // 2)
@given(histories(), trees(3, keys=KEYS, values=VALUES, maxima=MAXIMA), st.booleans())
def test_dry_reservation_tells_what_the_next_calls_get_and_changes_nothing(
    history: list[tuple[Any, ...]], strategy: Strategy, is_used_before: bool
) -> None:
    """Whatever lies in the queue, and whether the strategy is in use or new.

    A trial is the truth, and leaves no trace.
    """
    with tempfile.TemporaryDirectory(prefix="opsq-", dir="/tmp") as folder:
        rig = Rig(Path(folder))
        try:
            peer = rig.connect()
            happen(rig, peer, history)
            rig.reserve(peer, 1, str(strategy) if is_used_before else "SelectOnly(absent=1)")
            rig.tick()
            analyzed(rig, str(strategy))  # counts under its keys from now on, which is no change that anybody sees
            before = state_of(rig.engine)
            reply = analyzed(rig, str(strategy))
            assert state_of(rig.engine) == before
            assert offered(reply) == next_chunks(rig, peer, str(strategy), 10)
        finally:
            rig.close()


def test_analysis_tells_of_each_arm_what_holds_it_back(rig: Rig) -> None:
    peer = rig.connect()
    busy = rig.submit(2, metadata={"tenant": "a"})
    rig.submit(1, metadata={"tenant": "b"})
    rig.submit(1, metadata={"tenant": "c"})
    rig.ask(peer, m.Pause(next(rig.ids), {"tenant": "b"}))
    rig.reserve(peer)
    reply = analyzed(rig, "PreferDistinct(tenant, 1, OldestFirst)")
    first, second = (arm.analysis for arm in reply.arms)
    assert (first["offered"], first["set_aside"], first["reserved"]) == (
        1,
        {"tenant ≤ 1": 1, "pause of tenant=b": 1},
        1,
    )
    assert (second["offered"], second["set_aside"], second["is_dry"]) == (1, {"pause of tenant=b": 1}, False)
    assert [(offer.metadata, offer.arm) for offer in reply.offers] == [({"tenant": "c"}, 1), ({"tenant": "a"}, 2)]
    assert offered(reply)[1] == (busy, 1)


def test_analysis_names_limits_and_rates_that_are_reached(rig: Rig) -> None:
    peer = rig.connect()
    rig.submit(3, metadata={"tenant": "a"})
    rig.submit(3, metadata={"kind": 7})
    rig.ask(peer, m.Limit(next(rig.ids), "tenant", None, 1))
    rig.ask(peer, m.Limit(next(rig.ids), "kind", 7, None, 0.5))
    rig.reserve(peer, 2, "OldestFirst")
    (arm,) = analyzed(rig, "OldestFirst").arms
    assert arm.analysis["set_aside"] == {"limit of each tenant ≤ 1": 1, "rate of kind=7 ≤ 30/m": 1}
    assert (arm.analysis["is_dry"], arm.analysis["offered"]) == (True, 0)


def test_analysis_counts_what_is_in_back_off_and_tells_the_attempt_of_an_offer(rig: Rig) -> None:
    peer = rig.connect()
    rig.submit(2, backoff=m.Backoff(10.0, 1.0, 10.0))
    rig.fail(peer, rig.reserve(peer)[0].held())
    reply = analyzed(rig, "OldestFirst")
    assert reply.arms[0].analysis["in_back_off"] == 1
    assert [(offer.index, offer.attempt) for offer in reply.offers] == [(1, 0)]
    rig.advance(11)
    assert [(offer.index, offer.attempt) for offer in analyzed(rig, "OldestFirst").offers] == [(0, 1), (1, 0)]


def test_arm_behind_one_that_serves_all_calls_is_said_to_have_work(rig: Rig) -> None:
    rig.submit(200)
    first, second = (arm.analysis for arm in analyzed(rig, "OrElse(OldestFirst, NewestFirst)").arms)
    assert (first["offered"], first["served"]) == (100, 100)
    assert (second["offered"], second["is_dry"], second["is_cut"]) == (0, False, False)


def test_trial_stops_at_the_bound_of_one_turn(rig: Rig) -> None:
    """Closed submissions in front of the open one: a first walk has a bound, and the analysis says so."""
    peer = rig.connect()
    new = [m.NewSubmission(rig.request_key(), 1, metadata={"tenant": "a"}) for _ in range(600)]
    rig.ask(peer, m.Submit(next(rig.ids), new))
    rig.submit(1, metadata={"tenant": "b"})
    rig.ask(peer, m.Pause(next(rig.ids), {"tenant": "a"}))
    (arm,) = analyzed(rig, "OldestFirst").arms
    assert (arm.analysis["is_cut"], arm.analysis["is_dry"]) == (True, False)
    rig.reserve(peer)
    (arm,) = analyzed(rig, "OldestFirst").arms
    assert (arm.analysis["is_cut"], arm.analysis["rows_visited"]) == (False, 0)
    assert arm.analysis["set_aside"] == {"pause of tenant=a": 600}


def test_fair_passes_of_a_front_in_use_decide_whose_turn_is_next(rig: Rig) -> None:
    peer = rig.connect()
    a = rig.submit(9, metadata={"tenant": "a"})
    b = rig.submit(9, metadata={"tenant": "b"})
    assert [ticket.submission_id for ticket in rig.reserve(peer, 1, str(Fair("tenant")))] == [a]
    assert offered(analyzed(rig, "Fair(tenant)"))[:3] == [(b, 0), (a, 1), (b, 1)]


def test_explain_without_analyze_tries_nothing(rig: Rig) -> None:
    rig.submit(1)
    reply = rig.only(rig.connect(), m.Explain(next(rig.ids), "Random"), m.Explained)
    assert (reply.offers, reply.arms[0].analysis, reply.arms[0].front) == ([], {}, {})


# --- names ---


def test_named_strategy_is_explained_by_its_text_and_an_unknown_name_gets_the_nearest(runtime_dir: Path) -> None:
    rig = Rig(runtime_dir, Policy(strategies={"interactive": "SelectOnly(kind=preview, NewestFirst)"}))
    try:
        assert analyzed(rig, "interactive").strategy == "SelectOnly(kind=preview, NewestFirst)"
        with pytest.raises(InvalidStrategy, match="'interactve' is not a strategy; did you mean interactive"):
            analyzed(rig, "interactve")
        with pytest.raises(InvalidStrategy, match="stands alone"):
            analyzed(rig, "OrElse(interactive, Random)")
    finally:
        rig.close()


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        ({"fast": "Oldest"}, "named fast: .* OldestFirst"),
        ({"Random": "OldestFirst"}, "of the language"),
        ({"a b": "Random"}, "not a name"),
    ],
)
def test_engine_does_not_start_with_a_named_strategy_that_is_none(
    runtime_dir: Path, named: dict[str, str], complaint: str
) -> None:
    closing = contextlib.closing(Database.open(runtime_dir / "opsq.sqlite", is_durable=False))
    with closing as database, pytest.raises(InvalidStrategy, match=complaint):
        Engine(database, Policy(strategies=named), START)
