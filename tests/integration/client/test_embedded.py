"""The embedded queue: the real engine and store in this process, with the API of a connected one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import opsq
from opsq.client.core.result_pages import request_parts
from opsq.client.embedded import EmbeddedEngine
from opsq.clock import Now
from opsq.errors import (
    AlreadyRunning,
    Conflict,
    ContentMissing,
    InvalidStrategy,
    NotFinished,
    NotFound,
    TimedOut,
    Unreachable,
    UsageError,
    WorkFailed,
)
from opsq.queue.chunks import fail, reserve
from opsq.queue.chunks.complete import Completions
from opsq.queue.dispatch import front
from opsq.queue.engine import Engine
from opsq.queue.policy import Policy
from opsq.strategy import OldestFirst
from opsq.users import user_name
from opsq.wire.messages import Backup, Changed, Check, Checked, Stop
from waiting import wait_until

QUICK = Policy(heartbeat_s=0.2)


def test_submitted_chunks_are_consumed_and_their_results_come_in_order(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"a\n", b"b\n", b"c"], metadata={"tenant": "x"}, attachment=b"\0how")
        for chunk in queue.consume(OldestFirst()):
            assert chunk.metadata == {"tenant": "x"}
            assert chunk.attachment() == b"\0how"
            assert chunk.chunks_count == 3
            chunk.complete(bytes(chunk).upper())
        assert submission.wait(180).state == "completed"
        assert list(submission.results()) == [b"A\n", b"B\n", b"C"]
        assert submission.attachment() == b"\0how"


def test_attachment_is_given_while_another_thread_asks_for_another_one(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assign(consumer: opsq.Consumer, name: str, value: object) -> None:
        """Set an attribute, and have the other thread set the one that is shared right after."""
        object.__setattr__(consumer, name, {0: b"other"} if name == "_attachments" and value else value)

    with opsq.Queue.open(runtime_dir) as queue:
        queue.submit([b"a", b"b"], attachment=b"own")
        monkeypatch.setattr(opsq.Consumer, "__setattr__", assign)
        for chunk in queue.consume():
            assert chunk.attachment() == b"own"
            chunk.complete()


def test_title_and_who_submitted_are_kept_and_a_wrong_title_writes_nothing(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        state = queue.submit([], title="Nightly import").state()
        assert (state.title, state.submitted_by) == ("Nightly import", user_name(os.geteuid()))
        assert state.submitted_from == socket.gethostname()
        for title in ("x" * 257, "two\nlines", "\u202eturned", 7):
            with pytest.raises(UsageError, match="title"):
                queue.submit(iter([b"x" * 100_000]), title=title)  # type: ignore[arg-type]  # the last one
        assert [found.title for found in queue.submissions()] == ["Nightly import"]
        assert not [each for each in (runtime_dir / "content").iterdir() if each.is_dir()]


def test_a_submission_without_chunks_is_completed_at_once(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([])
        assert submission.state().state == "completed"
        assert list(submission.results()) == []


def test_everything_is_there_after_closing_and_opening_again(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        number = queue.submit([b"1", b"2", b"3"]).id
        for chunk in queue.consume("OldestFirst"):
            chunk.complete(chunk.data)
            break
    with opsq.Queue.open(runtime_dir) as queue:
        seen = []
        for chunk in queue.consume("OldestFirst"):
            seen.append(chunk.data)
            chunk.complete(chunk.data)
        assert seen == [b"2", b"3"]
        assert list(queue.submission(str(number)).results()) == [b"1", b"2", b"3"]


def test_large_chunks_and_results_go_through_the_store(runtime_dir: Path) -> None:
    parts = [bytes([number]) * 50_000 for number in range(30)]
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit(iter(parts))
        for chunk in queue.consume():
            chunk.complete(chunk.data * 2)
        assert list(submission.results()) == [part * 2 for part in parts]
        assert any(isinstance(place, tuple) for place in submission.result_places())
        submission.remove()
        content = runtime_dir / "content"
        wait_until(lambda: not any(path.is_dir() for path in content.iterdir()), what="content and results are gone")


def test_results_that_are_gone_are_passed_over_if_asked(runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"a", b"b", b"c"])
        for chunk in queue.consume("OldestFirst"):
            chunk.complete(b"x" * (50_000 if chunk.index == 1 else 1))
        [stored] = (runtime_dir / "content").glob("*/results/*")
        stored.unlink()
        with pytest.raises(ContentMissing):
            list(submission.results())
        assert list(submission.results(skip_bad=True)) == list(submission.follow(skip_bad=True)) == [b"x", b"x"]
    assert f"The result of chunk {submission.id}/1 cannot be read." in caplog.text


def test_a_closed_queue_leases_nothing_to_who_still_waits(runtime_dir: Path) -> None:
    """What one of its connections gives back is free, not held by another for the time of a lease."""
    queue = opsq.Queue.open(runtime_dir)
    submission = queue.submit([b"1"])
    with queue.consumer() as holder:
        assert holder.reserve(1).chunks_count == 1
        waiter = queue.consumer(lease_s=3600.0)
        waiter.want(1)
        queue.close()
    with opsq.Queue.open(runtime_dir) as queue:
        assert queue.submission(submission.id).state().reserved_count == 0
        assert [chunk.index for chunk in queue.consume(until_idle=True) if chunk.complete(b"") is None] == [0]


def test_a_second_owner_is_refused(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir), pytest.raises(AlreadyRunning):
        opsq.Queue.open(runtime_dir)


def test_a_dead_chunk_fails_the_submission_and_a_requeue_revives_it(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"good", b"bad"], max_attempts=1)
        for chunk in queue.consume("OldestFirst"):
            chunk.fail("no way") if chunk.data == b"bad" else chunk.complete(b"done")
        assert submission.wait(180).state == "failed"
        assert [(dead.index, dead.reason) for dead in submission.dead()] == [(1, "no way")]
        with pytest.raises(WorkFailed, match=f"{submission.id}/1"):
            list(submission.results())
        assert list(submission.results(skip_dead=True)) == [b"done"]
        assert submission.requeue() == 1
        for chunk in queue.consume():
            chunk.complete(b"after all")
        assert list(submission.results()) == [b"done", b"after all"]


def test_a_dropped_chunk_is_skipped_for_good(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"good", b"bad", b"worse"], max_attempts=1, on_dead="keep")
        for chunk in queue.consume("OldestFirst"):
            chunk.complete(b"done") if chunk.data == b"good" else chunk.fail("no way")
        assert submission.drop([1]) == 1
        assert submission.drop() == 1
        assert (submission.state().dead_count, submission.state().skipped_count, submission.requeue()) == (0, 2, 0)
        with pytest.raises(WorkFailed, match=f"{submission.id}/1"):
            list(submission.results())
        assert list(submission.results(skip_dead=True)) == [b"done"]


def test_more_chunks_than_a_request_may_name_come_in_several() -> None:
    indexes = list(range(25_000))
    parts = request_parts(indexes)
    assert [len(part or []) for part in parts] == [10_000, 10_000, 5_000]
    assert [index for part in parts for index in part or []] == indexes
    assert (request_parts(None), request_parts([])) == ([None], [[]])


def test_a_failed_chunk_is_retried_after_its_delay(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        queue.submit([b"x"])
        attempts = []
        for chunk in queue.consume():
            attempts.append(chunk.attempt)
            chunk.complete() if chunk.attempt == 2 else chunk.fail("not yet", delay_s=0.01)
        assert attempts == [0, 1, 2]


def test_following_gives_results_while_the_work_goes_on(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit(b"%d" % number for number in range(200))
        with pytest.raises(NotFinished):
            list(submission.results())
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.extend(submission.follow()))
        thread.start()
        for chunk in queue.consume("OldestFirst", batch=10):
            if chunk.index == 150:
                wait_until(lambda: len(found) >= 64, what="results before the end")
            chunk.complete(chunk.data)
        thread.join(180)
        assert found == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("is_granted", [False, True])
def test_reserve_that_is_interrupted_leaves_its_chunks_to_others(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, is_granted: bool
) -> None:
    """Whether they had come when Ctrl-C was pressed or would have come later; the consumer stays open, and is used."""
    with opsq.Queue.open(runtime_dir, policy=QUICK) as queue, queue.consumer() as first, queue.consumer() as second:
        wait_until = first._link.wait_until

        def interrupted(is_done: Callable[[], bool]) -> NoReturn:
            if is_granted:
                wait_until(is_done)
            raise KeyboardInterrupt

        if is_granted:
            queue.submit([b"a"])
        with monkeypatch.context() as patch:
            patch.setattr(first._link, "wait_until", interrupted)
            with pytest.raises(KeyboardInterrupt):
                first.reserve(1, wait_s=None)
        if not is_granted:
            queue.submit([b"a"])
        assert second.reserve(1, wait_s=30.0).chunks_count == 1
        assert first.reserve(1).chunks_count == 0


def test_cancelling_takes_the_chunks_away_from_a_consumer(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir, policy=QUICK) as queue:
        submission = queue.submit([b"x", b"y"])
        lost = []
        for chunk in queue.consume(on_lost=lost.append):
            assert submission.cancel("changed my mind")
            assert not submission.cancel()
            wait_until(lambda chunk=chunk: chunk.is_revoked, what="the chunk is revoked")
            chunk.complete(b"late")
        assert submission.state().state == "cancelled"
        assert submission.state().reason == "changed my mind"
        assert {found.code for found in lost} == {"cancelled"}


def test_the_same_unique_key_gives_the_same_submission_and_leaves_no_content(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        first = queue.submit([b"x" * 10_000], unique_key="nightly")
        second = queue.submit([b"y" * 10_000], unique_key="nightly")
        assert (first.is_new, second.is_new) == (True, False)
        assert first.id == second.id
        folders = [path for path in (runtime_dir / "content").iterdir() if path.is_dir()]
        assert len(folders) == 1


def test_a_refused_submission_leaves_no_content(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        with pytest.raises(UsageError):
            queue.submit([b"x" * 10_000], metadata={"submission": 1})
        assert not [path for path in (runtime_dir / "content").iterdir() if path.is_dir()]


def test_many_submissions_go_in_one_frame(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        made = queue.submit_many([queue.prepare([b"%d" % number], metadata={"n": number}) for number in range(50)])
        assert len({submission.id for submission in made}) == 50
        assert sum(1 for _ in queue.submissions()) == 50
        (found,) = queue.submissions(states=["open"], metadata={"n": 7})
        assert found.submission_id == made[7].id
        assert queue.submit_many([]) == []


def test_status_and_explain_answer(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        queue.submit([b"x"], metadata={"tenant": "a"})
        state = queue.status(by="tenant")
        assert (state.total.waiting_count, state.by[0].value, state.connections_count) == (1, "a", 1)
        assert queue.explain(OldestFirst()).strategy == "OldestFirst"
        with pytest.raises(InvalidStrategy):
            queue.explain("Wrong(")


def test_waiting_times_out_and_unknown_ids_are_not_found(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        with pytest.raises(TimedOut, match="not finished"):
            queue.submit([b"x"]).wait(0.01)
        with pytest.raises(NotFound):
            queue.submission(12345).state()


def test_many_threads_share_one_queue(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submissions = [queue.submit([b"x"] * 300) for _ in range(3)]
        seen: list[tuple[int, int]] = []

        def work() -> None:
            for chunk in queue.consume(batch=20):
                seen.append((chunk.submission_id, chunk.index))
                chunk.complete(b"y")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for submission in submissions:
            submission.wait(180)
        for thread in threads:
            thread.join(180)
        assert len(seen) == len(set(seen)) == 900, "every chunk was handed out exactly once"


def test_others_are_answered_while_a_reserve_looks_through_many_submissions(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut into turns, and gives way after each."""
    monkeypatch.setattr(reserve, "TURN_ROWS", 1)
    monkeypatch.setattr(front, "WALK_ROWS", 2)
    turns, began = 0, threading.Event()
    turn = Engine.turn

    def counted(engine: Engine, now: Now) -> None:
        nonlocal turns
        turns += 1
        began.set()
        turn(engine, now)

    with opsq.Queue.open(runtime_dir) as queue:
        for n in range(2):
            queue.submit_many([queue.prepare([b"x"], metadata={"ab"[n]: 1}) for _ in range(1000)])
        monkeypatch.setattr(Engine, "turn", counted)

        def look() -> None:
            with queue.consumer("SelectOnly(a=1, SelectOnly(b=1))") as consumer:
                assert consumer.reserve(1).chunks_count == 0

        looking = threading.Thread(target=look)
        looking.start()
        assert began.wait(180)
        queue.submit([b"y"])
        served_at = turns
        looking.join(180)
    assert turns + 1 >= 500  # looks at two of 1000 rows each, the first of them when the reserve comes
    assert served_at < turns - 10


def complete_all(queue: opsq.Queue) -> None:
    with queue.consumer() as consumer:
        for chunk in consumer:
            chunk.complete(b"done")


def test_a_queue_that_met_an_internal_error_after_a_commit_is_whole_when_it_is_opened_again(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"a"])
        with monkeypatch.context() as broken:
            broken.setattr(Completions, "settle_completed", lambda *_: 1 // 0)
            with pytest.raises((Conflict, Unreachable), match="is not all in memory"):
                complete_all(queue)
        with pytest.raises((Conflict, Unreachable)):
            queue.status()
    with opsq.Queue.open(runtime_dir) as queue:
        assert [bytes(result) for result in queue.submission(submission.id).results()] == [b"done"]


def test_queue_without_work_waits_between_its_looks(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives way only in the middle of something long; else it would never rest."""
    looks: list[str] = []

    def note(name: str) -> None:
        original = getattr(EmbeddedEngine, name)

        def call(self: EmbeddedEngine, *args: object, **options: object) -> object:
            looks.append(name)
            return original(self, *args, **options)

        monkeypatch.setattr(EmbeddedEngine, name, call)

    with opsq.Queue.open(runtime_dir):
        note("give_way")
        note("step")
        wait_until(lambda: len(looks) >= 3)
        assert set(looks) == {"step"}


def test_internal_error_while_nobody_waits_ends_the_queue_and_no_thread_complains(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        monkeypatch.setattr(Engine, "tick", lambda *_, **__: 1 // 0)
        wait_until(lambda: "opsq-engine" not in {thread.name for thread in threading.enumerate()})
        with pytest.raises((Conflict, Unreachable), match="cannot be used any more"):
            queue.status()


def test_maintenance_works_and_stopping_is_refused(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir / "state") as queue:
        queue.submit([b"x"])
        link = queue.link
        assert link.call(Check(link.next_id()), Checked).problems == []
        assert link.call(Backup(link.next_id(), str(runtime_dir / "copy")), Changed).count > 0
        with pytest.raises(UsageError, match="Close it"):
            link.call(Stop(link.next_id()), Changed)


def test_a_consumer_that_outlives_its_queue_is_told(runtime_dir: Path) -> None:
    queue = opsq.Queue.open(runtime_dir)
    consumer = queue.consumer()
    queue.close()
    with pytest.raises(Conflict, match="closed"):
        list(consumer)
    consumer.close()


def test_what_a_closed_consumer_held_is_free_again(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        queue.submit([b"x"] * 10)
        with queue.consumer() as consumer:
            assert consumer.reserve(10).chunks_count == 10
        with queue.consumer() as consumer:
            reservation = consumer.reserve(10)
            assert reservation.chunks_count == 10
            assert list(reservation.read()) == [b"x"] * 10
            reservation.complete([b"%d" % number for number in range(10)])
            consumer.flush()
        assert queue.status().total.completed_count == 10


def test_all_that_was_started_when_the_queue_is_closed_counts_as_lost(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches that takes."""
    monkeypatch.setattr(fail, "TRIED_ROWS", 1)
    with opsq.Queue.open(runtime_dir) as queue:
        for _ in range(4):
            queue.submit([b"x"])
        consumer = queue.consumer()
        chunks = consumer.chunks(overlapping=True)
        assert [next(chunks).attempt for _ in range(4)] == [0] * 4
        consumer.flush()
    with opsq.Queue.open(runtime_dir) as queue, queue.consumer() as consumer:
        chunks = consumer.chunks(overlapping=True)
        assert [next(chunks).attempt for _ in range(4)] == [1] * 4


def test_a_lease_outlives_its_consumer(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        queue.submit([b"x"])
        consumer = queue.consumer(lease_s=60)
        handle = next(consumer.chunks()).handle
        assert str(handle).startswith(f"{handle.submission_id}/0@")
        consumer.close()
