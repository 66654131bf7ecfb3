"""Bounds: replies fit into frames, timers end with what they were for.

And what is due in masses comes at once, in turns.
"""

from __future__ import annotations

import msgspec
import pytest

from opsq.queue.chunks import descriptions
from opsq.queue.submissions import submit
from opsq.queue.timers import Timers
from opsq.queue.views import subscriptions
from opsq.wire import messages as m
from unit.model.rig import Rig


def items_count(timers: Timers[object]) -> int:
    """How many items wait in timers."""
    return sum(len(bucket) for bucket in timers._buckets.values())


def test_page_of_results_ends_before_it_outgrows_a_frame_and_the_next_goes_on(rig: Rig) -> None:
    """Results of 1200 bytes: 256 blocks of them would be 19 MB."""
    peer = rig.connect()
    submission_id = rig.submit(64 * 100)
    results = msgspec.Raw(msgspec.msgpack.encode([b"x" * 1200] * 64))
    for _ in range(100):
        (ticket,) = rig.reserve(peer, 64)
        assert rig.complete(peer, ticket.held(), results=results) == []
    index, found = 0, 0
    while index < 64 * 100:
        rows = rig.only(peer, m.Results(next(rig.ids), submission_id, index), m.ResultRows)
        assert len(msgspec.msgpack.encode(rows)) < subscriptions.PAGE_BYTES + 64 * 4200
        assert rows.next_block * 64 > index
        found += sum(row.mask.bit_count() for row in rows.rows)
        index = rows.next_block * 64
    assert found == 64 * 100


def test_reply_with_many_submissions_describes_as_many_as_fit_and_the_rest_on_demand(rig: Rig) -> None:
    peer = rig.connect()
    for _ in range(20):
        new = [m.NewSubmission(rig.request_key(), 1, content=b"x" * 20_000) for _ in range(50)]
        rig.ask(peer, m.Submit(next(rig.ids), new))
    reserved = rig.only(peer, m.Reserve(next(rig.ids), 1000, "OldestFirst"), m.Reserved)
    assert len(reserved.grants) == 1000
    assert len(msgspec.msgpack.encode(reserved)) < descriptions.DESCRIBED_BYTES + (1 << 20)
    told = {one.submission_id for one in reserved.submissions}
    left = sorted({grant.submission_id for grant in reserved.grants} - told)
    assert left
    described = rig.only(peer, m.Describe(next(rig.ids), left), m.Described)
    assert described.submissions
    assert len(msgspec.msgpack.encode(described)) < descriptions.DESCRIBED_BYTES + (1 << 20)


def test_timers_end_with_the_reservations_calls_and_waits_that_they_were_for(rig: Rig) -> None:
    peer = rig.connect()
    submission_id = rig.submit(200)
    for _ in range(100):
        (ticket,) = rig.reserve_now(peer, 1)
        rig.complete(peer, ticket.held())
        waiting = rig.park(peer, 1, "SelectOnly(nobody=has)", wait_s=3600.0)
        results = next(rig.ids)
        rig.send(peer, m.Results(results, submission_id, 199, wait_s=3600.0))
        rig.send(peer, m.CancelWait(waiting))
        rig.send(peer, m.CancelWait(results))
    rig.settle()
    rooms = rig.engine._rooms
    assert [
        items_count(each._deadlines) for each in (rooms.reservations, rooms.reserve_calls, rooms.subscriptions)
    ] == [
        0,
        0,
        0,
    ]


def test_lease_stays_a_lease_when_a_connection_takes_it_up_and_ends(rig: Rig) -> None:
    """Only what a daemon's own end made a lease belongs to its connection again."""
    peer = rig.connect()
    rig.submit(1)
    (ticket,) = rig.reserve(peer, 1, lease_s=3600.0)
    rig.disconnect(peer)
    again = rig.connect()
    assert rig.reclaim(again, ticket.held()) == []
    rig.disconnect(again)
    rig.settle()
    assert rig.rows("SELECT count(*) FROM lease") == [(1,)]
    assert rig.reserve(rig.connect(), 1) == []


def test_raised_rate_wakes_whoever_waited_for_a_token_of_the_old_one(rig: Rig) -> None:
    peer = rig.connect()
    rig.submit(100, metadata={"k": "v"})
    rig.ask(peer, m.Limit(next(rig.ids), "k", None, None, 1 / 3600, 1))
    assert len(rig.reserve(peer, 1)) == 1
    first = rig.park(peer, 1)
    rig.ask(peer, m.Limit(next(rig.ids), "k", None, None, 100.0, 1))
    rig.advance(1.0)
    assert len(rig.replies(peer, first)) == 1
    second = rig.park(peer, 1)
    rig.advance(1.0)
    assert len(rig.replies(peer, second)) == 1


def test_submissions_due_at_one_wall_clock_instant_open_in_turns_without_waiting_a_second_each(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "DUE_LIMIT", 3)
    peer = rig.connect()
    at = rig.now.wall + 10_000
    rig.ask(peer, m.Submit(next(rig.ids), [m.NewSubmission(rig.request_key(), 1, not_before_at=at) for _ in range(20)]))
    rig.pass_time(11.0)
    for _ in range(7):
        rig.tick()
        rig.settle()
    assert rig.status().states["open"] == 20
    assert rig.engine.next_tick_s(rig.now) > 0


def test_hundred_thousand_chunks_that_are_lost_together_are_a_row_a_block(rig: Rig) -> None:
    peer = rig.connect()
    rig.submit(6400)
    rig.reserve(peer, 6400, lease_s=10.0)
    rig.advance(30.0)
    rig.settle()
    assert rig.rows("SELECT count(*), sum(event = 'lost') FROM history") == [(100, 100)]
    assert len(rig.reserve(rig.connect(), 6400)) == 100
