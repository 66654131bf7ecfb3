"""Back-pressure: submissions for which there is no room are refused, or wait; completions never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from opsq.errors import NoRoom
from opsq.filesystem import Space
from opsq.queue.policy import Policy
from opsq.queue.submissions import admission
from opsq.wire import messages as m
from unit.model.rig import Rig

LIMIT = 100


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    """An engine that lets 100 chunks be unfinished; what it counts must be what there is."""
    rig = Rig(runtime_dir, Policy(max_backlog_chunks=LIMIT))
    yield rig
    rig.settle()
    check_count(rig)
    assert rig.broken_rules() == []
    rig.close()


def check_count(rig: Rig) -> None:
    total = rig.status().total
    left = rig.only(rig.connect(), m.CheckCapacity(next(rig.ids), 0), m.Capacity).left_count
    assert left == max(LIMIT - total.waiting_count - total.delayed_count - total.reserved_count, 0)


def send(rig: Rig, chunks_count: int, wait_s: float | None = None, **options: object) -> tuple[m.Request, object]:
    """A submission that waits for room: its request and the connection."""
    peer = rig.connect("producer")
    new = msgspec.structs.replace(m.NewSubmission(rig.request_key(), chunks_count), **options)
    request = m.Submit(next(rig.ids), [new], wait_s)
    rig.send(peer, request)
    rig.settle()
    return request, peer


def is_stored(rig: Rig, sent: tuple[m.Request, object]) -> bool:
    request, peer = sent
    return any(isinstance(reply, m.Submitted) for reply in rig.replies(peer, request.id))  # type: ignore[arg-type,union-attr]


def finish(rig: Rig, count: int) -> None:
    peer = rig.connect()
    held = [ticket.held() for ticket in rig.reserve(peer, count)]
    assert sum(one.mask.bit_count() for one in held) == count
    assert rig.complete(peer, *held) == []


def test_submission_over_the_limit_is_refused_and_says_how_much_is_there_and_allowed(rig: Rig) -> None:
    rig.submit(60)
    with pytest.raises(NoRoom) as refused:
        rig.submit(41)
    assert refused.value.exit_status == 6
    assert refused.value.message == "There is no room for 41 more chunks: 60 are unfinished, and 100 may be."
    assert "max_backlog_chunks" in refused.value.hint
    assert rig.rows("SELECT count(*) FROM submission") == [(1,)]
    rig.submit(40)


def test_request_is_expected_while_it_waits_and_is_committed_and_when_it_has_made_a_submission(rig: Rig) -> None:
    """Until then the content that belongs to it must stay."""
    assert not rig.engine.expects(b"o" * 16)
    rig.submit(LIMIT)
    sent = send(rig, 1)
    key = sent[0].submissions[0].request_key  # type: ignore[union-attr]
    assert not is_stored(rig, sent)
    assert rig.engine.expects(key)
    finish(rig, 1)
    assert is_stored(rig, sent)
    assert rig.engine.expects(key)
    finish(rig, 1)
    under_way = m.Submit(next(rig.ids), [m.NewSubmission(b"u" * 16, 1)])
    rig.send(rig.connect(), under_way)
    assert rig.engine.expects(b"u" * 16)


def test_waiting_delayed_and_reserved_chunks_count_and_finished_ones_do_not(rig: Rig) -> None:
    rig.submit(30, delay_s=1e6)
    rig.submit(30, keep_on_dead=True)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 30)
    rig.fail(peer, ticket.held(range(10)), delay_s=1e6)
    with pytest.raises(NoRoom):
        rig.submit(41)
    rig.complete(peer, ticket.held(range(10, 20)))
    rig.fail(peer, ticket.held(range(20, 30)), is_final=True)
    rig.submit(60)
    with pytest.raises(NoRoom):
        rig.submit(1)


def test_submissions_of_one_request_count_together_and_with_those_that_are_being_committed(rig: Rig) -> None:
    peer = rig.connect()
    news = [m.NewSubmission(rig.request_key(), 30) for _ in range(5)]
    rig.send(peer, m.Submit(1, news[:2]))
    with pytest.raises(NoRoom):
        rig.send(peer, m.Submit(2, news[2:4]))
    rig.send(peer, m.Submit(3, news[4:]))
    rig.settle()
    assert [len(rig.replies(peer, number)) for number in (1, 2, 3)] == [1, 0, 1]


def test_commit_that_fails_gives_the_room_back(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, m.Submit(1, [m.NewSubmission(rig.request_key(), 100)]))
    rig.fail_commit()
    rig.told.clear()
    rig.advance(2)
    rig.submit(100)


@pytest.mark.parametrize("end", [Rig.crash, Rig.restart])
def test_count_is_that_of_the_file_after_a_restart(rig: Rig, end: Callable[[Rig], None]) -> None:
    rig.submit(50)
    finish(rig, 20)
    cancelled = rig.submit(50)
    rig.ask(rig.connect(), m.Cancel(1, cancelled))
    finish(rig, 5)
    end(rig)
    check_count(rig)
    with pytest.raises(NoRoom):
        rig.submit(76)
    rig.submit(75)


def test_cancel_makes_room_and_requeue_takes_it_whatever_the_limit(rig: Rig) -> None:
    first = rig.submit(100)
    rig.ask(rig.connect(), m.Cancel(1, first))
    rig.submit(90)
    peer = rig.connect()
    rig.send(peer, m.Requeue(2, first))
    rig.fold()
    check_count(rig)
    with pytest.raises(NoRoom, match="190 are unfinished"):
        rig.submit(1)


def test_repeated_request_and_known_unique_key_need_no_room(rig: Rig) -> None:
    again = m.NewSubmission(rig.request_key(), 100, unique_key="nightly")
    first = rig.only(rig.connect(), m.Submit(1, [again]), m.Submitted).created[0]
    assert rig.only(rig.connect(), m.Submit(2, [again]), m.Submitted).created == [m.Created(first.submission_id, False)]
    other = msgspec.structs.replace(again, request_key=rig.request_key())
    assert rig.only(rig.connect(), m.Submit(3, [other]), m.Submitted).created == [m.Created(first.submission_id, False)]


def test_submission_of_zero_chunks_needs_no_room(rig: Rig) -> None:
    rig.submit(100)
    assert rig.show(rig.submit(0)).state == "completed"


# --- waiting ---


def test_submission_that_waits_for_room_is_stored_as_soon_as_chunks_complete(rig: Rig) -> None:
    rig.submit(100)
    sent = send(rig, 30)
    finish(rig, 29)
    assert not is_stored(rig, sent)
    finish(rig, 1)
    assert is_stored(rig, sent)
    assert rig.status().room_waiting_count == 0


def test_large_submission_is_not_starved_by_small_ones(rig: Rig) -> None:
    """First come, first served: nobody gets in before it, neither who waits nor who does not."""
    rig.submit(100)
    large, small = send(rig, 80), send(rig, 1)
    finish(rig, 50)
    assert not is_stored(rig, small)
    with pytest.raises(NoRoom, match="Already waiting for room: 2 submissions"):
        rig.submit(1)
    finish(rig, 30)
    assert is_stored(rig, large)
    assert not is_stored(rig, small)
    finish(rig, 1)
    assert is_stored(rig, small)


def test_submission_that_is_larger_than_the_limit_is_refused_though_it_would_wait(rig: Rig) -> None:
    with pytest.raises(NoRoom, match="101 chunks are more than the 100 that may be unfinished at once"):
        send(rig, 101)
    assert rig.status().room_waiting_count == 0


def test_submission_that_has_waited_long_enough_is_refused(rig: Rig) -> None:
    rig.submit(100)
    request, peer = send(rig, 30, wait_s=5.0)
    rig.advance(4.5)
    assert rig.status().room_waiting_count == 1
    rig.advance(0.5)
    with pytest.raises(NoRoom, match="100 are unfinished"):
        rig.replies(peer, request.id)  # type: ignore[arg-type,union-attr]
    assert rig.status().room_waiting_count == 0


def test_submission_whose_producer_is_gone_or_gives_up_waits_no_longer(rig: Rig) -> None:
    rig.submit(100)
    (_, gone), (request, patient), last = send(rig, 100), send(rig, 100), send(rig, 1)
    rig.disconnect(gone)  # type: ignore[arg-type]
    rig.send(patient, m.CancelWait(request.id))  # type: ignore[arg-type,union-attr]
    with pytest.raises(NoRoom):
        rig.replies(patient, request.id)  # type: ignore[arg-type,union-attr]
    finish(rig, 1)
    assert is_stored(rig, last)
    assert rig.rows("SELECT count(*) FROM submission") == [(2,)]


def test_waiting_submission_whose_unique_key_was_stored_meanwhile_gets_that_one(rig: Rig) -> None:
    rig.submit(100)
    first, second = send(rig, 50, unique_key="nightly"), send(rig, 100, unique_key="nightly")
    finish(rig, 50)
    assert is_stored(rig, first)
    assert is_stored(rig, second)
    assert rig.rows("SELECT count(*) FROM submission") == [(2,)]


def test_producer_may_check_capacity_before_it_writes_content(rig: Rig) -> None:
    assert rig.only(rig.connect(), m.CheckCapacity(1, 100), m.Capacity).left_count == 100
    rig.submit(100)
    with pytest.raises(NoRoom):
        rig.ask(rig.connect(), m.CheckCapacity(2, 1))
    peer = rig.connect()
    rig.send(peer, m.CheckCapacity(3, 10, wait_s=None))
    assert rig.replies(peer, 3) == []
    finish(rig, 10)
    assert rig.replies(peer, 3) == [m.Capacity(3, 10)]


def test_status_tells_the_limit_and_who_waits(rig: Rig) -> None:
    rig.submit(100)
    send(rig, 1)
    state = rig.status()
    assert (state.backlog_limit, state.room_waiting_count) == (100, 1)
    assert state.disk_free_bytes is not None
    finish(rig, 1)


def test_without_a_limit_there_is_room_for_any_number(runtime_dir: Path) -> None:
    rig = Rig(runtime_dir)
    rig.submit(1 << 40)
    rig.submit(1 << 40)
    assert rig.only(rig.connect(), m.CheckCapacity(1, 1 << 40), m.Capacity).left_count is None
    assert rig.status().backlog_limit is None
    rig.close()


# --- the disk ---


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What the disk tells that it has left."""
    left: list[int | None] = [1 << 40]
    monkeypatch.setattr(admission, "space", lambda _: None if left[0] is None else Space(1 << 40, left[0]))
    return left


def test_disk_below_the_floor_holds_submissions_back_and_never_completions(rig: Rig, disk: list[int | None]) -> None:
    rig.submit(10)
    disk[0] = (64 << 20) - 1
    with pytest.raises(NoRoom, match="67108863 bytes left; 67108864 must stay free") as refused:
        rig.submit(1)
    assert "min_free_bytes" in refused.value.hint
    finish(rig, 10)
    disk[0] = 64 << 20
    rig.submit(1)


def test_submission_that_waits_is_stored_when_the_disk_has_room_again(rig: Rig, disk: list[int | None]) -> None:
    disk[0] = 0
    sent = send(rig, 1)
    rig.advance(1)
    assert not is_stored(rig, sent)
    disk[0] = 1 << 30
    rig.advance(1)
    assert is_stored(rig, sent)


def test_content_that_is_to_be_written_must_leave_the_floor(runtime_dir: Path, disk: list[int | None]) -> None:
    """It counts where content lies; the database grows by little."""
    rig = Rig(runtime_dir)
    rig.engine._admission._folders = (runtime_dir, runtime_dir)
    disk[0] = (64 << 20) + 1000
    rig.ask(rig.connect(), m.CheckCapacity(1, 1, 1000))
    with pytest.raises(NoRoom, match="1001 are to be written"):
        rig.ask(rig.connect(), m.CheckCapacity(2, 1, 1001))
    rig.close()


@pytest.mark.parametrize(("set_bytes", "floor_bytes"), [(None, 50), (400, 400), (0, 0)])
def test_small_disk_may_be_filled_up_to_its_last_twentieth_unless_another_floor_is_set(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, set_bytes: int | None, floor_bytes: int
) -> None:
    left = floor_bytes
    monkeypatch.setattr(admission, "space", lambda _: Space(1000, left))
    rig = Rig(runtime_dir, Policy(min_free_bytes=set_bytes))
    rig.submit(1)
    left -= 1
    if floor_bytes:
        with pytest.raises(NoRoom, match=f"{floor_bytes} must stay free"):
            rig.submit(1)
    else:
        rig.submit(1)
    rig.close()


def test_disk_that_does_not_tell_its_size_holds_nothing_back(rig: Rig, disk: list[int | None]) -> None:
    disk[0] = None
    rig.submit(1)
    assert rig.status().disk_free_bytes is None


def test_while_the_storage_is_full_a_submission_that_wants_to_waits(rig: Rig) -> None:
    refused = rig.connect()
    rig.send(refused, m.Submit(1, [m.NewSubmission(rig.request_key(), 1)]))
    rig.fail_commit()
    sent = send(rig, 1)
    assert not is_stored(rig, sent)
    rig.advance(3)
    assert is_stored(rig, sent)
