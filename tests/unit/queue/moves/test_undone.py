"""What moves here shares a batch with what cannot be written, or is lost with its batch: it comes as if alone."""

from __future__ import annotations

import msgspec
import pytest

from opsq.errors import Bug, Conflict, StorageFull
from opsq.queue import folding
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Pair, states


def poison(rig: Rig) -> m.Submit:
    """A submission whose row SQLite cannot take; the types of the wire would have refused it."""
    return m.Submit(next(rig.ids), [m.NewSubmission(b"what is broken..", 1, not_before_at=1 << 63)])


def work(rig: Rig, submissions_count: int) -> list[int]:
    """Submissions of ten chunks, of each of which three were completed, one after another."""
    found = [rig.submit(10) for _ in range(submissions_count)]
    worker = rig.connect("worker")
    for ticket in rig.reserve(worker, 10 * submissions_count):
        for index in range(3):
            rig.complete(worker, ticket.held([index]))
    rig.disconnect(worker)
    return found


@pytest.mark.parametrize("crashes", [False, True])
def test_history_that_arrives_beside_what_cannot_be_written_is_numbered_as_it_is_folded(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    moving, target = work(pair.source, 2), pair.target
    own, worker = target.submit(10, request_key=b"the target's own"), target.connect("worker")
    [ticket] = target.reserve(worker, 10)
    mover, held = pair.holding()
    stager, slices = target.connect("mover"), []
    for one in moving:
        alone = msgspec.structs.replace(held, submission_ids=[one])
        header = mover.export(alone)
        mover.stage(alone, header)
        slices.append(mover.stage_request(alone, mover.export(alone, header.after), 1))
    broken = poison(target)
    completes = [m.Complete(next(target.ids), [m.Completion(ticket.held([index]))]) for index in range(2)]
    target.send(stager, slices[0])
    target.send(worker, completes[0])
    target.send(stager, broken)
    target.send(stager, slices[1])
    target.send(worker, completes[1])
    target.settle()
    with pytest.raises(Bug, match="OverflowError"):
        target.replies(stager, broken.id)
    assert [target.replies(stager, one.id) for one in slices] == [[m.Changed(one.id, 1)] for one in slices]
    assert [target.replies(worker, one.id) for one in completes] == [[m.Completed(one.id)] for one in completes]

    if crashes:  # between any two events
        monkeypatch.setattr(folding, "SLICE_EVENTS", 1)
        for _ in range(8):
            target.pass_time(11)
            target.tick()
            target.commit()
            target.crash()
            assert target.broken_rules() == []
        mover.reconnect_target()
    mover.commit(held)
    assert mover.activate(held) == 2
    pair.settle()
    pair.check()
    assert {one: state.completed_count for one, state in states(target).items()} == {moving[0]: 3, moving[1]: 3, own: 2}


def test_mover_is_admitted_beside_what_cannot_be_written(pair: Pair) -> None:
    target, identity = pair.target, bytes(16)
    peer = target.connect("mover")
    first, second = (m.AdmitMover(next(target.ids), identity, number) for number in (1, 2))
    target.send(peer, first)
    target.send(peer, second)
    target.send(peer, poison(target))
    target.settle()
    assert [reply.driver for one in (first, second) for reply in target.replies(peer, one.id)] == [1, 2]


def test_mover_whose_admission_was_lost_with_its_batch_is_admitted_when_it_asks_again(pair: Pair) -> None:
    target, identity = pair.target, bytes(16)
    peer = target.connect("mover")
    target.only(peer, m.AdmitMover(next(target.ids), identity, 1), m.Driving)
    request = m.AdmitMover(next(target.ids), identity, 2)
    target.send(peer, request)
    target.fail_commit()
    with pytest.raises(StorageFull):
        target.replies(peer, request.id)
    target.advance(2)
    assert target.only(peer, request, m.Driving).driver == 2
    with pytest.raises(Conflict, match="Another"):
        target.ask(peer, m.AdmitMover(next(target.ids), identity, 1))
