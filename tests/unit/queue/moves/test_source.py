"""What the source holds back: nothing of it is handed out, and nothing about it is left untold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import pytest

from opsq.errors import Conflict
from opsq.queue.batch import nothing_to_undo
from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.moves.pair import Pair, states


@contextmanager
def counted_steps(connection: apsw.Connection) -> Iterator[list[int]]:
    """How many steps SQLite's machine takes for a connection, in a list of one."""
    count = [0]

    def note(event: dict[str, Any]) -> None:
        count[0] += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    yield count
    connection.trace_v2(0)


def complete_one(rig: Rig) -> None:
    peer = rig.connect("worker")
    [ticket] = rig.reserve(peer, 1)
    rig.complete(peer, ticket.held())
    rig.disconnect(peer)


def test_held_submissions_stay_in_memory_when_others_are_loaded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = pair.source
    submissions = [rig.submit(3) for _ in range(60)]
    rig.fold()
    rig.restart()
    monkeypatch.setattr("opsq.queue.state.SUBMISSIONS_KEPT", 20)
    for one in (submissions[0], *submissions[41:]):
        rig.show(one)
        rig.engine._state.submission(one)
    mover = pair.mover()
    list(mover.recover())
    held = mover.hold(limit=30)
    assert submissions[0] in held.submission_ids
    handed = {ticket.submission_id for ticket in rig.reserve_now(rig.connect("worker"), 500)}
    assert handed.isdisjoint(held.submission_ids)


def test_those_who_wait_are_told_of_an_end_before_they_move(pair: Pair) -> None:
    rig = pair.source
    crowd_waits_for, last_waits_for = rig.submit(1), rig.submit(1)
    for _ in range(200):
        rig.submit(1, after=[m.Dependency(crowd_waits_for)])
    last = rig.submit(1, after=[m.Dependency(last_waits_for)])
    mover, peer = rig.connect("mover"), rig.connect("worker")
    rig.only(mover, m.DriveMoves(next(rig.ids)), m.Driving)
    for ticket in rig.reserve(peer, 2):
        rig.complete(peer, ticket.held())
    assert rig.rows("SELECT * FROM dependency_due")
    request = m.HoldForMove(next(rig.ids), limit=1000)
    rig.send(mover, request)
    replies: list[m.Reply] = []
    for _ in range(100):
        rig.pass_time(0.05)
        rig.settle()
        replies = replies or rig.replies(mover, request.id)
        if replies:
            break
        rig.tick()
    [held] = replies
    assert isinstance(held, m.HeldForMove)
    assert last in held.submission_ids
    assert rig.rows("SELECT * FROM dependency_due") == []
    rig.disconnect(mover)
    rig.settle()
    pair.move()
    assert states(pair.target)[last].state == "open"
    pair.settle()
    pair.check()


def test_what_has_ended_is_neither_removed_nor_pruned_while_it_is_held(pair: Pair) -> None:
    rig = pair.source
    ended = rig.submit(1)
    complete_one(rig)
    rig.submit(2)
    rig.reserve(rig.connect("worker"), 1)
    peer = rig.connect("mover")
    rig.only(peer, m.DriveMoves(next(rig.ids)), m.Driving)
    request = m.HoldForMove(next(rig.ids), wait_s=1e7, with_final=True)
    rig.send(peer, request)
    rig.advance(1)
    with pytest.raises(Conflict, match="being moved"):
        rig.ask(rig.connect(), m.Remove(next(rig.ids), ended))
    rig.pass_time(5e6)
    rig.advance(100)
    assert rig.rows("SELECT state FROM submission WHERE id = ?", ended) == [("completed",)]
    rig.disconnect(peer)
    rig.settle()
    rig.ask(rig.connect(), m.Remove(next(rig.ids), ended))
    assert ended not in states(rig)


def test_what_another_request_is_just_ending_moves_in_the_same_run(pair: Pair) -> None:
    rig = pair.source
    ending = rig.submit(2)
    pair.beside = (m.HoldForMove, lambda: rig.send(rig.connect(), m.Cancel(next(rig.ids), ending)))
    mover = pair.move(with_final=True)
    assert (pair.beside, mover.left) == (None, {})
    assert states(rig) == {}
    assert states(pair.target)[ending].state == "cancelled"


@pytest.mark.parametrize("is_at_rest", [True, False], ids=["at rest when it begins", "later"])
def test_hold_is_answered_though_its_batch_is_undone_for_another_request(pair: Pair, is_at_rest: bool) -> None:
    def refuse(*_: object) -> None:
        raise Conflict(cause="finalizing", submission_id=1)

    rig = pair.source
    submission = rig.submit(2)
    worker, mover = rig.connect("worker"), rig.connect("mover")
    [ticket] = rig.reserve(worker)
    rig.only(mover, m.DriveMoves(next(rig.ids)), m.Driving)
    if is_at_rest:
        rig.complete(worker, ticket.held())
    request = m.HoldForMove(next(rig.ids), wait_s=60.0)
    rig.pass_time(1)
    rig.send(mover, request)
    if not is_at_rest:
        rig.complete(worker, ticket.held())
        rig.pass_time(1)
        rig.tick()
    rig.engine._state.batch.add(nothing_to_undo, nothing_to_undo, refuse)
    rig.settle()
    rig.advance(2)
    [held] = rig.replies(mover, request.id)
    assert isinstance(held, m.HeldForMove)
    assert held.submission_ids == [submission]


def test_what_other_requests_keep_changing_is_left_when_patience_ends(pair: Pair) -> None:
    rig = pair.source
    busy, other = rig.submit(1), rig.submit(1)
    live = rig.engine._state.submission(busy)
    assert live is not None
    live.is_closing = True
    mover = pair.move(wait_s=0.0)
    assert mover.left == {busy: "Other requests kept changing it."}
    assert set(states(pair.target)) == {other}
    live.is_closing = False
    assert pair.move().left == {}
    assert set(states(pair.target)) == {busy, other}


def test_look_at_very_many_that_wait_for_one_is_short_and_each_is_named_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.store.move_units.UNIT_LIMIT", 50)
    monkeypatch.setattr("opsq.queue.moves.source.LOOK_ROWS", 600)
    rig = pair.source
    small = rig.submit(1)
    hub = rig.submit(1)
    waiting = [rig.submit(1, after=[m.Dependency(hub)]) for _ in range(400)]
    last = rig.submit(1)
    peer = rig.connect("mover")
    rig.only(peer, m.DriveMoves(next(rig.ids)), m.Driving)
    held: list[int] = []
    left: list[int] = []
    steps: list[int] = []
    after: int | None = 0
    while after is not None:
        with counted_steps(rig.database.reader) as count:
            request = m.HoldForMove(next(rig.ids), after)
            rig.send(peer, request)
        steps.append(count[0])
        rig.pass_time(1)
        rig.tick()
        rig.settle()
        [reply] = rig.replies(peer, request.id)
        assert isinstance(reply, m.HeldForMove)
        held += reply.submission_ids
        left += reply.left
        after = reply.next_after
    assert held == [small, last]
    assert left == [hub, *waiting]
    assert max(steps) < 8_000


def test_group_that_became_small_enough_moves_with_the_next_pass(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsq.store.move_units.UNIT_LIMIT", 3)
    rig = pair.source
    hub = rig.submit(1)
    waiting = [rig.submit(1, after=[m.Dependency(hub)]) for _ in range(3)]
    assert set(pair.move().left) == {hub, *waiting}
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), waiting[0]))
    assert pair.move().left == {}
    assert set(states(pair.target)) == {hub, *waiting[1:]}


def test_submission_of_which_memory_has_another_copy_is_not_given_away(pair: Pair) -> None:
    submission = pair.source.submit(3)
    mover, held = pair.staged()
    state = pair.source.engine._state
    del state.live[submission]  # what a pin should prevent: chunks of the copy that is loaded next are handed out
    assert state.submission(submission) is not None
    with pytest.raises(Conflict, match="not held"):
        mover.commit(held)
    assert set(states(pair.source)) == {submission}
