"""The worst backlogs: once what is in front has been passed, each call visits a few rows, however much of it there is.

No test looks at a clock: rows, submissions passed over and entries of heaps are counted.
"""

from __future__ import annotations

from random import Random

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsq.queue.chunks import reserve
from opsq.store import submissions
from opsq.strategy.arms import Arm, compile_arms
from opsq.strategy.tree import Strategy
from opsq.wire import messages as m
from unit.adversaries import ADVERSARIES, Adversary, counting, hold, submit
from unit.model.rig import Rig, Ticket
from unit.story import in_folder
from unit.strategy_trees import trees

SIZE = 1_000
CALLS = 200


def steady_costs(rig: Rig, strategy: str, calls: int = CALLS) -> list[int]:
    """The rows visited by each call for one chunk.

    Half of what is held is completed as it goes, and one of a hundred comes back.
    """
    state = counting(rig)
    peer = rig.connect()
    held: list[Ticket] = []
    costs = []
    for number in range(calls):
        before = state.visited_count
        found = rig.reserve(peer, 1, strategy)
        costs.append(state.visited_count - before)
        held += found
        if number % 100 == 50 and held:
            rig.release(peer, held.pop(0).held())
        if number % 2 and held:
            rig.complete(peer, held.pop().held())
    assert held or strategy.startswith("Max")
    return costs


def set_aside_count(rig: Rig) -> int:
    """How often anything was set aside so far."""
    fronts = rig.engine._state.fronts._by_name.values()
    return sum(leaf.set_aside_count for front in fronts for leaf in front.leaves())


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=[adversary.name for adversary in ADVERSARIES])
def test_calls_visit_few_rows_whatever_lies_in_front(rig: Rig, adversary: Adversary) -> None:
    adversary.build(rig, SIZE)
    before = set_aside_count(rig)
    first, *costs = steady_costs(rig, adversary.strategy)
    arms = rig.only(rig.connect(), m.Explain(next(rig.ids), adversary.strategy), m.Explained).arms
    assert first <= 4 * len(arms) * SIZE + 64
    assert sum(costs) <= len(arms) * (4 * len(costs) + 64) + 4 * (set_aside_count(rig) - before)
    assert sorted(costs)[len(costs) // 2] <= 8 * len(arms)


def test_run_over_many_closed_submissions_is_cut_into_turns(rig: Rig) -> None:
    """At most 2000 rows and a read-ahead a turn; other requests come between."""
    submit(rig, [{"tenant": "closed"}] * 5_000, 2)
    submit(rig, [{"tenant": "open"}])
    hold(rig, 1)
    state = counting(rig)
    peer = rig.connect()
    request = m.Reserve(next(rig.ids), 1, "MaxSimultaneous(tenant, 1, OldestFirst)")
    rig.engine.handle(peer, request, rig.now)
    turns = [state.visited_count]
    while rig.engine.has_turn():
        rig.engine.turn(rig.now)
        turns.append(state.visited_count - sum(turns))
    assert max(turns) <= reserve.TURN_ROWS + 64
    assert len(turns) >= 5
    rig.run_turns()
    [reply] = rig.replies(peer, request.id)
    assert isinstance(reply, m.Reserved)
    assert len(reply.grants) == 1


def test_removed_submissions_that_a_front_still_knows_are_looked_up_many_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = rig.connect()
    rig.submit(1)
    rig.reserve(peer, 1, "NewestFirst")  # the front is told of all that comes, as it is newer
    submission_ids = [rig.submit(1) for _ in range(400)]
    for submission_id in submission_ids[1:]:
        rig.ask(peer, m.Cancel(next(rig.ids), submission_id))
        rig.ask(peer, m.Remove(next(rig.ids), submission_id))
    rig.settle()
    loads: list[int] = []
    load = submissions.load

    def noted(source: apsw.Cursor, submission_id: int, others: tuple[int, ...]) -> list[submissions.SubmissionRow]:
        loads.append(submission_id)
        return load(source, submission_id, others)

    monkeypatch.setattr(submissions, "load", noted)
    [ticket] = rig.reserve(peer, 1, "NewestFirst")
    assert ticket.submission_id == submission_ids[0]
    assert len(loads) < 40


def test_parked_consumers_cost_no_row_while_nothing_changes_and_each_gets_its_chunk(rig: Rig) -> None:
    """Many consumers with fifty strategies; what arrives is given out with a few rows for each."""
    strategies = [f"PreferDistinct(tenant, {n}, SelectOnly(kind=k{n % 3}, OldestFirst))" for n in range(1, 26)]
    strategies += [f"OrElse(SelectOnly(kind=k{n % 3}, Fair(tenant)), MaxSimultaneous(site, {n}))" for n in range(1, 26)]
    submit(rig, [{"kind": f"k{n}", "tenant": "t", "site": "s"} for n in range(3)])
    hold(rig, 3)
    peers = [rig.connect() for _ in range(1_000)]
    calls = [(peer, rig.park(peer, 1, strategies[n % 50])) for n, peer in enumerate(peers)]
    state = counting(rig)
    for _ in range(10):
        rig.advance(1.0)
        rig.status()
    assert state.visited_count == 0
    submit(rig, [{"kind": f"k{n}", "tenant": "u", "site": f"s{n}"} for n in range(3)], 1_000)
    answers = [reply for peer, request_id in calls for reply in rig.replies(peer, request_id)]
    assert all(isinstance(answer, m.Reserved) and len(answer.grants) == 1 for answer in answers)
    assert len(answers) == 1_000
    assert state.visited_count <= 20 * 1_000


@pytest.mark.parametrize("strategy", ["OldestFirst", "NewestFirst", "Random", "Fair(tenant)", "Fair(tenant, Random)"])
@pytest.mark.parametrize("chunks_count", [1, 100])
def test_chunks_that_come_back_one_by_one_cost_a_few_rows_each(rig: Rig, strategy: str, chunks_count: int) -> None:
    """Many reserved and unfinished at the front, then some of them released, in any order."""
    submit(rig, ({"tenant": n % 50} for n in range(1_000 // chunks_count)), chunks_count)
    held = hold(rig, 1_000, strategy)
    peer = rig.connect()
    assert rig.reserve(peer, 1, strategy) == []
    state = counting(rig)
    for one in held[7::20]:
        rig.release(peer, one)
        [ticket] = rig.reserve(peer, 1, strategy)
        assert ticket.held() == m.HeldChunks(
            one.submission_id, one.block, one.mask, ticket.reservation_id, 0, one.mask, ticket.mac
        )
    assert state.visited_count <= 4 * 50


def arms_count(arms: list[Arm]) -> int:
    """How many fronts look at one submission: those of arms inside Fair too."""
    return sum(1 + arms_count(list(arm.inner)) for arm in arms)


@given(
    trees(
        3,
        keys=st.sampled_from(["a", "b", "submission"]),
        values=st.sampled_from([1, "1", "x"]),
        maxima=st.sampled_from([1, 3]),
    ),
    st.lists(
        st.tuples(st.sampled_from([None, 1, "1", "x"]), st.sampled_from([None, 1, "y"])), min_size=20, max_size=60
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.timeout(600)
def test_rows_visited_stay_within_their_bound(
    strategy: Strategy, pairs: list[tuple[int | str | None, int | str | None]], rng: Random
) -> None:
    """In all ≤ 4 × (offered + newly set aside) + 64 an arm, at every moment, whatever comes back."""
    with in_folder() as folder:
        rig = Rig(folder)
        rows = ({key: value for key, value in zip("ab", pair, strict=True) if value is not None} for pair in pairs)
        submit(rig, rows, 3, max_attempts=1000)
        state, peer = counting(rig), rig.connect()
        arms = arms_count(compile_arms(strategy))
        held: list[Ticket] = []
        offered = 0
        for _ in range(120):
            count = rng.choice([1, 1, 1, 4, 20])
            found = rig.reserve(peer, count, str(strategy))
            offered += sum(len(ticket.indexes) for ticket in found)
            held += found
            assert state.visited_count <= arms * (4 * (offered + set_aside_count(rig)) + 64)
            for _ in range(rng.randrange(3) if held else 0):
                if held:
                    end = rng.choice([rig.complete, rig.release, rig.fail])
                    end(peer, held.pop(rng.randrange(len(held))).held())
            if rng.random() < 0.1:
                rig.advance(1.0)
        rig.close()
