"""Submissions that wait for a pair, part of which is elsewhere: they are told of its end where they come together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Pair, states


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.target.keys = itertools.count(1000)  # other ones than at the source
    yield pair
    pair.close()


def work_off(rig: Rig) -> None:
    peer = rig.connect("worker")
    for ticket in rig.reserve(peer, 10):
        rig.complete(peer, ticket.held())
    rig.disconnect(peer)


def test_those_who_wait_for_a_pair_are_told_when_what_has_it_has_ended_at_the_target(pair: Pair) -> None:
    target = pair.target
    target.submit(1, metadata={"batch": 1})
    work_off(target)
    waiting = pair.source.submit(1, after=[m.Dependency(key="batch", value=1)])
    assert pair.move().left == {}
    pair.settle()
    assert states(target)[waiting].state == "open"
    pair.check()


def test_those_who_wait_at_the_target_are_told_when_what_has_ended_comes_there(pair: Pair) -> None:
    source, target = pair.source, pair.target
    waiting = target.submit(1, after=[m.Dependency(key="batch", value=1)])
    source.submit(1, metadata={"batch": 1})
    work_off(source)
    assert pair.move(with_final=True).left == {}
    pair.settle()
    assert states(target)[waiting].state == "open"
    pair.check()


def test_those_who_wait_on_for_what_has_ended_while_it_was_held_move_with_it(pair: Pair) -> None:
    source, target = pair.source, pair.target
    expiring = source.submit(1, expires_s=1.0)
    waiting = source.submit(1, after=[m.Dependency(expiring)], on_failed_dependency="keep")
    source.reserve(source.connect("worker"))
    assert pair.move().left == {}
    pair.settle()
    assert {one: state.state for one, state in states(target).items()} == {expiring: "expired", waiting: "blocked"}
    target.ask(target.connect(), m.Requeue(next(target.ids), expiring))
    pair.settle()
    work_off(target)
    assert states(target)[waiting].state == "open"
    pair.check()


def test_what_has_ended_moves_with_those_who_wait_on_for_it_and_nothing_else_that_has_ended(pair: Pair) -> None:
    source, target = pair.source, pair.target
    failed = source.submit(1, max_attempts=1)
    waiting = source.submit(1, after=[m.Dependency(failed)], on_failed_dependency="keep")
    worker, mover = source.connect("worker"), source.connect("mover")
    [ticket] = source.reserve(worker)
    source.ask(worker, m.Fail(next(source.ids), [m.Failure(ticket.held())]))
    source.fold()
    assert states(source)[failed].state == "failed"
    ending = source.submit(1)
    [ticket] = source.reserve(worker)
    source.only(mover, m.DriveMoves(next(source.ids)), m.Driving)
    request = m.HoldForMove(next(source.ids), wait_s=60.0)
    source.send(mover, request)
    source.complete(worker, ticket.held())
    source.advance(1)
    [held] = source.replies(mover, request.id)
    assert isinstance(held, m.HeldForMove)
    assert held.submission_ids == [failed, waiting]
    source.disconnect(mover)
    source.settle()
    assert pair.move().left == {}
    assert set(states(source)) == {ending}
    assert set(states(target)) == {failed, waiting}
    pair.check()


def test_one_that_comes_during_a_move_to_wait_for_what_moves_is_moved_with_it(pair: Pair) -> None:
    source, target = pair.source, pair.target
    awaited = source.submit(1)
    new = m.NewSubmission(source.request_key(), 1, after=[m.Dependency(awaited)])
    pair.beside = (m.CommitMove, lambda: source.send(source.connect(), m.Submit(next(source.ids), [new])))
    assert pair.move().left == {}
    assert states(source) == {}
    assert sorted(state.state for state in states(target).values()) == ["blocked", "open"]
    pair.check()


def test_one_whose_wait_is_over_while_it_is_copied_moves_as_it_is_then(pair: Pair) -> None:
    source, target = pair.source, pair.target
    waiting = source.submit(1, after=[m.Dependency(key="batch", value=1)])

    def end_what_it_waits_for() -> None:
        ended = source.submit(1, metadata={"batch": 1})
        work_off(source)
        assert states(source)[ended].state == "completed"

    pair.beside = (m.StageSlice, end_what_it_waits_for)
    assert pair.move().left == {}
    assert states(target)[waiting].state == "open"
    pair.settle()
    pair.check()


def test_one_moves_with_what_has_come_during_the_move_and_has_the_pair_that_it_waits_for(pair: Pair) -> None:
    source, target = pair.source, pair.target
    waiting = source.submit(1, after=[m.Dependency(key="batch", value=1)])
    new = m.NewSubmission(source.request_key(), 1, metadata={"batch": 1})
    pair.beside = (m.CommitMove, lambda: source.send(source.connect(), m.Submit(next(source.ids), [new])))
    mover = pair.mover()
    assert list(mover.run()) == [2]
    assert mover.left == {}
    work_off(target)
    assert states(target)[waiting].state == "open"
    pair.check()
