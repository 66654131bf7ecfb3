"""Events as they are asked for: what is told, in which order, to whom at once, and what is not kept any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import Bug
from opsq.queue.chunks.fail import DEATHS_TOLD
from opsq.queue.policy import Policy
from opsq.store import events as stored
from opsq.wire import messages as m
from unit.model.rig import Rig


def page(rig: Rig, since: int | None = None, **request: object) -> m.EventRows:
    return rig.only(rig.connect(), m.Events(next(rig.ids), since, **request), m.EventRows)  # type: ignore[arg-type]


def kinds(rig: Rig, since: int | None = None) -> list[str]:
    return [event.kind for event in page(rig, since).events]


def bury(rig: Rig, count: int) -> None:
    """Have chunks die, each in a batch of its own."""
    peer = rig.connect("worker")
    for _ in range(count):
        [ticket] = rig.reserve(peer, 1)
        rig.fail(peer, ticket.held(), is_final=True, reason="broken")


def pause(rig: Rig, value: str) -> None:
    rig.only(rig.connect(), m.Pause(next(rig.ids), {"tenant": value}, by_name="ada"), m.Changed)


# --- what is told ---


def test_each_end_of_a_submission_is_told_once_with_its_metadata_and_title(rig: Rig) -> None:
    done = rig.submit(1, metadata={"tenant": "a"}, title="Import")
    peer = rig.connect("worker")
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    empty = rig.submit(0)
    cancelled = rig.submit(1)
    rig.ask(peer, m.Cancel(next(rig.ids), cancelled, "not needed"))
    expired = rig.submit(1, expires_s=5)
    rig.advance(6)
    events = page(rig).events
    assert [(event.kind, event.submission_id) for event in events] == [
        ("completed", done),
        ("completed", empty),
        ("cancelled", cancelled),
        ("expired", expired),
    ]
    assert (events[0].metadata, events[0].title, events[2].reason) == ({"tenant": "a"}, "Import", "not needed")


def test_death_is_told_before_the_end_that_it_brings(rig: Rig) -> None:
    rig.submit(5)
    bury(rig, 1)
    dead, failed = page(rig).events
    assert (dead.kind, dead.chunk, dead.count, dead.reason) == ("dead", 0, 1, "broken")
    assert (failed.kind, failed.reason) == ("failed", "Chunk 0 is dead: broken")


def test_deaths_of_one_submission_are_told_one_by_one_then_each_time_that_they_double(rig: Rig) -> None:
    rig.submit(70, keep_on_dead=True)
    bury(rig, 70)
    told = [event.count for event in page(rig).events]
    assert told == [*range(1, DEATHS_TOLD + 1), 32, 64, 70]  # the last is that of the end


def test_batch_that_fails_tells_nothing(rig: Rig) -> None:
    submission_id = rig.submit(1)
    rig.send(rig.connect(), m.Cancel(next(rig.ids), submission_id))
    rig.fail_commit()
    assert page(rig).events == []


def test_pause_and_resume_are_told_with_their_pairs(rig: Rig) -> None:
    pause(rig, "a")
    rig.only(rig.connect(), m.Resume(next(rig.ids), {"tenant": "a"}), m.Changed)
    rig.only(rig.connect(), m.Resume(next(rig.ids), {"tenant": "a"}), m.Changed)  # there is none any more
    paused, resumed = page(rig).events
    assert (paused.kind, paused.metadata, paused.by_name) == ("paused", {"tenant": "a"}, "ada")
    assert (resumed.kind, resumed.metadata) == ("resumed", {"tenant": "a"})


def test_schedule_tells_what_it_fired_and_what_it_missed(rig: Rig) -> None:
    new = m.Schedule("nightly", "every 1m", m.NewSubmission(bytes(16), 0), catch_up="none")
    rig.only(rig.connect(), m.PutSchedule(next(rig.ids), new), m.Changed)
    rig.advance(61)
    rig.restart(away_s=3600)
    rig.tick()
    rig.settle()
    fired, missed = page(rig).events[:2]
    assert (fired.kind, fired.schedule, fired.metadata["schedule"]) == ("fired", "nightly", "nightly")
    assert (missed.kind, missed.schedule, missed.submission_id) == ("missed", "nightly", None)
    assert (missed.planned_at, missed.count) == (fired.planned_at + 60_000, 59)  # type: ignore[operator]


# --- cursors ---


def test_cursor_goes_on_where_it_was_over_restarts(rig: Rig) -> None:
    pause(rig, "a")
    first = page(rig)
    rig.restart()
    pause(rig, "b")
    [event] = page(rig, first.next_since).events
    assert (event.metadata, event.seq) == ({"tenant": "b"}, first.next_since + 1)


def test_pages_hold_every_event_once(rig: Rig) -> None:
    for number in range(7):
        pause(rig, str(number))
    found, since = [], None
    while since is None or since < 7:
        rows = page(rig, since, limit=3)
        found += [event.metadata["tenant"] for event in rows.events]
        since = rows.next_since
    assert found == list("0123456")


def test_only_events_of_the_kinds_asked_for_come(rig: Rig) -> None:
    pause(rig, "a")
    rig.submit(0)
    rows = page(rig, kinds=["completed"])
    assert ([event.kind for event in rows.events], rows.next_since) == (["completed"], 2)


def test_retention_keeps_the_newest_and_a_late_reader_is_told_how_many_are_gone(runtime_dir: Path) -> None:
    rig = Rig(runtime_dir, Policy(event_rows=3))
    for number in range(10):
        pause(rig, str(number))
    rig.advance(120)
    rows = page(rig, 2)
    lost, *kept = rows.events
    assert (lost.kind, lost.count, lost.seq, lost.at) == ("lost", 5, 7, kept[0].at)
    assert [event.seq for event in kept] == [8, 9, 10]
    assert kinds(rig) == ["paused"] * 3  # who begins has lost nothing
    assert kinds(rig, lost.seq) == ["paused"] * 3
    rig.close()


def test_newest_event_outlives_every_age_so_that_no_cursor_comes_twice(rig: Rig) -> None:
    pause(rig, "a")
    pause(rig, "b")
    rig.pass_time(40 * 86_400)
    rig.advance(120)
    assert [event.seq for event in page(rig).events] == [2]
    pause(rig, "c")
    assert [event.seq for event in page(rig, 2).events] == [3]


def test_cursor_ahead_of_the_queue_is_told_and_gets_what_is_kept(rig: Rig) -> None:
    pause(rig, "a")
    rows = page(rig, 100)
    lost, first = rows.events
    assert (lost.kind, lost.count, lost.seq, first.seq, rows.next_since) == ("lost", None, 0, 1, 1)


def test_cursor_of_a_history_that_is_gone_is_told_though_the_queue_has_gone_past_it(rig: Rig) -> None:
    for value in "abc":
        pause(rig, value)
    kept = page(rig)
    rig.advance(1)
    for value in "de":
        pause(rig, value)
    gone = page(rig)
    assert page(rig, gone.next_since, since_at=gone.next_at).events == []
    rig.database.writer.execute("DELETE FROM event WHERE seq > 3")  # as in a copy of the file that is put back
    rig.crash()
    rig.advance(1)
    for value in "fghi":
        pause(rig, value)
    lost, *others = page(rig, gone.next_since, since_at=gone.next_at).events
    assert (lost.kind, lost.count, lost.seq) == ("lost", None, 0)
    assert [event.metadata["tenant"] for event in others] == list("abcfghi")
    behind = page(rig, kept.next_since, since_at=kept.next_at).events
    assert [event.metadata["tenant"] for event in behind] == list("fghi")


def test_cursor_whose_event_has_just_gone_is_behind_the_oldest(runtime_dir: Path) -> None:
    rig = Rig(runtime_dir, Policy(event_rows=3))
    pause(rig, "a")
    first = page(rig)
    for value in "bcd":
        pause(rig, value)
    rig.advance(120)
    assert [event.seq for event in page(rig, first.next_since, since_at=first.next_at).events] == [2, 3, 4]
    rig.close()


# --- waiting ---


def test_call_that_waits_is_answered_by_the_commit_of_an_event(rig: Rig) -> None:
    peer = rig.connect()
    assert rig.ask(peer, m.Events(5, wait_s=None)) == []
    pause(rig, "a")
    [rows] = rig.replies(peer, 5)
    assert [event.kind for event in rows.events] == ["paused"]  # type: ignore[attr-defined]
    assert not peer.parked_ids


def test_call_that_waits_for_other_kinds_goes_on_waiting(rig: Rig) -> None:
    peer = rig.connect()
    rig.ask(peer, m.Events(5, wait_s=None, kinds=["completed"]))
    pause(rig, "a")
    assert rig.replies(peer, 5) == []
    rig.submit(0)
    [rows] = rig.replies(peer, 5)
    assert [event.kind for event in rows.events] == ["completed"]  # type: ignore[attr-defined]


def test_call_that_has_waited_long_enough_gets_none(rig: Rig) -> None:
    peer = rig.connect()
    rig.ask(peer, m.Events(5, wait_s=3))
    rig.advance(4)
    assert rig.replies(peer, 5) == [m.EventRows(5, [], 0, 0)]


def test_cancelled_wait_is_answered_and_a_lost_connection_forgotten(rig: Rig) -> None:
    peer, other = rig.connect(), rig.connect()
    rig.ask(peer, m.Events(5, wait_s=None))
    rig.ask(other, m.Events(6, wait_s=9))
    rig.send(peer, m.CancelWait(5))
    assert rig.replies(peer, 5) == [m.EventRows(5, [], 0, 0)]
    rig.disconnect(other)
    assert not peer.parked_ids | other.parked_ids
    pause(rig, "a")


def test_page_of_rare_kinds_looks_at_a_bounded_number_of_rows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "SCAN_ROWS", 2)
    for number in range(5):
        pause(rig, str(number))
    rig.submit(0)
    rows = page(rig, kinds=["completed"])
    assert (rows.events, rows.next_since, rows.last_seq) == ([], 2, 6)


def test_calls_of_one_connection_wait_apart(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, m.Events(5, wait_s=None, kinds=["paused"]))
    rig.send(peer, m.Events(6, wait_s=None, kinds=["completed"]))
    pause(rig, "a")
    assert [len(rig.replies(peer, number)) for number in (5, 6)] == [1, 0]
    rig.submit(0)
    [rows] = rig.replies(peer, 6)
    assert isinstance(rows, m.EventRows)
    assert [event.kind for event in rows.events] == ["completed"]
    assert (peer.parked_ids, rig.engine._event_stream._parked) == (set(), {})


def test_call_that_waits_is_answered_though_something_beside_the_event_cannot_be_written(rig: Rig) -> None:
    peer, other = rig.connect(), rig.connect()
    rig.send(peer, m.Events(5, wait_s=None))
    rig.send(other, m.Pause(6, {"tenant": "a"}))
    rig.send(other, m.Submit(7, [m.NewSubmission(rig.request_key(), 1, not_before_at=1 << 63)]))
    rig.settle()
    [rows] = rig.replies(peer, 5)
    assert isinstance(rows, m.EventRows)
    assert [event.kind for event in rows.events] == ["paused"]
    with pytest.raises(Bug):
        rig.replies(other, 7)
