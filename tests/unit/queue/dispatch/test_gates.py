"""Gates: what MaxSimultaneous and PreferDistinct let through, one chunk at a time, whoever asks.

And what comes back when they open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsq.ids import SubmissionId
from opsq.queue.peer import Peer
from opsq.store import submissions
from opsq.strategy.text import parse
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket, tickets_of
from unit.naive import Naive
from unit.story import in_folder


def chunks(tickets: list[Ticket]) -> list[tuple[int, int]]:
    return [(ticket.submission_id, index) for ticket in tickets for index in ticket.indexes]


def counts(tickets: list[Ticket]) -> dict[int, int]:
    """How many chunks of each submission were given."""
    return dict(Counter(submission_id for submission_id, _ in chunks(tickets)))


def submit(rig: Rig, tenant: str | None, chunks_count: int = 10, **options: object) -> int:
    metadata = {} if tenant is None else {"tenant": tenant}
    return rig.submit(chunks_count, **{"metadata": metadata, **options})


# --- one chunk at a time ---


def test_one_call_is_given_no_more_of_a_value_than_its_maximum(rig: Rig) -> None:
    """One chunk at a time even within a call; two submissions of one value share its room."""
    a, b, c = submit(rig, "x", 1), submit(rig, "x"), submit(rig, "y")
    assert counts(rig.reserve(rig.connect(), 20, "MaxSimultaneous(tenant, 3, OldestFirst)")) == {a: 1, b: 2, c: 3}
    assert rig.reserve(rig.connect(), 20, "MaxSimultaneous(tenant, 3, OldestFirst)") == []


def test_gate_counts_what_any_strategy_has_reserved(rig: Rig) -> None:
    """Also what was reserved before anybody asked about the key."""
    a = submit(rig, "x")
    rig.reserve(rig.connect(), 2, "Random")
    assert counts(rig.reserve(rig.connect(), 20, "MaxSimultaneous(tenant, 3, OldestFirst)")) == {a: 1}


def test_submission_without_the_key_is_never_held(rig: Rig) -> None:
    a = submit(rig, None)
    assert counts(
        rig.reserve(rig.connect(), 20, "MaxSimultaneous(tenant, 1, MaxSimultaneous(site, 1, OldestFirst))")
    ) == {a: 10}


def test_text_and_integer_are_two_values(rig: Rig) -> None:
    a, b = rig.submit(5, metadata={"tenant": 7}), rig.submit(5, metadata={"tenant": "7"})
    assert counts(rig.reserve(rig.connect(), 9, "MaxSimultaneous(tenant, 1, OldestFirst)")) == {a: 1, b: 1}
    assert counts(rig.reserve(rig.connect(), 9, "SelectOnly(tenant=7, OldestFirst)")) == {a: 4}
    assert counts(rig.reserve(rig.connect(), 9, 'SelectOnly(tenant="7", OldestFirst)')) == {b: 4}


def test_prefer_distinct_spreads_first_and_lets_nobody_idle(rig: Rig) -> None:
    a, b = submit(rig, "x"), submit(rig, "y")
    assert [one for one, _ in chunks(rig.reserve(rig.connect(), 4, "PreferDistinct(tenant, 1, OldestFirst)"))] == [
        a,
        b,
        a,
        a,
    ]


def test_all_that_an_open_gate_held_come_back_one_after_the_other(rig: Rig) -> None:
    """Only the best is called back when the gate opens; the next must follow as long as it is open."""
    first, *ids = [submit(rig, "x", 1) for _ in range(6)]
    peer = rig.connect()
    held = rig.reserve(peer, 1)
    strategy = "MaxSimultaneous(tenant, 1, OldestFirst)"
    assert rig.reserve(peer, 9, strategy) == []
    rig.complete(peer, held[0].held())
    assert chunks(rig.reserve(peer, 9, "MaxSimultaneous(tenant, 3, OldestFirst)")) == [(one, 0) for one in ids[:3]]
    tickets = rig.reserve(peer, 9, "SelectOnly(submission=1)")
    limit = m.Limit(next(rig.ids), "tenant", None, 9)
    rig.ask(peer, limit)
    assert rig.reserve(peer, 9, strategy) == tickets == []
    assert chunks(rig.reserve(peer, 9, "MaxSimultaneous(tenant, 5, OldestFirst)")) == [(one, 0) for one in ids[3:]]
    assert first not in ids


@pytest.mark.parametrize("order", ["OldestFirst", "NewestFirst", "CustomPriority", "Random"])
def test_what_a_closed_gate_holds_is_set_aside_without_being_loaded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """By a maximum and by a pause; and it comes back, each with its turn."""
    held = [submit(rig, "x", 1) for _ in range(150)]
    paused = [submit(rig, "y", 1) for _ in range(150)]
    alone = submit(rig, "z", 1)
    rig.restart()
    loaded: list[int] = []

    def note(source: apsw.Cursor, submission_id: int, others: Sequence[int] = ()) -> list[submissions.SubmissionRow]:
        loaded.extend((submission_id, *others))
        return load(source, submission_id, others)

    load = submissions.load
    monkeypatch.setattr(submissions, "load", note)
    peer = rig.connect()
    (first,) = rig.reserve(peer, 1, "SelectOnly(tenant=x, OldestFirst)")
    rig.only(peer, m.Pause(next(rig.ids), {"tenant": "y"}), m.Changed)
    rig.only(peer, m.Pause(next(rig.ids), {"submission": held[1]}), m.Changed)
    strategy = f"MaxSimultaneous(tenant, 1, {order})"
    assert counts(rig.reserve(peer, 10, strategy)) == {alone: 1}
    assert len(loaded) < 100
    rig.release(peer, first.held())
    rig.only(peer, m.Resume(next(rig.ids), {"tenant": "y"}), m.Changed)
    two = counts(rig.reserve(peer, 10, strategy))
    assert len(two) == 2
    assert {*two, *counts(rig.reserve(peer, 500, order))} == {*held, *paused} - {held[1]}
    assert rig.reserve(peer, 1, order) == []
    rig.only(peer, m.Resume(next(rig.ids), {"submission": held[1]}), m.Changed)
    assert counts(rig.reserve(peer, 10, order)) == {held[1]: 1}


def test_all_that_a_gate_held_come_back_to_the_strategy_that_it_held(rig: Rig) -> None:
    ids = [submit(rig, "x", 1) for _ in range(6)]
    peer = rig.connect()
    strategy = "MaxSimultaneous(tenant, 3, OldestFirst)"
    given = rig.reserve(peer, 9, strategy)
    assert chunks(given) == [(one, 0) for one in ids[:3]]
    assert rig.reserve(peer, 9, strategy) == []
    rig.complete(peer, *(ticket.held() for ticket in given))
    assert chunks(rig.reserve(peer, 9, strategy)) == [(one, 0) for one in ids[3:]]


def test_gates_keep_nothing_of_values_that_have_come_and_gone(rig: Rig) -> None:
    """Tenants come for years; what waited behind the gate of each must not stay in memory."""
    peer, strategy = rig.connect(), "MaxSimultaneous(tenant, 1, OldestFirst)"
    gates = rig.engine._state.gates
    for number in range(20):
        submit(rig, f"tenant {number}", 3)
        for _ in range(3):
            [given] = rig.reserve(peer, 9, strategy)
            assert rig.reserve(peer, 9, strategy) == []
            rig.complete(peer, given.held())
        assert rig.reserve(peer, 9, strategy) == []
    assert (gates._waiting, gates._live) == ({}, {})


@pytest.mark.parametrize("strategy", ["SelectOnly(tenant=x, OldestFirst)", "SelectOnly(tenant=x, Fair(tenant))"])
def test_parked_call_of_the_only_strategy_is_woken_by_a_release(rig: Rig, strategy: str) -> None:
    """No other front walks anything: the one lane in use must be told."""
    a = submit(rig, "x", 1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1, strategy)
    call = rig.park(peer, 1, strategy)
    rig.release(peer, ticket.held())
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert chunks(tickets_of(reply)) == [(a, 0)]


def test_submission_that_missed_turns_of_a_deck_has_one_at_once_and_no_more(rig: Rig) -> None:
    """While its gate was closed others had many laps; it does not catch up on them."""
    held_back, *others = submit(rig, "x", 100), submit(rig, None, 100), submit(rig, None, 100)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={held_back})")
    strategy = "MaxSimultaneous(tenant, 1, Random)"
    for _ in range(20):
        assert rig.reserve(peer, 1, strategy)[0].submission_id in others
    rig.complete(peer, ticket.held())
    turns = []
    for _ in range(9):
        [ticket] = rig.reserve(peer, 1, strategy)
        turns.append(ticket.submission_id)
        rig.complete(peer, ticket.held())
    assert turns[0] == held_back
    assert [turns.count(one) for one in (held_back, *others)] == [3, 3, 3]


def test_two_gates_let_through_what_both_let_through(rig: Rig) -> None:
    a = rig.submit(5, metadata={"tenant": "x", "site": "p"})
    b = rig.submit(5, metadata={"tenant": "x", "site": "q"})
    c = rig.submit(5, metadata={"tenant": "y", "site": "q"})
    strategy = "MaxSimultaneous(tenant, 3, MaxSimultaneous(site, 2, OldestFirst))"
    peer = rig.connect()
    tickets = rig.reserve(peer, 20, strategy)
    assert counts(tickets) == {a: 2, b: 1, c: 1}
    rig.release(peer, tickets[0].held([tickets[0].indexes[0]]))
    rig.complete(peer, tickets[-1].held())
    assert counts(rig.reserve(peer, 20, strategy)) == {a: 1, c: 1}


# --- different maxima at once ---


def test_one_key_with_maxima_of_1_and_5_and_half_of_the_consumers_at_once(rig: Rig) -> None:
    a = submit(rig, "x", 100)
    peers = [rig.connect() for _ in range(16)]
    for peer in peers:
        rig.reserve(peer, 1, "SelectOnly(nobody=1)")
    rig.advance(1.5)
    one, five, half = (f"MaxSimultaneous(tenant, {maximum}, OldestFirst)" for maximum in ("1", "5", "50%"))
    peer = peers[0]
    given = rig.reserve(peer, 50, one)
    assert counts(given) == {a: 1}
    given += rig.reserve(peer, 50, five)
    assert rig.reserve(peer, 50, one) == []
    assert counts(given) == {a: 5}
    given += rig.reserve(peer, 50, half)
    assert rig.reserve(peer, 50, five) == []
    assert counts(given) == {a: 8}
    calls = [rig.park(peers[1], 1, strategy) for strategy in (one, five, half)]
    left = [ticket.held([index]) for ticket in given for index in ticket.indexes]
    answered = []
    while left:
        rig.complete(peer, left.pop())
        answered += [
            (len(left), call)
            for call in calls
            for reply in rig.replies(peers[1], call)
            if isinstance(reply, m.Reserved)
        ]
    # Each is woken as soon as its own maximum allows it; what the others were given meanwhile counts.
    assert answered == [(7, calls[2]), (3, calls[1]), (0, calls[0])] or [call for _, call in answered[:2]] == [
        calls[2],
        calls[1],
    ]


def test_percentage_follows_consumers_once_a_second_and_recalls_nothing(rig: Rig) -> None:
    """Rounded up, at least 1."""
    a = submit(rig, "x", 100)
    strategy = "MaxSimultaneous(tenant, 30%, OldestFirst)"
    first = rig.connect()
    assert counts(rig.reserve(first, 50, strategy)) == {a: 1}
    others = [rig.connect() for _ in range(6)]
    for peer in others:
        assert rig.reserve(peer, 50, strategy) == []
    call = rig.park(first, 50, strategy)
    rig.pass_time(0.5)
    rig.tick()
    assert rig.replies(first, call) == []
    rig.advance(0.6)
    [reply] = rig.replies(first, call)
    assert isinstance(reply, m.Reserved)
    assert counts(tickets_of(reply)) == {a: 2}  # three of seven
    for peer in others:
        rig.disconnect(peer)
    rig.advance(1.5)
    assert rig.show(a).reserved_count == 3
    assert rig.reserve(first, 50, strategy) == []


# --- the key submission ---

ORDERED = "MaxSimultaneous(submission, 1, OldestFirst)"


def test_chunk_that_waits_for_its_retry_keeps_its_slot(rig: Rig) -> None:
    """Strictly ordered processing: a chunk is handed out when all before it are finished."""
    a, b = rig.submit(3), rig.submit(3)
    peer = rig.connect()
    [first] = rig.reserve(peer, 1, ORDERED)
    rig.fail(peer, first.held(), delay_s=5.0)
    [other] = rig.reserve(peer, 5, ORDERED)
    assert (other.submission_id, other.indexes) == (b, [0])
    call = rig.park(peer, 5, ORDERED)
    rig.advance(4.0)
    assert rig.replies(peer, call) == []
    rig.advance(1.0)
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    [again] = tickets_of(reply)
    assert (again.submission_id, again.indexes, again.attempt) == (a, [0], 1)
    rig.complete(peer, again.held())
    assert chunks(rig.reserve(peer, 5, ORDERED)) == [(a, 1)]


@pytest.mark.parametrize("maximum", [1, 2])
def test_chunk_that_waits_for_its_retry_keeps_its_slot_over_a_restart(rig: Rig, maximum: int) -> None:
    """Also in a block that nobody has looked at since."""
    a = rig.submit(200)
    strategy = f"MaxSimultaneous(submission, {maximum}, OldestFirst)"
    peer = rig.connect()
    tickets = rig.reserve(peer, 200)
    for ticket in tickets:
        if ticket.block == 2:
            rig.fail(peer, ticket.held([130, 131][:maximum]), delay_s=50.0)
            rig.release(peer, ticket.held([index for index in ticket.indexes if index not in [130, 131][:maximum]]))
        else:
            rig.release(peer, ticket.held())
    rig.restart()
    peer = rig.connect()
    assert rig.reserve(peer, 5, strategy) == []
    call = rig.park(peer, 5, strategy)
    rig.advance(51.0)
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert chunks(tickets_of(reply)) == [(a, index) for index in range(maximum)]


def test_dead_chunk_frees_its_slot(rig: Rig) -> None:
    a = rig.submit(2, keep_on_dead=True)
    peer = rig.connect()
    [first] = rig.reserve(peer, 1, ORDERED)
    rig.fail(peer, first.held(), is_final=True)
    assert chunks(rig.reserve(peer, 1, ORDERED)) == [(a, 1)]


def test_submission_cancelled_while_its_chunk_waits_for_a_retry_is_offered_when_requeued(rig: Rig) -> None:
    a = rig.submit(3)
    peer = rig.connect()
    [first] = rig.reserve(peer, 1, ORDERED)
    rig.fail(peer, first.held(), delay_s=20.0)
    assert rig.reserve(peer, 1, ORDERED) == []
    rig.ask(peer, m.Cancel(next(rig.ids), a))
    rig.ask(peer, m.Requeue(next(rig.ids), a))
    assert rig.show(a).state == "open"
    assert rig.reserve(peer, 1, ORDERED) == []  # its back-off goes on
    rig.advance(20.0)
    assert chunks(rig.reserve(peer, 1, ORDERED)) == [(a, 0)]


@pytest.mark.parametrize("value", ["abc", '"7"', "-1", "999"])
def test_submission_that_cannot_be_is_served_nothing(rig: Rig, value: str) -> None:
    rig.submit(3)
    for strategy in (f"SelectOnly(submission={value})", f"SelectOnly(submission={value}, Fair(submission))"):
        assert rig.reserve(rig.connect(), 1, strategy) == []


def test_one_submission_can_be_selected_before_and_after_it_exists(rig: Rig) -> None:
    rig.submit(3)
    peer = rig.connect()
    b = SubmissionId(rig.submit(3))
    expected = b + 1  # the next one in the same millisecond
    call = rig.park(peer, 1, f"SelectOnly(submission={expected}, OldestFirst)")
    assert chunks(rig.reserve(peer, 2, f"SelectOnly(submission={b}, OldestFirst)")) == [(b, 0), (b, 1)]
    assert rig.replies(peer, call) == []
    assert rig.submit(3) == expected
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert chunks(tickets_of(reply)) == [(expected, 0)]


# --- what comes and goes ---


def test_work_taken_up_again_counts_once_and_is_not_refused(rig: Rig) -> None:
    """A consumer that reconnects keeps what it held, also above the maximum; it fills the gate all the same."""
    a = submit(rig, "x", 10)
    strategy = "MaxSimultaneous(tenant, 3, OldestFirst)"
    peer = rig.connect()
    tickets = rig.reserve(peer, 2, strategy)
    rig.disconnect(peer)
    again = rig.connect()
    assert chunks(rig.reserve(again, 2, "SelectOnly(tenant=x, OldestFirst)")) == [(a, 0), (a, 1)]
    rig.disconnect(again)
    other = rig.connect()
    assert chunks(rig.reserve(other, 5, "MaxSimultaneous(tenant, 1, NewestFirst)")) == [(a, 0)]
    assert rig.reclaim(rig.connect(), *(ticket.held([1]) for ticket in tickets)) == []
    assert chunks(rig.reserve(other, 5, strategy)) == [(a, 2)]


def test_front_finds_a_pair_that_comes_again_after_all_its_submissions_were_removed(rig: Rig) -> None:
    """The lane of the pair was deleted meanwhile; walked, looked up, and inside Fair."""
    peer = rig.connect()
    strategies = [
        "SelectOnly(kind=x, OldestFirst)",
        "SelectOnly(site=s, SelectOnly(kind=x, OldestFirst))",
        "SelectOnly(kind=x, Fair(site))",
        "Fair(site, SelectOnly(kind=x, OldestFirst))",
        "Fair(kind, SelectOnly(kind=x, OldestFirst))",
    ]
    for _ in range(3):
        rig.submit(9, metadata={"site": "s"})
        a = rig.submit(len(strategies), metadata={"kind": "x", "site": "s"})
        rig.submit(1, metadata={"other": next(rig.keys)})
        for strategy in strategies:
            [ticket] = rig.reserve(peer, 1, strategy)
            assert ticket.submission_id == a, strategy
            rig.complete(peer, ticket.held())
        rig.fold()
        rig.ask(peer, m.Remove(next(rig.ids), a))
        rig.advance(3.0)
        assert rig.rows("SELECT count(*) FROM lane WHERE key = 'kind'") == [(0,)]
        rest = rig.reserve(peer, 1000)
        rig.complete(peer, *(ticket.held() for ticket in rest))


def test_number_of_a_deleted_lane_is_never_given_to_another_pair(rig: Rig) -> None:
    peer = rig.connect()
    numbers = []
    for n in range(4):
        a = rig.submit(0, metadata={"job": n})
        numbers += [row[0] for row in rig.rows("SELECT id FROM lane WHERE key = 'job' AND value = ?", n)]
        rig.ask(peer, m.Remove(next(rig.ids), a))
        rig.advance(2.0)
    assert len(set(numbers)) == 4


# --- cases ---


def test_second_user_is_served_within_two_reserves(rig: Rig) -> None:
    """A queued a hundred, then B one."""
    for _ in range(100):
        submit(rig, "a", 1)
    b = submit(rig, "b", 1)
    peer = rig.connect()
    given = [chunks(rig.reserve(peer, 1, "PreferDistinct(tenant, 1, OldestFirst)")) for _ in range(2)]
    assert [(b, 0)] in given


def test_levels_keys_and_weights_are_said_in_one_strategy() -> None:
    text = "OrElse(SelectOnly(level=urgent, Fair(user)), OrElse(SelectOnly(level=normal, Fair(user)), CustomPriority))"
    assert str(parse(text)) == text


def test_urgent_submission_starts_within_one_reservation(rig: Rig) -> None:
    """A million bulk chunks wait; each of these strategies gives the urgent one first."""
    bulk = rig.submit(1_000_000, metadata={"kind": "bulk"})
    peer = rig.connect()
    for strategy in (
        "CustomPriority",
        "OrElse(SelectOnly(kind=urgent), OldestFirst)",
        "Fair(kind)",
        "PreferDistinct(kind, 1, OldestFirst)",
    ):
        assert [one for one, _ in chunks(rig.reserve(peer, 1, strategy))] == [bulk]
        urgent = rig.submit(1, metadata={"kind": "urgent"}, priority=9)
        [ticket] = rig.reserve(peer, 1, strategy)
        assert ticket.submission_id == urgent
        rig.complete(peer, ticket.held())


# --- better ones that are set aside later ---


def test_newest_that_is_set_aside_last_comes_before_what_an_opened_gate_let_out(rig: Rig) -> None:
    """A gate has opened and the best behind it is waiting its turn; something newer is set aside there meanwhile."""
    peer = rig.connect()
    rig.ask(peer, m.Limit(next(rig.ids), "b", "p", 1))
    a = rig.submit(1, metadata={"b": "p"})
    [held] = rig.reserve(peer, 1, "NewestFirst")
    b = rig.submit(3, metadata={"b": "p"})
    assert rig.reserve(peer, 1, "NewestFirst") == []
    rig.release(peer, held.held())
    c = rig.submit(1)
    e = rig.submit(3, metadata={"b": "p"})
    first, second = rig.reserve(peer, 1, "NewestFirst") + rig.reserve(peer, 1, "NewestFirst")
    assert [first.submission_id, second.submission_id] == [e, c]
    rig.release(peer, first.held())
    rig.release(peer, second.held())
    assert drained(rig, peer, "NewestFirst") == [e, e, e, c, b, b, b, a]


def test_urgent_work_is_not_passed_over_for_bulk_that_an_opened_gate_let_out(rig: Rig) -> None:
    """Three consumers under a limit of one: bulk has come back from behind it when urgent work is set aside there."""
    peers = [rig.connect() for _ in range(3)]
    rig.ask(peers[0], m.Limit(next(rig.ids), "b", "p", 1))
    [*bulk] = [rig.submit(2, metadata={"b": "p"}) for _ in range(2)]
    [held] = rig.reserve(peers[0], 1, "CustomPriority")
    assert rig.reserve(peers[1], 1, "CustomPriority") == []
    rig.release(peers[0], held.held())
    middle = rig.submit(4, priority=5)
    urgent = [rig.submit(2, metadata={"b": "p"}, priority=10) for _ in range(2)]
    tickets = [rig.reserve(peer, 1, "CustomPriority")[0] for peer in peers]
    assert [ticket.submission_id for ticket in tickets] == [urgent[0], middle, middle]
    for peer, ticket in zip(peers, tickets, strict=True):
        rig.release(peer, ticket.held())
    expected = [one for one in (*urgent, middle, middle, *bulk) for _ in range(2)]
    assert drained(rig, peers[0], "CustomPriority") == expected


def drained(rig: Rig, peer: Peer, strategy: str) -> list[int]:
    """The submission of each chunk that is reserved, and completed before the next, until there is none."""
    given = []
    while tickets := rig.reserve(peer, 1, strategy):
        given.append(tickets[0].submission_id)
        rig.complete(peer, tickets[0].held())
    return given


# --- a deck behind gates ---

Act = tuple[str, int]


@given(
    st.lists(st.sampled_from(["x", "y", None]), min_size=3, max_size=6),
    st.integers(1, 2),
    st.lists(
        st.tuples(st.sampled_from(["reserve"] * 6 + ["release"] * 3 + ["other"]), st.integers(0, 9)),
        min_size=20,
        max_size=80,
    ),
)
@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
def test_between_two_turns_of_one_submission_all_that_were_allowed_have_one(
    tenants: list[str | None], maximum: int, acts: list[Act]
) -> None:
    """A deck gives no submission two turns while another, which might have been served all the time, has none."""
    strategy = f"MaxSimultaneous(tenant, {maximum}, Random)"
    with in_folder() as folder:
        rig = Rig(folder)
        naive = Naive(0.0)
        for tenant in tenants:
            metadata: dict[str, int | str] = {} if tenant is None else {"tenant": tenant}
            naive.submit(rig.submit(1000, metadata=metadata), 1000, metadata, 0)
        peer = rig.connect()
        held: list[tuple[int, Ticket]] = []
        last_turn: dict[int, int] = {}
        allowed_since: dict[int, int] = {}
        for at, (act, number) in enumerate(acts):
            allowed = {one.id for one in naive.submissions.values() if naive.room(one, (("tenant", maximum),)) > 0}
            allowed_since = {one: allowed_since.get(one, at) for one in allowed}
            if act == "release" and held:
                submission_id, ticket = held.pop(number % len(held))
                rig.release(peer, ticket.held())
                naive.release(submission_id, ticket.indexes[0])
                continue
            tickets = rig.reserve(peer, 1, strategy if act == "reserve" else "OldestFirst")
            assert bool(tickets) == bool(allowed) or act != "reserve"
            for ticket in tickets:
                chosen = ticket.submission_id
                naive.take(chosen, ticket.indexes[0])
                held.append((chosen, ticket))
                if act == "reserve":
                    before = last_turn.get(chosen)
                    for other, since in allowed_since.items():
                        if before is not None and other != chosen and since <= before:
                            assert last_turn.get(other, -1) > before
                    last_turn[chosen] = at
        rig.close()
