"""The asyncio client against a real daemon: the same names, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

import opsq
from daemons import kill, running
from opsq.client.aio import verdict_sender
from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.held_block import Lost
from opsq.client.core.ledger import Ledger
from opsq.content.content_writer import ContentWriter
from opsq.content.splitter import Splitting
from opsq.daemon import lifecycle
from opsq.errors import (
    Conflict,
    ContentMissing,
    InvalidStrategy,
    NotFinished,
    NotFound,
    ReservationLost,
    TimedOut,
    Unreachable,
    UsageError,
    WorkFailed,
)
from opsq.settings import Settings
from opsq.wire import messages as m
from waiting import wait_until

DEADLINE_S = 180


def run(work: Coroutine[Any, Any, None], loop: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    """Run a test on a plain event loop, not longer than the deadline."""
    loop(asyncio.wait_for(work, DEADLINE_S))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    with running(folder, heartbeat_s="0.3") as settings:
        yield settings
    shutil.rmtree(folder)


def connect(settings: Settings, **options: Any) -> AsyncQueue:
    return opsq.connect_async(settings.socket, **options)


def test_submission_is_cut_from_operations_too(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit(["a", "b", "c"], serialisation="text", operations_per_chunk=2)
            async for chunk in queue.consume("OldestFirst"):
                await chunk.complete(await chunk.data())
            assert [result async for result in submission.results()] == [b"a\nb\n", b"c\n"]

    run(work())


def test_a_refused_submission_leaves_no_content(settings: Settings) -> None:
    def folders() -> set[Path]:
        return {path for path in Path(settings.state_dir, "content").iterdir() if path.is_dir()}

    async def work() -> None:
        async with connect(settings) as queue:
            before = folders()
            with pytest.raises(UsageError):
                await queue.submit([b"x" * 10_000], metadata={"submission": 1})
            assert folders() == before

    run(work())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_the_whole_way_of_a_submission(settings: Settings, loop: Callable[..., None]) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit(
                [b"a\n", b"b\n"], metadata={"tenant": "x"}, attachment=b"how", title="Two letters"
            )
            assert (await submission.state()).title == "Two letters"
            async for chunk in queue.consume("OldestFirst"):
                assert chunk.metadata == {"tenant": "x"}
                assert await chunk.attachment() == b"how"
                await chunk.complete((await chunk.data()).upper())
            assert (await submission.wait(180)).state == "completed"
            assert [result async for result in submission.results()] == [b"A\n", b"B\n"]
            assert await submission.attachment() == b"how"
            await submission.remove()
            with pytest.raises(NotFound):
                await submission.state()

    run(work(), loop)


def test_a_handle_may_be_made_before_the_queue_is_open(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            made = await queue.submit([b"a"])
            async for chunk in queue.consume("OldestFirst"):
                await chunk.complete(await chunk.data())
        later = connect(settings)
        submission = later.submission(made.id)
        async with later:
            assert [result async for result in submission.follow()] == [b"a"]

    run(work())


def test_submission_is_found_by_its_keys_and_a_handover_may_be_withdrawn(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            prepared = await queue.prepare([b"a"], idempotency_key="aio-nightly")
            assert await queue.find("aio-nightly") is None
            assert await queue.find_request(prepared.request_key) is None
            (submission,) = await queue.submit_many([prepared])
            key = prepared.request_key
            for found in (await queue.find("aio-nightly"), await queue.find_request(key), await queue.withdraw(key)):
                assert found is not None
                assert (found.id, (await found.state()).state) == (submission.id, "open")
            late = await queue.prepare([b"b"])
            assert await queue.withdraw(late.request_key) is None
            with pytest.raises(Conflict, match="withdrawn"):
                await queue.submit_many([late])
            await submission.cancel()

    run(work())


def test_chunk_of_a_file_in_place_tells_its_path_and_header(settings: Settings, tmp_path: Path) -> None:
    whole, table = tmp_path / "whole", tmp_path / "table.csv"
    whole.write_bytes(b"all of it")
    table.write_bytes(b"a,b\n1,2\n3,4\n")
    told = []
    with opsq.connect(settings.socket) as queue:
        for path, splitting in ((whole, Splitting("file", 1)), (table, Splitting("records", 1, csv_header=True))):
            with ContentWriter(
                queue.contents.store, os.urandom(16).hex(), chunk_limit_bytes=1 << 20, is_durable=False
            ) as writer:
                writer.add_in_place(path, splitting)
                content = writer.finish()
            queue.submit_many([queue.describe(bytes.fromhex(content.folder), content)])

    async def work() -> None:
        async with connect(settings) as queue:
            async for chunk in queue.consume("OldestFirst"):
                told.append((chunk.chunks_count, await chunk.file_path(), await chunk.header()))
                await chunk.complete()

    run(work())
    assert told == [(1, os.fsencode(whole), b""), (2, None, b"a,b\n"), (2, None, b"a,b\n")]


def test_large_result_is_named_by_its_place(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a", b"b"])
            async for chunk in queue.consume("OldestFirst"):
                await chunk.complete(b"x" * (100_000 if chunk.index else 1))
            assert (await submission.wait(180)).state == "completed"
            small, large = [place async for place in submission.result_places()]
            assert small == b"x"
            assert large[1:] == (0, 100_000)
            [stored] = Path(settings.state_dir).glob("content/*/results/*")
            stored.unlink()
            with pytest.raises(ContentMissing):
                [result async for result in submission.results()]
            assert [result async for result in submission.results(skip_bad=True)] == [b"x"]
            assert [result async for result in submission.follow(skip_bad=True)] == [b"x"]

    run(work())


def test_large_chunks_and_results_go_through_the_store(settings: Settings) -> None:
    async def work() -> None:
        parts = [bytes([number]) * 20_000 for number in range(20)]
        async with connect(settings) as queue:
            submission = await queue.submit(parts)
            async for chunk in queue.consume():
                await chunk.complete(await chunk.data() * 2)
            assert [result async for result in submission.results()] == [part * 2 for part in parts]

    run(work())


@pytest.mark.parametrize("size", [10, 100_000])
def test_result_in_a_buffer_is_taken_as_bytes(settings: Settings, size: int) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a", b"b"])
            async with queue.consumer(f"SelectOnly(submission={submission.id}, OldestFirst)") as consumer:
                buffer = bytearray(b"A" * size)
                reservation = await consumer.reserve(1)
                await reservation.complete([buffer])  # type: ignore[list-item]
                buffer[:] = b"B" * size
                async for chunk in consumer.chunks():
                    await chunk.complete(memoryview(buffer))  # type: ignore[arg-type]
            assert [result async for result in submission.results()] == [b"A" * size, b"B" * size]

    run(work())


@pytest.mark.parametrize(
    "mistaken",
    [
        lambda one: one.complete((1, 2)),
        lambda one: one.complete(run_s=-1.0),
        lambda one: one.complete(exit_status=256),
        lambda one: one.fail(ValueError("wrong")),
        lambda one: one.fail(run_s="1 s"),
        lambda one: one.fail(signal=1 << 70),
    ],
)
def test_mistake_in_one_verdict_costs_no_other_and_leaves_the_chunk_without_one(
    settings: Settings, mistaken: Callable[[Any], Any]
) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a", b"b"])
            async with queue.consumer(f"SelectOnly(submission={submission.id}, OldestFirst)", batch=2) as consumer:
                chunks = consumer.chunks(overlapping=True)
                first, second = await anext(chunks), await anext(chunks)
                await first.complete(b"A")
                with pytest.raises(UsageError):
                    await mistaken(second)
                await second.complete(b"B")
                await consumer.flush()
            assert [result async for result in submission.results()] == [b"A", b"B"]

    run(work())


def test_many_tasks_work_on_overlapping_chunks(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue, asyncio.TaskGroup() as tasks:
            submission = await queue.submit(b"%d" % number for number in range(500))

            async def finish(chunk: Any) -> None:
                await chunk.complete(await chunk.data())

            async for chunk in queue.consume(overlapping=True):
                tasks.create_task(finish(chunk))
            assert [result async for result in submission.results()] == [b"%d" % number for number in range(500)]

    run(work())


def test_failures_and_dead_chunks(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"x", b"y"], on_dead="keep")
            async for chunk in queue.consume("OldestFirst"):
                if chunk.index:
                    await chunk.fail("broken", retry=False)
                elif chunk.attempt:
                    await chunk.complete(b"done")
                else:
                    await chunk.fail("once more", delay_s=0.01)
            assert [(dead.index, dead.reason) async for dead in submission.dead()] == [(1, "broken")]
            with pytest.raises(WorkFailed):
                [result async for result in submission.results()]
            assert [result async for result in submission.results(skip_dead=True)] == [b"done"]
            assert await submission.requeue([1]) == 1
            with pytest.raises(NotFinished):
                [result async for result in submission.results()]
            async for chunk in queue.consume():
                await chunk.complete(b"at last")
            assert [result async for result in submission.follow()] == [b"done", b"at last"]

    run(work())


def test_a_chunk_without_a_verdict_is_an_error_and_given_back(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            await queue.submit([b"x"])
            with pytest.raises(UsageError, match="neither completed"):
                async for _ in queue.consume():
                    pass
            async for chunk in queue.consume():
                assert chunk.attempt == 0
                await chunk.complete()

    run(work())


def test_leaving_a_consumer_gives_back_what_it_holds(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            await queue.submit([b"x"] * 10)
            async with queue.consumer("OldestFirst") as consumer:
                async for chunk in consumer.chunks():
                    if chunk.index == 4:
                        break
                    await chunk.complete()
            indexes = []
            async for chunk in queue.consume("OldestFirst"):
                indexes.append((chunk.index, chunk.attempt))
                await chunk.complete()
            assert indexes == [(index, 0) for index in range(4, 10)]

    run(work())


def test_chunks_are_reserved_by_several_calls_at_once_and_by_their_strategies(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue, queue.consumer("SelectOnly(reserve=1)") as consumer:
            assert await consumer.reserve_chunks(5) == []
            options: dict[str, Any] = {"strategy": "SelectOnly(reserve=2)", "wait_s": None}
            calls = [asyncio.create_task(consumer.reserve_chunks(1, **options)) for _ in range(3)]
            await asyncio.sleep(0)
            calls.pop().cancel()
            submission = await queue.submit([b"a", b"b", b"c"], metadata={"reserve": 2})
            chunks = [chunk for call in calls for chunk in await call]
            assert {await chunk.data() for chunk in chunks} < {b"a", b"b", b"c"}
            chunks += await consumer.reserve_chunks(5, **options)  # what the cancelled call would have had is free
            assert sorted([await chunk.data() for chunk in chunks]) == [b"a", b"b", b"c"]
            for chunk in chunks:
                await chunk.complete(b"done")
            await submission.wait(DEADLINE_S)
            with pytest.raises(UsageError):
                await consumer.reserve_chunks(1, strategy="Nonsense")

    run(work())


def test_reserve_that_is_cancelled_when_its_chunks_arrive_gives_them_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have arrived, and the task that waits for them is cancelled in the same turn of the event loop."""

    async def work() -> None:
        async with connect(settings) as queue, queue.consumer() as first, queue.consumer() as second:
            submission = await queue.submit([b"a"])
            strategy = f"SelectOnly(submission={submission.id})"
            waiting = asyncio.create_task(first.reserve_chunks(1, strategy=strategy))
            receive = first._link._received

            def received(replies: list[m.Reply]) -> None:
                receive(replies)
                if any(isinstance(reply, m.Reserved) for reply in replies):
                    waiting.cancel()

            monkeypatch.setattr(first._link, "_received", received)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert len(await second.reserve_chunks(1, strategy=strategy, wait_s=30.0)) == 1

    run(work())


def test_reserve_of_a_submission_that_is_not_known_any_more_gives_its_chunks_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe(submission_id: int) -> m.SubmissionContent:
        raise NotFound("It was removed.")

    async def work() -> None:
        async with connect(settings) as queue, queue.consumer() as first, queue.consumer() as second:
            submission = await queue.submit([b"a"])
            strategy = f"SelectOnly(submission={submission.id})"
            monkeypatch.setattr(first, "describe", describe)
            with pytest.raises(NotFound):
                await first.reserve_chunks(1, strategy=strategy)
            assert len(await second.reserve_chunks(1, strategy=strategy, wait_s=30.0)) == 1

    run(work())


def test_want_that_is_cancelled_before_it_is_sent_may_be_repeated(settings: Settings) -> None:
    """Results are being synced while it waits to be sent."""

    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"])
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                async with consumer._syncing:
                    wanting = asyncio.create_task(consumer.want(1))
                    await asyncio.sleep(0)
                    wanting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await wanting
                await consumer.want(1)
                assert await consumer._link.wait_until(consumer._has_news, 30.0)
                assert await consumer.take() is not None

    run(work())


def test_take_that_is_cancelled_gives_its_chunk_back(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for word of what was begun to be sent."""

    async def work() -> None:
        async with connect(settings) as queue, queue.consumer() as second:
            submission = await queue.submit([b"a"])
            strategy = f"SelectOnly(submission={submission.id})"
            async with queue.consumer(strategy) as first:
                await first.want(1)
                await first._link.wait_until(first._has_news)
                with monkeypatch.context() as patch:
                    patch.setattr(first._link, "drained", asyncio.Event().wait)
                    taking = asyncio.create_task(first.take())
                    await asyncio.sleep(0)
                    taking.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await taking
                assert len(await second.reserve_chunks(1, strategy=strategy, wait_s=30.0)) == 1

    run(work())


def test_shared_chunk_goes_to_others_and_may_still_be_completed(settings: Settings) -> None:
    async def work() -> None:
        lost: list[Lost] = []
        which: dict[str, Any] = {"strategy": "SelectOnly(shared=1)", "wait_s": None}
        async with connect(settings) as queue, queue.consumer(on_lost=lost.append) as first, queue.consumer() as second:
            submission = await queue.submit([b"a", b"b"], metadata={"shared": 1})
            [kept, chunk] = await first.reserve_chunks(2, **which)
            await chunk.share()
            [other] = await second.reserve_chunks(1, **which)
            assert (other.index, other.attempt, chunk.is_revoked, kept.is_revoked) == (1, 0, True, False)
            await kept.complete(b"kept")
            await chunk.complete(b"late, but first")
            assert (await submission.wait(DEADLINE_S)).state == "completed"
            assert [result async for result in submission.results()] == [b"kept", b"late, but first"]
            await other.release()

    run(work())


def test_stop_ends_a_loop_that_waits_for_work(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue, queue.consumer() as consumer:
            await queue.submit([b"x"])
            async for chunk in consumer.chunks(until_empty=False):
                await chunk.complete()
                asyncio.get_running_loop().call_later(0.01, consumer.stop)

    run(work())


def test_waits_and_calls_time_out(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"x"])
            with pytest.raises(TimedOut, match="not finished"):
                await submission.wait(0.01)
            assert await submission.cancel("enough")
            assert (await submission.wait()).state == "cancelled"

    run(work())


def test_a_thousand_waits_on_one_connection_are_all_told(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            made = await queue.submit_many([await queue.prepare([b"x"]) for _ in range(1000)])
            waits = [asyncio.ensure_future(submission.wait()) for submission in made]
            async for chunk in queue.consume():
                await chunk.complete()
            assert {state.state for state in await asyncio.gather(*waits)} == {"completed"}

    run(work())


def test_a_cancelled_chunk_is_told(settings: Settings) -> None:
    async def work() -> None:
        lost: list[Lost] = []
        async with connect(settings) as queue:
            submission = await queue.submit([b"x"])
            async for chunk in queue.consume(on_lost=lost.append):
                await submission.cancel()
                await chunk.complete(b"late")
        assert [found.submission_id for found in lost] == [submission.id]

    run(work())


def test_questions_are_answered(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"x"], metadata={"n": 77})
            assert [state.submission_id async for state in queue.submissions(metadata={"n": 77})] == [submission.id]
            assert (await queue.status()).connections_count >= 1
            assert (await queue.explain("Random")).strategy == "Random"
            assert repr(queue.submission(str(submission.id))) == repr(submission)
            await submission.cancel()

    run(work())


def test_nobody_there_is_unreachable(runtime_dir: Path) -> None:
    async def work() -> None:
        async with opsq.connect_async(runtime_dir / "no.sock"):
            pass

    with pytest.raises(Unreachable, match="opsq start"):
        run(work())


def test_work_goes_on_over_a_killed_daemon(runtime_dir: Path) -> None:
    async def work(settings: Settings) -> None:
        async with connect(settings) as queue:
            submission = await queue.submit(b"%d" % number for number in range(200))
            seen = 0
            async for chunk in queue.consume("OldestFirst"):
                seen += 1
                if seen == 50:
                    kill(settings)
                    assert lifecycle.start(settings).status == "started"
                await chunk.complete(await chunk.data())
            assert [result async for result in submission.results()] == [b"%d" % number for number in range(200)]

    with running(runtime_dir, heartbeat_s="0.3") as settings:
        run(work(settings))


def test_backlog_is_reserved_in_bulk_and_completed_in_order(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            large = b"x" * 100_000  # a result that goes to the store
            submission = await queue.submit([b"%d" % number for number in range(300)])
            seen = 0
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                async for reservation in consumer.reservations(128, ahead=2):
                    data = [one async for one in reservation.read()]
                    assert len(data) == reservation.chunks_count == sum(b.mask.bit_count() for b in reservation.blocks)
                    await reservation.complete([large if one == b"7" else one * 2 for one in data], run_s=0.5)
                    seen += len(data)
                assert consumer.unsettled_count == 0
            assert seen == 300
            expected = [large if number == 7 else b"%d" % number * 2 for number in range(300)]
            assert [result async for result in submission.results()] == expected

    run(work())


def test_reservation_gets_one_verdict_and_may_be_failed_or_given_back(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"] * 4, max_attempts=1, on_dead="keep")
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                back = await consumer.reserve(4)
                await back.release()
                with pytest.raises(UsageError, match="already has a verdict"):
                    await back.release()
                failed, rest = await consumer.reserve(3), await consumer.reserve(3)
                await failed.fail("no good")
                with pytest.raises(UsageError, match="Got 2 results for 1 chunk"):
                    await rest.complete([b"", b""])
                await rest.complete()
                await consumer.flush()
                none = await consumer.reserve(1, wait_s=None, until_empty=True)
                assert (none.chunks_count, none.is_empty) == (0, True)
            state = await submission.state()
            assert (state.completed_count, state.dead_count) == (1, 3)
            assert {dead.reason async for dead in submission.dead()} == {"no good"}

    run(work())


def test_later_bulk_reserve_that_is_answered_first_is_not_kept_waiting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a router, where each waits at all shards: here the first one asks for what never comes."""

    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"] * 40)
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                new_reserve = consumer._new_reserve
                strategies = iter(["SelectOnly(part=none)"])

                def _new_reserve(count: int, wait_s: float | None, until_empty: bool) -> m.Reserve:
                    request = new_reserve(count, wait_s, until_empty)
                    return replace(request, strategy=next(strategies, request.strategy))

                monkeypatch.setattr(consumer, "_new_reserve", _new_reserve)
                async for reservation in consumer.reservations(16, until_empty=False):
                    await reservation.complete()
                    await consumer.flush()
                    if (await submission.state()).state == "completed":
                        break

    run(work())


def test_stop_ends_a_loop_in_bulk_that_waits(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue, queue.consumer("SelectOnly(part=none)") as consumer:
            asyncio.get_running_loop().call_later(0.1, consumer.stop)
            assert [one async for one in consumer.reservations(16, until_empty=False)] == []

    run(work())


def test_completion_beside_a_reserve_that_is_refused_is_kept(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"])
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                [chunk] = await consumer.reserve_chunks(1)
                await chunk.complete()
                with pytest.raises(InvalidStrategy):
                    await consumer.reserve_chunks(1, strategy="Nonsense(")
                await consumer.flush()
            assert (await submission.state()).state == "completed"

    run(work())


def test_bulk_that_is_left_is_given_back(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"] * 64)
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                async for reservation in consumer.reservations(16):
                    assert reservation.chunks_count == 16
                    break
            assert (await submission.state()).reserved_count == 0
            await submission.cancel()

    run(work())


def test_chunks_are_wanted_ahead_and_taken_one_by_one(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"] * 3)
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                assert await consumer.take() is None
                while not consumer.is_ended:
                    await consumer.want(2, wait_s=0.0)
                    while (chunk := await consumer.take()) is not None:
                        await chunk.complete()
                    await asyncio.sleep(0)
            assert (await submission.state()).state == "completed"

    run(work())


def test_reserve_that_is_refused_or_cancelled_brings_nothing(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            async with queue.consumer("SelectOnly(reserve=1)") as consumer:
                with pytest.raises(UsageError):
                    await consumer.reserve(0)
                waiting = asyncio.create_task(consumer.reserve(1, wait_s=None))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                submission = await queue.submit([b"a"], metadata={"reserve": 1})
                [block] = (await consumer.reserve(1, wait_s=None)).blocks
                assert block.submission_id == submission.id
            await submission.cancel()

    run(work())


def test_flush_sends_what_would_wait(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_sender, "FLUSH_S", 3600.0)

    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"])
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                async for chunk in consumer.chunks():
                    await chunk.complete(b"A")
                    await consumer.flush(30.0)
                    assert (await submission.state()).state == "completed"
                    break

    run(work())


def test_chunk_whose_submission_was_removed_meanwhile_is_not_found(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue, queue.consumer() as consumer:
            with pytest.raises(NotFound, match="Submission 7 was removed"):
                await consumer.describe(7)

    run(work())


def test_wait_for_what_does_not_come_ends_after_its_time(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue, queue.consumer() as consumer:
            assert not await consumer._link.wait_until(lambda: False, 0.01)

    run(work())


def test_reservation_that_is_gone_cannot_be_extended(settings: Settings) -> None:
    async def work() -> None:
        async with connect(settings) as queue:
            submission = await queue.submit([b"a"])
            async with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
                async for chunk in consumer.chunks():
                    await submission.cancel()
                    with pytest.raises(ReservationLost):
                        await chunk.extend()
                    break

    run(work())


def test_heartbeats_keep_at_once_what_was_extended_to_a_shorter_time(runtime_dir: Path) -> None:
    """The next one was due in a minute."""

    async def work(settings: Settings) -> None:
        async with connect(settings) as queue, queue.consumer() as consumer:
            await queue.submit([b"a"])
            [chunk] = await consumer.reserve_chunks(1)
            await chunk.extend(0.3)
            assert consumer._link._beat_at - asyncio.get_running_loop().time() < 1
            await chunk.complete()

    with running(runtime_dir, heartbeat_s="60") as settings:
        run(work(settings))


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("how", ["chunk", "reservation"])
def test_large_result_for_a_submission_that_was_removed_ends_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, how: str, *, is_told: bool
) -> None:
    large = b"x" * (m.RESULT_INLINE_BYTES + 1)
    lost: list[Lost] = []
    if not is_told:
        monkeypatch.setattr(Ledger, "revoked", lambda *_: None)

    def folders() -> set[Path]:
        return {path for path in Path(settings.state_dir, "content").iterdir() if path.is_dir()}

    async def work() -> None:
        async with connect(settings) as queue, queue.consumer("OldestFirst", on_lost=lost.append) as consumer:
            before = folders()
            removed, kept = await queue.submit([b"a", b"b"]), await queue.submit([b"c"])
            works: list[Callable[[], Coroutine[Any, Any, None]]] = []
            for _ in range(3):
                if how == "chunk":
                    [chunk] = await consumer.reserve_chunks(1, wait_s=None)
                    works.append(lambda chunk=chunk: chunk.complete(large))  # type: ignore[misc]
                else:
                    reservation = await consumer.reserve(1)
                    works.append(lambda reservation=reservation: reservation.complete([large]))  # type: ignore[misc]
            first, second, third = works
            if not is_told:
                await first()
                await consumer.flush()
            await removed.cancel()
            await removed.remove()
            if is_told:
                await asyncio.to_thread(wait_until, lambda: len(consumer._ledger.lost) == 2)
            await asyncio.to_thread(wait_until, lambda: folders() == before)
            await second()
            await third()
            await consumer.flush()
            assert (lost[-1].submission_id, lost[-1].index) == (removed.id, 1)
            assert [result async for result in kept.results()] == [large]
            assert len(folders() - before) == 1

    run(work())
