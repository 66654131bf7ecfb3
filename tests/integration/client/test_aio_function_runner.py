"""Functions called for chunks and operations by asyncio consumers, awaited or in threads.

And the round of a producer.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import running
from opsq.client.aio.queue import AsyncQueue
from opsq.client.aio.submission import AsyncSubmission
from opsq.client.core.outcome import Tally
from opsq.errors import InvalidStrategy, StoreNotVisible, Unreachable, UsageError, WorkFailed
from opsq.settings import Settings

DEADLINE_S = 180


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    with running(folder, heartbeat_s="0.3") as settings:
        yield settings
    shutil.rmtree(folder)


Test = Callable[[AsyncQueue], Coroutine[Any, Any, None]]


def run(settings: Settings, test: Test) -> None:
    """Run a test with a queue on a plain event loop, not longer than the deadline.

    Nothing is left for the next test.
    """

    async def work() -> None:
        async with opsq.connect_async(settings.socket) as queue:
            try:
                await test(queue)
            finally:
                async for state in queue.submissions(states=["open", "scheduled"]):
                    await queue.submission(state.submission_id).cancel()

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


async def upper(chunk: Any) -> bytes:
    return bytes((await chunk.data()).upper())


def upper_in_thread(chunk: Any) -> bytes:
    assert threading.current_thread() is not threading.main_thread()
    return bytes(chunk.data.upper())


@pytest.mark.parametrize("f", [upper, upper_in_thread])
@pytest.mark.parametrize("count", [1, 5])
def test_each_chunk_is_completed_with_what_the_function_returns(settings: Settings, f: Any, count: int) -> None:
    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit(b"a%d" % number for number in range(200))
        async with queue.consumer() as consumer:
            at_once = {"concurrency": count} if f is upper else {"jobs": count}
            assert await consumer.run_each_chunk(f, **at_once) == Tally(200, 0, 0)
            assert await consumer.run_each_chunk(f) == Tally(0, 0, 0)
        assert (await submission.state()).state == "completed"
        assert [result async for result in submission.results()] == [b"A%d" % number for number in range(200)]

    run(settings, test)


def test_a_function_in_a_thread_sees_what_a_chunk_is(settings: Settings) -> None:
    def work(chunk: Any) -> bytes:
        seen = (chunk.index, chunk.attempt, str(chunk.handle).split("@")[0], chunk.metadata, chunk.chunks_count)
        return repr((*seen, bytes(chunk)[:1], chunk.attachment())).encode()

    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit([b"a" * 300_000] * 2, metadata={"tenant": "x"}, attachment=b"how")
        async with queue.consumer() as consumer:
            await consumer.run_each_chunk(work, jobs=2)
        results = [eval(result) async for result in submission.results()]
        assert results == [(at, 0, f"{submission.id}/{at}", {"tenant": "x"}, 2, b"a", b"how") for at in range(2)]

    run(settings, test)


def test_so_many_are_awaited_at_once(settings: Settings) -> None:
    async def test(queue: AsyncQueue) -> None:
        await queue.submit([b"a"] * 8)
        meeting = asyncio.Barrier(4)

        async def meet(chunk: Any) -> None:
            await meeting.wait()

        async with queue.consumer() as consumer:
            assert await consumer.run_each_chunk(meet, concurrency=4) == Tally(8, 0, 0)

    run(settings, test)


def test_exceptions_and_wishes_decide_what_comes_of_a_chunk(settings: Settings) -> None:
    async def work(chunk: Any) -> None:
        data = await chunk.data()
        if data == b"bury":
            raise opsq.Bury("never")
        if data == b"retry" and chunk.attempt == 0:
            raise opsq.Retry("again", delay_s=0.0)
        if data == b"raise":
            raise ValueError("no good")
        if data == b"exit":
            sys.exit(0)
        if data == b"mine":
            await chunk.complete(b"own")
        if data == b"cancelled":
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        if data == b"text":
            await chunk.complete("text")

    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit(
            [b"bury", b"retry", b"raise", b"exit", b"mine", b"cancelled", b"text"],
            on_dead="keep",
            max_attempts=2,
            backoff=(0.01, 1, 0.01),
        )
        async with queue.consumer() as consumer:
            assert await consumer.run_each_chunk(work, concurrency=2) == Tally(2, 10, 0)
        first, second, third, *others = [dead async for dead in submission.dead()]
        assert (first.index, first.reason) == (0, "never")
        assert second.reason.startswith("ValueError: no good\nTraceback")
        assert "opsq/client" not in second.reason
        assert third.reason.startswith("SystemExit: 0")
        assert [dead.reason.partition("\n")[0] for dead in others] == [
            "asyncio.exceptions.CancelledError",
            "opsq.errors.UsageError: The result is str; it must be bytes. text.encode() makes them.",
        ]
        assert [result async for result in submission.results(skip_dead=True)] == [b"", b"own"]

    run(settings, test)


async def twice(operation: Any) -> Any:
    return operation * 2


@pytest.mark.parametrize("f", [twice, lambda operation: operation * 2])
def test_operations_go_round(settings: Settings, f: Any) -> None:
    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit([b'1\n"a"\n'])
        async with queue.consumer() as consumer:
            assert await consumer.run_each_operation(f, serialisation="json") == Tally(1, 0, 0)
        assert [result async for result in submission.results()] == [b'2\n"aa"\n']

    run(settings, test)


async def inverse(operation: int) -> float:
    return 1 / operation


@pytest.mark.parametrize("f", [inverse, lambda operation: 1 / operation])
def test_a_failing_operation_is_named(settings: Settings, f: Any) -> None:
    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit([b"1\n0\n"], max_attempts=1)
        async with queue.consumer() as consumer:
            assert await consumer.run_each_operation(f, serialisation="json") == Tally(0, 1, 0)
        [dead] = [dead async for dead in submission.dead()]
        assert dead.reason.startswith("ZeroDivisionError: division by zero (operation 2 of 2)")

    run(settings, test)


def test_cancelling_gives_all_back(settings: Settings) -> None:
    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit([b"a"] * 20)
        begun = asyncio.Event()

        async def work(chunk: Any) -> None:
            if chunk.index >= 5:
                begun.set()
                await asyncio.Event().wait()

        async with queue.consumer("OldestFirst") as consumer:
            task = asyncio.create_task(consumer.run_each_chunk(work, concurrency=3))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            state = await submission.state()
            assert (state.reserved_count, state.delayed_count, state.dead_count) == (0, 0, 0)

    run(settings, test)


def test_what_ends_a_run_is_raised_and_not_what_follows_from_it(settings: Settings) -> None:
    async def test(queue: AsyncQueue) -> None:
        await queue.submit([b"a"])

        async def work(chunk: Any) -> None:
            consumer._verdicts.errors.append(Unreachable("An earlier report was not delivered."))
            raise StoreNotVisible("There is no store here.")

        async with queue.consumer("OldestFirst") as consumer:
            with pytest.raises(StoreNotVisible):
                await consumer.run_each_chunk(work)

    run(settings, test)


def test_stop_lets_the_chunks_at_hand_end(settings: Settings) -> None:
    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit([b"a"])
        begun, go = asyncio.Event(), asyncio.Event()

        async def work(chunk: Any) -> bytes:
            begun.set()
            await go.wait()
            return b"done"

        async with queue.consumer() as consumer:
            task = asyncio.create_task(consumer.run_each_chunk(work, concurrency=2, until_empty=False))
            await begun.wait()
            consumer.stop()
            go.set()
            assert await task == Tally(1, 0, 0)
        assert (await submission.state()).state == "completed"

    run(settings, test)


@pytest.mark.parametrize("f", [upper, upper_in_thread])
def test_a_refusal_of_the_daemon_is_raised(settings: Settings, f: Any) -> None:
    async def test(queue: AsyncQueue) -> None:
        async with queue.consumer("Nonsense") as consumer:
            with pytest.raises(InvalidStrategy):
                await consumer.run_each_chunk(f)
            with pytest.raises(UsageError):
                await consumer.run_each_chunk(f, concurrency=0)

    run(settings, test)


@pytest.mark.parametrize(
    ("f", "options", "named"),
    [
        (upper, {"jobs": 2}, "concurrency"),
        (upper_in_thread, {"concurrency": 2}, "jobs"),
        (upper_in_thread, {"max_runtime_s": 1.0}, "thread"),
        (upper, {"max_runtime_s": "soon"}, "max_runtime_s"),
    ],
)
def test_options_of_another_kind_of_function_are_refused_by_name(
    settings: Settings, f: Any, options: Any, named: str
) -> None:
    async def test(queue: AsyncQueue) -> None:
        async with queue.consumer() as consumer:
            with pytest.raises(UsageError) as refused:
                await consumer.run_each_chunk(f, **options)
        assert named in f"{refused.value} {refused.value.hint}"

    run(settings, test)


def test_a_coroutine_that_takes_too_long_fails_alone(settings: Settings) -> None:
    async def work(chunk: Any) -> bytes:
        if chunk.index == 0:
            await asyncio.Event().wait()
        try:
            if chunk.index == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            return b"in time after all"
        if chunk.index == 2:
            raise TimeoutError("its own")
        return b"done"

    async def test(queue: AsyncQueue) -> None:
        submission = await queue.submit([b"a"] * 5, max_attempts=1, on_dead="keep")
        async with queue.consumer() as consumer:
            tally = await consumer.run_each_chunk(work, concurrency=5, max_runtime_s=0.1)
        assert tally == Tally(3, 2, 0)
        first, own = [dead.reason async for dead in submission.dead()]
        assert first.startswith(
            "The function ran for more than 0.1 s, so it was cancelled.\nasyncio.exceptions.CancelledError"
        )
        assert "await asyncio.Event().wait()" in first
        assert own.startswith("TimeoutError: its own")
        results = [result async for result in submission.results(skip_dead=True)]
        assert results == [b"in time after all", b"done", b"done"]

    run(settings, test)


def test_the_round_of_a_producer(settings: Settings) -> None:
    async def test(queue: AsyncQueue) -> None:
        async with queue.consumer() as consumer:
            worker = asyncio.create_task(consumer.run_each_operation(twice, serialisation="json", until_empty=False))
            results = [result async for result in queue.run(range(2500), serialisation="json")]
            assert results == [number * 2 for number in range(2500)]
            consumer.stop()
            await worker

    run(settings, test)


def test_a_round_with_dead_chunks_raises_or_skips(settings: Settings) -> None:
    async def test(queue: AsyncQueue) -> None:
        async with queue.consumer() as consumer:
            worker: Awaitable[Tally] = asyncio.create_task(
                consumer.run_each_operation(inverse, serialisation="json", until_empty=False)
            )
            options: dict[str, Any] = {"serialisation": "json", "operations_per_chunk": 1, "max_attempts": 1}
            with pytest.raises(WorkFailed, match="chunk 1: ZeroDivisionError"):
                _ = [result async for result in queue.run([1, 0, 2], on_dead="keep", **options)]
            assert [result async for result in queue.run([1, 0, 2], skip_dead=True, **options)] == [1.0, 0.5]
            consumer.stop()
            await worker

    run(settings, test)


async def end_wait(queue: AsyncQueue, on_close: Any) -> str:
    """Cancel the task that waits for the second result of a round; the state of its submission then."""
    pair = {"interrupt": secrets.token_hex(8)}
    results = queue.run([b"x", b"y"], on_close=on_close, metadata=pair)
    first: asyncio.Future[bytes] = asyncio.ensure_future(anext(results))
    async with queue.consumer() as consumer:
        chunk = await anext(consumer.chunks(until_empty=False))
        await chunk.complete(b"X")
        assert await first == b"X"
    second: asyncio.Future[bytes] = asyncio.ensure_future(anext(results))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    [found] = [found async for found in queue.submissions(metadata=pair)]
    return found.state


@pytest.mark.parametrize(("on_close", "state"), [("leave", "open"), ("cancel", "cancelled")])
def test_a_round_whose_wait_is_cancelled_leaves_or_cancels(settings: Settings, on_close: Any, state: str) -> None:
    async def test(queue: AsyncQueue) -> None:
        assert await end_wait(queue, on_close) == state

    run(settings, test)


def test_a_round_that_cannot_be_cancelled_is_closed_and_logged(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancel(self: AsyncSubmission, reason: str) -> None:
        raise Unreachable("The daemon has gone.")

    async def test(queue: AsyncQueue) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(AsyncSubmission, "cancel", cancel)
            assert await end_wait(queue, "cancel") == "open"

    run(settings, test)
    assert "could not be cancelled: The daemon has gone." in caplog.text


@pytest.mark.parametrize(("on_close", "state"), [("leave", "open"), ("cancel", "cancelled")])
def test_a_round_that_is_closed_early_leaves_or_cancels(settings: Settings, on_close: Any, state: str) -> None:
    async def work(chunk: Any) -> None:
        if chunk.index == 1:
            raise opsq.Retry(delay_s=3600)

    async def test(queue: AsyncQueue) -> None:
        async with queue.consumer() as consumer:
            worker = asyncio.create_task(consumer.run_each_chunk(work, until_empty=False))
            results = queue.run([b"x", b"y"], on_close=on_close, metadata={"close": on_close})
            assert await anext(results) == b""
            await results.aclose()  # type: ignore[attr-defined]  # it is a generator
            [found] = [state async for state in queue.submissions(metadata={"close": on_close})]
            assert found.state == state
            consumer.stop()
            await worker

    run(settings, test)
