"""Which chunks run, where and for how long, in pages that leave none out."""

from __future__ import annotations

import itertools

import pytest

from opsq.errors import NotFound
from opsq.ids import mask_indexes
from opsq.wire import messages as m
from unit.model.rig import Rig


def running(rig: Rig, **conditions: object) -> m.RunningChunks:
    return rig.only(rig.connect("asks"), m.Running(next(rig.ids), **conditions), m.RunningChunks)


def told(page: m.RunningChunks) -> list[tuple[int, float]]:
    """Index and run time of each chunk."""
    return [(index, row.run_s) for row in page.rows for index in mask_indexes(row.block, row.mask)]


def test_chunk_runs_from_when_its_consumer_says_that_it_began(rig: Rig) -> None:
    submission_id = rig.submit(4, metadata={"tenant": "a"}, title="Nightly import")
    peer = rig.engine.connect("worker", rig.now, None, "node7", 4711)
    [ticket] = rig.reserve(peer, 3)
    rig.pass_time(10)
    assert running(rig).rows == []
    rig.start(peer, ticket, [1])
    rig.pass_time(5)
    rig.start(peer, ticket, [0, 1])
    rig.pass_time(2)
    page = running(rig)
    assert told(page) == [(1, 7.0), (0, 2.0)]
    assert (page.metadata, page.titles) == ({submission_id: {"tenant": "a"}}, {submission_id: "Nightly import"})
    row = page.rows[0]
    assert (row.consumer, row.host, row.pid, row.is_at_least) == (peer.consumer, "node7", 4711, False)
    rig.complete(peer, ticket.held([1]))
    assert told(running(rig)) == [(0, 2.0)]


def test_chunk_of_a_lease_runs_from_its_reservation_and_its_process_is_gone(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.engine.connect("cli", rig.now, None, "node7", 4711)
    rig.reserve(peer, 1, lease_s=600.0)
    rig.disconnect(peer)
    rig.pass_time(3)
    [row] = running(rig).rows
    assert (row.host, row.pid, row.run_s, row.is_at_least) == ("node7", 0, 3.0, False)
    rig.restart()
    rig.pass_time(2)
    [row] = running(rig).rows
    assert (row.host, row.pid, row.run_s, row.is_at_least) == ("", 0, 2.0, True)


def test_over_a_restart_only_what_was_started_runs(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.start(peer, ticket, [1])
    rig.restart()
    rig.pass_time(2)
    assert told(running(rig)) == [(1, 2.0)]
    peer = rig.connect()
    rig.reclaim(peer, ticket.held())
    rig.start(peer, ticket)
    rig.pass_time(1)
    page = running(rig)
    assert told(page) == [(1, 3.0), (0, 1.0)]
    assert page.rows[0].is_at_least


def test_chunk_that_was_given_back_and_begun_again_is_there_once(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.start(peer, ticket)
    rig.pass_time(1)
    rig.ask(peer, m.Release(next(rig.ids), [ticket.held([0])]))
    rig.ask(peer, m.Reclaim(next(rig.ids), [ticket.held([0])]))
    assert told(running(rig)) == [(1, 1.0)]
    rig.start(peer, ticket)
    rig.pass_time(1)
    assert told(running(rig)) == [(1, 2.0), (0, 1.0)]


def test_submission_and_metadata_choose(rig: Rig) -> None:
    first, second = rig.submit(1, metadata={"tenant": "a", "kind": 1}), rig.submit(1, metadata={"tenant": "a"})
    peer = rig.connect()
    for ticket in rig.reserve(peer, 2):
        rig.start(peer, ticket)
    for conditions, found in (
        ({}, [first, second]),
        ({"submission_id": second}, [second]),
        ({"metadata": {"tenant": "a"}}, [first, second]),
        ({"metadata": {"tenant": "a", "kind": 1}}, [first]),
        ({"metadata": {"kind": "1"}}, []),
        ({"submission_id": second, "metadata": {"kind": 1}}, []),
    ):
        assert [row.submission_id for row in running(rig, **conditions).rows] == found
    with pytest.raises(NotFound):
        running(rig, submission_id=99)


def place(row: m.RunningChunk) -> tuple[int, ...]:
    """What the page behind a row is asked for with."""
    return row.since_ns, row.reservation_id, row.submission_id, row.block, row.mask


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_hold_every_chunk_once_the_longest_first(rig: Rig, limit: int) -> None:
    """Of those that were reserved in one order and begun in another."""
    rig.submit(200)
    peers = [rig.connect(name) for name in "abc"]
    tickets = []
    for peer in peers:
        tickets += [(peer, ticket) for ticket in rig.reserve(peer, 40)]
        rig.pass_time(1)
    for peer, ticket in reversed(tickets):
        for number, index in enumerate(ticket.indexes):
            rig.start(peer, ticket, [index])
            rig.pass_time(0.5 if number % 3 else 0)
    found, after = [], None
    for _ in itertools.count():
        page = running(rig, after=after, limit=limit)
        assert len(page.rows) <= limit
        found += told(page)
        after = page.next_after
        if after is None:
            break
        assert after == place(page.rows[-1])
    assert sorted(index for index, _ in found) == list(range(120))
    assert [run_s for _, run_s in found] == sorted((run_s for _, run_s in found), reverse=True)
