"""What the target keeps of submissions that are moving there, and what becomes of it."""

from __future__ import annotations

import msgspec
import pytest

from opsq.errors import Conflict
from opsq.wire import messages as m
from unit.queue.moves.pair import Pair, states

OTHER = b"another request!"


def history_of(pair: Pair, submission_id: int) -> list[tuple[object, ...]]:
    """What both tables of the target's history have."""
    return pair.target.rows("SELECT seq FROM history WHERE submission_id = ?", submission_id) + pair.target.rows(
        "SELECT seq FROM history_block WHERE submission_id = ?", submission_id
    )


# --- unique keys ---


def test_unique_key_is_taken_from_the_request_that_stages_its_submission(pair: Pair) -> None:
    submission = pair.source.submit(10, unique_key="k")
    mover, held = pair.holding()
    part = mover.export(held)
    target = pair.target
    stager, submitter = target.connect("mover"), target.connect()
    stage, submit = (
        mover.stage_request(held, part),
        m.Submit(next(target.ids), [m.NewSubmission(OTHER, 3, unique_key="k")]),
    )
    target.send(stager, stage)
    with pytest.raises(Conflict, match="moving here"):
        target.send(submitter, submit)
    target.settle()
    assert target.replies(stager, stage.id) == [m.Changed(stage.id, 1)]
    mover.commit(held)
    assert mover.activate(held) == 1
    assert set(states(target)) == {submission}
    pair.settle()
    pair.check()


def test_unique_key_is_free_when_its_submission_was_given_up(pair: Pair) -> None:
    pair.source.submit(10, unique_key="k")
    mover, held = pair.staged()
    mover.drop(held)
    assert pair.target.submit(1, request_key=OTHER, unique_key="k") in states(pair.target)


@pytest.mark.parametrize("stages_first", [True, False])
def test_idempotency_key_makes_one_submission_though_another_with_it_is_staged_at_once(
    pair: Pair, stages_first: bool
) -> None:
    pair.source.submit(10, idempotency_key="i")
    mover, held = pair.holding()
    target = pair.target
    stage = mover.stage_request(held, mover.export(held))
    submit = m.Submit(next(target.ids), [m.NewSubmission(OTHER, 3, idempotency_key="i")])
    peer = target.connect("mover")
    first, second = (stage, submit) if stages_first else (submit, stage)
    target.send(peer, first)
    with pytest.raises(Conflict):
        target.send(peer, second)
    target.settle()
    assert len(target.replies(peer, first.id)) == 1
    assert len(target.rows("SELECT id FROM submission")) == 1
    pair.check()


@pytest.mark.parametrize("source", [None, bytes(16)], ids=["same source", "another source"])
def test_copy_is_not_dropped_for_that_of_another_move(pair: Pair, source: bytes | None) -> None:
    submission = pair.source.submit(10)
    mover, held = pair.holding()
    part = mover.export(held)
    mover.stage(held, part)
    target = pair.target
    other = msgspec.structs.replace(mover.stage_request(held, part), move=bytes(16))
    if source is not None:
        other = msgspec.structs.replace(other, source=source, driver=0)
    with pytest.raises(Conflict, match="already"):
        target.ask(target.connect("mover"), other)
    mover.commit(held)
    assert mover.activate(held) == 1
    assert set(states(target)) == {submission}
    pair.check()


# --- what is kept ---


def test_content_and_attachment_are_kept_once_and_arrive(pair: Pair) -> None:
    content, attachment = b"c" * 60_000, b"a" * 1_000_000
    submission = pair.source.submit(1, content=content, attachment=attachment)
    mover, held = pair.staged()
    target = pair.target
    [(header_bytes,)] = target.rows("SELECT length(header) FROM arriving")
    assert header_bytes < 2_000
    mover.commit(held)
    mover.activate(held)
    assert target.rows("SELECT content, attachment FROM submission WHERE id = ?", submission) == [(content, attachment)]
    pair.check()


# --- what is given up ---


@pytest.mark.parametrize("restarts", [False, True])
def test_given_up_submission_takes_its_history_with_it(pair: Pair, restarts: bool) -> None:
    rig = pair.source
    submission = rig.submit(10)
    peer = rig.connect("worker")
    [ticket] = rig.reserve(peer, 3)
    rig.complete(peer, ticket.held())
    rig.disconnect(peer)
    mover, held = pair.staged()
    mover.drop(held)
    if restarts:
        pair.target.crash()
    pair.target.submit(1, request_key=OTHER)
    pair.settle()
    assert pair.target.rows("SELECT 1 FROM arriving") == []
    assert history_of(pair, submission) == []
    pair.move()
    pair.settle()
    rows = pair.target.only(pair.target.connect(), m.History(next(pair.target.ids)), m.HistoryRows).rows
    assert [row.event for row in rows if row.submission_id == submission] == ["completed"]
    pair.check()


def test_given_up_submission_is_removed_after_a_restart_of_which_the_first_commit_fails(pair: Pair) -> None:
    pair.source.submit(10, unique_key="k")
    mover, held = pair.staged()
    mover.drop(held)
    target = pair.target
    target.crash()
    target.tick()
    target.fail_commit()
    pair.settle()
    assert target.rows("SELECT 1 FROM arriving") == []
    assert target.submit(1, request_key=OTHER, unique_key="k") in states(target)


def test_slice_that_is_sent_twice_at_once_is_kept_once(pair: Pair) -> None:
    pair.source.submit(10)
    mover, held = pair.holding()
    part = mover.export(held)
    target = pair.target
    peer = target.connect("mover")
    first, second = (mover.stage_request(held, part) for _ in range(2))
    target.send(peer, first)
    with pytest.raises(Conflict, match="moment"):
        target.send(peer, second)
    target.settle()
    assert target.replies(peer, first.id) == [m.Changed(first.id, 1)]
    assert target.only(peer, second, m.Changed).count == 0
