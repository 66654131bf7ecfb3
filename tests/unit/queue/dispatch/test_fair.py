"""Fair: each value has its share by weight, a late one is served at once, nobody saves up service.

And a restart changes nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsq.queue.dispatch.fair import SWEEP_MIN, FairFront
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.story import in_folder

Act = tuple[str, int, int]
NUMBERS = st.integers(0, 1000)
ACTS = ["reserve"] * 8 + ["weight", "restart", "fold", "release", "other"]


def serve(rig: Rig, count: int, strategy: str = "Fair(tenant)") -> list[int]:
    """The submissions of the chunks that a call gives, in order; they are completed."""
    peer = rig.connect()
    tickets = rig.reserve(peer, count, strategy)
    rig.complete(peer, *(ticket.held() for ticket in tickets))
    return [ticket.submission_id for ticket in tickets for _ in ticket.indexes]


def serve_one_by_one(rig: Rig, count: int, strategy: str = "Fair(tenant)") -> Counter[int]:
    """How many chunks of each submission so many calls give."""
    return Counter(itertools.chain.from_iterable(serve(rig, 1, strategy) for _ in range(count)))


def tenant(rig: Rig, name: str | None, chunks_count: int = 100_000, **options: object) -> int:
    return rig.submit(chunks_count, **{"metadata": {} if name is None else {"tenant": name}, **options})


@given(
    st.integers(2, 4),
    st.sampled_from(["Fair(tenant)", "Fair(tenant, Random)", "SelectOnly(kind=x, Fair(tenant))", "Fair(submission)"]),
    st.lists(st.tuples(st.sampled_from(ACTS), NUMBERS, NUMBERS), min_size=5, max_size=60),
)
@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
def test_difference_of_service_by_weight_stays_within_one_turn_of_each(
    tenants_count: int, strategy: str, acts: list[Act]
) -> None:
    """|served_i/w_i - served_j/w_j| ≤ q/w_i + q/w_j, for values with work all the time.

    Weights change, the queue stops and starts.
    """
    key = "submission" if strategy == "Fair(submission)" else "tenant"
    with in_folder() as folder:
        rig = Rig(folder)
        ids = [rig.submit(1 << 30, metadata={"tenant": f"t{n}", "kind": "x"}) for n in range(tenants_count)]
        values: list[int | str] = [f"t{n}" for n in range(tenants_count)] if key == "tenant" else list(ids)
        weights = dict.fromkeys(ids, 1.0)
        lightest = dict(weights)
        service = dict.fromkeys(ids, 0.0)
        peer = rig.connect()
        turn = 8
        for act, a, b in acts:
            if act == "reserve":
                count = [1, 3, 8, 20, 160, 320][a % 6]
                turn = max(turn, count // 16)
                tickets = rig.reserve(peer, count, strategy)
                assert sum(len(ticket.indexes) for ticket in tickets) == count
                for ticket in tickets:
                    service[ticket.submission_id] += len(ticket.indexes) / weights[ticket.submission_id]
                (rig.release if b % 3 == 0 else rig.complete)(peer, *(ticket.held() for ticket in tickets))
            elif act == "weight":
                number, weight = a % tenants_count, [0.25, 1.0, 2.0, 10.0][b % 4]
                rig.ask(peer, m.Weight(next(rig.ids), key, values[number], weight))
                weights[ids[number]] = weight
                lightest[ids[number]] = min(lightest[ids[number]], weight)
            elif act == "restart":
                rig.restart()
                peer = rig.connect()
            elif act == "fold":
                rig.fold()
            elif act == "other":  # other strategies do not count
                rig.complete(peer, *(ticket.held() for ticket in rig.reserve(peer, b % 50 + 1, "OldestFirst")))
            for one, other in itertools.combinations(ids, 2):
                assert abs(service[one] - service[other]) <= turn / lightest[one] + turn / lightest[other]
        rig.close()


def test_weights_share_out_what_is_given(rig: Rig) -> None:
    a, b, c = tenant(rig, "a"), tenant(rig, "b", weights={"tenant": 2.0}), tenant(rig, "c")
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", "c", 5.0))
    assert serve_one_by_one(rig, 800) == {a: 100, b: 200, c: 500}


def test_weight_holds_from_the_next_turn(rig: Rig) -> None:
    a, b = tenant(rig, "a"), tenant(rig, "b")
    assert serve_one_by_one(rig, 100) == {a: 50, b: 50}
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", "b", 3.0))
    assert serve_one_by_one(rig, 400) == {a: 100, b: 300}


def test_call_for_many_chunks_goes_round_in_turns(rig: Rig) -> None:
    a, b = tenant(rig, "a"), tenant(rig, "b")
    assert serve(rig, 32) == [a] * 8 + [b] * 8 + [a] * 8 + [b] * 8
    assert serve(rig, 128) == ([a] * 8 + [b] * 8) * 8
    counted = Counter(serve(rig, 1280))  # in turns of at most 80, that end with a block
    assert abs(counted[a] - counted[b]) <= 80


def test_late_tenant_is_served_at_once_and_never_catches_up(rig: Rig) -> None:
    a = tenant(rig, "a")
    serve_one_by_one(rig, 500)
    b = tenant(rig, "b", 200)
    assert b in serve_one_by_one(rig, 2)
    later = serve_one_by_one(rig, 98)
    assert abs(later[a] - later[b]) <= 2


def test_value_that_gets_work_again_has_saved_up_nothing(rig: Rig) -> None:
    a, b = tenant(rig, "a"), tenant(rig, "b", 50)
    serve_one_by_one(rig, 100)
    serve_one_by_one(rig, 500)
    again = tenant(rig, "b")
    counted = serve_one_by_one(rig, 100)
    assert counted[b] == 0
    assert abs(counted[a] - counted[again]) <= 2


def test_value_whose_only_work_was_reserved_by_others_has_saved_up_nothing(rig: Rig) -> None:
    a, b = tenant(rig, "a"), tenant(rig, "b", 60)
    peer = rig.connect()
    taken = rig.reserve(peer, 60, "SelectOnly(tenant=b)")
    serve_one_by_one(rig, 300)
    rig.release(peer, *(ticket.held() for ticket in taken))
    counted = serve_one_by_one(rig, 100)
    assert abs(counted[a] - counted[b]) <= 2


def test_submissions_without_the_key_are_one_value(rig: Rig) -> None:
    a, b, c = tenant(rig, "a"), tenant(rig, None), tenant(rig, None)
    assert serve_one_by_one(rig, 100) == {a: 50, b: 50}
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), b))
    counted = serve_one_by_one(rig, 100)
    assert counted[a] == counted[c] == 50


def test_share_of_those_without_the_key_is_not_told_of_those_with_it(rig: Rig) -> None:
    """Else what comes back of a tenant would be served twice in a round: in its own turn, and in that of nobody."""
    b, a, c = tenant(rig, None, 1), tenant(rig, "a"), tenant(rig, "c")
    assert [ticket.submission_id for ticket in rig.reserve(rig.connect(), 1, "Fair(tenant)")] == [b]
    peer = rig.connect()
    counted: Counter[int] = Counter()
    for _ in range(60):
        [ticket] = rig.reserve(peer, 1, "Fair(tenant)")
        counted[ticket.submission_id] += 1
        rig.release(peer, ticket.held())
    assert counted == {a: 30, c: 30}


def test_text_and_integer_are_two_values(rig: Rig) -> None:
    a, b, c = (rig.submit(999, metadata={"tenant": value}) for value in (7, "7", "x"))
    assert serve_one_by_one(rig, 90) == {a: 30, b: 30, c: 30}


def test_inner_strategy_orders_the_submissions_of_a_value(rig: Rig) -> None:
    ids = [rig.submit(1, metadata={"tenant": name}, priority=n) for n, name in enumerate("abab")]
    a0, b0, a1, b1 = ids
    assert serve(rig, 4, "Fair(tenant, CustomPriority)") == [a1, b1, a0, b0]
    rig.fold()
    ids = [rig.submit(1, metadata={"tenant": name}) for name in "abab"]
    a0, b0, a1, b1 = ids
    assert [serve(rig, 1, "Fair(tenant)")[0] for _ in range(4)] == [a0, b0, a1, b1]


def test_fair_inside_fair_shares_the_share(rig: Rig) -> None:
    ids = [rig.submit(9999, metadata={"tenant": name, "user": user}) for name, user in ("ax", "ay", "bx")]
    assert serve_one_by_one(rig, 400, "Fair(tenant, Fair(user))") == dict(zip(ids, [100, 100, 200], strict=True))


def test_retry_costs_its_value_nothing_twice_that_others_have_to_wait_for(rig: Rig) -> None:
    """A released chunk comes again in its value's own turn."""
    a, b = tenant(rig, "a"), tenant(rig, "b")
    peer = rig.connect()
    for _ in range(20):
        rig.release(peer, *(ticket.held() for ticket in rig.reserve(peer, 1, "Fair(tenant)")))
    counted = serve_one_by_one(rig, 100)
    assert abs(counted[a] - counted[b]) <= 2


@pytest.mark.parametrize("end", ["restart", "fold and crash"])
def test_restart_keeps_the_passes(rig: Rig, end: str) -> None:
    """A tenant that had more than its share before, as what it has reserved, does not get it again."""
    a, b = tenant(rig, "a"), tenant(rig, "b")
    assert [ticket.submission_id for ticket in rig.reserve(rig.connect(), 8, "Fair(tenant)")] == [a]
    if end == "restart":  # although nothing was completed that would be folded
        rig.restart()
        assert serve(rig, 1) == [b]
    else:
        assert serve(rig, 1) == [b]
        rig.fold()
        rig.crash()
    assert serve_one_by_one(rig, 7) == {b: 7}
    assert serve_one_by_one(rig, 20) == {a: 10, b: 10}


def test_strategies_that_differ_inside_keep_their_passes_apart_over_a_restart(rig: Rig) -> None:
    a, b = tenant(rig, "a"), tenant(rig, "b")
    assert serve(rig, 8, "Fair(tenant)") == [a] * 8
    rig.restart()
    assert serve(rig, 8, "Fair(tenant, NewestFirst)") == [a] * 8
    assert serve(rig, 8, "Fair(tenant)") == [b] * 8


def test_arm_whose_pair_nobody_had_yet_is_served_first_when_it_comes(rig: Rig) -> None:
    """Also while the value has other work all the time."""
    a = tenant(rig, "a")
    strategy = "Fair(tenant, OrElse(SelectOnly(kind=urgent), OldestFirst))"
    assert serve(rig, 1, strategy) == [a]
    urgent = rig.submit(1, metadata={"tenant": "a", "kind": "urgent"})
    assert serve(rig, 1, strategy) == [urgent]


def test_values_that_come_and_go_leave_nothing_behind(rig: Rig) -> None:
    """Neither in memory nor in the file: each would begin where a new one begins."""
    peer = rig.connect()
    for _ in range(4):
        new = [m.NewSubmission(rig.request_key(), 1, metadata={"tenant": next(rig.keys)}) for _ in range(SWEEP_MIN)]
        rig.ask(peer, m.Submit(next(rig.ids), new))
        while tickets := rig.reserve(peer, 500, "Fair(tenant)"):
            rig.complete(peer, *(ticket.held() for ticket in tickets))
    [front] = rig.engine._state.fronts._by_name.values()
    assert isinstance(front, FairFront)
    assert len(front._shares) <= 2 * SWEEP_MIN
    rig.restart()
    rig.reserve(peer := rig.connect(), 1, "Fair(tenant)")
    rig.restart()
    assert len(rig.rows("SELECT 1 FROM fair_pass")) <= 2 * SWEEP_MIN + 1


def test_submission_that_becomes_free_is_offered_to_its_own_value_alone(rig: Rig) -> None:
    """With a value for each submission, a release must not ask each of them."""
    for _ in range(50):
        rig.submit(2)
    peer = rig.connect()
    rig.reserve(peer, 50, "Fair(submission)")
    assert len(rig.engine._state.fronts._by_lane[0]) == 1


def test_fair_inside_fair_keeps_passes_of_its_own_over_a_restart(rig: Rig) -> None:
    """The same scope by itself, and inside another Fair, are not the same."""
    ids = [rig.submit(9999, metadata={"tenant": "a", "user": user}) for user in "xy"]
    assert serve(rig, 8, "Fair(tenant, Fair(user))") == [ids[0]] * 8
    rig.restart()
    assert serve(rig, 8, "SelectOnly(tenant=a, Fair(user))") == [ids[0]] * 8
    assert serve(rig, 8, "Fair(tenant, Fair(user))") == [ids[1]] * 8
