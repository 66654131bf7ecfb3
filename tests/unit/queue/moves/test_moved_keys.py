"""Keys of submissions that have moved: who knows them, and what is said of them where they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import Moved, NoRoom
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import SHARD, WAIT_S, Pair, RigCaller, states

OTHER = b"another request!"


def asked(rig: Rig, **key: str) -> m.Capacity:
    """What a daemon says of a key before anything is submitted."""
    request = m.CheckCapacity(next(rig.ids), 1, submission=m.NewSubmission(OTHER, 1, **key))  # type: ignore[arg-type]
    return rig.only(rig.connect(), request, m.Capacity)


def submitted(rig: Rig, request_key: bytes, **key: str) -> m.Created:
    request = m.Submit(next(rig.ids), [m.NewSubmission(request_key, 1, **key)])  # type: ignore[arg-type]
    return rig.only(rig.connect(), request, m.Submitted).created[0]


def finish(rig: Rig, submission_id: int) -> None:
    """Have a submission end, and remove it."""
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), submission_id))
    rig.ask(rig.connect(), m.Remove(next(rig.ids), submission_id))


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


@pytest.mark.parametrize("is_drained", [True, False])
def test_source_says_where_the_holder_of_a_unique_key_went_though_it_takes_nothing_new(
    pair: Pair, is_drained: bool
) -> None:
    source = pair.source
    made = source.submit(1, unique_key="only")
    source.submit(1)
    if is_drained:
        drain(source)
    pair.move()
    for _ in range(2):
        found = asked(source, unique_key="only")
        assert (found.submission_id, found.moved_to) == (None, SHARD)
        assert asked(pair.target, unique_key="only").submission_id == made
        pair.settle()
        source.crash()


def test_source_says_where_the_holder_of_a_unique_key_went_though_it_has_no_room(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Policy(max_backlog_chunks=1))
    pair.source.submit(1, unique_key="only")
    pair.move()
    pair.source.submit(1)
    with pytest.raises(NoRoom):
        asked(pair.source, unique_key="another")
    assert asked(pair.source, unique_key="only").moved_to == SHARD
    pair.close()


def test_unique_key_that_was_free_before_the_move_is_not_looked_for_elsewhere(pair: Pair) -> None:
    pair.source.submit(2, unique_key="only", unique_until_start=True)
    peer = pair.source.connect()
    assert pair.source.reserve(peer)
    pair.source.disconnect(peer)
    pair.move()
    assert asked(pair.source, unique_key="only").moved_to is None


def test_unique_key_that_was_used_again_where_it_was_is_looked_for_nowhere_else(pair: Pair) -> None:
    pair.source.submit(1, unique_key="only")
    pair.move()
    again = submitted(pair.source, OTHER, unique_key="only")
    assert again.is_new
    finish(pair.source, again.submission_id)
    assert asked(pair.source, unique_key="only").moved_to is None


def test_target_names_the_shard_that_made_what_it_has_as_long_as_it_has_any(pair: Pair) -> None:
    assert (pair.source.engine.makers, pair.target.engine.makers) == ([], [])
    made = pair.source.submit(1, unique_key="only")
    pair.target.submit(1, request_key=OTHER)
    pair.move()
    for _ in range(2):
        assert (pair.source.engine.makers, pair.target.engine.makers) == ([], [0])
        assert asked(pair.target).makers == [0]
        pair.settle()
        pair.target.crash()
    finish(pair.target, made)
    pair.settle()
    pair.target.crash()
    assert pair.target.engine.makers == []


@pytest.mark.parametrize("name", ["idempotency_key", "unique_key"])
def test_key_that_comes_back_with_another_submission_is_known_where_it_was_first(pair: Pair, name: str) -> None:
    key = {name: "k"}
    first = pair.source.submit(1, request_key=b"the first of all", **key)
    pair.move()
    pair.settle()
    finish(pair.target, first)
    pair.settle()
    second = submitted(pair.target, OTHER, **key)
    assert second.is_new
    pair.source, pair.target = pair.target, pair.source
    pair.move()
    again = submitted(pair.target, b"a third request!", **key)
    assert again == m.Created(second.submission_id, False)
    pair.settle()
    pair.check()


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
