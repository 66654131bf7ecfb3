"""Rules of operators: pauses, limits and weights hold for every strategy and consumer, at once and over a restart."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsq.errors import NotFound, NotPermitted, UsageError
from opsq.queue.dispatch import gates
from opsq.queue.engine import Peer
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket, tickets_of
from unit.story import in_folder

STRATEGIES = [
    "OldestFirst",
    "Random",
    "Fair(tenant)",
    "PreferDistinct(tenant, 1, NewestFirst)",
    "OrElse(SelectOnly(tenant=x), CustomPriority)",
]
Pairs = dict[str, int | str]


def chunks(tickets: list[Ticket]) -> list[tuple[int, int]]:
    return [(ticket.submission_id, index) for ticket in tickets for index in ticket.indexes]


def given_ids(rig: Rig, count: int = 100, strategy: str = "OldestFirst") -> list[int]:
    """The submissions of which a call is given chunks; it gives them back."""
    peer = rig.connect()
    tickets = rig.reserve(peer, count, strategy)
    rig.release(peer, *(ticket.held() for ticket in tickets))
    return sorted({ticket.submission_id for ticket in tickets})


def pause(rig: Rig, pairs: Pairs | None = None, *, by_operator: bool = False) -> int:
    request = m.Pause(next(rig.ids), pairs or {}, by_operator, "ada@host")
    return rig.only(rig.connect(), request, m.Changed).count


def resume(rig: Rig, pairs: Pairs | None = None, *, by_operator: bool = False) -> int:
    return rig.only(rig.connect(), m.Resume(next(rig.ids), pairs or {}, by_operator), m.Changed).count


def limit(rig: Rig, key: str, value: int | str | None = None, **bounds: object) -> bool | None:
    request = m.Limit(next(rig.ids), key, value, **bounds)  # type: ignore[arg-type]  # as the test says
    return rig.only(rig.connect(), request, m.Changed).is_matched


def answered(rig: Rig, peer: Peer, *calls: int) -> list[list[tuple[int, int]]]:
    """What parked calls have been given by now."""
    replies = [reply for call in calls for reply in rig.replies(peer, call)]
    return [chunks(tickets_of(reply)) for reply in replies if isinstance(reply, m.Reserved)]


# --- pauses ---


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pause_holds_what_has_all_its_pairs_and_nothing_else(rig: Rig, strategy: str) -> None:
    both = rig.submit(3, metadata={"tenant": "x", "kind": 1})
    others = [
        rig.submit(3, metadata=pairs) for pairs in ({"tenant": "x"}, {"tenant": "x", "kind": "1"}, {"kind": 1}, {})
    ]
    pause(rig, {"tenant": "x", "kind": 1})
    assert given_ids(rig, strategy=strategy) == others
    resume(rig, {"tenant": "x", "kind": 1})
    assert given_ids(rig, strategy=strategy) == [both, *others]


def test_pause_of_a_pair_that_nobody_has_yet_holds_what_comes(rig: Rig) -> None:
    pause(rig, {"tenant": "later"})
    a = rig.submit(3, metadata={"tenant": "later"})
    assert given_ids(rig) == []
    resume(rig, {"tenant": "later"})
    assert given_ids(rig) == [a]


def test_pause_of_all_costs_no_row_and_holds_everything(rig: Rig) -> None:
    a = rig.submit(3)
    pause(rig)
    peer = rig.connect()
    call = rig.park(peer, 1)
    assert given_ids(rig) == []
    assert rig.engine._state.fronts._by_name == {}
    resume(rig)
    assert answered(rig, peer, call) == [[(a, 0)]]


def test_pause_of_one_submission_holds_it_alone(rig: Rig) -> None:
    a, b = rig.submit(3), rig.submit(3)
    pause(rig, {"submission": a})
    assert given_ids(rig) == [b]


def test_reserved_work_is_not_recalled_by_a_pause(rig: Rig) -> None:
    rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    pause(rig)
    assert rig.pushes(peer, m.Revoked) == []
    assert rig.complete(peer, ticket.held()) == []


def test_pause_holds_at_once_and_its_failed_commit_lifts_it(rig: Rig) -> None:
    """No chunk slips through while a pause is being committed."""
    a = rig.submit(3)
    peer = rig.connect()
    rig.send(peer, m.Pause(next(rig.ids), {}))
    call = rig.park(peer, 1)
    assert answered(rig, peer, call) == []
    rig.fail_commit()
    rig.advance(2.0)
    assert answered(rig, peer, call) == [[(a, 0)]]


def test_operators_pause_wins_over_a_users_resume(rig: Rig) -> None:
    """Who and when is kept; a user's pause after it changes nothing, and one before it becomes the operator's."""
    a = rig.submit(3, metadata={"tenant": "x"})
    assert pause(rig, {"tenant": "x"}) == 1
    assert pause(rig, {"tenant": "x"}) == 0
    assert pause(rig, {"tenant": "x"}, by_operator=True) == 1
    assert pause(rig, {"tenant": "x"}) == 0
    with pytest.raises(NotPermitted, match="ada@host"):
        resume(rig, {"tenant": "x"})
    [state] = rig.only(rig.connect(), m.ShowRules(next(rig.ids)), m.RulesState).pauses
    assert state == m.PauseState({"tenant": "x"}, True, "ada@host", rig.now.wall)
    assert given_ids(rig) == []
    assert resume(rig, {"tenant": "x"}, by_operator=True) == 1
    assert resume(rig, {"tenant": "x"}) == 0
    assert given_ids(rig) == [a]


def test_two_pauses_of_one_submission_must_both_end(rig: Rig) -> None:
    a = rig.submit(3, metadata={"tenant": "x", "kind": "y"})
    pause(rig, {"tenant": "x"})
    pause(rig, {"kind": "y"})
    resume(rig, {"tenant": "x"})
    assert given_ids(rig) == []
    resume(rig, {"kind": "y"})
    assert given_ids(rig) == [a]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_quick_pauses_and_resumes_neither_lose_nor_double_work(rig: Rig, strategy: str) -> None:
    for _ in range(3):
        rig.submit(5, metadata={"tenant": "x"})
    peer = rig.connect()
    given: list[tuple[int, int]] = []
    for n in range(40):
        request = m.Resume(n, {"tenant": "x"}) if n % 2 else m.Pause(n, {"tenant": "x"})
        rig.send(rig.connect(), request)
        if n % 5 == 0:
            rig.settle()
        reply = rig.only(peer, m.Reserve(next(rig.ids), 1, strategy), m.Reserved) if n % 3 == 0 else m.Reserved(0)
        assert not (reply.grants and n % 2 == 0)
        given += chunks(tickets_of(reply))
    rig.ask(rig.connect(), m.Resume(99, {"tenant": "x"}))
    given += chunks(rig.reserve(peer, 100, strategy))
    assert len(given) == len(set(given)) == 15


def test_rules_survive_a_restart(rig: Rig) -> None:
    rig.submit(9, metadata={"tenant": "x"})
    b, c = rig.submit(9, metadata={"tenant": "y"}), rig.submit(9, metadata={"tenant": 1})
    pause(rig, {"tenant": "x"}, by_operator=True)
    limit(rig, "tenant", concurrency=2)
    limit(rig, "tenant", 1, concurrency=1, rate_per_s=0.5)
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", "y", 3.0))
    before = rig.only(rig.connect(), m.ShowRules(1), m.RulesState)
    for end in (rig.restart, rig.crash):
        end()
        assert rig.only(rig.connect(), m.ShowRules(1), m.RulesState) == before
        with pytest.raises(NotPermitted):
            resume(rig, {"tenant": "x"})
        peer = rig.connect()
        tickets = rig.reserve(peer, 9)
        assert sorted(one for one, _ in chunks(tickets)) == [b, b, c]
        rig.release(peer, *(ticket.held() for ticket in tickets))


def test_call_that_waits_for_the_end_of_work_ends_when_the_rest_is_paused(rig: Rig) -> None:
    """What is paused and held by nobody does not hold `--until-empty`."""
    rig.submit(3, metadata={"tenant": "x"})
    rig.submit(1, metadata={"tenant": "y"})
    peer = rig.connect()
    limit(rig, "tenant", "x", concurrency=1)
    [x, y] = rig.reserve(peer, 9)
    call = rig.park(peer, 1, until_empty=True)
    rig.complete(peer, y.held())
    assert rig.replies(peer, call) == []
    pause(rig, {"tenant": "x"})
    assert rig.replies(peer, call) == []
    rig.complete(peer, x.held())
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert reply.is_empty


@pytest.mark.parametrize(
    "strategy", ["Fair(tenant, SelectOnly(kind=x))", "SelectOnly(kind=x, Fair(tenant))", "SelectOnly(submission=1)"]
)
def test_call_that_waits_for_the_end_of_work_ignores_what_its_strategy_never_serves(rig: Rig, strategy: str) -> None:
    rig.submit(3, metadata={"tenant": "t", "kind": "y"})
    reply = rig.only(rig.connect(), m.Reserve(next(rig.ids), 1, strategy, None, until_empty=True), m.Reserved)
    assert reply.is_empty


# --- concurrency ---


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_concurrency_holds_for_each_value_and_for_every_strategy(rig: Rig, strategy: str) -> None:
    x, y, none = rig.submit(9, metadata={"tenant": "x"}), rig.submit(9, metadata={"tenant": "y"}), rig.submit(2)
    limit(rig, "tenant", concurrency=3)
    limit(rig, "tenant", "x", concurrency=1)
    peer = rig.connect()
    tickets = rig.reserve(peer, 100, strategy)
    assert sorted(one for one, _ in chunks(tickets)) == sorted([x, y, y, y, none, none])
    call = rig.park(peer, 1, strategy)
    rig.complete(peer, *(ticket.held() for ticket in tickets if ticket.submission_id == none))
    assert answered(rig, peer, call) == []
    rig.complete(peer, *(ticket.held() for ticket in tickets if ticket.submission_id == x))
    assert [one for [(one, _)] in answered(rig, peer, call)] == [x]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_limit_that_two_submissions_share_holds_while_they_take_turns(rig: Rig, count: int) -> None:
    """What one of them was found to be allowed is used up by the other."""
    for color in ("red", "blue"):
        rig.submit(50, metadata={"tenant": "x", "color": color})
    limit(rig, "tenant", concurrency=20)
    peer = rig.connect()
    given = [
        chunks(rig.reserve(peer, count, f"SelectOnly(color={color})")) for _ in range(20) for color in ("red", "blue")
    ]
    assert sum(map(len, given)) == 20
    assert len({one for got in given for one, _ in got}) == 2


def test_limit_that_is_replaced_or_lifted_holds_at_once(rig: Rig) -> None:
    rig.submit(20, metadata={"tenant": "x"})
    limit(rig, "tenant", concurrency=1)
    peer = rig.connect()
    calls = [rig.park(peer, 3) for _ in range(4)]
    assert [len(given) for given in answered(rig, peer, *calls)] == [1]
    limit(rig, "tenant", concurrency=4)
    assert [len(given) for given in answered(rig, peer, *calls)] == [3]
    rig.ask(peer, m.Unlimit(next(rig.ids), "tenant"))
    assert [len(given) for given in answered(rig, peer, *calls)] == [3, 3]
    with pytest.raises(NotFound):
        rig.ask(peer, m.Unlimit(next(rig.ids), "tenant"))


def test_limit_of_submissions_counts_chunks_that_wait_for_a_retry(rig: Rig) -> None:
    a, b = rig.submit(9), rig.submit(9)
    limit(rig, "submission", concurrency=2)
    peer = rig.connect()
    tickets = rig.reserve(peer, 99)
    assert [one for one, _ in chunks(tickets)] == [a, a, b, b]
    rig.fail(peer, tickets[0].held(), delay_s=5.0)
    assert rig.reserve(peer, 99) == []
    rig.advance(5.0)
    assert chunks(rig.reserve(peer, 99)) == [(a, 0), (a, 1)]


@pytest.mark.parametrize(
    "bounds",
    [{}, {"burst": 3}, {"concurrency": 1, "burst": 3}],
    ids=["nothing", "a burst alone", "a burst without a rate"],
)
def test_limit_that_says_nothing_sensible_is_refused(rig: Rig, bounds: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        limit(rig, "tenant", **bounds)
    with pytest.raises(UsageError):
        limit(rig, "submission", 7, concurrency=1)


def test_limit_tells_whether_it_matches_a_submission(rig: Rig) -> None:
    submission_id = rig.submit(1, metadata={"tenant": 1})
    places: list[tuple[str, int | str | None]] = [("tenant", None), ("tenant", 1), ("tenant", "1"), ("other", None)]
    assert [limit(rig, *place, concurrency=1) for place in places] == [True, True, False, False]
    rig.only(rig.connect(), m.Cancel(next(rig.ids), submission_id), m.Changed)
    assert limit(rig, "tenant", concurrency=1)
    rig.only(rig.connect(), m.Remove(next(rig.ids), submission_id), m.Changed)
    rig.pass_time(61)
    rig.tick()
    rig.settle()
    assert rig.rows("SELECT value FROM lane WHERE key = 'tenant'") == [(1,)]  # the newest lane is kept
    assert not limit(rig, "tenant", concurrency=1)
    assert limit(rig, "submission", concurrency=1)


# --- rates ---


@given(
    st.sampled_from([0.1, 0.5, 1.0, 7.0, 250.0]),
    st.sampled_from([None, 1, 5]),
    st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.05, 0.3, 1.0, 4.0]), st.integers(1, 8)), min_size=3, max_size=25),
)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
def test_no_window_has_more_starts_than_burst_and_rate_allow(
    rate: float, burst: int | None, calls: list[tuple[float, int]]
) -> None:
    with in_folder() as folder:
        rig = Rig(folder)
        rig.submit(100_000, metadata={"tenant": "x"})
        limit(rig, "tenant", rate_per_s=rate, burst=burst)
        peer = rig.connect()
        starts: list[float] = []
        for wait_s, count in calls:
            rig.pass_time(wait_s)
            rig.tick()
            starts += [rig.now.mono / 1e9] * len(chunks(rig.reserve(peer, count)))
        allowed = burst or max(1, -int(-rate // 1))
        for first in range(len(starts)):
            for last in range(first, len(starts)):
                assert last - first + 1 <= allowed + rate * (starts[last] - starts[first]) + 1e-6
        assert starts
        rig.close()


def test_ten_a_minute(rig: Rig) -> None:
    """A consumer that asks all the time starts ten in each minute, evenly after the first burst."""
    rig.submit(1000, metadata={"api": "x"})
    limit(rig, "api", rate_per_s=10 / 60, burst=10)
    peer = rig.connect()
    starts = []
    for second in range(180):
        starts += [second] * len(chunks(rig.reserve(peer, 100)))
        rig.advance(1.0)
    assert starts[:10] == [0] * 10
    assert len([at for at in starts if 60 <= at < 120]) == 10
    assert len(starts) == 10 + 29


def test_one_partition_never_uses_up_the_rate_of_another(rig: Rig) -> None:
    x, y = rig.submit(99, metadata={"tenant": "x"}), rig.submit(99, metadata={"tenant": "y"})
    limit(rig, "tenant", rate_per_s=2.0)
    peer = rig.connect()
    assert sorted(one for one, _ in chunks(rig.reserve(peer, 99, "SelectOnly(tenant=x)"))) == [x, x]
    assert sorted(one for one, _ in chunks(rig.reserve(peer, 99))) == [y, y]
    rig.advance(1.0)
    assert sorted(one for one, _ in chunks(rig.reserve(peer, 99))) == [x, x, y, y]


def test_rate_holds_when_full_buckets_of_others_were_forgotten_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What submissions with the same metadata remember of their bucket must not outlive the table it is in."""
    monkeypatch.setattr(gates, "BUCKETS_KEPT", 1)
    rig.restart()
    for value in range(3):
        rig.submit(10, metadata={"tenant": value})
    limit(rig, "tenant", rate_per_s=1.0, burst=2)
    peer = rig.connect()
    assert len(rig.reserve(peer, 1, "SelectOnly(tenant=0)")) == 1
    rig.advance(10.0)
    assert len(rig.reserve(peer, 1, "SelectOnly(tenant=1)")) == 1
    assert len(rig.reserve(peer, 1, "SelectOnly(tenant=2)")) == 1
    assert [len(rig.reserve(peer, 1, "SelectOnly(tenant=0)")) for _ in range(3)] == [1, 1, 0]


def test_call_held_back_by_a_rate_alone_is_woken_by_the_next_token(rig: Rig) -> None:
    """Not by a poll: the engine names the very instant, and nothing is due before."""
    rig.submit(99, metadata={"tenant": "x"})
    limit(rig, "tenant", rate_per_s=4.0, burst=1)
    peer = rig.connect()
    calls = [rig.park(peer, 1) for _ in range(4)]
    assert len(answered(rig, peer, *calls)) == 1
    for _ in range(3):
        wait_s = rig.engine.next_tick_s(rig.now)
        assert 0.2 < wait_s < 0.25 + 1e-6
        rig.pass_time(wait_s)
        rig.tick()
        assert len(answered(rig, peer, *calls)) == 1
    assert rig.engine.next_tick_s(rig.now) > 0.5


def test_high_rate_with_a_burst_of_one_is_reached(rig: Rig) -> None:
    """A hundred a second, one at a time: the rounding of timers must not bound it."""
    rig.submit(999, metadata={"tenant": "x"})
    limit(rig, "tenant", rate_per_s=100.0, burst=1)
    peer = rig.connect()
    calls = [rig.park(peer, 1) for _ in range(300)]
    given = len(answered(rig, peer, *calls))
    for _ in range(100):
        rig.pass_time(rig.engine.next_tick_s(rig.now))
        rig.tick()
        given += len(answered(rig, peer, *calls))
    assert given >= 100
    assert rig.now.mono - 1_000_000_000_000 < 1_100_000_000


def test_token_that_nobody_asks_for_wakes_nothing_again_and_again(rig: Rig) -> None:
    for _ in range(3):
        rig.submit(1, metadata={"tenant": "x"})
    limit(rig, "tenant", rate_per_s=4.0, burst=1)
    assert len(given_ids(rig)) == 1
    rig.advance(1.0)
    assert rig.engine._state.gates.next_due() is None
    assert len(given_ids(rig)) == 1


def test_work_taken_up_again_spends_no_token(rig: Rig) -> None:
    rig.submit(9, metadata={"tenant": "x"})
    limit(rig, "tenant", rate_per_s=1.0, burst=3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.disconnect(peer)
    again = rig.connect()
    assert rig.reclaim(again, ticket.held()) == []
    assert len(chunks(rig.reserve(again, 9))) == 1


def test_new_burst_holds_at_once(rig: Rig) -> None:
    rig.submit(99, metadata={"tenant": "x"})
    limit(rig, "tenant", rate_per_s=1.0, burst=1)
    peer = rig.connect()
    assert len(chunks(rig.reserve(peer, 99))) == 1
    limit(rig, "tenant", rate_per_s=1.0, burst=5)
    assert len(chunks(rig.reserve(peer, 99))) == 5


def test_pause_stays_in_force_though_weights_of_the_same_batch_cannot_be_written(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, m.Pause(next(rig.ids), {"tenant": "x"}, False, "ada@host"))
    pairs: dict[str, int | str] = {"batch": 7}
    after = [m.Dependency(key="batch", value=7)]
    new = m.NewSubmission(bytes(16), 1, b"content", pairs, weights={"batch": 2.0}, after=after)
    rig.send(peer, m.Submit(next(rig.ids), [new]))
    rig.settle()
    assert len(rig.only(peer, m.ShowRules(next(rig.ids)), m.RulesState).pauses) == 1
    rig.crash()
    assert len(rig.only(rig.connect(), m.ShowRules(next(rig.ids)), m.RulesState).pauses) == 1


# --- weights ---


@pytest.mark.parametrize("weight", [0.0001, 1001.0])
def test_weight_out_of_range_is_refused(rig: Rig, weight: float) -> None:
    with pytest.raises(UsageError, match=r"must be 0\.001 to 1000"):
        rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", "x", weight))
    with pytest.raises(UsageError, match=r"must be 0\.001 to 1000"):
        rig.submit(1, metadata={"tenant": "x"}, weights={"tenant": weight})
    rig.settle()
    assert rig.status().total.submissions_count == 0


def test_weight_is_set_at_submit_or_by_itself_and_one_is_none(rig: Rig) -> None:
    def weights() -> dict[int | str, float]:
        return {state.value: state.weight for state in rig.only(rig.connect(), m.ShowRules(1), m.RulesState).weights}

    rig.submit(1, metadata={"tenant": "x"}, weights={"tenant": 3.0})
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", 7, 0.5))
    assert weights() == {7: 0.5, "x": 3.0}
    rig.ask(rig.connect(), m.Weight(next(rig.ids), "tenant", 7, 1.0))
    assert weights() == {"x": 3.0}
    assert rig.rows("SELECT value FROM weight") == [("x",)]


@pytest.mark.parametrize("rate_per_s", [5e-324, 1e-300, 1e300, float("inf")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rate_that_an_earlier_version_has_stored_stops_nothing(rig: Rig, rate_per_s: float, strategy: str) -> None:
    """One that is refused today, since arithmetic with it overflows."""
    limit(rig, "tenant", rate_per_s=rate_per_s, burst=1)
    rig.restart()
    held = [rig.submit(2, metadata={"tenant": "x"}), rig.submit(1)]
    peer = rig.connect()
    rig.reserve(peer, 1, strategy)
    rig.park(peer, 5, strategy)
    for number in held:
        rig.only(peer, m.ExplainWork(next(rig.ids), number), m.WorkExplained)
    rig.only(peer, m.Explain(next(rig.ids), strategy, analyze=True), m.Explained)
    rig.only(peer, m.ShowRules(next(rig.ids)), m.RulesState)
    rig.advance(5)
