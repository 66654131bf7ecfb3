"""Reserving: the order in which chunks come, who is parked and who is woken, and that no call gets less than it may."""

from __future__ import annotations

import collections

import apsw
import pytest

from opsq.errors import InvalidStrategy, StorageFull, UsageError
from opsq.ids import mask_indexes
from opsq.queue.chunks import reserve
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket, tickets_of

STRATEGIES = ["OldestFirst", "NewestFirst", "Random"]


def reserved(rig: Rig, peer: object, request_id: int) -> m.Reserved | None:
    """The reply to a parked call, if it has come."""
    replies = rig.replies(peer, request_id)  # type: ignore[arg-type]  # a Peer
    assert len(replies) <= 1
    assert not replies or isinstance(replies[0], m.Reserved)
    return replies[0] if replies else None  # type: ignore[return-value]  # asserted above


def chunks(tickets: list[Ticket]) -> list[tuple[int, int]]:
    return [(ticket.submission_id, index) for ticket in tickets for index in ticket.indexes]


# --- order ---


def test_oldest_first_gives_all_chunks_of_the_oldest_submission_first(rig: Rig) -> None:
    ids = [rig.submit(70) for _ in range(3)]
    expected = [(submission_id, index) for submission_id in ids for index in range(70)]
    assert chunks(rig.reserve(rig.connect(), 500)) == expected


def test_newest_first_gives_all_chunks_of_the_newest_submission_first(rig: Rig) -> None:
    ids = [rig.submit(70) for _ in range(3)]
    expected = [(submission_id, index) for submission_id in reversed(ids) for index in range(70)]
    assert chunks(rig.reserve(rig.connect(), 500, "NewestFirst")) == expected


def test_submission_that_arrives_later_overtakes_in_newest_first_alone(rig: Rig) -> None:
    old = rig.submit(2)
    peer = rig.connect()
    rig.reserve(peer, 1, "NewestFirst")
    new = rig.submit(1)
    assert chunks(rig.reserve(peer, 1, "NewestFirst")) == [(new, 0)]
    assert chunks(rig.reserve(peer, 1, "OldestFirst")) == [(old, 1)]


def test_released_chunk_comes_before_later_ones_of_its_submission(rig: Rig) -> None:
    submission_id = rig.submit(200)
    peer = rig.connect()
    first, *_ = rig.reserve(peer, 150)
    rig.release(peer, first.held([3]))
    assert chunks(rig.reserve(peer, 2)) == [(submission_id, 3), (submission_id, 150)]


def test_deck_serves_a_small_submission_between_chunks_of_a_large_one(rig: Rig) -> None:
    rig.submit(10_000)
    small = rig.submit(1)
    peer = rig.connect()
    first_two = chunks(rig.reserve(peer, 1, "Random")) + chunks(rig.reserve(peer, 1, "Random"))
    assert small in {submission_id for submission_id, _ in first_two}


def test_deck_gives_each_open_submission_one_turn_a_lap(rig: Rig) -> None:
    ids = [rig.submit(5) for _ in range(50)]
    peer = rig.connect()
    for _ in range(5):
        lap = [chunks(rig.reserve(peer, 1, "Random"))[0][0] for _ in ids]
        assert sorted(lap) == ids


def test_deck_turn_of_a_large_call_is_a_sixteenth_of_it_in_whole_blocks(rig: Rig) -> None:
    for _ in range(20):
        rig.submit(1000)
    counts = collections.Counter(
        submission_id for submission_id, _ in chunks(rig.reserve(rig.connect(), 1024, "Random"))
    )
    assert sorted(counts.values()) == [64] * 16


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_call_for_more_than_there_is_gets_all_of_it(rig: Rig, strategy: str) -> None:
    for count in (1, 63, 64, 65, 129):
        rig.submit(count)
    tickets = rig.reserve(rig.connect(), 1000, strategy)
    assert len(set(chunks(tickets))) == len(chunks(tickets)) == 322


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("lease_s", [None, 60.0])
def test_call_larger_than_a_turn_gets_all_it_may_in_one_reply(
    rig: Rig, strategy: str, lease_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "TURN_ROWS", 5)
    for _ in range(4):
        rig.submit(64 * 10)
    rig.submit(1)
    tickets = rig.reserve(rig.connect(), 2000, strategy, lease_s=lease_s)
    assert len(set(chunks(tickets))) == len(chunks(tickets)) == 2000
    assert len(rig.reserve(rig.connect(), 2000, strategy)) >= 9


def test_walk_over_many_reserved_submissions_still_finds_what_is_free(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several turns, and the call does not want to wait."""
    monkeypatch.setattr(reserve, "TURN_ROWS", 7)
    ids = [rig.submit(1) for _ in range(200)]
    peer = rig.connect()
    rig.reserve(peer, 199, "NewestFirst")
    assert chunks(rig.reserve(peer, 1, "OldestFirst")) == [(ids[0], 0)]


def test_unknown_strategy_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidStrategy):
        rig.reserve(rig.connect(), 1, "Newest")


# --- parked ---


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parked_call_is_woken_by_a_submission_when_it_is_committed(rig: Rig, strategy: str) -> None:
    peer, producer = rig.connect(), rig.connect()
    call = rig.park(peer, strategy=strategy)
    rig.send(producer, m.Submit(1, [m.NewSubmission(rig.request_key(), 1)]))
    assert reserved(rig, peer, call) is None
    rig.settle()
    reply = reserved(rig, peer, call)
    assert reply is not None
    assert reply.grants


def test_parked_calls_are_served_the_longest_waiting_first_whatever_their_strategy(rig: Rig) -> None:
    waiting = []
    for strategy in ("OldestFirst", "NewestFirst", "OldestFirst", "Random"):
        peer = rig.connect()
        waiting.append((peer, rig.park(peer, strategy=strategy)))
        rig.pass_time(1)
    answered = []
    for _ in waiting:
        rig.submit(1)
        answered += [at for at, (peer, call) in enumerate(waiting) if reserved(rig, peer, call) is not None]
    assert answered == [0, 1, 2, 3]


def test_parked_calls_of_a_lower_rank_are_served_first_and_of_one_rank_the_longest_waiting(rig: Rig) -> None:
    peer = rig.connect()
    calls = [rig.park(peer, rank=rank) for rank in (2, 0, 1, 0)]
    order = []
    for _ in calls:
        rig.submit(1)
        order += [call for call in calls if call not in order and reserved(rig, peer, call)]
    assert order == [calls[1], calls[3], calls[2], calls[0]]
    assert rig.status().parked_count == 0


def test_call_that_gets_nothing_is_told_how_many_others_with_its_strategy_wait(rig: Rig) -> None:
    peer = rig.connect()
    [first, *_] = [rig.park(peer, rank=number) for number in range(3)]
    rig.park(peer, strategy="NewestFirst")
    rig.send(peer, m.CancelWait(first))
    reply = reserved(rig, peer, first)
    assert reply == m.Reserved(first, waiting_count=2)
    [now] = rig.ask(peer, m.Reserve(77, 1, "OldestFirst"))
    assert now == m.Reserved(77, waiting_count=2)


def test_call_that_has_found_something_already_is_not_overtaken_by_a_lower_rank(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "TURN_ROWS", 3)
    rig.submit(64 * 50)
    peer = rig.connect()
    rig.engine.handle(peer, m.Reserve(8, 3000, "OldestFirst", None, rank=5), rig.now)
    rig.engine.handle(peer, m.Reserve(9, 3000, "OldestFirst", None), rig.now)
    assert rig.engine.has_turn()
    rig.settle()
    assert [
        sum(len(ticket.indexes) for ticket in tickets_of(reply))
        for call in (8, 9)
        if (reply := reserved(rig, peer, call))
    ] == [3000, 200]


def test_parked_call_is_woken_by_a_release_a_loss_and_a_retry(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0)
    holder = rig.connect()
    [ticket] = rig.reserve(holder)
    for give_up in ("release", "fail", "disconnect"):
        peer = rig.connect()
        call = rig.park(peer)
        if give_up == "release":
            rig.release(holder, ticket.held())
        elif give_up == "fail":
            rig.fail(holder, ticket.held(), delay_s=3.0)
            assert reserved(rig, peer, call) is None
            rig.advance(3)
        else:
            rig.start(holder, ticket)
            rig.disconnect(holder)
            rig.settle()
        reply = reserved(rig, peer, call)
        assert reply is not None
        holder, [ticket] = peer, tickets_of(reply)


def test_parked_call_is_woken_by_an_expiry(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0)
    rig.reserve(rig.connect())
    peer = rig.connect()
    call = rig.park(peer)
    rig.advance(4)
    assert reserved(rig, peer, call) is None
    rig.advance(1)
    assert reserved(rig, peer, call) is not None


def test_call_that_waits_gets_nothing_when_its_time_is_over(rig: Rig) -> None:
    peer = rig.connect()
    call = rig.park(peer, wait_s=2.0)
    rig.advance(1.5)
    assert reserved(rig, peer, call) is None
    rig.advance(0.5)
    assert reserved(rig, peer, call) == m.Reserved(call)
    assert rig.status().parked_count == 0


def test_call_whose_time_is_over_at_the_very_tick_at_which_a_retry_is_due_gets_it(rig: Rig) -> None:
    rig.submit(1)
    holder, peer = rig.connect(), rig.connect()
    [ticket] = rig.reserve(holder)
    rig.fail(holder, ticket.held(), delay_s=2.0)
    call = rig.park(peer, wait_s=2.0)
    rig.pass_time(2)
    rig.tick()
    reply = reserved(rig, peer, call)
    assert reply is not None
    assert reply.grants


def test_call_without_waiting_is_answered_at_once_behind_parked_ones(rig: Rig) -> None:
    rig.park(rig.connect())
    peer = rig.connect()
    rig.send(peer, m.Reserve(9, 1, "OldestFirst", 0.0))
    assert reserved(rig, peer, 9) == m.Reserved(9, waiting_count=1)


def test_abandoned_call_gets_a_last_reply_and_takes_nothing(rig: Rig) -> None:
    peer = rig.connect()
    call = rig.park(peer)
    rig.send(peer, m.CancelWait(call))
    assert reserved(rig, peer, call) == m.Reserved(call)
    submission_id = rig.submit(1)
    assert rig.show(submission_id).reserved_count == 0


def test_calls_of_a_lost_connection_take_nothing_and_are_not_counted(rig: Rig) -> None:
    peer = rig.connect()
    rig.park(peer)
    rig.disconnect(peer)
    submission_id = rig.submit(1)
    assert rig.show(submission_id).reserved_count == 0
    assert rig.status().parked_count == 0


def test_interrupted_call_of_a_lost_connection_gives_back_what_it_had_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "TURN_ROWS", 3)
    submission_id = rig.submit(64 * 50)
    peer = rig.connect()
    rig.engine.handle(peer, m.Reserve(9, 3000, "OldestFirst", 0.0, 60.0), rig.now)
    assert rig.engine.has_turn()
    rig.disconnect(peer)
    assert rig.show(submission_id).reserved_count == 0


def test_parked_calls_cost_no_query_while_nothing_changes(rig: Rig) -> None:
    for strategy in STRATEGIES:
        rig.park(rig.connect(), strategy=strategy)
    statements: list[str] = []

    def trace(event: dict[str, object]) -> None:
        statements.append(str(event["sql"]))

    rig.database.reader.trace_v2(apsw.SQLITE_TRACE_STMT, trace)
    try:
        for _ in range(20):
            rig.pass_time(0.1)
            rig.tick()
        for _ in range(5):
            rig.send(rig.connect(), m.Heartbeat(1))
    finally:
        rig.database.reader.trace_v2(0)
    assert [sql for sql in statements if "lane_submission" in sql or "block" in sql] == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_submissions_that_come_next_are_loaded_together(rig: Rig, strategy: str) -> None:
    ids = [rig.submit(1) for _ in range(24)]
    rig.restart()
    peer = rig.connect()
    given: list[tuple[int, int]] = []
    loads: list[str] = []

    def trace(event: dict[str, object]) -> None:
        sql = str(event["sql"])
        if "FROM submission WHERE" in sql:
            loads.append(sql)

    rig.database.reader.trace_v2(apsw.SQLITE_TRACE_STMT, trace)
    try:
        while tickets := rig.reserve_now(peer, 1, strategy):
            given += chunks(tickets)
    finally:
        rig.database.reader.trace_v2(0)
    assert sorted(given) == [(submission_id, 0) for submission_id in ids]
    assert len(loads) <= 5  # of eight each; both legs of the deck may end with fewer


def test_submission_that_ends_after_it_was_loaded_with_others_is_passed_over(rig: Rig) -> None:
    ids = [rig.submit(1) for _ in range(5)]
    rig.restart()
    peer = rig.connect()
    assert chunks(rig.reserve_now(peer)) == [(ids[0], 0)]
    rig.ask(peer, m.Cancel(9, ids[1]))
    assert chunks(rig.reserve_now(peer, 5)) == [(submission_id, 0) for submission_id in ids[2:]]


def test_draining_engine_answers_parked_and_new_calls_with_nothing(rig: Rig) -> None:
    peer = rig.connect()
    call = rig.park(peer)
    rig.engine.stop_handing_out()
    rig.submit(1)
    assert reserved(rig, peer, call) == m.Reserved(call)
    rig.send(peer, m.Reserve(9, 1))
    assert reserved(rig, peer, 9) == m.Reserved(9)


# --- until empty ---


def test_until_empty_ends_at_once_when_there_is_no_open_submission(rig: Rig) -> None:
    peer = rig.connect()
    call = rig.park(peer, until_empty=True)
    assert reserved(rig, peer, call) == m.Reserved(call, is_empty=True)


def test_until_empty_waits_for_what_is_reserved_by_others_or_delayed_and_ends_after_it(rig: Rig) -> None:
    """Also when an ordinary call waits in front of it."""
    rig.submit(2)
    holder, ordinary, peer = rig.connect(), rig.connect(), rig.connect()
    [ticket] = rig.reserve(holder, 2)
    rig.park(ordinary)
    call = rig.park(peer, until_empty=True)
    rig.fail(holder, ticket.held([1]), delay_s=60.0)
    rig.complete(holder, ticket.held([0]))
    assert reserved(rig, peer, call) is None
    rig.complete(holder, ticket.held([1]))
    assert reserved(rig, peer, call) == m.Reserved(call, is_empty=True)
    again = rig.park(peer, until_empty=True)
    assert reserved(rig, peer, again) == m.Reserved(again, is_empty=True)


def test_until_empty_is_not_held_by_what_is_not_due(rig: Rig) -> None:
    rig.submit(1, delay_s=60.0)
    peer = rig.connect()
    call = rig.park(peer, until_empty=True)
    assert reserved(rig, peer, call) == m.Reserved(call, is_empty=True)


def test_until_empty_ends_when_the_last_submission_is_cancelled(rig: Rig) -> None:
    submission_id = rig.submit(1)
    holder, peer = rig.connect(), rig.connect()
    rig.reserve(holder)
    call = rig.park(peer, until_empty=True)
    rig.ask(holder, m.Cancel(1, submission_id))
    assert reserved(rig, peer, call) == m.Reserved(call, is_empty=True)


# --- full disk ---


def test_nothing_is_handed_out_while_the_storage_is_full_and_parked_calls_are_served_after(rig: Rig) -> None:
    rig.submit(2)
    producer, peer = rig.connect(), rig.connect()
    rig.send(producer, m.Submit(1, [m.NewSubmission(rig.request_key(), 1)]))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(producer, 1)
    with pytest.raises(StorageFull):
        rig.send(peer, m.Reserve(8, 1))
    call = rig.park(peer)
    assert reserved(rig, peer, call) is None
    rig.advance(2)
    assert reserved(rig, peer, call) is not None


# --- many consumers ---


def test_fifty_consumers_and_a_hundred_thousand_chunks_are_delivered_exactly_once(rig: Rig) -> None:
    submissions = [rig.submit(20_000) for _ in range(5)]
    peers = [rig.connect(f"consumer-{n}") for n in range(50)]
    delivered: collections.Counter[tuple[int, int]] = collections.Counter()
    is_over = False
    turn = 0
    while not is_over:
        held: list[tuple[int, list[Ticket]]] = []
        for at, peer in enumerate(peers):
            turn += 1
            rig.send(peer, m.Reserve(turn, 37 + at, STRATEGIES[at % 3]))
            [reply] = rig.replies(peer, turn)
            assert isinstance(reply, m.Reserved)
            held.append((at, tickets_of(reply)))
            for grant in reply.grants:
                for index in mask_indexes(grant.block, grant.mask):
                    delivered[grant.submission_id, index] += 1
        is_over = not any(tickets for _, tickets in held)
        for at, tickets in held:
            if tickets:
                rig.send(peers[at], m.Complete(0, [m.Completion(ticket.held()) for ticket in tickets]))
        rig.settle()
    assert len(delivered) == 100_000
    assert set(delivered.values()) == {1}
    assert {rig.show(submission_id).state for submission_id in submissions} == {"completed"}


def test_second_call_under_the_id_of_one_that_waits_is_refused_and_the_connection_leaves_nothing_behind(
    rig: Rig,
) -> None:
    peer = rig.connect()
    rig.park(peer, id=7)
    with pytest.raises(UsageError, match="Request 7 of this connection is still waiting"):
        rig.park(peer, id=7)
    rig.disconnect(peer)
    submission_id = rig.submit(1)
    assert rig.show(submission_id).reserved_count == 0
    assert rig.status().parked_count == 0


def test_id_of_a_call_that_waited_can_be_used_again(rig: Rig) -> None:
    peer = rig.connect()
    for _ in range(2):
        rig.park(peer, id=7)
        submission_id = rig.submit(1)
        reply = reserved(rig, peer, 7)
        assert reply is not None
        assert chunks(tickets_of(reply)) == [(submission_id, 0)]
