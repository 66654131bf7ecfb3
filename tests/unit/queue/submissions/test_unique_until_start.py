"""Unique keys: one submission has a key until it starts, or until it ends.

Exact over crashes, restarts and clock steps.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from opsq.errors import Refused, StorageFull, UsageError
from opsq.queue.engine import Peer
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket, tickets_of

KEY = "nightly"


def submit(rig: Rig, chunks_count: int = 2, *, until_start: bool = True, **options: object) -> m.Created:
    new = m.NewSubmission(rig.request_key(), chunks_count, unique_key=KEY, unique_until_start=until_start)
    new = msgspec.structs.replace(new, **options)
    [created] = rig.only(rig.connect(), m.Submit(next(rig.ids), [new]), m.Submitted).created
    return created


def ways(rig: Rig, peer: Peer, way: str) -> list[Ticket]:
    """Reserve a chunk, in each way in which one can be handed out."""
    if way == "lease":
        return rig.reserve(peer, lease_s=60.0)
    request = (
        m.CompleteAndReserve(next(rig.ids), [], 1, "OldestFirst")
        if way == "follow"
        else m.Reserve(next(rig.ids), 1, "OldestFirst")
    )
    replies = rig.ask(peer, request)
    assert isinstance(replies[-1], m.Reserved)
    return tickets_of(replies[-1])


@pytest.mark.parametrize("way", ["reserve", "lease", "follow"])
def test_key_until_start_is_free_as_soon_as_a_chunk_is_handed_out(rig: Rig, way: str) -> None:
    first = submit(rig)
    assert submit(rig) == m.Created(first.submission_id, False)
    assert len(ways(rig, rig.connect(), way)) == 1
    second = submit(rig)
    assert second.is_new
    assert submit(rig) == m.Created(second.submission_id, False)


def test_key_until_start_is_free_when_a_parked_call_gets_the_chunk(rig: Rig) -> None:
    peer = rig.connect()
    request_id = rig.park(peer)
    first = submit(rig)
    assert len(rig.replies(peer, request_id)) == 1
    assert submit(rig).is_new
    assert rig.show(first.submission_id).reserved_count == 1


def test_nobody_is_told_of_a_first_chunk_before_it_is_committed_that_the_key_is_free(rig: Rig) -> None:
    """Else a crash could leave the key with a submission that somebody works on already."""
    submit(rig, 2)
    first, second = rig.connect(), rig.connect()
    rig.send(first, m.Reserve(1, 1, "OldestFirst"))
    assert rig.begin()
    rig.send(second, m.Reserve(2, 1, "OldestFirst"))
    assert rig.replies(first, 1) == rig.replies(second, 2) == []
    rig.database.commit()
    rig.end(None)
    assert len(rig.replies(first, 1)) == 1
    rig.settle()
    assert len(rig.replies(second, 2)) == 1


def test_later_chunks_wait_for_no_commit(rig: Rig) -> None:
    submit(rig, 2)
    peer = rig.connect()
    rig.reserve(peer)
    assert len(rig.reserve_now(peer)) == 1


@pytest.mark.parametrize("until_start", [True, False])
@pytest.mark.parametrize("end", [Rig.crash, Rig.restart])
def test_who_has_a_key_is_the_same_after_a_restart(rig: Rig, end: Callable[[Rig], None], until_start: bool) -> None:
    waiting = submit(rig, until_start=until_start)
    end(rig)
    assert submit(rig, until_start=until_start) == m.Created(waiting.submission_id, False)
    [ticket] = rig.reserve(rig.connect())
    rig.release(rig.connect(), ticket.held())
    end(rig)
    assert rig.show(waiting.submission_id).reserved_count == 0
    again = submit(rig, until_start=until_start)
    assert again.is_new == until_start


@pytest.mark.parametrize("is_lease", [True, False])
def test_crash_before_the_commit_of_a_start_leaves_the_key_and_nobody_knows_of_the_chunk(
    rig: Rig, is_lease: bool
) -> None:
    first = submit(rig)
    peer = rig.connect()
    rig.send(peer, m.Reserve(1, 1, "OldestFirst", lease_s=60.0 if is_lease else None))
    assert rig.begin()
    assert rig.replies(peer, 1) == []
    rig.crash()
    assert submit(rig) == m.Created(first.submission_id, False)
    assert len(rig.reserve(rig.connect())) == 1
    assert submit(rig).is_new


@pytest.mark.parametrize("is_lease", [True, False])
def test_commit_of_a_start_that_fails_frees_the_chunk_and_keeps_the_key(rig: Rig, is_lease: bool) -> None:
    first = submit(rig)
    peer = rig.connect()
    rig.send(peer, m.Reserve(1, 1, "OldestFirst", lease_s=60.0 if is_lease else None))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 1)
    rig.advance(2)
    assert rig.show(first.submission_id).reserved_count == 0
    assert submit(rig) == m.Created(first.submission_id, False)
    assert [ticket.indexes for ticket in rig.reserve(peer)] == [[0]]
    assert submit(rig).is_new


def test_reserve_that_starts_beside_what_cannot_be_written_is_refused_so_that_its_client_asks_again(rig: Rig) -> None:
    first = submit(rig)
    peer = rig.connect()
    rig.send(peer, m.Reserve(1, 1, "OldestFirst"))
    rig.send(peer, m.Submit(2, [m.NewSubmission(rig.request_key(), 1, not_before_at=1 << 63)]))
    rig.settle()
    with pytest.raises(Refused, match="rolled back with another request"):
        rig.replies(peer, 1)
    assert submit(rig) == m.Created(first.submission_id, False)
    assert [ticket.indexes for ticket in rig.reserve(peer)] == [[0]]
    assert submit(rig).is_new


def test_consumer_that_is_gone_before_the_commit_of_a_start_holds_nothing(rig: Rig) -> None:
    first = submit(rig)
    peer = rig.connect()
    rig.send(peer, m.Reserve(1, 1, "OldestFirst"))
    rig.disconnect(peer)
    rig.settle()
    assert rig.show(first.submission_id).reserved_count == 0
    assert len(rig.reserve(rig.connect())) == 1


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_key_of_a_delayed_submission_is_held_whatever_the_clock_does(rig: Rig, step_s: float) -> None:
    first = submit(rig, delay_s=60.0)
    rig.pass_time(0, wall_s=step_s)
    rig.advance(59)
    assert submit(rig) == m.Created(first.submission_id, False)
    rig.advance(1)
    assert submit(rig) == m.Created(first.submission_id, False)
    rig.reserve(rig.connect())
    assert submit(rig).is_new


def test_key_until_start_is_free_too_when_the_submission_ends_before_it_starts(rig: Rig) -> None:
    first = submit(rig, expires_s=10.0)
    rig.advance(10)
    assert rig.show(first.submission_id).state == "expired"
    second = submit(rig)
    assert second.is_new
    rig.ask(rig.connect(), m.Cancel(1, second.submission_id))
    assert submit(rig).is_new


def test_submission_that_has_started_is_revived_without_its_key(rig: Rig) -> None:
    first = submit(rig)
    rig.reserve(rig.connect())
    rig.ask(rig.connect(), m.Cancel(1, first.submission_id))
    second = submit(rig)
    peer = rig.connect()
    rig.send(peer, m.Requeue(2, first.submission_id))
    rig.fold()
    assert rig.replies(peer, 2) == [m.Changed(2, 2)]
    assert submit(rig) == m.Created(second.submission_id, False)


def test_submission_that_is_revived_after_a_restart_has_its_key_until_it_starts(rig: Rig) -> None:
    first = submit(rig)
    rig.ask(rig.connect(), m.Cancel(1, first.submission_id))
    rig.restart()
    peer = rig.connect()
    rig.send(peer, m.Requeue(2, first.submission_id))
    rig.fold()
    assert submit(rig) == m.Created(first.submission_id, False)
    rig.reserve(peer)
    assert submit(rig).is_new


def test_show_tells_until_when_a_key_is_held_and_whether_it_is(rig: Rig) -> None:
    """The scope is chosen, and shown."""
    first = submit(rig)

    def told() -> tuple[str | None, bool, bool]:
        state = rig.show(first.submission_id)
        return state.unique_key, state.unique_until_start, state.holds_unique_key

    assert told() == (KEY, True, True)
    rig.reserve(rig.connect())
    assert told() == (KEY, True, False)
    until_done = submit(rig, until_start=False).submission_id
    rig.reserve(rig.connect(), 5)
    assert rig.show(until_done).holds_unique_key
    rig.ask(rig.connect(), m.Cancel(1, until_done))
    assert not rig.show(until_done).holds_unique_key


def test_until_start_without_a_key_is_refused(rig: Rig) -> None:
    with pytest.raises(UsageError, match="no unique key"):
        submit(rig, unique_key=None)


def test_key_is_found_by_its_index_and_the_file_keeps_it_unique(rig: Rig) -> None:
    plan = rig.rows(
        "EXPLAIN QUERY PLAN SELECT id FROM submission WHERE unique_key = 'x' AND unique_key IS NOT NULL AND "
        "unique_until != 'started' "
        "AND state IN ('blocked', 'scheduled', 'open')"
    )
    assert "submission_unique_key" in str(plan[0][-1])
