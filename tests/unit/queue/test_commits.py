"""Commits: what happens before, while and after they are under way, when they fail.

And when the process dies around them.
"""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from opsq.errors import Bug, StorageFull
from opsq.queue.chunks.complete import Completions
from opsq.queue.engine import Fatal
from opsq.store import backlog, lanes, submissions
from opsq.store.database import Database
from opsq.wire import messages as m
from unit.model.rig import Rig, tickets_of


def submit(rig: Rig, chunks_count: int, request_id: int = 1) -> m.Submit:
    return m.Submit(request_id, [m.NewSubmission(rig.request_key(), chunks_count)])


# --- while a commit is under way ---


def test_submission_met_by_a_walk_before_its_commit_is_settled_is_handed_out_once(rig: Rig) -> None:
    """Stale reader: the COMMIT has ended in its thread, the engine has not been told."""
    producer, consumer = rig.connect(), rig.connect()
    rig.send(producer, submit(rig, 2))
    assert rig.begin()
    rig.database.commit()
    rig.send(consumer, m.Reserve(2, 1, "OldestFirst"))
    [reply] = rig.replies(consumer, 2)
    assert isinstance(reply, m.Reserved)
    rig.end(None)
    handed = [index for ticket in (*tickets_of(reply), *rig.reserve(consumer, 5)) for index in ticket.indexes]
    assert sorted(handed) == [0, 1]


def test_requests_handled_while_a_commit_is_under_way_form_the_next_batch(rig: Rig) -> None:
    first, second = rig.connect(), rig.connect()
    rig.send(first, submit(rig, 1))
    assert rig.begin()
    rig.send(second, submit(rig, 1, request_id=2))
    assert not rig.engine.has_batch(rig.now)
    rig.database.commit()
    rig.end(None)
    assert len(rig.replies(first, 1)) == 1
    assert rig.replies(second, 2) == []
    rig.settle()
    assert len(rig.replies(second, 2)) == 1


def test_chunk_whose_completion_is_being_committed_is_neither_offered_nor_lost(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held())]))
    assert rig.begin()
    rig.disconnect(peer)
    assert rig.reserve_now(rig.connect()) == []
    rig.database.commit()
    rig.end(None)
    rig.settle()
    assert rig.show(submission_id).state == "completed"


# --- crashes ---


def test_crash_between_apply_and_commit_leaves_nothing_of_the_batch(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held())]))
    rig.send(peer, submit(rig, 5))
    assert rig.begin()
    rig.crash()
    assert rig.show(submission_id).completed_count == 0
    assert rig.rows("SELECT count(*) FROM submission") == [(1,)]
    assert rig.rows("SELECT count(*) FROM history") == [(0,)]


def test_crash_between_commit_and_reply_keeps_the_batch_and_repeated_requests_find_it(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    request = submit(rig, 5)
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held())]))
    rig.send(peer, request)
    assert rig.begin()
    rig.database.commit()
    rig.crash()
    peer = rig.connect()
    assert rig.complete(peer, ticket.held()) == []
    assert rig.show(submission_id).completed_count == 1
    assert not rig.only(peer, request, m.Submitted).created[0].is_new


def test_first_submit_after_a_crash_of_an_empty_queue_works(rig: Rig) -> None:
    rig.crash()
    submission_id = rig.submit(1)
    rig.crash()
    assert rig.show(submission_id).state == "open"


def test_crash_that_cuts_the_log_in_the_middle_leaves_whole_transactions(rig: Rig) -> None:
    """Whatever the length to which the log was written when the power went."""
    for _ in range(5):
        rig.submit(100)
    peer = rig.connect()
    for ticket in rig.reserve(peer, 150):
        rig.complete(peer, ticket.held())
    log = rig.path.with_name(f"{rig.path.name}-wal")
    whole = log.read_bytes()
    for length in range(0, len(whole), len(whole) // 7):
        place = rig.folder / f"cut-{length}"
        place.mkdir()
        (place / rig.path.name).write_bytes(rig.path.read_bytes())
        (place / log.name).write_bytes(whole[:length])
        other = Rig.__new__(Rig)
        other.__dict__.update(rig.__dict__)
        other.told = []
        other._open(place)
        assert other.broken_rules() == []
        other.close()


# --- failed writes ---


def test_full_disk_refuses_every_request_of_the_batch_and_all_that_came_since(rig: Rig) -> None:
    first, second = rig.connect(), rig.connect()
    rig.send(first, submit(rig, 1))
    assert rig.begin()
    rig.send(second, submit(rig, 1, request_id=2))
    rig.end(apsw.FullError("database or disk is full"))
    for peer, request_id in ((first, 1), (second, 2)):
        with pytest.raises(StorageFull):
            rig.replies(peer, request_id)
    assert rig.engine.is_full
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]


def test_full_disk_while_rows_are_applied_is_as_harmless_as_at_commit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that spills meets the full disk before the COMMIT does."""

    def spill(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    peer = rig.connect()
    rig.send(peer, submit(rig, 1))
    with monkeypatch.context() as patch:
        patch.setattr(submissions, "insert", spill)
        with pytest.raises(apsw.FullError) as raised:
            rig.engine.begin_batch(rig.now)
    rig.end(raised.value)
    with pytest.raises(StorageFull):
        rig.replies(peer, 1)
    rig.advance(2)
    assert rig.submit(1)


def test_full_storage_is_tried_again_by_itself_after_a_second(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, submit(rig, 1))
    rig.fail_commit()
    assert not rig.engine.has_batch(rig.now)
    rig.pass_time(0.5)
    rig.tick()
    assert not rig.engine.has_batch(rig.now)
    rig.pass_time(0.5)
    rig.tick()
    assert rig.engine.has_batch(rig.now)
    rig.settle()
    assert not rig.engine.is_full


def test_batch_without_rows_does_not_tell_that_there_is_room_again(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.send(peer, submit(rig, 1))
    rig.fail_commit()
    rig.told.clear()
    rig.pass_time(1)
    rig.send(peer, m.Release(9, [ticket.held()]))
    rig.commit()
    assert rig.replies(peer, 9) == [m.Completed(9, [])]
    assert rig.engine.is_full


def test_completion_refused_for_room_is_accepted_when_it_is_sent_again(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held())]))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 9)
    rig.advance(2)
    assert rig.complete(peer, ticket.held()) == []
    assert rig.show(submission_id).state == "completed"


def test_process_that_begins_on_a_full_disk_repeats_no_reservation_id(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is counted with the first transaction that has room."""

    def lack_room(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    rig.submit(3)
    [first] = rig.reserve(rig.connect())
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_write_ownership", lack_room)
        rig.crash()
    assert rig.engine.is_full
    rig.advance(2)
    [second] = rig.reserve(rig.connect())
    rig.crash()
    [third] = rig.reserve(rig.connect())
    assert first.reservation_id < second.reservation_id < third.reservation_id


def test_any_other_error_of_a_commit_ends_the_process_and_answers_nothing(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, submit(rig, 1))
    assert rig.begin()
    with pytest.raises(Fatal):
        rig.end(apsw.IOError("disk I/O error"))
    assert rig.replies(peer, 1) == []
    rig.crash()


# --- one owner ---


def depose(rig: Rig) -> None:
    """Another process takes the file over."""
    other = apsw.Connection(str(rig.path))
    other.set_busy_timeout(1000)
    other.execute("UPDATE owner SET token = randomblob(16)")
    other.close()


def test_deposed_owner_commits_nothing_more(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, submit(rig, 1))
    depose(rig)
    with pytest.raises(Fatal):
        rig.begin()
    assert rig.replies(peer, 1) == []
    rig.crash()
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]


def test_deposed_owner_hands_nothing_out(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    depose(rig)
    with pytest.raises(Fatal):
        rig.send(peer, m.Reserve(9, 1))
    rig.crash()


def test_replaced_file_ends_the_process_at_the_next_commit(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, submit(rig, 1))
    copy = rig.path.with_name("copy")
    copy.write_bytes(rig.path.read_bytes())
    copy.rename(rig.path)
    with pytest.raises(Fatal):
        rig.begin()
    rig.crash()


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_backlog_and_what_is_done_survive_every_end_of_the_process(rig: Rig, end: str) -> None:
    submission_id = rig.submit(200)
    rig.submit(3, delay_s=60.0)
    peer = rig.connect()
    [first, *_] = rig.reserve(peer, 64)
    rig.complete(peer, first.held())
    for _ in range(3):
        rig.restart() if end == "stop" else rig.crash()
    state = rig.show(submission_id)
    assert (state.state, state.completed_count) == ("open", 64)
    assert sum(ticket.granted.bit_count() for ticket in rig.reserve(rig.connect(), 1000)) == 136
    assert rig.status().states["scheduled"] == 1


# --- internal errors after a commit ---


def test_settle_that_raises_ends_the_engine_unanswered_and_the_file_has_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks again after the next start is answered as if nothing had been."""
    submission_id, peer = rig.submit(3), rig.connect()
    [ticket] = rig.reserve(peer, 3)
    completion = m.Complete(1, [m.Completion(ticket.held())])
    with monkeypatch.context() as broken:
        broken.setattr(Completions, "settle_completed", lambda *_: 1 // 0)
        rig.send(peer, completion)
        assert rig.begin()
        rig.database.commit()
        with pytest.raises(Fatal, match="is not all in memory"):
            rig.end(None)
    assert rig.replies(peer, 1) == []
    rig.crash()
    assert rig.show(submission_id).state == "completed"
    assert rig.ask(rig.connect(), completion) == [m.Completed(1, [])]
    assert rig.broken_rules() == []


def test_bug_in_what_waited_for_a_commit_costs_only_the_request_its_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that was put off, and a reader of results that a completion has woken."""
    submission_id, producer, viewer = rig.submit(2), rig.connect(), rig.connect()
    [ticket] = rig.reserve(producer, 1)
    rig.send(viewer, m.Results(1, submission_id, wait_s=None))
    rig.send(producer, m.Complete(2, [m.Completion(ticket.held())]))
    assert rig.begin()
    rig.send(viewer, m.Status(3))
    rig.database.commit()
    with monkeypatch.context() as broken:
        broken.setattr(backlog, "results", lambda *_: 1 // 0)
        broken.setattr(lanes, "counts", lambda *_: 1 // 0)
        rig.end(None)
    for number in (1, 3):
        with pytest.raises(Bug, match="ZeroDivisionError"):
            rig.replies(viewer, number)
    assert rig.replies(producer, 2) == [m.Completed(2, [])]
    assert rig.status().total.completed_count == 1
    assert rig.broken_rules() == []


# --- what cannot be written -----------------------------------------------------------------------------------------


def poison(rig: Rig, request_id: int) -> m.Submit:
    """A submission whose row SQLite cannot take; the types of the wire would have refused it."""
    return m.Submit(request_id, [m.NewSubmission(rig.request_key(), 1, not_before_at=1 << 63)])


def test_what_cannot_be_written_fails_its_request_and_no_other(rig: Rig) -> None:
    held_id, peer, other = rig.submit(130), rig.connect(), rig.connect()
    tickets = rig.reserve(peer, 130)
    rig.send(peer, m.Complete(1, [m.Completion(tickets[0].held([0, 1]))]))
    rig.send(other, poison(rig, 2))
    rig.send(peer, m.Complete(3, [m.Completion(tickets[0].held([2, 3]))]))
    rig.send(peer, m.Fail(4, [m.Failure(tickets[1].held([64]))]))
    rig.send(other, submit(rig, 7, request_id=5))
    rig.send(other, m.Reserve(6, 1, "OldestFirst", 0.0, 30.0))
    rig.send(other, m.Limit(7, "tenant", concurrency=2))
    rig.send(other, poison(rig, 8))
    rig.settle()
    for request_id in (2, 8):
        with pytest.raises(Bug, match="OverflowError"):
            rig.replies(other, request_id)
    assert [rig.replies(peer, number) for number in (1, 3)] == [[m.Completed(1)], [m.Completed(3)]]
    [failed] = rig.replies(peer, 4)
    assert isinstance(failed, m.Completed)
    assert (failed.refusals, [after.attempts for after in failed.failures]) == ([], [1])
    [made], [leased], [limited] = (rig.replies(other, number) for number in (5, 6, 7))
    assert isinstance(made, m.Submitted)
    assert isinstance(leased, m.Reserved)
    assert limited == m.Changed(7, is_matched=False)
    rig.crash()
    assert rig.broken_rules() == []
    assert rig.show(held_id).completed_count == 4
    assert rig.show(made.created[0].submission_id).chunks_count == 7
    assert rig.status().total.submissions_count == 2
    assert len(rig.only(rig.connect(), m.ShowRules(9), m.RulesState).limits) == 1


def test_last_completion_ends_its_submission_though_something_beside_it_cannot_be_written(rig: Rig) -> None:
    submission_id, peer = rig.submit(2), rig.connect()
    first, second = rig.reserve(peer)[0], rig.reserve(peer)[0]
    rig.send(peer, m.Complete(1, [m.Completion(first.held())]))
    rig.send(peer, poison(rig, 2))
    rig.send(peer, m.Complete(3, [m.Completion(second.held())]))
    waiting = rig.connect()
    rig.send(waiting, m.Wait(4, submission_id))
    rig.settle()
    assert [rig.replies(peer, number) for number in (1, 3)] == [[m.Completed(1)], [m.Completed(3)]]
    [shown] = rig.replies(waiting, 4)
    assert isinstance(shown, m.Shown)
    assert shown.submission.state == "completed"
    rig.crash()
    assert rig.broken_rules() == []


def test_repeated_submit_beside_what_cannot_be_written_makes_one_submission(rig: Rig) -> None:
    peer = rig.connect()
    new = m.NewSubmission(rig.request_key(), 3, unique_key="nightly")
    rig.send(peer, m.Submit(1, [new]))
    rig.send(peer, poison(rig, 2))
    rig.send(peer, m.Submit(3, [new]))
    rig.settle()
    [first], [again] = rig.replies(peer, 1), rig.replies(peer, 3)
    assert isinstance(first, m.Submitted)
    assert isinstance(again, m.Submitted)
    assert first.created[0].submission_id == again.created[0].submission_id
    assert (first.created[0].is_new, again.created[0].is_new) == (True, False)
    assert rig.status().total.submissions_count == 1


def test_dead_chunks_are_requeued_though_something_beside_it_cannot_be_written(rig: Rig) -> None:
    submission_id, peer = rig.submit(3000, max_attempts=1), rig.connect()
    rig.fail(peer, *(ticket.held() for ticket in rig.reserve(peer, 3000)))
    rig.fold()
    rig.send(peer, m.Requeue(1, submission_id))
    for number in range(2, 12):
        rig.send(peer, poison(rig, number))
        if rig.engine.has_batch(rig.now):
            rig.commit()
    rig.fold()
    [changed] = rig.replies(peer, 1)
    assert changed == m.Changed(1, 3000)
    assert rig.show(submission_id).state == "open"
    rig.crash()
    assert rig.broken_rules() == []


def test_what_the_engine_itself_cannot_write_stops_no_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once a second, and tried again until it can be written."""
    submission_id, peer = rig.submit(1, expires_s=1.0), rig.connect()
    reported: list[Exception] = []
    rig.engine.report_bugs(lambda error: reported.append(error) or Bug())  # type: ignore[func-returns-value]  # None is false
    with monkeypatch.context() as broken:
        broken.setattr(submissions, "set_final", lambda *_: 1 // 0)
        rig.advance(10)
        assert 5 <= len(reported) <= 11
        assert isinstance(reported[0], ZeroDivisionError)
        [made] = rig.ask(peer, submit(rig, 1))
        assert isinstance(made, m.Submitted)
        assert rig.show(submission_id).state == "open"
    rig.advance(3)
    assert rig.show(submission_id).state == "expired"
    rig.crash()
    assert rig.broken_rules() == []


def test_lease_that_cannot_be_written_is_not_asked_for_again_by_who_has_gone(rig: Rig) -> None:
    """The rate has given its token, so the call would wait."""
    rig.ask(rig.connect(), m.Limit(1, "tenant", rate_per_s=0.01, burst=1))
    rig.submit(1, metadata={"tenant": "x"})
    peer, other = rig.connect(), rig.connect()
    rig.send(peer, m.Reserve(5, 1, "OldestFirst", None, 60.0))
    rig.send(other, poison(rig, 6))
    rig.disconnect(peer)
    rig.settle()
    with pytest.raises(Bug, match="OverflowError"):
        rig.replies(other, 6)
    state = rig.status()
    assert (state.parked_count, state.consumers) == (0, [])


def test_disk_that_fills_while_requests_are_written_apart_refuses_them_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were written by then, and those that were not."""
    peer = rig.connect()
    for number in (1, 3, 4):
        rig.send(peer, submit(rig, 1, request_id=number))
        if number == 1:
            rig.send(peer, poison(rig, 2))
    insert, inserts = submissions.insert, iter([False, False, False, False, True])

    def insert_until_full(*args: Any) -> None:
        if next(inserts, False):
            raise apsw.FullError("database or disk is full")
        insert(*args)

    monkeypatch.setattr(submissions, "insert", insert_until_full)
    with pytest.raises(apsw.FullError) as full:
        rig.begin()
    rig.end(full.value)
    for number in (1, 3, 4):
        with pytest.raises(StorageFull):
            rig.replies(peer, number)
    rig.advance(2)
    [made] = rig.ask(peer, submit(rig, 1, request_id=5))
    assert isinstance(made, m.Submitted)
    assert rig.status().total.submissions_count == 1


@pytest.mark.parametrize("options", [{"delay_s": 5.0}, {"expires_s": 5.0}, {"reservation_s": 5.0}])
def test_what_is_due_while_the_storage_is_full_waits_and_keeps_no_processor_busy(
    rig: Rig, options: dict[str, float]
) -> None:
    rig.submit(1, **options)
    rig.reserve(rig.connect())
    rig.ask(rig.connect(), m.PutSchedule(next(rig.ids), m.Schedule("often", "every 1s", m.NewSubmission(bytes(16), 0))))
    rig.send(rig.connect(), m.Submit(next(rig.ids), [m.NewSubmission(b"x" * 16, 1)]))
    rig.fail_commit()
    for _ in range(10):
        rig.pass_time(1.0)
        rig.engine.tick(rig.now)
        assert rig.engine.is_full
        assert rig.engine.next_tick_s(rig.now) > 0.0
    rig.advance(10)
    assert not rig.engine.is_full
