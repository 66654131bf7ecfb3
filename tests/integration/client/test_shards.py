"""Several real daemons as one queue: what clients see of them, and what they see when some are away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import running
from fleets import Fleet, fleet_in
from opsq.client.shards import chunk_calls, router_thread
from opsq.client.shards.shard_order import rendezvous
from opsq.daemon import lifecycle
from opsq.errors import Conflict, NotFound, TimedOut, Unreachable, UsageError
from opsq.ids import shard_of
from waiting import wait_until

SHARDS = 3


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path, SHARDS) as fleet:
        yield fleet


@pytest.fixture
def queue(fleet: Fleet) -> Iterator[opsq.Queue]:
    with opsq.connect(fleet.address, name="tester") as queue:
        yield queue


def submit_to_each(queue: opsq.Queue, chunks: int = 3, **options: Any) -> list[Any]:
    """Submissions until each shard has one; those, by shard."""
    found: dict[int, Any] = {}
    for number in range(1000):
        submission = queue.submit([b"%d" % index for index in range(chunks)], metadata={"n": number}, **options)
        if shard_of(submission.id) in found:
            submission.cancel()
        found.setdefault(shard_of(submission.id), submission)
        if len(found) == SHARDS:
            break
    return [found[number] for number in range(SHARDS)]


def consume_all(queue: opsq.Queue) -> list[bytes]:
    found = []
    for chunk in queue.consume():
        found.append(chunk.data)
        chunk.complete(chunk.data.upper())
    return found


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(60)
        assert not thread.is_alive()


# --- as with one daemon ---


def test_submissions_of_all_shards_are_worked_off_and_read(queue: opsq.Queue) -> None:
    submissions = submit_to_each(queue)
    assert len(consume_all(queue)) == 9
    for submission in submissions:
        assert submission.wait().state == "completed"
        assert list(submission.results()) == [b"0", b"1", b"2"]
    listed = [state.submission_id for state in queue.submissions(states=["completed"])]
    assert listed == sorted((submission.id for submission in submissions), reverse=True)
    status = queue.status(by="n")
    assert [shard.shard for shard in status.shards] == [0, 1, 2]
    assert status.total.completed_count == 9


def test_asyncio_queue_does_the_same(fleet: Fleet) -> None:
    async def work() -> tuple[list[bytes], list[str]]:
        async with opsq.connect_async(fleet.address) as queue:
            made = [await queue.submit([b"a", b"b"]) for _ in range(6)]
            results = []
            async for chunk in queue.consume():
                await chunk.complete(await chunk.data())
            for submission in made:
                await submission.wait()
                results += [result async for result in submission.results()]
            return results, [state.state async for state in queue.submissions()]

    results, states = asyncio.run(work())
    assert results == [b"a", b"b"] * 6
    assert states == ["completed"] * 6


def test_results_are_followed_while_they_come(queue: opsq.Queue, fleet: Fleet) -> None:
    submission = queue.submit([b"1", b"2", b"3"])

    def work() -> None:
        with opsq.connect(fleet.address) as other:
            consume_all(other)

    with in_thread(work):
        assert list(submission.follow()) == [b"1", b"2", b"3"]


def test_dead_chunks_are_found_and_requeued_at_their_shards(queue: opsq.Queue) -> None:
    submissions = submit_to_each(queue, 1)
    for chunk in queue.consume():
        chunk.fail("bad", retry=False)
    for submission in submissions:
        assert [one.reason for one in submission.dead()] == ["bad"]
        assert submission.requeue() == 1
    assert len(consume_all(queue)) == SHARDS
    assert [submission.state().state for submission in submissions] == ["completed"] * SHARDS


def test_rules_hold_at_all_shards(queue: opsq.Queue) -> None:
    submit_to_each(queue, 1)
    assert queue.pause({})
    with queue.consumer() as consumer:
        assert not consumer.reserve(10).chunks_count
        assert queue.resume({})
        queue.limit("n", concurrency=1)
        assert [limit.key for limit in queue.rules().limits] == ["n"]
        assert sum(consumer.reserve(10).chunks_count for _ in range(3)) == SHARDS


def test_schedule_is_kept_by_one_shard_and_found_from_anywhere(queue: opsq.Queue, fleet: Fleet) -> None:
    for name in ("a", "b", "c", "d"):
        queue.add_schedule(name, "30 2 * * *")
    assert [state.schedule.name for state in queue.schedules()] == ["a", "b", "c", "d"]
    with opsq.connect(fleet.address) as other:
        assert other.pause_schedule("c", "for now")
        made = other.trigger_schedule("b")
        assert other.submission(made).state().metadata["schedule"] == "b"
        other.remove_schedule("a")
    assert [state.schedule.name for state in queue.schedules()] == ["b", "c", "d"]
    with pytest.raises(NotFound):
        queue.trigger_schedule("nowhere")


def test_waiting_consumer_gets_what_any_shard_is_given(queue: opsq.Queue, fleet: Fleet) -> None:
    got: list[int] = []

    def work() -> None:
        with opsq.connect(fleet.address) as other, other.consumer() as consumer:
            for chunk in consumer.chunks(until_empty=False):
                got.append(chunk.submission_id)
                chunk.complete()
                if len({shard_of(one) for one in got}) == SHARDS:
                    return

    with in_thread(work):
        wait_until(lambda: queue.status().parked_count == SHARDS, what="the consumer waits at all shards")
        for submission in submit_to_each(queue, 1):
            with contextlib.suppress(TimeoutError):
                submission.wait(30)


def test_loop_ends_when_no_shard_has_anything_left(queue: opsq.Queue) -> None:
    submit_to_each(queue, 2)
    assert len(consume_all(queue)) == 2 * SHARDS
    assert consume_all(queue) == []


def test_consumer_holds_no_more_than_it_asks_for(queue: opsq.Queue) -> None:
    submit_to_each(queue, 100)
    with queue.consumer() as consumer:
        for _ in range(5):
            assert consumer.reserve(4).chunks_count == 4
        wait_until(lambda: queue.status().total.reserved_count == 20, what="what was granted twice is given back")


# --- one submission for a key ---


def test_key_makes_one_submission_whoever_submits_it_how_often(fleet: Fleet) -> None:
    made: list[tuple[str, int]] = []

    def work() -> None:
        with opsq.connect(fleet.address) as queue:
            for number in range(20):
                key = f"key {number}"
                made.append((key, queue.submit([b"x"], idempotency_key=key).id))
                made.append((f"u{number}", queue.submit([b"y"], unique_key=key).id))

    with in_thread(work), in_thread(work):
        pass
    ids = {key: {one for other, one in made if other == key} for key, _ in made}
    assert all(len(found) == 1 for found in ids.values()), ids
    with opsq.connect(fleet.address) as queue:
        assert queue.status().total.submissions_count == 40


def test_key_is_refused_while_a_shard_that_may_have_it_is_away_and_other_work_goes_on(
    queue: opsq.Queue, fleet: Fleet
) -> None:
    before = queue.submit([b"x"], idempotency_key="known")
    gone = next(number for number in range(SHARDS) if number != shard_of(before.id))
    fleet.kill(gone)
    assert queue.submit([b"x"], idempotency_key="known").id == before.id
    with pytest.raises(Unreachable, match="may have a submission with this key"):
        queue.submit([b"x"], idempotency_key="new")
    assert {shard_of(queue.submit([b"x"]).id) for _ in range(12)} == set(range(SHARDS)) - {gone}


def test_value_says_the_shard_and_a_full_one_is_passed_over(tmp_path: Path) -> None:
    with fleet_in(tmp_path, SHARDS, max_backlog_chunks=10) as fleet, opsq.connect(fleet.address, shard_by="t") as queue:
        order = rendezvous("acme", range(SHARDS))
        found = [shard_of(queue.submit([b"x"] * 5, metadata={"t": "acme"}).id) for _ in range(6)]
        assert found == [order[0], order[0], order[1], order[1], order[2], order[2]]


# --- shards that die, return, hang, drain ---


def test_wait_and_reading_outlast_a_restart_of_the_shard(queue: opsq.Queue, fleet: Fleet) -> None:
    submission = submit_to_each(queue, 1)[1]

    def work() -> None:
        fleet.kill(1)
        fleet.start(1)
        with opsq.connect(fleet.address) as other:
            consume_all(other)

    with in_thread(work):
        assert submission.wait(60).state == "completed"
    assert list(submission.results()) == [b"0"]


@pytest.mark.parametrize("consumers", [4])
def test_shard_killed_under_load_loses_nothing_and_gives_nothing_twice(fleet: Fleet, consumers: int) -> None:
    chunks = 3_000
    with opsq.connect(fleet.address) as queue:
        submissions = [queue.submit([b"%d" % index for index in range(chunks // 6)]) for _ in range(6)]

        def work() -> None:
            with opsq.connect(fleet.address) as own, own.consumer(batch=16) as consumer:
                for chunk in consumer.chunks():
                    time.sleep(0.001)  # so that something is left when the last is killed
                    chunk.complete(chunk.data)

        with contextlib.ExitStack() as stack:
            for _ in range(consumers):
                stack.enter_context(in_thread(work))
            for number in range(SHARDS):
                before = queue.status().total.completed_count
                wait_until(lambda before=before: _completed(queue) > before or _is_done(queue), what="work goes on")
                fleet.kill(number)
                fleet.start(number)
        for submission in submissions:
            assert submission.wait(60).state == "completed"
            assert list(submission.results()) == [b"%d" % index for index in range(chunks // 6)]
        status = queue.status()
        assert (status.total.reserved_count, status.total.waiting_count) == (0, 0)
    assert fleet.problems() == []


def _completed(queue: opsq.Queue) -> int:
    return queue.status().total.completed_count


def _is_done(queue: opsq.Queue) -> bool:
    return not queue.status().total.backlog_count


def test_what_a_consumer_holds_survives_the_restart_of_its_shard(queue: opsq.Queue, fleet: Fleet) -> None:
    submissions = submit_to_each(queue, 1)
    with queue.consumer() as consumer:
        held = [consumer.reserve(1) for _ in range(SHARDS)]
        fleet.kill(1)
        fleet.start(1)
        wait_until(lambda: queue.status().total.reserved_count == SHARDS, what="all is reclaimed")
        for reservation in held:
            reservation.complete([b"done"])
        consumer.flush()
    assert [submission.state().completed_count for submission in submissions] == [1, 1, 1]


@pytest.mark.parametrize("is_in_bulk", [True, False])
def test_verdicts_of_a_consumer_by_leases_wait_until_their_shard_is_back(
    queue: opsq.Queue, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, is_in_bulk: bool
) -> None:
    monkeypatch.setattr(chunk_calls, "WORK_S", 0.1)
    submissions = submit_to_each(queue, 1)
    lost: list[object] = []
    with queue.consumer(lease_s=3600, batch=1, on_lost=lost.append) as consumer:
        chunks = consumer.chunks(overlapping=True)
        held: list[Any] = [consumer.reserve(1) if is_in_bulk else next(chunks) for _ in range(SHARDS)]
        fleet.kill(1)
        for one in held:
            one.complete([b"done"] if is_in_bulk else b"done")
        with pytest.raises(TimedOut):
            consumer.flush(1.0)
        fleet.start(1)
        consumer.flush()
    assert not lost
    assert [submission.state().completed_count for submission in submissions] == [1, 1, 1]


def test_others_are_served_while_a_shard_is_away_with_chunks_of_the_consumer(queue: opsq.Queue, fleet: Fleet) -> None:
    """Also what it has completed there: that is sent when the shard is back."""
    submissions = submit_to_each(queue, 20)
    fleet_down = threading.Event()
    with queue.consumer(batch=4) as consumer:
        done: Counter[int] = Counter()
        for chunk in consumer.chunks():
            done[shard_of(chunk.submission_id)] += 1
            if not fleet_down.is_set() and done[1]:
                fleet.kill(1)
                fleet_down.set()
            chunk.complete(chunk.data)
            if (
                done[0] == done[2] == 20
                and fleet_down.is_set()
                and not lifecycle.is_locked(fleet.settings[1].lock_path)
            ):
                fleet.start(1)
    assert [submission.wait(60).state for submission in submissions] == ["completed"] * SHARDS


def test_lists_tell_what_is_missing_and_status_what_does_not_answer(fleet: Fleet) -> None:
    with opsq.connect(fleet.address) as queue:
        submissions = submit_to_each(queue, 1)
        fleet.kill(1)
        assert {state.submission_id for state in queue.submissions(states=["open"])} == {
            submissions[0].id,
            submissions[2].id,
        }
        assert [shard.state for shard in queue.status().shards] == ["running", "unreachable", "running"]
        with pytest.raises(Unreachable, match=r"Shard 1 .* does not answer"):
            submissions[1].state()
    with opsq.connect(fleet.address) as queue:  # which has never reached it
        assert len(list(queue.submissions(states=["open"]))) == 2
        assert sorted(shard.state for shard in queue.status().shards) == ["running", "running", "unreachable"]


def test_rules_changed_while_a_shard_was_away_are_there_when_it_is_back(queue: opsq.Queue, fleet: Fleet) -> None:
    queue.limit("before", concurrency=1)
    fleet.kill(1)
    with opsq.connect(fleet.address) as other:  # who reaches the others only, and is gone when it is back
        other.limit("meanwhile", concurrency=2)
        other.pause({"tenant": "a"})
    fleet.start(1)
    with opsq.connect(fleet.settings[1].socket) as alone:
        wait_until(lambda: len(alone.rules().limits) == 2, what="the shard has the rules")
        assert [pause.metadata for pause in alone.rules().pauses] == [{"tenant": "a"}]


def test_shard_that_hangs_stops_nobody(queue: opsq.Queue, fleet: Fleet) -> None:
    submissions = submit_to_each(queue, 5)
    with fleet.frozen(1), opsq.connect(fleet.address) as other:
        for one in (queue, other):
            assert shard_of(one.submit([b"x"]).id) != 1
            assert [shard.state for shard in one.status().shards if shard.state != "running"] == ["unreachable"]
            with one.consumer() as consumer:
                assert consumer.reserve(1, wait_s=60).chunks_count == 1
    assert submissions[1].state().state == "open"
    wait_until(lambda: len(consume_all(queue)) >= 0 and _is_done(queue), what="all is done")


def test_shard_that_drains_stops_nobody_and_is_served_again_after_its_restart(queue: opsq.Queue, fleet: Fleet) -> None:
    submissions = submit_to_each(queue, 2)
    with queue.consumer("SelectOnly(n={n})".format(**submissions[1].state().metadata)) as holder:
        assert holder.reserve(1).chunks_count == 1
        with in_thread(lambda: lifecycle.restart(fleet.settings[1], drain_s=60)):
            wait_until(
                lambda: "draining" in [shard.state for shard in queue.status().shards], what="the shard is draining"
            )
            taken: list[int] = []
            with queue.consumer() as consumer:
                while len(taken) < 4:
                    reservation = consumer.reserve(1, wait_s=60)
                    taken += [shard_of(block.submission_id) for block in reservation.held_blocks]
                    reservation.complete()
            assert Counter(taken) == {0: 2, 2: 2}
            holder.close()
        assert len(consume_all(queue)) == 2


def test_shard_that_is_added_to_the_file_serves_consumers_that_wait(fleet: Fleet, tmp_path: Path) -> None:
    addresses = tmp_path / "shards"
    addresses.write_text("\n".join(settings.socket for settings in fleet.settings))
    with opsq.connect(f"@{addresses}") as queue, queue.consumer() as consumer:
        got: list[int] = []

        def work() -> None:
            got.extend(block.submission_id for block in consumer.reserve(1, wait_s=60).held_blocks)

        with in_thread(work):
            number = fleet.add()
            addresses.write_text("\n".join(settings.socket for settings in fleet.settings))
            with opsq.connect(fleet.settings[number].socket) as alone:
                submission = alone.submit([b"x"])
        assert got == [submission.id]


def test_shard_that_is_taken_out_of_the_file_is_asked_no_more(fleet: Fleet, tmp_path: Path) -> None:
    addresses = tmp_path / "shards"
    addresses.write_text("\n".join(settings.socket for settings in fleet.settings))
    with (
        opsq.connect(f"@{addresses}") as queue,
        queue.consumer() as consumer,
        opsq.connect(fleet.settings[2].socket) as alone,
        in_thread(lambda: consumer.reserve(1, wait_s=None)),
    ):
        wait_until(lambda: alone.status().parked_count == 1, what="the consumer waits at the shard")
        addresses.write_text("\n".join(settings.socket for settings in fleet.settings[:2]))
        wait_until(lambda: alone.status().parked_count == 0, what="the consumer has left the shard")
        wait_until(lambda: alone.status().connections_count == 1, what="the connections have ended")
        with opsq.connect(fleet.settings[0].socket) as other:
            other.submit([b"x"])


# --- what cannot be one queue ---


def test_daemons_that_cannot_be_one_queue_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    for flags, why in [
        ({"shard": 1, "store": store}, "are both shard 1"),
        ({"store": store}, "number"),
        ({"shard": 9}, "store"),
    ]:
        with running(tmp_path / "other", **flags) as other, pytest.raises(Conflict, match=why):
            opsq.connect(f"{fleet.address},{other.socket}")
        shutil.rmtree(tmp_path / "other")


def test_daemon_that_does_not_fit_and_comes_later_is_left_out_until_it_does(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router_thread, "LEFT_OUT_S", 0.1)
    addresses = tmp_path / "shards"
    sockets = [settings.socket for settings in fleet.settings]
    addresses.write_text("\n".join(sockets))
    with opsq.connect(f"@{addresses}") as queue:
        with running(tmp_path / "other", shard=9) as other:
            addresses.write_text("\n".join([*sockets, other.socket]))
            wait_until(lambda: "is left out" in caplog.text, what="the daemon with another store is left out")
            assert len(queue.status().shards) == SHARDS
            assert queue.submit([b"x"]).state().state == "open"
        with running(tmp_path / "other", shard=9, store=str(fleet.folder / "store")):
            wait_until(lambda: len(queue.status().shards) == SHARDS + 1, what="the daemon is a shard now")


def test_no_shard_at_all_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        opsq.connect(f"{tmp_path}/a.sock,{tmp_path}/b.sock")
    with pytest.raises(UsageError, match="named twice"):
        opsq.connect(f"{tmp_path}/a.sock,{tmp_path}/a.sock")


# --- processes ---


def test_process_that_was_forked_has_a_queue_of_its_own(queue: opsq.Queue, fleet: Fleet) -> None:
    queue.submit([b"before"])
    pid = os.fork()
    if not pid:
        status = 1
        with contextlib.suppress(BaseException), opsq.connect(fleet.address) as own:
            own.submit([b"in the child"])
            status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sorted(consume_all(queue)) == [b"before", b"in the child"]


def test_queues_that_were_closed_leave_nothing_behind(fleet: Fleet) -> None:
    def open_and_close() -> None:
        for _ in range(100):
            with opsq.connect(fleet.address) as queue, queue.consumer() as consumer:
                consumer.reserve(1)

    open_and_close()
    wait_until(lambda: _open_count(fleet) == 0, what="no connection is left")
    threads, descriptors = threading.active_count(), len(os.listdir("/dev/fd"))
    open_and_close()
    wait_until(lambda: _open_count(fleet) == 0, what="no connection is left")
    wait_until(lambda: threading.active_count() <= threads, what="no thread is left")
    wait_until(lambda: len(os.listdir("/dev/fd")) <= descriptors, what="no descriptor is left")


def _open_count(fleet: Fleet) -> int:
    with opsq.connect(fleet.settings[0].socket) as alone:
        return alone.status().connections_count - 1


def test_chunks_of_a_consumer_that_was_killed_are_free_at_all_shards(queue: opsq.Queue, fleet: Fleet) -> None:
    submit_to_each(queue, 2)
    program = (
        "import sys, time, opsq\n"
        "with opsq.connect(sys.argv[1]) as queue, queue.consumer() as consumer:\n"
        "    held = [consumer.reserve(2, wait_s=60) for _ in range(3)]\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, fleet.address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert queue.status().total.reserved_count == 6
        process.kill()
    wait_until(lambda: queue.status().total.waiting_count == 6, what="all is free")
    assert len(consume_all(queue)) == 6


def test_last_words_of_a_process_arrive(fleet: Fleet) -> None:
    """It completes, and ends at once."""
    program = (
        "import sys, opsq\n"
        "queue = opsq.connect(sys.argv[1])\n"
        "queue.submit([b'x'])\n"
        "for chunk in queue.consume():\n"
        "    chunk.complete(b'y')\n"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program, fleet.address], check=True, timeout=60)
    assert time.monotonic() - started < 60
    with opsq.connect(fleet.address) as queue:
        assert queue.status().total.completed_count == 1
