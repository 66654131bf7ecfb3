"""Submissions that move between two engines: what they are at the one, they are at the other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opsq.client.core.mover import check_pair
from opsq.errors import Conflict, Moved, NoRoom, StorageFull, UsageError
from opsq.wire import messages as m
from unit.queue.moves.pair import SHARD, Killed, Pair, states


def results_of(pair: Pair, submission_id: int) -> m.ResultRows:
    rig = pair.target
    return rig.only(rig.connect(), m.Results(next(rig.ids), submission_id, wait_s=0.0), m.ResultRows)


def test_worked_on_submission_moves_with_all_it_has(pair: Pair) -> None:
    rig = pair.source
    submission = rig.submit(
        300,
        metadata={"tenant": "a", "n": 7},
        keep_on_dead=True,
        content=b"parts",
        attachment=b"\x00\xff",
        priority=3,
        title="Nightly",
        max_attempts=2,
        unique_key="only",
        idempotency_key="once",
        weights={"tenant": 2.0},
        expires_s=1e6,
    )
    peer = rig.connect("worker")
    first, second, *_ = rig.reserve(peer, 130)
    rig.complete(peer, first.held([0, 1, 5]), results=msgspec.Raw(msgspec.msgpack.encode([b"a", b"\x00", b""])))
    rig.fail(peer, first.held([2]), is_final=True, reason="broken", exit_status=3)
    rig.fail(peer, first.held([3]), delay_s=100.0, reason="later")
    rig.fail(peer, first.held([4]), delay_s=0.0, reason="at once")
    rig.complete(peer, second.held())
    rig.fail(peer, first.held([7]), is_final=True)
    rig.only(peer, m.Drop(next(rig.ids), submission, [7]), m.Changed)
    rig.disconnect(peer)
    rig.fold()
    before = states(rig)[submission]
    here = rig.only(rig.connect(), m.History(next(rig.ids)), m.HistoryRows)
    mover = pair.move()
    assert mover.left == {}
    pair.settle()
    pair.check()
    assert states(rig) == {}
    after = states(pair.target)[submission]
    assert msgspec.structs.replace(after, expires_at=before.expires_at, delayed_count=1) == before
    attached = pair.target.only(pair.target.connect(), m.GetAttachment(1, submission), m.Attachment)
    assert attached.attachment == b"\x00\xff"
    [dead] = pair.target.only(pair.target.connect(), m.Dead(next(pair.target.ids)), m.DeadChunks).chunks
    assert (dead.index, dead.reason, dead.exit_status) == (2, "broken", 3)
    there = pair.target.only(pair.target.connect(), m.History(next(pair.target.ids)), m.HistoryRows)
    assert (here.shard, there.shard) == (0, SHARD), "each counts its events for itself"
    key = lambda row: (row.at, row.event, row.block, row.mask)  # noqa: E731
    assert sorted(map(key, there.rows)) == sorted(map(key, here.rows))
    rows = results_of(pair, submission)
    assert rows.content == b"parts"
    assert rows.completed[0] & 0b100011 == 0b100011
    handed = [index for ticket in pair.target.reserve(pair.target.connect("worker"), 500) for index in ticket.indexes]
    assert sorted(handed) == sorted(set(range(300)) - {0, 1, 2, 3, 5, 7} - set(second.indexes))


def test_back_off_goes_on_at_the_target(pair: Pair) -> None:
    rig = pair.source
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), delay_s=100.0)
    pair.target.pass_time(0, wall_s=3600)
    pair.move()
    taker = pair.target.connect()
    assert pair.target.reserve(taker) == []
    pair.target.advance(110)
    assert len(pair.target.reserve(taker)) == 1


def test_delayed_submission_opens_at_the_target(pair: Pair) -> None:
    submission = pair.source.submit(1, delay_s=100.0)
    pair.target.pass_time(0, wall_s=-3600)
    pair.move()
    assert states(pair.target)[submission].state == "scheduled"
    pair.target.advance(90)
    assert states(pair.target)[submission].state == "scheduled"
    pair.target.advance(20)
    assert states(pair.target)[submission].state == "open"


def test_reserved_chunks_are_waited_for_and_their_completions_come_along(pair: Pair) -> None:
    rig = pair.source
    submission = rig.submit(2)
    peer = rig.connect("worker")
    [ticket] = rig.reserve(peer)
    mover_peer = rig.connect("mover")
    rig.only(mover_peer, m.DriveMoves(next(rig.ids)), m.Driving)
    request = m.HoldForMove(next(rig.ids), wait_s=60.0)
    rig.send(mover_peer, request)
    rig.advance(1)
    assert rig.replies(mover_peer, request.id) == []
    assert rig.reserve(rig.connect()) == []
    assert rig.complete(peer, ticket.held()) == []
    rig.advance(1)
    [held] = rig.replies(mover_peer, request.id)
    assert isinstance(held, m.HeldForMove)
    assert held.submission_ids == [submission]
    rig.disconnect(mover_peer)
    rig.settle()
    pair.move()
    assert states(pair.target)[submission].completed_count == 1
    [ticket] = pair.target.reserve(pair.target.connect("worker"), 5)
    assert ticket.indexes == [1]


def test_reservations_are_revoked_when_the_wait_is_over(pair: Pair) -> None:
    rig = pair.source
    submission = rig.submit(2)
    peer, shell = rig.connect("worker"), rig.connect("shell")
    [held], [leased] = rig.reserve(peer), rig.reserve(shell, lease_s=1e6)
    pair.move()
    assert [push.code for push in rig.pushes(peer, m.Revoked)] == ["reservation_lost"]
    for one, ticket in ((peer, held), (shell, leased)):
        [refusal] = rig.complete(one, ticket.held())
        assert (refusal.code, refusal.cause) == ("reservation_lost", "moved")
    assert rig.rows("SELECT * FROM lease") == []
    assert len(pair.target.reserve(pair.target.connect(), 5)) >= 1
    assert states(pair.target)[submission].completed_count == 0
    pair.settle()
    pair.check()


def test_who_asks_the_source_is_told_where_it_is(pair: Pair) -> None:
    rig = pair.source
    new = m.NewSubmission(rig.request_key(), 2, idempotency_key="once")
    made = rig.only(rig.connect(), m.Submit(next(rig.ids), [new]), m.Submitted).created[0].submission_id
    waiter = rig.connect()
    wait = m.Wait(next(rig.ids), made)
    reading = m.Results(next(rig.ids), made, wait_s=None)
    rig.send(waiter, wait)
    rig.send(waiter, reading)
    pair.move()
    for waiting in (wait, reading):
        with pytest.raises(Moved) as caught:
            rig.replies(waiter, waiting.id)
        assert caught.value.details == {"submission_id": made, "shard": SHARD, "address": "there:7400"}
    for _ in range(2):
        for request in (
            m.Show(next(rig.ids), made),
            m.Cancel(next(rig.ids), made),
            m.Results(next(rig.ids), made),
            m.Wait(next(rig.ids), made),
            m.Requeue(next(rig.ids), made),
            m.ExplainWork(next(rig.ids), made),
            m.History(next(rig.ids), m.HistoryFilter(made)),
            m.Find(next(rig.ids), new.request_key),
            m.Find(next(rig.ids), None, "once"),
            m.Submit(next(rig.ids), [new]),
        ):
            with pytest.raises(Moved):
                rig.ask(rig.connect(), request)
        pair.settle()
        rig.crash()


def test_keys_are_held_at_the_target_from_the_first_slice_on(pair: Pair) -> None:
    rig, target = pair.source, pair.target
    made = rig.submit(2, unique_key="only", idempotency_key="once")
    pair.kill_at = (8, "mover")
    with pytest.raises(Killed):
        pair.move()
    assert pair.calls[5:8] == ["ExportSlice", "StageSlice", "CommitMove"]
    for again in (
        m.NewSubmission(target.request_key(), 1, unique_key="only"),
        m.NewSubmission(target.request_key(), 1, idempotency_key="once"),
    ):
        with pytest.raises(Conflict, match=f"{made}.*moving here"):
            target.ask(target.connect(), m.Submit(next(target.ids), [again]))
    find = m.Find(next(target.ids), idempotency_key="once")
    assert target.only(target.connect(), find, m.Found).submission_id == made
    assert states(target) == {}


def test_status_says_what_is_between_the_two(pair: Pair) -> None:
    pair.source.submit(2)
    pair.kill_at = (8, "mover late")
    with pytest.raises(Killed):
        pair.move()
    assert pair.calls[-1] == "CommitMove"
    assert (pair.source.status().departed_count, pair.target.status().arriving_count) == (1, 1)
    assert pair.source.reserve(pair.source.connect()) == pair.target.reserve(pair.target.connect()) == []
    for rig in (pair.source, pair.target):
        assert rig.status().total.submissions_count == 0
    pair.kill_at = None
    pair.move()
    assert (pair.source.status().departed_count, pair.target.status().arriving_count) == (0, 0)
    assert len(pair.target.reserve(pair.target.connect())) == 1


def test_unit_that_the_target_refuses_is_tried_with_others_and_alone_and_not_for_each_member(pair: Pair) -> None:
    kept = pair.source.submit(1, unique_key="only")
    waiting = [pair.source.submit(1, after=[m.Dependency(kept)]) for _ in range(5)]
    free = pair.source.submit(1)
    pair.target.submit(1, unique_key="only")
    mover = pair.move()
    assert set(mover.left) == {kept, *waiting}
    assert free in states(pair.target)
    assert pair.calls.count("CancelMove") == 4  # in each of two passes, of which the second finds no more to move
    pair.settle()
    pair.check()


def test_submission_whose_key_is_taken_at_the_target_stays_and_the_others_move(pair: Pair) -> None:
    kept, *others = (pair.source.submit(1, unique_key=key) for key in ("only", "free", None))
    pair.target.submit(1, unique_key="only")
    mover = pair.move()
    assert list(mover.left) == [kept]
    assert "cannot move" in mover.left[kept]
    assert set(states(pair.source)) == {kept}
    assert set(others) <= set(states(pair.target))
    assert len(pair.source.reserve(pair.source.connect())) == 1
    pair.settle()
    pair.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NoRoom("There is no room.")], ids=["interrupted", "no room"])
def test_what_is_staged_when_a_copy_ends_early_is_dropped(pair: Pair, error: BaseException) -> None:
    def fail() -> None:
        raise error

    def fail_with_the_next() -> None:
        pair.beside = (m.StageSlice, fail)

    submissions = {pair.source.submit(1) for _ in range(2)}
    pair.beside = (m.StageSlice, fail_with_the_next)
    with pytest.raises(type(error)):
        pair.move()
    assert len(pair.source.reserve(pair.source.connect(), 5)) == 2
    pair.settle()
    assert pair.calls.count("GiveUpMoved") == 1
    assert pair.target.rows("SELECT 1 FROM arriving") == []
    assert set(states(pair.source)) == submissions


def test_interrupt_is_raised_though_the_target_is_gone_when_what_is_staged_is_dropped(pair: Pair) -> None:
    def lose_target() -> None:
        raise Killed

    def interrupt() -> None:
        pair.beside = (m.GiveUpMoved, lose_target)
        raise KeyboardInterrupt

    pair.source.submit(1)
    pair.beside = (m.StageSlice, interrupt)
    with pytest.raises(KeyboardInterrupt):
        pair.move()
    assert pair.beside is None


def test_target_that_is_gone_when_what_it_refused_is_dropped_is_noticed(pair: Pair) -> None:
    def lose_target() -> None:
        raise Killed

    def refuse() -> None:
        pair.beside = (m.GiveUpMoved, lose_target)
        raise Conflict(cause="move_outdated")

    pair.source.submit(1)
    pair.beside = (m.CommitMove, refuse)
    with pytest.raises(Killed):
        pair.move(wait_s=0.0)


def test_commit_that_is_refused_for_want_of_room_frees_what_was_staged(pair: Pair) -> None:
    def refuse() -> None:
        raise StorageFull("The disk is full.")

    pair.source.submit(1)
    pair.beside = (m.CommitMove, refuse)
    with pytest.raises(StorageFull):
        pair.move()
    pair.settle()
    assert pair.target.rows("SELECT 1 FROM arriving") == []


def test_what_was_given_away_is_not_dropped_though_the_answer_was_interrupted(pair: Pair) -> None:
    submission = pair.source.submit(1)
    mover = pair.mover()

    def interrupt(request: object) -> None:
        if isinstance(request, m.CommitMove):
            raise KeyboardInterrupt

    pair.after_call = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(mover.run())
    pair.settle()
    assert list(pair.mover().recover()) == [1]
    assert set(states(pair.target)) == {submission}


def test_submission_of_which_the_target_never_clears_an_earlier_copy_is_left(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.client.core.mover.CLEARING_LIMIT_S", 0.0)
    left = pair.source.submit(1)
    first = pair.mover()
    list(first.recover())
    first.copy(first.hold())
    pair.target.engine._state.arriving.clear()  # what should never come about: so it is not removed
    mover = pair.move(wait_s=0.0)
    assert list(mover.left) == [left]
    assert "being processed" in mover.left[left]


def test_submissions_that_wait_for_each_other_move_together(pair: Pair) -> None:
    rig = pair.source
    first = rig.submit(1)
    members = [rig.submit(1, metadata={"batch": 7}) for _ in range(3)]
    after_first = rig.submit(1, after=[m.Dependency(first)])
    join = rig.submit(1, after=[m.Dependency(key="batch", value=7), m.Dependency(after_first, "ended")])
    pair.move()
    assert set(states(pair.target)) == {first, *members, after_first, join}
    target = pair.target
    peer = target.connect()
    for _ in range(2):
        assert states(target)[join].state == "blocked"
        for ticket in target.reserve(peer, 10):
            target.complete(peer, ticket.held())
    assert states(target)[join].state == "open"
    pair.settle()
    pair.check()


def test_what_has_ended_stays_unless_it_is_asked_for(pair: Pair) -> None:
    rig = pair.source
    ended, cancelled = rig.submit(1), rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held(), results=msgspec.Raw(msgspec.msgpack.encode([b"done"])))
    rig.ask(peer, m.Cancel(next(rig.ids), cancelled, "why not"))
    pair.move()
    assert set(states(rig)) == {ended, cancelled}
    pair.move(with_final=True)
    assert states(rig) == {}
    found = states(pair.target)
    assert {one: found[one].state for one in found} == {ended: "completed", cancelled: "cancelled"}
    assert found[cancelled].reason == "why not"
    assert bytes(results_of(pair, ended).rows[0].results) == msgspec.msgpack.encode([b"done"])
    pair.settle()
    pair.check()


def test_submission_comes_back_to_where_it_was(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    submission = pair.source.submit(3, metadata={"tenant": "a"})
    pair.move()
    pair.settle()
    pair.source, pair.target = pair.target, pair.source
    pair.move()
    assert set(states(pair.target)) == {submission}
    with pytest.raises(Moved):
        pair.source.show(submission)
    pair.settle()
    pair.check()
    assert len(pair.target.reserve(pair.target.connect(), 5)) == 1
    pair.close()


def test_submission_that_is_on_its_way_back_is_not_unknown(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    submission = pair.source.submit(1)
    pair.kill_at = (9, "mover late")
    mover = pair.mover()
    with pytest.raises(Killed):
        list(mover.run())
    assert pair.calls[-1] == "ActivateMoved"
    pair.disconnect_mover(mover)
    pair.kill_at = None
    pair.source, pair.target = pair.target, pair.source
    back, held = pair.staged()
    back.commit(held)
    pair.disconnect_mover(back)
    pair.source, pair.target = pair.target, pair.source
    assert pair.move().unknown == []
    assert states(pair.target) == {}
    pair.source, pair.target = pair.target, pair.source
    assert pair.move().unknown == []
    assert set(states(pair.target)) == {submission}
    pair.settle()
    pair.check()
    pair.close()


def test_cancelled_hold_frees_everything(pair: Pair) -> None:
    rig = pair.source
    rig.submit(1)
    peer = rig.connect()
    rig.only(peer, m.DriveMoves(next(rig.ids)), m.Driving)
    held = rig.only(peer, m.HoldForMove(next(rig.ids)), m.HeldForMove)
    assert rig.reserve(rig.connect()) == []
    with pytest.raises(Conflict, match="being moved"):
        rig.ask(rig.connect(), m.Cancel(next(rig.ids), held.submission_ids[0]))
    with pytest.raises(Conflict):
        rig.ask(rig.connect(), m.CommitMove(next(rig.ids), held.move, bytes(16), 1, "x"))
    assert rig.only(peer, m.CancelMove(next(rig.ids), held.move), m.Changed).count == 1
    assert len(rig.reserve(rig.connect())) == 1


def test_content_of_what_has_moved_is_not_removed_by_the_source(pair: Pair) -> None:
    pair.source.submit(3)
    pair.move()
    pair.settle()
    assert pair.source.rows("SELECT * FROM submission") == []
    assert pair.source.engine.removed_content == []


def test_malformed_slices_are_refused_and_end_nothing(pair: Pair) -> None:
    target = pair.target
    peer = target.connect()
    for content in (b"", b"\xc1", msgspec.msgpack.encode({"format": 9}), msgspec.msgpack.encode([1])):
        request = m.StageSlice(next(target.ids), bytes(16), bytes(16), 5, 0, content, False)
        with pytest.raises(UsageError):
            target.ask(peer, request)
    with pytest.raises(Conflict):
        target.ask(peer, m.StageSlice(next(target.ids), bytes(16), bytes(16), 5, 3, b"", False))
    request = m.ActivateMoved(next(target.ids), [5], bytes(16))
    target.send(peer, request)
    pair.settle()
    assert target.replies(peer, request.id) == [m.Activated(request.id, 0, [5])]


def test_daemons_that_could_make_the_same_ids_or_lose_some_or_have_other_stores_are_refused() -> None:
    from scripted import welcome

    def greeting(shard: int | None, marker: str = "m") -> m.Welcome:
        return msgspec.structs.replace(welcome(), shard=shard, store_marker=marker)

    check_pair(greeting(None), greeting(1))
    check_pair(greeting(0), greeting(1))
    for source, target in ((None, None), (None, 0), (3, 3)):
        with pytest.raises(UsageError):
            check_pair(greeting(source), greeting(target))
    weak = msgspec.structs.replace(greeting(1), is_durable=False)
    for source, target in ((weak, greeting(2)), (greeting(2), weak)):
        with pytest.raises(UsageError, match="power failure"):
            check_pair(source, target)
    with pytest.raises(UsageError, match="stores"):
        check_pair(greeting(0), greeting(1, "other"))
