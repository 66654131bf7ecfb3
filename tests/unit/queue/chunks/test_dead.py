"""Dead letters by what is known of them.

Listed, requeued and dropped, in slices that bound what one batch and one page touch.
"""

from __future__ import annotations

import pytest

from opsq.errors import Conflict, NotFound, StorageFull, UsageError
from opsq.queue.chunks import dead as dead_chunks
from opsq.store import dead
from opsq.wire import messages as m
from unit.model.rig import Rig

Filter = m.DeadFilter
ALL = m.DeadFilter()


def kill(rig: Rig, submission_id: int, *indexes: int, **failure: object) -> None:
    """Have these chunks of a submission die."""
    peer = rig.connect()
    tickets = rig.reserve(peer, 100_000, f"SelectOnly(submission={submission_id}, OldestFirst)")
    for ticket in tickets:
        mine = [index for index in ticket.indexes if index in indexes]
        if mine:
            rig.fail(peer, ticket.held(mine), is_final=True, **failure)
        rest = [index for index in ticket.indexes if index not in indexes]
        if rest and rig.show(submission_id).state == "open":
            rig.release(peer, ticket.held(rest))


def listed(rig: Rig, where: Filter, limit: int = 1000) -> list[tuple[int, int]]:
    """The dead chunks that fulfil conditions, page after page."""
    found: list[tuple[int, int]] = []
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        page = rig.only(rig.connect(), m.Dead(next(rig.ids), None, after, limit, where), m.DeadChunks)
        found += [(chunk.submission_id, chunk.index) for chunk in page.chunks]
        after = page.next_after
    return found


def requeue(rig: Rig, submission_id: int | None = None, where: Filter = ALL, indexes: list[int] | None = None) -> int:
    return rig.only(rig.connect(), m.Requeue(next(rig.ids), submission_id, indexes, where), m.Changed).count


def drop(rig: Rig, submission_id: int | None = None, where: Filter = ALL, indexes: list[int] | None = None) -> int:
    return rig.only(rig.connect(), m.Drop(next(rig.ids), submission_id, indexes, where), m.Changed).count


def dead_count(rig: Rig, submission_id: int) -> int:
    """How many chunks are dead in the file, while a request may be half done."""
    return int(str(rig.rows("SELECT chunks_dead FROM submission WHERE id = ?", submission_id)[0][0]))


@pytest.fixture
def three(rig: Rig) -> tuple[int, int, int]:
    """Three submissions with dead chunks of different kinds, the second ten seconds after the first.

    The third ten seconds later.
    """
    first = rig.submit(100, keep_on_dead=True, metadata={"tenant": "a", "size": 7})
    kill(rig, first, 1, 70, reason="Disk quota exceeded", exit_status=1)
    rig.pass_time(10)
    second = rig.submit(3, keep_on_dead=True, metadata={"tenant": "b"})
    kill(rig, second, 0, reason="killed", signal=9)
    rig.pass_time(10)
    third = rig.submit(3, metadata={"tenant": "a"})
    kill(rig, third, 2, reason="no such host", exit_status=75)
    return first, second, third


def test_letters_are_found_by_each_of_their_properties_and_by_all_together(
    rig: Rig, three: tuple[int, int, int]
) -> None:
    first, second, third = three
    everything = [(first, 1), (first, 70), (second, 0), (third, 2)]
    wall = rig.now.wall
    assert listed(rig, Filter()) == everything
    assert listed(rig, Filter([second])) == [(second, 0)]
    assert listed(rig, Filter([first, third])) == [(first, 1), (first, 70), (third, 2)]
    assert listed(rig, Filter(metadata={"tenant": "a"})) == [(first, 1), (first, 70), (third, 2)]
    assert listed(rig, Filter(metadata={"tenant": "a", "size": 7})) == [(first, 1), (first, 70)]
    assert listed(rig, Filter(metadata={"size": "7"})) == []
    assert listed(rig, Filter(from_at=wall - 10_000)) == [(second, 0), (third, 2)]
    assert listed(rig, Filter(to_at=wall - 10_000)) == [(first, 1), (first, 70)]
    assert listed(rig, Filter(reason="disk QUOTA")) == [(first, 1), (first, 70)]
    assert listed(rig, Filter(exit_statuses=[75])) == [(third, 2)]
    assert listed(rig, Filter(exit_statuses=[75], signals=[9])) == [(second, 0), (third, 2)]
    assert listed(rig, Filter(metadata={"tenant": "a"}, exit_statuses=[1], reason="quota", to_at=wall)) == [
        (first, 1),
        (first, 70),
    ]


def test_pages_of_any_length_give_the_same_letters(
    rig: Rig, three: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = listed(rig, Filter(metadata={"tenant": "a"}))
    for scan in (1, 2, 3):
        monkeypatch.setattr(dead, "SCAN_ROWS", scan)
        for limit in (1, 2, 1000):
            assert listed(rig, Filter(metadata={"tenant": "a"}), limit) == expected


def test_page_looks_at_no_more_rows_than_its_bound_however_many_do_not_fit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "SCAN_ROWS", 10)
    submission_id = rig.submit(64, keep_on_dead=True)
    kill(rig, submission_id, *range(64))
    page = rig.only(rig.connect(), m.Dead(1, None, (0, -1), 1000, Filter(reason="nothing")), m.DeadChunks)
    assert (page.chunks, page.next_after) == ([], (submission_id, 9))


def test_requeue_by_condition_revives_what_it_frees_and_leaves_the_rest(rig: Rig, three: tuple[int, int, int]) -> None:
    first, second, third = three
    assert (
        requeue(rig, where=Filter(metadata={"tenant": "a"}, exit_statuses=[75])) == 3
    )  # the dead one and its two skipped neighbours
    assert rig.show(third).state == "open"
    assert listed(rig, Filter()) == [(first, 1), (first, 70), (second, 0)]
    assert requeue(rig) == 3
    assert listed(rig, Filter()) == []


@pytest.mark.parametrize("where", [Filter(reason="another"), Filter(metadata={"tenant": "nobody"}), Filter([4711])])
def test_conditions_that_nothing_fulfils_change_nothing(rig: Rig, three: tuple[int, int, int], where: Filter) -> None:
    assert (requeue(rig, where=where), drop(rig, where=where)) == (0, 0)
    assert requeue(rig, three[2], where) == 0
    assert rig.show(three[2]).state == "failed"


def test_requeue_of_many_comes_in_slices_each_of_which_is_sound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_chunks, "SLICE_CHUNKS", 10)
    submission_id = rig.submit(100, keep_on_dead=True)
    kill(rig, submission_id, *range(0, 100, 2))
    peer = rig.connect()
    rig.send(peer, m.Requeue(9, submission_id))
    seen = []
    while not (replies := rig.replies(peer, 9)):
        rig.commit()
        assert rig.broken_rules() == []
        seen.append(dead_count(rig, submission_id))
    assert replies == [m.Changed(9, 50)]
    assert {50, 40, 30, 20, 10, 0} == set(seen)


def test_crash_between_slices_leaves_a_sound_state_and_the_repeated_request_does_the_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_chunks, "SLICE_CHUNKS", 10)
    submission_id = rig.submit(60, keep_on_dead=True)
    kill(rig, submission_id, *range(60))
    assert rig.show(submission_id).state == "completed"
    rig.send(rig.connect(), m.Requeue(9, submission_id))
    while dead_count(rig, submission_id) == 60:
        rig.commit()
    rig.crash()
    state = rig.show(submission_id)
    assert (state.state, state.dead_count) == ("open", 50)
    assert requeue(rig, submission_id) == 50
    assert [index for ticket in rig.reserve(rig.connect(), 100) for index in ticket.indexes] == list(range(60))


def test_submission_that_was_completed_between_two_slices_is_opened_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_chunks, "SLICE_CHUNKS", 2)
    submission_id = rig.submit(4, keep_on_dead=True)
    kill(rig, submission_id, 0, 1, 2, 3)
    peer = rig.connect()
    rig.send(peer, m.Requeue(9, submission_id))
    while dead_count(rig, submission_id) == 4:
        rig.commit()
    worker = rig.connect()
    [ticket] = rig.reserve_now(worker, 10)
    rig.send(worker, m.Complete(10, [m.Completion(ticket.held())]))
    rig.settle()
    assert rig.replies(peer, 9) == [m.Changed(9, 4)]
    assert [ticket.indexes for ticket in rig.reserve(worker, 10)] == [[2, 3]]


def test_submission_that_is_cancelled_between_two_slices_stays_cancelled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_chunks, "SLICE_CHUNKS", 2)
    submission_id = rig.submit(8, keep_on_dead=True)
    kill(rig, submission_id, 0, 1, 2, 3)
    peer = rig.connect()
    rig.send(peer, m.Requeue(9, submission_id))
    while dead_count(rig, submission_id) == 4:
        rig.commit()
    rig.send(rig.connect(), m.Cancel(10, submission_id))
    rig.settle()
    assert rig.replies(peer, 9) == [m.Changed(9, 2)]
    assert (rig.show(submission_id).state, rig.show(submission_id).dead_count) == ("cancelled", 2)


def test_work_goes_on_between_the_slices_of_a_large_requeue(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch holds one slice at most, and others' completions travel with it."""
    monkeypatch.setattr(dead_chunks, "SLICE_CHUNKS", 8)
    submission_id = rig.submit(64, keep_on_dead=True)
    kill(rig, submission_id, *range(64))
    other = rig.submit(20)
    worker, peer = rig.connect(), rig.connect()
    rig.send(peer, m.Requeue(9, submission_id))
    done = 0
    while not rig.replies(peer, 9):
        [ticket] = rig.reserve_now(worker, 1, f"SelectOnly(submission={other})")
        rig.send(worker, m.Complete(100 + done, [m.Completion(ticket.held())]))
        rig.commit()
        done += 1
    assert done >= 8
    assert rig.show(other).completed_count == done


def test_requeue_that_cannot_revive_one_of_many_says_which_and_requeues_the_others(rig: Rig) -> None:
    first = rig.submit(1, unique_key="nightly")
    kill(rig, first, 0)
    second = rig.submit(1, unique_key="nightly")
    third = rig.submit(1)
    kill(rig, third, 0)
    taken = rf"{first} cannot be revived: {second} has its unique key 'nightly' now\. Already done: 1\."
    with pytest.raises(Conflict, match=taken):
        requeue(rig)
    assert (rig.show(first).state, rig.show(third).state) == ("failed", "open")


def test_dropped_letter_counts_as_skipped_and_its_submission_stays_as_it_is(rig: Rig) -> None:
    submission_id = rig.submit(5)
    kill(rig, submission_id, 3)
    assert drop(rig, submission_id) == 1
    state = rig.show(submission_id)
    assert (state.state, state.dead_count, state.skipped_count) == ("failed", 0, 5)
    assert listed(rig, Filter()) == []
    assert drop(rig, submission_id) == 0


def test_dropped_chunk_is_neither_completed_nor_offered_again_also_after_a_crash(rig: Rig) -> None:
    submission_id = rig.submit(3, keep_on_dead=True)
    kill(rig, submission_id, 1)
    assert drop(rig, submission_id, indexes=[1]) == 1
    rig.crash()
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 10)
    assert ticket.indexes == [0, 2]
    rig.complete(peer, ticket.held())
    rig.fold()
    assert (rig.show(submission_id).state, rig.show(submission_id).skipped_count) == ("completed", 1)
    rows = rig.only(peer, m.Results(1, submission_id), m.ResultRows)
    assert rows.completed == [0b101]
    assert rig.only(peer, m.ExplainWork(2, submission_id, 1), m.WorkExplained).verdict == "skipped"


def test_requeue_revives_the_skipped_ones_but_not_the_dropped_ones(rig: Rig) -> None:
    submission_id = rig.submit(5)
    kill(rig, submission_id, 3)
    drop(rig, submission_id)
    assert requeue(rig, submission_id) == 4
    state = rig.show(submission_id)
    assert (state.state, state.skipped_count) == ("open", 1)
    assert [index for ticket in rig.reserve(rig.connect(), 10) for index in ticket.indexes] == [0, 1, 2, 4]
    rig.ask(rig.connect(), m.Cancel(1, submission_id))
    assert rig.show(submission_id).skipped_count == 5


def test_submission_of_which_all_was_dropped_has_nothing_to_requeue(rig: Rig) -> None:
    submission_id = rig.submit(1)
    kill(rig, submission_id, 0)
    drop(rig, submission_id)
    assert requeue(rig, submission_id) == 0
    assert rig.show(submission_id).state == "failed"


def test_dropped_letters_are_forgotten_with_their_submission(rig: Rig) -> None:
    submission_id = rig.submit(200, keep_on_dead=True)
    kill(rig, submission_id, *range(200))
    assert drop(rig, submission_id) == 200
    rig.ask(rig.connect(), m.Remove(1, submission_id))
    rig.advance(2)
    assert rig.rows("SELECT count(*) FROM dropped") == [(0,)]
    assert rig.broken_rules() == []


def test_drop_that_cannot_be_committed_is_refused_and_can_be_sent_again(rig: Rig) -> None:
    submission_id = rig.submit(2, keep_on_dead=True)
    kill(rig, submission_id, 0)
    rig.fold()
    peer = rig.connect()
    rig.send(peer, m.Drop(2, submission_id))
    rig.commit()
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 2)
    assert rig.show(submission_id).dead_count == 1
    rig.advance(2)
    assert drop(rig, submission_id) == 1


def test_requeue_and_drop_of_the_same_letters_at_once_take_each_of_them_once(rig: Rig) -> None:
    submission_id = rig.submit(70, keep_on_dead=True)
    kill(rig, submission_id, *range(70))
    peer = rig.connect()
    rig.send(peer, m.Drop(1, submission_id))
    rig.send(peer, m.Requeue(2, submission_id))
    rig.settle()
    counts = [reply.count for number in (1, 2) for reply in rig.replies(peer, number) if isinstance(reply, m.Changed)]
    assert sum(counts) == 70
    assert rig.broken_rules() == []


@pytest.mark.parametrize("kind", [m.Requeue, m.Drop])
def test_what_names_no_dead_chunk_is_refused_and_changes_nothing(
    rig: Rig, kind: type[m.Requeue] | type[m.Drop]
) -> None:
    submission_id = rig.submit(4, keep_on_dead=True)
    kill(rig, submission_id, 1)
    with pytest.raises(Conflict, match=r"/3 is not dead"):
        rig.ask(rig.connect(), kind(1, submission_id, [1, 3]))
    with pytest.raises(NotFound):
        rig.ask(rig.connect(), kind(2, 12345))
    with pytest.raises(Conflict, match="without a submission"):
        rig.ask(rig.connect(), kind(3, None, [1]))
    assert rig.show(submission_id).dead_count == 1


def test_drop_is_told_in_the_history(rig: Rig) -> None:
    submission_id = rig.submit(1)
    kill(rig, submission_id, 0, reason="broken")
    drop(rig, submission_id)
    events = rig.only(rig.connect(), m.History(1, m.HistoryFilter(submission_id)), m.HistoryRows).rows
    assert [event.event for event in events] == ["failed", "dead", "dropped"]
    with pytest.raises(UsageError):
        rig.ask(rig.connect(), m.History(2, m.HistoryFilter(events=["vanished"])))


def test_slice_is_not_worked_out_while_a_commit_is_under_way(rig: Rig) -> None:
    """What that commit has written can be seen and is not known yet: here the death of a chunk."""
    first, second = rig.submit(1), rig.submit(2, keep_on_dead=True)
    kill(rig, first, 0)
    kill(rig, second, 0)
    rig.fold()
    peer, engine = rig.connect(), rig.engine
    [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={second})")
    for number, submission_id in ((98, first), (99, second)):
        engine.handle(peer, m.Requeue(number, submission_id), rig.now)
    assert not engine.begin_batch(rig.now)
    engine.end_batch(None, rig.now)
    engine.turn(rig.now)  # the slice of the first
    engine.handle(peer, m.Fail(100, [m.Failure(ticket.held(), is_final=True)]), rig.now)
    assert engine.begin_batch(rig.now)
    rig.database.commit()
    assert not engine.has_turn()
    engine.turn(rig.now)
    assert not engine.has_batch(rig.now)
    engine.end_batch(None, rig.now)
    rig.settle()
    assert rig.replies(peer, 99) == [m.Changed(99, 2)]
    rig.fold()
    assert rig.broken_rules() == []
    assert [index for one in rig.reserve(peer, 10) for index in one.indexes if one.submission_id == second] == [0, 1]


def test_end_of_the_daemon_does_not_wait_for_the_last_slice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_chunks, "SLICE_CHUNKS", 2)
    submission_id = rig.submit(60, keep_on_dead=True)
    kill(rig, submission_id, *range(60))
    rig.fold()
    peer = rig.connect()
    rig.send(peer, m.Drop(99, submission_id))
    while dead_count(rig, submission_id) > 50:
        rig.commit()
    rig.engine.stop_handing_out()
    rig.engine.fold_all()
    rig.settle()
    with pytest.raises(Conflict, match=r"stopping\. Already done: 1[0-9]\."):
        rig.replies(peer, 99)
    rig.restart()
    assert drop(rig, submission_id) in range(40, 51)
