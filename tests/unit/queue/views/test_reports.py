"""What the engine tells of itself: counts that add up, lists in pages, the same before and after a restart."""

from __future__ import annotations

import apsw
import pytest

from opsq.errors import NotFound, UsageError
from opsq.wire import messages as m
from unit.model.rig import Rig


def work_a_little(rig: Rig) -> list[int]:
    """Submissions of two tenants in all states, with chunks in all states."""
    ids = [
        rig.submit(10, metadata={"tenant": "a"}, keep_on_dead=True),
        rig.submit(5, metadata={"tenant": "b", "region": 1}),
        rig.submit(0, metadata={"tenant": "b"}),
        rig.submit(3, delay_s=600.0),
        rig.submit(4, metadata={"tenant": "a"}),
    ]
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 6)
    rig.complete(peer, ticket.held([0, 1]))
    rig.fail(peer, ticket.held([2]), is_final=True, reason="broken")
    rig.fail(peer, ticket.held([3]), delay_s=600.0)
    rig.ask(peer, m.Cancel(1, ids[4]))
    return ids


def sums(counts: m.Counts) -> tuple[int, ...]:
    return (
        counts.submissions_count,
        counts.waiting_count,
        counts.delayed_count,
        counts.reserved_count,
        counts.completed_count,
        counts.dead_count,
        counts.skipped_count,
    )


@pytest.mark.parametrize("is_folded", [False, True])
def test_counts_tell_what_every_chunk_is_doing(rig: Rig, is_folded: bool) -> None:
    work_a_little(rig)
    if is_folded:
        rig.fold()
    state = rig.status("tenant")
    assert sums(state.total) == (5, 12, 1, 2, 2, 1, 4)
    assert [(counts.value, *sums(counts)) for counts in state.by] == [
        ("a", 2, 4, 1, 2, 2, 1, 4),
        ("b", 2, 5, 0, 0, 0, 0, 0),
        (None, 1, 3, 0, 0, 0, 0, 0),
    ]
    assert {name: count for name, count in state.states.items() if count} == {
        "open": 2,
        "scheduled": 1,
        "completed": 1,
        "cancelled": 1,
    }


def test_counts_come_from_counters_whatever_the_backlog(rig: Rig) -> None:
    rig.submit(1 << 39, metadata={"tenant": "a"})
    rig.submit(1 << 39, metadata={"tenant": "a"})
    assert rig.status("tenant").by[0].waiting_count == 1 << 40


def test_counts_by_a_key_that_nobody_has_are_none(rig: Rig) -> None:
    rig.submit(1)
    assert rig.status("tenant").by == []


def test_status_names_consumers_what_they_hold_and_what_they_wait_with(rig: Rig) -> None:
    rig.submit(2)
    holder, waiter = rig.connect("holder"), rig.connect("waiter")
    rig.reserve(holder, 2)
    rig.park(waiter, strategy="NewestFirst")
    rig.pass_time(3)
    state = rig.status()
    found = {consumer.consumer: consumer for consumer in state.consumers}
    assert found[holder.consumer].reserved_count == 2
    assert found[holder.consumer].oldest_reservation_s == pytest.approx(3.0)
    assert found[waiter.consumer].waiting_strategy == "NewestFirst"
    assert (state.parked_count, state.oldest_reservation_s) == (1, pytest.approx(3.0))


def test_no_reservation_is_older_than_its_deadline(rig: Rig) -> None:
    rig.submit(1, reservation_s=10.0)
    rig.reserve(rig.connect())
    oldest = 0.0
    for _ in range(40):
        rig.advance(0.5)
        oldest = max(oldest, rig.status().oldest_reservation_s)
    assert 9.0 <= oldest <= 10.0


@pytest.mark.parametrize("is_crash", [False, True])
def test_everything_is_told_alike_before_and_after_a_restart(rig: Rig, is_crash: bool) -> None:
    ids = work_a_little(rig)
    peer = rig.connect()
    rig.ask(peer, m.Limit(next(rig.ids), "submission", None, 100))
    [ticket] = rig.reserve(peer, 1, lease_s=600.0)
    before, status = list(rig.dump()), rig.status("tenant")
    assert before[-1].startswith("DeadChunk")
    rig.crash() if is_crash else rig.restart()
    after, again = list(rig.dump()), rig.status("tenant")
    if is_crash:  # but for what the connection held that is gone
        before = [line.replace("reserved_count=3", "reserved_count=1") for line in before]
        assert again.total.reserved_count == status.total.reserved_count - 2
    else:
        assert (again.total, again.by) == (status.total, status.by)
    assert after == before
    assert again.states == status.states
    [limit] = rig.only(rig.connect(), m.ShowRules(1), m.RulesState).limits
    assert (limit.busiest, limit.reserved_count) == (ids[0], again.total.reserved_count + again.total.delayed_count)
    assert ticket.submission_id == ids[0]


def test_back_off_goes_on_when_a_cancelled_submission_is_revived(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer = rig.connect()
    rig.fail(peer, rig.reserve(peer)[0].held(), delay_s=600.0)
    rig.ask(peer, m.Cancel(1, submission_id))
    assert rig.show(submission_id).delayed_count == 0
    rig.ask(peer, m.Requeue(1, submission_id))
    assert rig.show(submission_id).delayed_count == rig.status().total.delayed_count == 1
    assert [index for ticket in rig.reserve(peer, 5) for index in ticket.indexes] == [1, 2]


def test_removed_submission_is_counted_by_nobody_while_its_rows_are_deleted(rig: Rig) -> None:
    submission_id = rig.submit(200, metadata={"tenant": "a"})
    peer = rig.connect()
    for ticket in rig.reserve(peer, 70):
        rig.complete(peer, ticket.held())
    rig.ask(peer, m.Cancel(1, submission_id))
    rig.ask(peer, m.Remove(1, submission_id))
    assert rig.rows("SELECT state FROM submission") == [("removed",)]
    for _ in range(2):
        assert sums(rig.status("tenant").total) == (0,) * 7
        assert rig.status("tenant").by == []
        rig.crash()
    rig.advance(2)
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]
    assert sums(rig.status().total) == (0,) * 7


@pytest.mark.parametrize("has_failed", [False, True])
def test_view_waits_for_the_end_of_a_commit_that_is_under_way(rig: Rig, has_failed: bool) -> None:
    """Between the COMMIT and its end the file is ahead of what is known of it."""
    submission_id = rig.submit(1, max_attempts=1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.send(peer, m.Fail(1, [m.Failure(ticket.held())]))
    assert rig.begin()
    if not has_failed:
        rig.database.commit()
    rig.send(peer, m.Status(2))
    rig.send(peer, m.Show(3, submission_id))
    rig.send(peer, m.Show(4, 12345))
    assert not any(rig.replies(peer, request_id) for request_id in (2, 3, 4))
    rig.end(apsw.FullError("full") if has_failed else None)
    [status] = rig.replies(peer, 2)
    [shown] = rig.replies(peer, 3)
    assert isinstance(status, m.DaemonState)
    assert isinstance(shown, m.Shown)
    reserved = int(has_failed)
    assert sums(status.total) == (1, 0, 0, reserved, 0, 1 - reserved, 0)
    assert (shown.submission.reserved_count, shown.submission.dead_count) == (reserved, 1 - reserved)
    with pytest.raises(NotFound):
        rig.replies(peer, 4)


def test_order_of_what_waits_is_the_same_after_a_restart(rig: Rig) -> None:
    for count in (3, 70, 2):
        rig.submit(count)
    peer = rig.connect()
    first, *_ = rig.reserve(peer, 40)
    rig.complete(peer, first.held([1]))
    rig.release(peer, first.held([0, 2]))
    before = [(ticket.submission_id, ticket.indexes) for ticket in rig.reserve(peer, 20)]
    rig.restart()
    rig.advance(31)
    peer = rig.connect()
    again = [(ticket.submission_id, index) for ticket in rig.reserve(peer, 20) for index in ticket.indexes]
    assert [(submission_id, index) for submission_id, indexes in before for index in indexes][:2] == again[:2]


def test_list_gives_pages_newest_first_and_filters(rig: Rig) -> None:
    ids = work_a_little(rig)
    peer = rig.connect()
    found: list[int] = []
    before: int | None = None
    while True:
        page = rig.only(peer, m.List(next(rig.ids), before=before, limit=2), m.Listed)
        found += [state.submission_id for state in page.submissions]
        before = page.next_before
        if before is None:
            break
    assert found == ids[::-1]
    of_a = rig.only(peer, m.List(1, metadata={"tenant": "a"}), m.Listed).submissions
    assert [state.submission_id for state in of_a] == [ids[4], ids[0]]
    both = rig.only(peer, m.List(1, metadata={"tenant": "b", "region": 1}), m.Listed).submissions
    assert [state.submission_id for state in both] == [ids[1]]
    assert rig.only(peer, m.List(1, metadata={"tenant": "c"}), m.Listed).submissions == []
    cancelled = rig.only(peer, m.List(1, states=["cancelled", "scheduled"]), m.Listed).submissions
    assert [state.submission_id for state in cancelled] == [ids[4], ids[3]]


def test_list_of_an_unknown_state_is_refused(rig: Rig) -> None:
    with pytest.raises(UsageError, match="not a state"):
        rig.ask(rig.connect(), m.List(1, states=["running"]))


@pytest.mark.parametrize(
    "request_", [m.Show(1, 99), m.Wait(1, 99), m.Results(1, 99), m.GetAttachment(1, 99), m.Dead(1, 99)]
)
def test_question_about_an_unknown_submission_is_refused(rig: Rig, request_: m.Request) -> None:
    with pytest.raises(NotFound):
        rig.ask(rig.connect(), request_)


def test_dead_letters_come_in_pages_over_submissions(rig: Rig) -> None:
    peer = rig.connect()
    expected = []
    for _ in range(2):
        submission_id = rig.submit(3, keep_on_dead=True)
        for ticket in rig.reserve(peer, 3):
            rig.fail(peer, ticket.held(), is_final=True)
        expected += [(submission_id, index) for index in range(3)]
    found = []
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        page = rig.only(peer, m.Dead(next(rig.ids), after=after, limit=2), m.DeadChunks)
        found += [(chunk.submission_id, chunk.index) for chunk in page.chunks]
        after = page.next_after
    assert found == expected
    of_one = rig.only(peer, m.Dead(1, expected[3][0]), m.DeadChunks).chunks
    assert [(chunk.submission_id, chunk.index) for chunk in of_one] == expected[3:]


# --- waiting for results ---


def raw(*results: bytes) -> m.msgspec.Raw:
    return m.msgspec.Raw(m.msgspec.msgpack.encode(list(results)))


def test_results_come_as_they_were_sent_and_name_the_completed_chunks(rig: Rig) -> None:
    submission_id = rig.submit(70)
    peer = rig.connect()
    first, second = rig.reserve(peer, 70)
    rig.complete(peer, first.held([0, 2]), results=raw(b"a", b"\x00"))
    rig.complete(peer, second.held([65]))
    rows = rig.only(peer, m.Results(1, submission_id), m.ResultRows)
    assert rows.completed == [0b101, 0b10]
    assert rows.rows == [m.ResultRow(0, 0b101, raw(b"a", b"\x00"))]
    assert (rows.is_final, rows.next_block, rows.chunks_count) == (False, 2, 70)


def test_results_without_rows_only_name_the_completed_chunks(rig: Rig) -> None:
    submission_id = rig.submit(70)
    peer = rig.connect()
    first, _ = rig.reserve(peer, 70)
    rig.complete(peer, first.held([0, 2]), results=raw(b"a", b"b"))
    rows = rig.only(peer, m.Results(1, submission_id, without_rows=True), m.ResultRows)
    assert (rows.completed, rows.rows, rows.content, rows.next_block) == ([0b101, 0], [], b"", 2)


def test_results_leave_out_dead_and_skipped_chunks(rig: Rig) -> None:
    submission_id = rig.submit(4)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 4)
    rig.complete(peer, ticket.held([1]))
    rig.fail(peer, ticket.held([2]), is_final=True)
    rig.fold()
    rows = rig.only(peer, m.Results(1, submission_id), m.ResultRows)
    assert (rows.completed, rows.is_final, rows.state) == ([0b10], True, "failed")


def test_reader_that_waits_gets_results_when_its_chunk_is_completed_and_not_before(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer, reader = rig.connect(), rig.connect()
    [ticket] = rig.reserve(peer, 3)
    rig.send(reader, m.Results(9, submission_id, 1, wait_s=None))
    rig.complete(peer, ticket.held([0]))
    assert rig.replies(reader, 9) == []
    rig.complete(peer, ticket.held([1]), results=raw(b"b"))
    [rows] = rig.replies(reader, 9)
    assert isinstance(rows, m.ResultRows)
    assert rows.completed == [0b11]


def test_reader_that_waits_gets_what_there_is_when_its_time_or_the_submission_is_over(rig: Rig) -> None:
    submission_id = rig.submit(3)
    reader = rig.connect()
    rig.send(reader, m.Results(8, submission_id, wait_s=2.0))
    rig.send(reader, m.Results(9, submission_id, wait_s=None))
    rig.advance(2)
    [late] = rig.replies(reader, 8)
    assert isinstance(late, m.ResultRows)
    assert not late.is_final
    rig.ask(reader, m.Cancel(1, submission_id))
    [final] = rig.replies(reader, 9)
    assert isinstance(final, m.ResultRows)
    assert final.is_final


def test_abandoned_waits_get_a_last_reply(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    rig.send(peer, m.Wait(8, submission_id))
    rig.send(peer, m.Results(9, submission_id, wait_s=None))
    rig.send(peer, m.CancelWait(8))
    rig.send(peer, m.CancelWait(9))
    assert [type(reply) for request_id in (8, 9) for reply in rig.replies(peer, request_id)] == [m.Shown, m.ResultRows]
    rig.ask(peer, m.Cancel(1, submission_id))
    assert rig.replies(peer, 8) == []


def test_what_was_removed_is_counted_no_more_once_that_is_answered(rig: Rig) -> None:
    peer = rig.connect()
    removed_id, kept_id = rig.submit(3, metadata={"k": 1}), rig.submit(2, metadata={"k": 1})
    rig.only(peer, m.Cancel(next(rig.ids), removed_id), m.Changed)
    rig.only(peer, m.Remove(next(rig.ids), removed_id), m.Changed)
    status = rig.status("k")
    assert (status.total.submissions_count, status.total.skipped_count) == (1, 0)
    assert [(counts.value, counts.submissions_count) for counts in status.by] == [(1, 1)]
    assert status.states["cancelled"] == 0
    assert rig.show(kept_id).state == "open"
