"""Keys of submissions that have moved: who knows them, and what is said of them where they were."""

from __future__ import annotations

import pytest

from opsq.errors import Moved
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import WAIT_S, Pair, RigCaller, states

OTHER = b"another request!"


def submitted(rig: Rig, request_key: bytes, **key: str) -> m.Created:
    request = m.Submit(next(rig.ids), [m.NewSubmission(request_key, 1, **key)])  # type: ignore[arg-type]
    return rig.only(rig.connect(), request, m.Submitted).created[0]


def move_behind(pair: Pair, submission_id: int) -> int:
    """Move the submission that was made next, alone."""
    mover = pair.mover()
    list(mover.recover())
    source = mover._source
    assert isinstance(source, RigCaller)
    held = source.call(m.HoldForMove(source.next_id(), submission_id, 1, WAIT_S), m.HeldForMove)
    mover.copy(held)
    mover.commit(held)
    assert mover.activate(held) == 1
    [moved] = held.submission_ids
    return moved


def drain(rig: Rig, *, undone: bool = False) -> None:
    rig.only(rig.connect(), m.Drain(next(rig.ids), undone), m.Changed)


def test_chunk_whose_follow_up_has_a_key_that_has_moved_is_completed(pair: Pair) -> None:
    source = pair.source
    parent = source.submit(2)
    peer = source.connect()
    first, second = (ticket for _ in range(2) for ticket in source.reserve(peer, 1))
    follow_up = m.NewSubmission(source.request_key(), 1, idempotency_key="once")
    [made] = source.follow(peer, first.held(), follow_up).created
    assert move_behind(pair, parent) == made.submission_id
    again = m.NewSubmission(source.request_key(), 1, idempotency_key="once")
    reply = source.follow(peer, second.held(), again)
    assert (reply.refusals, reply.created) == ([], [m.Created(made.submission_id, False)])
    assert source.show(parent).state == "completed"
    assert set(states(pair.target)) == {made.submission_id}


def test_completion_that_is_sent_again_after_its_follow_up_has_moved_is_answered_as_before(pair: Pair) -> None:
    source = pair.source
    parent = source.submit(2)
    peer = source.connect()
    [ticket] = source.reserve(peer, 1)
    follow_up = m.NewSubmission(source.request_key(), 1)
    [made] = source.follow(peer, ticket.held(), follow_up).created
    assert move_behind(pair, parent) == made.submission_id
    assert source.follow(peer, ticket.held(), follow_up).refusals == []


def test_backfill_does_not_make_again_what_has_moved(pair: Pair) -> None:
    source = pair.source
    new = m.Schedule("nightly", "every 1h", m.NewSubmission(bytes(16), 1), overlap="allow")
    source.only(source.connect(), m.PutSchedule(next(source.ids), new), m.Changed)
    began = source.now.wall
    source.advance(2 * 3600 + 1)
    made = set(states(source))
    assert len(made) == 2
    drain(source)
    pair.move()
    drain(source, undone=True)
    source.advance(3600)
    [last] = states(source)
    request = m.BackfillSchedule(next(source.ids), "nightly", began + 1, began + 2 * 3600 * 1000 + 1)
    created = source.only(source.connect(), request, m.Submitted).created
    assert {one.submission_id for one in created} == made
    assert not any(one.is_new for one in created)
    assert set(states(source)) == {last}
    [schedule] = source.only(source.connect(), m.ShowSchedules(next(source.ids), "nightly"), m.Schedules).schedules
    assert (schedule.last_submission_id, schedule.last_state) == (last, "open")
    pair.settle()
    pair.check()


def test_request_that_has_moved_is_refused_where_it_was(pair: Pair) -> None:
    source = pair.source
    made = source.submit(1, request_key=OTHER)
    pair.move()
    with pytest.raises(Moved, match=str(made)):
        submitted(source, OTHER)
