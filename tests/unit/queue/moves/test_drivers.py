"""Several movers at once, and movers that wake up late: only the last one that has begun moves anything."""

from __future__ import annotations

import pytest

from opsq.errors import Conflict
from opsq.wire import messages as m
from unit.queue.moves.pair import Killed, Pair, states


def test_mover_that_begins_during_another_ones_move_loses_nothing(pair: Pair) -> None:
    submission = pair.source.submit(10)
    first, held = pair.staged()
    assert pair.move().left == {}
    with pytest.raises(Conflict, match="Another"):
        first.commit(held)
    with pytest.raises(Conflict, match="Another"):
        first.drop(held)
    pair.settle()
    pair.check()
    assert set(states(pair.target)) == {submission}


def test_what_a_mover_has_given_away_is_active_once_the_next_one_begins(pair: Pair) -> None:
    submission = pair.source.submit(10)
    first, held = pair.staged()
    first.commit(held)
    second = pair.mover()
    assert list(second.recover()) == [1]
    assert first.activate(held) == 0
    assert set(states(pair.target)) == {submission}


def test_late_slice_of_an_earlier_mover_takes_nothing_away(pair: Pair) -> None:
    submission = pair.source.submit(10)
    first = pair.mover()
    list(first.recover())
    stale = first.hold()
    part = first.export(stale)
    second, held = pair.staged()
    second.commit(held)
    pair.target.crash()
    first.reconnect_target()
    with pytest.raises(Conflict, match="Another"):
        first.stage(stale, part)
    assert pair.move().left == {}
    assert set(states(pair.target)) == {submission}
    with pytest.raises(Conflict, match="Another"):
        first.hold()


def test_mover_that_is_late_at_the_target_is_not_admitted(pair: Pair) -> None:
    source, target = pair.source, pair.target
    early = source.only(source.connect(), m.DriveMoves(next(source.ids)), m.Driving)
    pair.move()
    with pytest.raises(Conflict, match="Another"):
        target.ask(target.connect(), m.AdmitMover(next(target.ids), early.identity, early.driver))


def test_mover_that_waits_for_reservations_is_told_that_another_has_begun(pair: Pair) -> None:
    rig = pair.source
    rig.submit(1)
    rig.reserve(rig.connect("worker"))
    peer = rig.connect("mover")
    rig.only(peer, m.DriveMoves(next(rig.ids)), m.Driving)
    request = m.HoldForMove(next(rig.ids), wait_s=60.0)
    rig.send(peer, request)
    rig.advance(1)
    rig.only(rig.connect("mover"), m.DriveMoves(next(rig.ids)), m.Driving)
    with pytest.raises(Conflict, match="Another"):
        rig.replies(peer, request.id)


def test_all_that_has_departed_is_listed_however_much_it_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsq.queue.moves.listing.LISTED", 2)
    submissions = [pair.source.submit(1) for _ in range(5)]
    first, held = pair.staged()
    first.commit(held)
    assert sum(pair.mover().recover()) == len(submissions)
    assert set(states(pair.target)) == set(submissions)


def test_all_that_an_earlier_mover_has_staged_is_dropped_however_much_it_is(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.queue.moves.listing.LISTED", 2)
    submissions = {pair.source.submit(1) for _ in range(5)}
    first = pair.mover()
    list(first.recover())
    first.copy(first.hold())
    assert pair.move().left == {}
    assert pair.calls.count("CancelMove") == 0  # nothing was in the way
    assert set(states(pair.target)) == submissions
    pair.check()


def test_what_is_activated_twice_at_once_is_counted_once(pair: Pair) -> None:
    submission = pair.source.submit(10)
    mover, held = pair.staged()
    mover.commit(held)
    target = pair.target
    peers = [target.connect(name) for name in ("first", "second")]
    requests = [m.ActivateMoved(next(target.ids), [submission, submission], mover.identity) for _ in peers]
    for peer, request in zip(peers, requests, strict=True):
        peer.uid = 0
        target.send(peer, request)
    pair.settle()
    answers = [target.replies(peer, request.id) for peer, request in zip(peers, requests, strict=True)]
    assert answers == [[m.Activated(requests[0].id, 1)], [m.Activated(requests[1].id, 0)]]
    assert target.status().states["open"] == 1


def test_run_after_a_lost_confirmation_succeeds_though_the_target_has_removed_it_since(pair: Pair) -> None:
    removed = pair.source.submit(1)
    first, held = pair.staged()
    first.commit(held)
    pair.kill_at = (len(pair.calls) + 1, "mover late")
    with pytest.raises(Killed):
        first.activate(held)
    pair.disconnect_mover(first)
    target = pair.target
    worker = target.connect("worker")
    [ticket] = target.reserve(worker, 1)
    target.complete(worker, ticket.held())
    target.fold()
    target.ask(target.connect(), m.Remove(next(target.ids), removed))
    pair.settle()
    other = pair.source.submit(3)
    second = pair.move()
    assert (second.left, second.unknown) == ({}, [removed])
    assert set(states(target)) == {other}
    assert pair.move().unknown == []
    pair.check()
