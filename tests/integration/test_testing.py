"""`opsq.testing`: the real engine follows a clock that a test moves, and does all that falls due on the way."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator

import pytest

import opsq
import opsq.testing
from opsq.errors import Conflict, NotFound, UsageError
from opsq.testing import Policy, TemporaryQueue


@pytest.fixture
def queue() -> Iterator[TemporaryQueue]:
    with opsq.testing.queue(at="2026-01-01T00:00Z") as queue:
        yield queue


def instants(queue: TemporaryQueue, name: str) -> list[object]:
    """The planned instants of which there are submissions, oldest first."""
    return [state.metadata["planned"] for state in queue.submissions(metadata={"schedule": name})][::-1]


def test_clock_begins_where_it_is_told_to_and_stands_still(queue: TemporaryQueue) -> None:
    assert queue.clock.now == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    first, second = queue.submit([b"x"]), queue.submit([b"x"])
    assert first.state().submitted_at == second.state().submitted_at == queue.clock.now.timestamp() * 1000


@pytest.mark.parametrize("at", ["2026-01-01T01:00+01:00", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 1_767_225_600_000])
def test_beginning_is_a_text_a_datetime_or_milliseconds(at: str | dt.datetime | int) -> None:
    with opsq.testing.queue(at=at) as queue:
        assert queue.clock.now.isoformat() == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize("at", ["soon", "2026-01-01", "2026-01-01T00:00", dt.datetime(2026, 1, 1)])  # noqa: DTZ001
def test_beginning_without_a_zone_is_refused(at: str | dt.datetime) -> None:
    with pytest.raises(UsageError):
        opsq.testing.queue(at=at)


def test_schedule_makes_its_submissions_each_at_its_instant(queue: TemporaryQueue) -> None:
    queue.add_schedule("hourly", "@hourly", timing={"overlap": "allow"})
    queue.clock.advance(hours=2.5)
    assert instants(queue, "hourly") == ["2026-01-01T01:00:00.000Z", "2026-01-01T02:00:00.000Z"]
    submitted = [state.submitted_at for state in queue.submissions()]
    assert submitted == [1_767_225_600_000 + hours * 3_600_000 for hours in (2, 1)]
    queue.clock.advance_to("2026-01-01T03:00Z")
    assert queue.schedule("hourly").fired_count == 3


def test_year_of_nights_passes_in_one_call(queue: TemporaryQueue) -> None:
    queue.add_schedule("nightly", "30 2 * * *", timing={"zone": "America/New_York"})
    queue.clock.advance(days=365)
    counts = queue.schedule("nightly")
    assert (counts.fired_count, counts.skipped_count, counts.missed_count) == (1, 364, 0)


@pytest.mark.parametrize(("catch_up", "made"), [("none", 0), ("last", 1), ("all", 3)])
def test_what_fell_due_while_nobody_looked_is_late(queue: TemporaryQueue, catch_up: str, made: int) -> None:
    timing = {"catch_up": catch_up, "overlap": "allow"}
    queue.add_schedule("hourly", "@hourly", timing=timing)  # type: ignore[arg-type]  # as the table above has it
    queue.clock.skip(hours=3.5)
    assert (len(instants(queue, "hourly")), queue.schedule("hourly").missed_count) == (made, 3 - made)


def test_delay_and_start_are_over_at_their_instants(queue: TemporaryQueue) -> None:
    delayed = queue.submit([b"x"], delay_s=90)
    timed = queue.submit([b"x"], not_before_at=queue.clock.now + dt.timedelta(seconds=90))
    queue.clock.advance(seconds=89)
    assert {delayed.state().state, timed.state().state} == {"scheduled"}
    queue.clock.advance(seconds=1)
    assert {delayed.state().state, timed.state().state} == {"open"}


def test_failed_chunk_comes_back_after_its_back_off(queue: TemporaryQueue) -> None:
    queue.submit([b"x"], backoff=(100, 1, 100))
    [chunk] = queue.consume(until_idle=True, overlapping=True)
    for again in queue.consume(until_idle=True):
        again.fail("no")
    assert not list(queue.consume(until_idle=True))
    queue.clock.advance(seconds=101)
    for again in queue.consume(until_idle=True):
        assert (again.index, again.attempt) == (chunk.index, 2)
        again.complete(b"")


def test_reservation_without_a_heartbeat_expires(queue: TemporaryQueue) -> None:
    submission = queue.submit([b"x"], reservation_s=60)
    with queue.consumer() as consumer:
        chunks = consumer.chunks()
        next(chunks)
        queue.clock.advance(seconds=59)
        assert submission.state().reserved_count == 1
        queue.clock.advance(seconds=1)
        assert submission.state().reserved_count == 0


def test_finished_submission_is_forgotten_in_the_end() -> None:
    with opsq.testing.queue(policy=Policy(finished_days=2)) as queue:
        submission = queue.submit([])
        queue.clock.advance(days=1.9)
        assert submission.state().state == "completed"
        queue.clock.advance(days=0.2)
        with pytest.raises(NotFound):
            submission.state()


def test_expiry_ends_a_submission(queue: TemporaryQueue) -> None:
    submission = queue.submit([b"x"], expires_s=60)
    queue.clock.advance(minutes=1)
    assert submission.state().state == "expired"


def test_rate_limit_lets_more_through_as_time_passes(queue: TemporaryQueue) -> None:
    queue.limit("tenant", rate_per_s=1 / 30, burst=2)
    queue.submit([b"x"] * 10, metadata={"tenant": "a"})

    def taken() -> int:
        count = 0
        for chunk in queue.consume(until_idle=True):
            chunk.complete(b"")
            count += 1
        return count

    assert taken() == 2
    queue.clock.advance(minutes=1)
    assert taken() == 2


def test_consumer_in_another_thread_gets_what_the_clock_has_freed(queue: TemporaryQueue) -> None:
    submission = queue.submit([b"x"], delay_s=60)

    def consume() -> None:
        for chunk in queue.consume(until_empty=False):
            chunk.complete(b"y")
            break

    thread = threading.Thread(target=consume)
    thread.start()
    queue.clock.advance(minutes=1)
    thread.join()
    assert list(submission.results()) == [b"y"]


def test_call_that_only_the_clock_could_end_says_so(queue: TemporaryQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opsq.testing, "STANDSTILL_S", 0.1)
    submission = queue.submit([b"x"], backoff=(60, 1, 60))
    for chunk in queue.consume(until_idle=True):
        chunk.fail("not yet")
    with pytest.raises(UsageError, match="stands still"):
        list(queue.consume())
    with pytest.raises(UsageError, match="stands still"):
        submission.wait()
    queue.clock.advance(minutes=2)
    for chunk in queue.consume():
        chunk.complete(b"")
    assert submission.wait().state == "completed"


def test_time_does_not_go_back(queue: TemporaryQueue) -> None:
    with pytest.raises(UsageError, match="does not go back"):
        queue.clock.advance(hours=-1)
    with pytest.raises(UsageError, match="does not go back"):
        queue.clock.advance_to("2025-12-31T00:00Z")


def test_what_is_random_is_the_same_each_time() -> None:
    def order() -> list[object]:
        with opsq.testing.queue() as queue:
            for n in range(20):
                queue.submit([b""], metadata={"n": n})
            found = []
            for chunk in queue.consume("Random"):
                found.append(chunk.metadata["n"])
                chunk.complete(b"")
            return found

    assert order() == order()


def test_queue_is_gone_when_it_is_closed() -> None:
    with opsq.testing.queue() as queue:
        queue.submit([b"x"])
        folder = queue.clock._engine._path
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(Conflict):
        queue.clock.advance(hours=1)
