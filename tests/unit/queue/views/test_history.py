"""The history as it is asked for: what each attempt tells, conditions, pages in both directions.

And what is pruned when asked.
"""

from __future__ import annotations

import pytest

from opsq.errors import Conflict, StorageFull, UsageError
from opsq.queue.views import history as history_view
from opsq.store import history
from opsq.wire import messages as m
from unit.model.rig import Rig

Filter = m.HistoryFilter
ALL = m.HistoryFilter()


def pages(rig: Rig, where: Filter = ALL, limit: int = 1000, *, newest_first: bool = False) -> list[m.HistoryRows]:
    """Every page of what fulfils conditions."""
    found: list[m.HistoryRows] = []
    after: int | None = None
    while not found or after is not None:
        found.append(
            rig.only(rig.connect(), m.History(next(rig.ids), where, after, limit, newest_first), m.HistoryRows)
        )
        after = found[-1].next_after
    return found


def events(rig: Rig, where: Filter = ALL, limit: int = 1000, *, newest_first: bool = False) -> list[m.HistoryEvent]:
    return [row for page in pages(rig, where, limit, newest_first=newest_first) for row in page.rows]


def told(rig: Rig, where: Filter = ALL) -> list[str]:
    return [event.event for event in events(rig, where)]


def fail_one(rig: Rig, submission_id: int, **failure: object) -> None:
    peer = rig.connect("worker")
    [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={submission_id}, OldestFirst)")
    rig.fail(peer, ticket.held(), **failure)


def complete_each(rig: Rig, submission_id: int, count: int) -> None:
    peer = rig.connect("worker")
    for _ in range(count):
        [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={submission_id}, OldestFirst)")
        rig.complete(peer, ticket.held())


# --- what an attempt tells ---


def test_chunk_waits_from_its_submission_until_it_is_reserved(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    rig.advance(3)
    tickets = rig.reserve(peer, 2)
    rig.advance(4)
    completion = m.Completion(tickets[0].held(), run_s=3.5, run_max_s=2.0, exit_status=3)
    rig.ask(peer, m.Complete(1, [completion]))
    [event] = events(rig)
    assert (event.event, event.submission_id, event.mask, event.consumer) == (
        "completed",
        submission_id,
        0b11,
        peer.consumer,
    )
    assert (event.wait_s, event.run_s, event.run_max_s, event.exit_status) == (3.0, 3.5, 2.0, 3)


@pytest.mark.parametrize("options", [{"delay_s": 5.0}, {"not_before_at": 1_800_000_005_000}])
def test_delayed_submission_waits_from_when_it_is_due(rig: Rig, options: dict[str, object]) -> None:
    submission_id = rig.submit(1, **options)
    rig.advance(7)
    complete_each(rig, submission_id, 1)
    assert [event.wait_s for event in events(rig)] == [2.0]


def test_retry_waits_from_the_end_of_its_back_off_and_what_was_lost_from_its_loss(rig: Rig) -> None:
    submission_id = rig.submit(1)
    fail_one(rig, submission_id, delay_s=10.0)
    rig.advance(12)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.advance(1)
    rig.disconnect(peer)
    rig.settle()
    rig.advance(3)
    complete_each(rig, submission_id, 1)
    assert [(event.event, event.attempt, event.wait_s) for event in events(rig)] == [
        ("failed", 0, 0.0),
        ("lost", 1, 2.0),
        ("completed", 2, 3.0),
    ]


def test_requeued_chunk_waits_from_its_requeue(rig: Rig) -> None:
    submission_id = rig.submit(2)
    fail_one(rig, submission_id, is_final=True)
    rig.advance(100)
    rig.ask(rig.connect(), m.Requeue(1, submission_id))
    began = rig.now.wall
    rig.advance(4)
    waited_s = (rig.now.wall - began) / 1000
    complete_each(rig, submission_id, 2)
    assert [event.wait_s for event in events(rig, Filter(events=["completed"]))] == [waited_s, waited_s]


def test_wait_is_not_known_of_what_was_reserved_before_the_last_start(rig: Rig) -> None:
    rig.submit(1)
    rig.advance(5)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, lease_s=100.0)
    rig.restart()
    rig.complete(rig.connect(), ticket.held())
    assert [event.wait_s for event in events(rig)] == [0.0]


def test_wait_is_not_known_of_what_was_taken_up_again(rig: Rig) -> None:
    rig.submit(1)
    rig.advance(5)
    first, second = rig.connect(), rig.connect()
    [ticket] = rig.reserve(first)
    rig.disconnect(first)
    assert rig.reclaim(second, ticket.held()) == []
    rig.complete(second, ticket.held())
    assert [event.wait_s for event in events(rig)] == [0.0]


def test_lease_whose_holder_has_measured_nothing_ran_for_as_long_as_it_was_held(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, lease_s=100.0)
    rig.advance(4)
    rig.complete(peer, ticket.held([0]))
    rig.fail(peer, ticket.held([1]))
    assert [(event.event, event.run_s) for event in events(rig)] == [("completed", 4.0), ("failed", 4.0)]
    assert rig.show(submission_id).completed_count == 1


def test_what_a_lost_consumer_held_ran_until_then(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.start(peer, ticket)
    rig.advance(6)
    rig.disconnect(peer)
    rig.settle()
    assert [(event.run_s, event.run_max_s) for event in events(rig)] == [(12.0, 6.0)]


# --- conditions ---


@pytest.fixture
def mixed(rig: Rig) -> tuple[int, int]:
    """Two submissions with events of all kinds, ten seconds apart."""
    first = rig.submit(70, metadata={"tenant": "a"}, keep_on_dead=True)
    fail_one(rig, first, reason="Disk quota exceeded", exit_status=1, is_final=True)
    fail_one(rig, first, reason="killed", signal=9, is_final=True)
    complete_each(rig, first, 3)
    rig.pass_time(10)
    second = rig.submit(2, metadata={"tenant": "b"})
    fail_one(rig, second, reason="no such host", exit_status=75, is_final=True)
    rig.ask(rig.connect(), m.Requeue(next(rig.ids), second))
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), second))
    return first, second


@pytest.mark.parametrize("is_folded", [False, True])
def test_events_are_found_by_each_of_their_properties_and_by_all_together(
    rig: Rig, mixed: tuple[int, int], *, is_folded: bool
) -> None:
    first, second = mixed
    wall = rig.now.wall
    if is_folded:
        rig.fold()
    one = ["failed", "dead", "failed", "dead", "completed", "completed", "completed"]
    two = ["failed", "dead", "requeued", "cancelled"]
    assert told(rig) == one + two
    assert told(rig, Filter(first)) == one
    assert told(rig, Filter(second)) == two
    assert told(rig, Filter(first, 1)) == ["failed", "dead"]
    assert told(rig, Filter(first, 69)) == []
    assert told(rig, Filter(events=["dead", "cancelled"])) == ["dead", "dead", "dead", "cancelled"]
    assert told(rig, Filter(consumer="worker-")) == [*one, "failed", "dead"]
    assert told(rig, Filter(consumer="consumer-")) == []
    assert told(rig, Filter(metadata={"tenant": "b"})) == two
    assert told(rig, Filter(metadata={"tenant": "c"})) == []
    assert told(rig, Filter(reason="QUOTA")) == ["failed", "dead"]
    assert told(rig, Filter(exit_statuses=[75], signals=[9])) == ["failed", "dead"] * 2
    assert told(rig, Filter(from_at=wall)) == two
    assert told(rig, Filter(to_at=wall)) == one
    assert told(rig, Filter(first, events=["failed"], signals=[9], to_at=wall)) == ["failed"]


def test_pages_of_any_length_in_both_directions_give_the_same(
    rig: Rig, mixed: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while some is folded and some is not, whether the events of a submission are found by block or among all."""
    first, _ = mixed
    rig.fold()
    complete_each(rig, first, 4)
    for where in (ALL, Filter(first), Filter(first, 3), Filter(events=["completed"])):
        expected = events(rig, where)
        assert expected
        for scan, indexed in ((1, 20_000), (3, 20_000), (10_000, 2), (2, 0)):
            monkeypatch.setattr(history, "SCAN_ROWS", scan)
            monkeypatch.setattr(history, "INDEXED_ROWS", indexed)
            for limit in (1, 2, 1000):
                assert events(rig, where, limit) == expected
                assert events(rig, where, limit, newest_first=True) == expected[::-1]
        monkeypatch.undo()


def test_events_of_a_removed_submission_are_still_there_without_its_metadata(rig: Rig) -> None:
    submission_id = rig.submit(1, metadata={"tenant": "a"})
    complete_each(rig, submission_id, 1)
    [page] = pages(rig)
    assert page.metadata == {submission_id: {"tenant": "a"}}
    rig.fold()
    rig.ask(rig.connect(), m.Remove(1, submission_id))
    rig.advance(2)
    assert told(rig, Filter(submission_id)) == ["completed"]
    assert pages(rig)[0].metadata == {}


def test_page_ends_before_its_reasons_are_too_long_for_a_frame(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_view, "PAGE_BYTES", 250)
    submission_id = rig.submit(10, max_attempts=100)
    for _ in range(10):
        fail_one(rig, submission_id, reason="x" * 100, delay_s=0.0)
    lengths = [len(page.rows) for page in pages(rig)]
    assert lengths == [3, 3, 3, 1]


def test_page_looks_at_no_more_rows_than_its_bound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SCAN_ROWS", 5)
    complete_each(rig, rig.submit(20), 20)
    page = rig.only(rig.connect(), m.History(1, Filter(reason="nothing")), m.HistoryRows)
    assert (page.rows, page.next_after) == ([], 5)


@pytest.mark.parametrize("where", [ALL, Filter(reason="nothing"), Filter(consumer="worker")])
@pytest.mark.parametrize("newest_first", [False, True])
def test_page_says_up_to_which_instant_it_has_looked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, where: Filter, newest_first: bool
) -> None:
    submission_id = rig.submit(8)
    for _ in range(8):
        complete_each(rig, submission_id, 1)
        rig.advance(1)
    instants = [event.at for event in events(rig, newest_first=newest_first)]
    monkeypatch.setattr(history, "SCAN_ROWS", 3)
    reached = [page.reached_at for page in pages(rig, where, newest_first=newest_first)]
    assert reached == [instants[2], instants[5], None]


@pytest.mark.parametrize("where", [Filter(events=["vanished"]), Filter(index=3)])
def test_conditions_that_cannot_be_are_refused(rig: Rig, where: Filter) -> None:
    with pytest.raises(UsageError):
        pages(rig, where)


# --- pruning ---


def prune(rig: Rig, older_than_s: float | None = None, keep_count: int | None = None) -> int:
    return rig.only(rig.connect(), m.Prune(next(rig.ids), older_than_s, keep_count), m.Changed).count


def test_prune_keeps_the_newest_rows_and_says_how_many_went(rig: Rig) -> None:
    complete_each(rig, rig.submit(20), 12)
    assert prune(rig, keep_count=5) == 7
    assert [event.seq for event in events(rig)] == [8, 9, 10, 11, 12]
    assert prune(rig, keep_count=5) == 0
    assert prune(rig, keep_count=0) == 5
    assert events(rig) == []


def test_prune_by_age_leaves_what_is_younger(rig: Rig) -> None:
    submission_id = rig.submit(20)
    complete_each(rig, submission_id, 3)
    rig.advance(100)
    complete_each(rig, submission_id, 2)
    assert prune(rig, older_than_s=50) == 3
    assert [event.seq for event in events(rig)] == [4, 5]
    assert rig.show(submission_id).completed_count == 5
    rig.crash()
    assert rig.show(submission_id).completed_count == 5


def test_prune_that_was_asked_for_goes_in_slices_and_work_goes_on_in_between(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PRUNE_ROWS", 2)
    submission_id = rig.submit(40)
    complete_each(rig, submission_id, 20)
    rig.fold()
    worker, peer = rig.connect(), rig.connect()
    rig.send(peer, m.Prune(9, keep_count=0))
    done, left = 0, [20]
    while not (replies := rig.replies(peer, 9)):
        [ticket] = rig.reserve_now(worker)
        rig.send(worker, m.Complete(100 + done, [m.Completion(ticket.held())]))
        done += 1
        rig.commit()
        left.append(int(str(rig.rows("SELECT count(*) FROM history WHERE seq <= 20")[0][0])))
        assert left[-2] - left[-1] <= 2
    assert isinstance(replies[0], m.Changed)
    assert left[-1] == 0
    assert done >= 10
    assert rig.broken_rules() == []


def test_prune_that_cannot_be_committed_is_refused(rig: Rig) -> None:
    complete_each(rig, rig.submit(3), 3)
    rig.fold()
    peer = rig.connect()
    rig.send(peer, m.Prune(9, keep_count=0))
    rig.commit()
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 9)
    assert len(events(rig)) == 3


def test_prune_of_nothing_in_particular_is_refused(rig: Rig) -> None:
    with pytest.raises(UsageError):
        prune(rig)


def test_end_of_the_daemon_does_not_wait_for_the_last_slice_of_a_prune(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PRUNE_ROWS", 2)
    complete_each(rig, rig.submit(40), 40)
    rig.fold()
    peer = rig.connect()
    rig.send(peer, m.Prune(999, keep_count=0))
    for _ in range(4):
        rig.commit()
    rig.engine.stop_handing_out()
    rig.engine.fold_all()
    rig.settle()
    with pytest.raises(Conflict, match=r"stopping\. Already done: [0-9]+\."):
        rig.replies(peer, 999)
    assert int(str(rig.rows("SELECT count(*) FROM history")[0][0])) > 20
