"""Copies that have come to the target and are not active there: whom they keep from their keys."""

from __future__ import annotations

import pytest

from opsq.errors import Conflict
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Pair

KEYS: tuple[dict[str, str], ...] = ({"unique_key": "nightly"}, {"idempotency_key": "once"}, {})
NAMES = ["unique", "idempotency", "request"]


@pytest.mark.parametrize("keys", KEYS, ids=NAMES)
def test_submit_whose_key_belongs_to_an_arriving_copy_is_refused_until_that_is_active(
    pair: Pair, keys: dict[str, str]
) -> None:
    first = m.NewSubmission(b"first request...", 3, **keys)
    again = m.NewSubmission(b"another request." if keys else first.request_key, 3, **keys)
    submission = submit(pair.source, first).submission_id
    mover, held = pair.staged()
    target = pair.target
    with pytest.raises(Conflict, match="moving here"):
        submit(target, again)
    with pytest.raises(Conflict, match="moving here"):
        target.ask(target.connect(), m.CheckCapacity(next(target.ids), 3, submission=again))
    mover.commit(held)
    mover.activate(held)
    assert submit(target, again) == m.Created(submission, False)


@pytest.mark.parametrize("keys", KEYS, ids=NAMES)
def test_keys_of_a_copy_that_was_dropped_are_free_once_it_is_gone(pair: Pair, keys: dict[str, str]) -> None:
    new = m.NewSubmission(b"first request...", 3, **keys)
    submission = submit(pair.source, new).submission_id
    mover, held = pair.staged()
    mover.drop(held)
    target = pair.target
    with pytest.raises(Conflict, match="being processed"):
        submit(target, new)
    pair.settle()
    created = submit(target, new)
    assert created.is_new
    assert created.submission_id != submission


def test_status_counts_what_arrives_by_its_source(pair: Pair) -> None:
    pair.source.submit(1)
    mover, _ = pair.staged()
    assert pair.target.status().arriving_from == [m.ArrivingState(mover.identity, 1, 1, "here:7400")]
    assert pair.source.status().arriving_from == []


def test_incomplete_copies_of_a_source_that_is_gone_are_dropped_and_their_keys_are_free(pair: Pair) -> None:
    new = m.NewSubmission(b"first request...", 70, idempotency_key="once", unique_key="nightly")
    submission = submit(pair.source, new).submission_id
    worker = pair.source.connect("worker")
    [ticket] = pair.source.reserve(worker, 1)
    pair.source.complete(worker, ticket.held())
    pair.source.fold()
    mover, held = pair.holding()
    part = mover.export(held)
    assert part.after is not None
    mover.stage(held, part)
    target = pair.target
    assert target.status().arriving_from == [m.ArrivingState(mover.identity, 1, 0, "here:7400")]
    assert give_up(target, mover.identity) == (1, 0)
    pair.settle()
    assert target.status().arriving_from == []
    assert target.rows("SELECT * FROM arriving") == []
    created = submit(target, new)
    assert created.is_new
    assert created.submission_id != submission
    pair.check()


def test_complete_copies_are_dropped_only_when_that_is_asked_for(pair: Pair) -> None:
    submission = pair.source.submit(1)
    mover, held = pair.staged()
    mover.commit(held)
    target = pair.target
    assert give_up(target, bytes(16), with_complete=True) == (0, 0)
    assert give_up(target, mover.identity) == (0, 1)
    assert target.status().arriving_count == 1
    assert give_up(target, mover.identity, with_complete=True) == (1, 0)
    pair.settle()
    assert target.rows("SELECT * FROM submission") == []
    assert target.engine.removed_content == []
    again = pair.move()
    assert (again.left, again.unknown) == ({}, [submission])
    pair.check()


def test_copy_that_was_dropped_on_its_way_back_is_unknown_where_it_once_moved_from(pair: Pair) -> None:
    submission = pair.source.submit(1)
    pair.move()
    pair.settle()
    pair.source, pair.target = pair.target, pair.source
    mover, held = pair.staged()
    mover.commit(held)
    assert give_up(pair.target, mover.identity, with_complete=True) == (1, 0)
    pair.settle()
    assert pair.move().unknown == [submission]
    pair.check()


def test_copy_whose_last_slice_is_being_committed_is_not_dropped(pair: Pair) -> None:
    pair.source.submit(1)
    mover, held = pair.holding()
    part = mover.export(held)
    target = pair.target
    stager, operator = target.connect("mover"), target.connect()
    stage = mover.stage_request(held, part)
    request = m.GiveUpSource(next(target.ids), mover.identity, True)
    target.send(stager, stage)
    target.send(operator, request)
    target.settle()
    assert target.replies(operator, request.id) == [m.SourceGivenUp(request.id, 0, 0)]
    mover.commit(held)
    assert mover.activate(held) == 1


def give_up(rig: Rig, source: bytes, *, with_complete: bool = False) -> tuple[int, int]:
    request = m.GiveUpSource(next(rig.ids), source, with_complete)
    answer = rig.only(rig.connect(), request, m.SourceGivenUp)
    return answer.count, answer.left_count


def submit(rig: Rig, new: m.NewSubmission) -> m.Created:
    [created] = rig.only(rig.connect(), m.Submit(next(rig.ids), [new]), m.Submitted).created
    return created
