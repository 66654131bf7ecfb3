"""A daemon that goes and stays away: all that waits for it ends with the documented error after `reconnect_s`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import opsq
from daemons import kill, running
from opsq.errors import Unreachable
from opsq.settings import Settings
from waiting import wait_until

AWAY_S = 0.3
PATIENCE_S = 60.0
"""What hangs is given up after this long."""


async def _all(found: AsyncIterator[object]) -> list[object]:
    return [one async for one in found]


async def _nothing(chunk: object) -> None:
    return None


async def _complete(consumer: Any, chunk: Any) -> None:
    await chunk.complete(b"x")
    await consumer.flush()


async def _fail(consumer: Any, chunk: Any) -> None:
    await chunk.fail("x")
    await consumer.flush()


def calls(every: Callable[[Any], object]) -> dict[str, Callable[[Any, Any], Any]]:
    """What a queue and a submission are asked for, blocking or to be awaited.

    Args:
        every: takes all that an iterator has.
    """
    return {
        "status": lambda q, s: q.status(),
        "submit": lambda q, s: q.submit([b"x"]),
        "submit large": lambda q, s: q.submit([b"x" * 100_000] * 20),
        "find": lambda q, s: q.find("key"),
        "submissions": lambda q, s: every(q.submissions()),
        "run": lambda q, s: every(q.run([b"x"])),
        "state": lambda q, s: s.state(),
        "wait": lambda q, s: s.wait(),
        "results": lambda q, s: every(s.results()),
        "follow": lambda q, s: every(s.follow()),
        "dead": lambda q, s: every(s.dead()),
        "attachment": lambda q, s: s.attachment(),
        "cancel": lambda q, s: s.cancel(),
        "requeue": lambda q, s: s.requeue(),
        "drop": lambda q, s: s.drop(),
        "remove": lambda q, s: s.remove(),
    }


CONSUMING: dict[str, Callable[[Any, Any], object]] = {
    "next chunk": lambda c, chunk: next(c.chunks(until_empty=False, overlapping=True)),
    "until empty": lambda c, chunk: list(c.chunks()),
    "reserve": lambda c, chunk: c.reserve(1, wait_s=None),
    "reservations": lambda c, chunk: list(c.reservations(1)),
    "run_each_chunk": lambda c, chunk: c.run_each_chunk(bytes),
    "flush of a completion": lambda c, chunk: (chunk.complete(b"x"), c.flush()),
    "flush of a failure": lambda c, chunk: (chunk.fail("x"), c.flush()),
    "extend": lambda c, chunk: chunk.extend(5.0),
}
AIO_CONSUMING: dict[str, Callable[[Any, Any], Awaitable[object]]] = {
    "next chunk": lambda c, chunk: anext(c.chunks(until_empty=False, overlapping=True)),
    "until empty": lambda c, chunk: _all(c.chunks()),
    "run_each_chunk": lambda c, chunk: c.run_each_chunk(_nothing),
    "flush of a completion": _complete,
    "flush of a failure": _fail,
    "extend": lambda c, chunk: chunk.extend(5.0),
}
IS_PARKED = {"wait", "follow", "run", "next chunk", "until empty", "reserve", "reservations"}
"""Calls that are also made while the daemon is there, and wait when it goes."""


def named(calls: dict[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Each call made after the daemon went; those that wait also before."""
    for name, call in calls.items():
        yield name, call, False
        if name in IS_PARKED:
            yield f"{name}, parked", call, True


def test_every_call_ends_with_unreachable(runtime_dir: Path) -> None:
    ends: dict[str, object] = {}
    gone = threading.Event()
    threads: list[threading.Thread] = []
    with running(runtime_dir) as settings, opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"x"] * 200)
        queue.submit([b"x"], metadata={"none": 1})
        holder = queue.consumer("SelectOnly(none=1)")  # of what others wait for
        loops = [holder.chunks(overlapping=True)]  # one that is gone gives back
        assert next(loops[0])
        ready = threading.Semaphore(0)

        def work(name: str, call: Callable[[], object], *, is_parked: bool) -> None:
            ready.release()
            if not is_parked:
                gone.wait(PATIENCE_S)
            try:
                ends[name] = call()
            except Exception as error:  # noqa: BLE001  # whatever it is
                ends[name] = error

        def start(name: str, call: Callable[[], object], *, is_parked: bool) -> None:
            ends[name] = "still waits"
            threads.append(
                threading.Thread(target=work, args=(name, call), kwargs={"is_parked": is_parked}, daemon=True)
            )

        for name, call, is_parked in named(calls(list)):
            own = opsq.connect(settings.socket, reconnect_s=AWAY_S)
            start(name, lambda call=call, q=own: call(q, q.submission(submission.id)), is_parked=is_parked)  # type: ignore[misc]
        for name, call, is_parked in named(CONSUMING):
            consumer = queue.consumer("SelectOnly(none=1)" if is_parked else "Random", reconnect_s=AWAY_S)
            loops.append(consumer.chunks(overlapping=True))
            chunk = None if is_parked else next(loops[-1])
            start(name, lambda call=call, c=consumer, chunk=chunk: call(c, chunk), is_parked=is_parked)  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.acquire()
        _wait_until_parked(settings, 4)
        kill(settings)
        gone.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert {name: end for name, end in ends.items() if not isinstance(end, Unreachable)} == {}


def test_every_awaited_call_ends_with_unreachable(runtime_dir: Path) -> None:
    async def end(call: Callable[[], Awaitable[object]], gone: asyncio.Event, *, is_parked: bool) -> object:
        if not is_parked:
            await gone.wait()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await call()
        except Exception as error:  # noqa: BLE001  # whatever it is
            return error

    async def work(settings: Settings) -> dict[str, object]:
        gone = asyncio.Event()
        async with opsq.connect_async(settings.socket) as queue:
            submission = await queue.submit([b"x"] * 200)
            await queue.submit([b"x"], metadata={"none": 1})
            holder = await queue.consumer("SelectOnly(none=1)").__aenter__()  # of what others wait for
            loops = [holder.chunks(overlapping=True)]  # one that is gone gives back
            assert await anext(loops[0])
            ends = {}
            for name, call, is_parked in named(calls(_all)):
                own = await opsq.connect_async(settings.socket, reconnect_s=AWAY_S).__aenter__()
                ends[name] = end(
                    lambda call=call, q=own: call(q, q.submission(submission.id)), gone, is_parked=is_parked
                )  # type: ignore[misc]
            for name, call, is_parked in named(AIO_CONSUMING):
                made = queue.consumer("SelectOnly(none=1)" if is_parked else "Random", reconnect_s=AWAY_S)
                consumer = await made.__aenter__()
                loops.append(consumer.chunks(overlapping=True))
                chunk = None if is_parked else await anext(loops[-1])
                ends[name] = end(lambda call=call, c=consumer, chunk=chunk: call(c, chunk), gone, is_parked=is_parked)  # type: ignore[misc]
            tasks = {name: asyncio.create_task(work) for name, work in ends.items()}
            await asyncio.to_thread(_wait_until_parked, settings, 2)
            await asyncio.to_thread(kill, settings)
            gone.set()
            return {name: await task for name, task in tasks.items()}

    with running(runtime_dir) as settings:
        ends = asyncio.run(work(settings))
    assert {name: end for name, end in ends.items() if not isinstance(end, Unreachable)} == {}


def test_stop_ends_what_is_awaited_in_bulk(runtime_dir: Path) -> None:
    async def work(settings: Settings) -> None:
        async with (
            opsq.connect_async(settings.socket) as queue,
            queue.consumer("SelectOnly(none=1)") as looping,
            queue.consumer("SelectOnly(none=1)") as asking,
        ):
            tasks = [
                asyncio.create_task(_all(looping.reservations(16, until_empty=False))),
                asyncio.create_task(asking.reserve(16, wait_s=None)),
            ]
            await asyncio.to_thread(_wait_until_parked, settings, 3)
            await asyncio.to_thread(kill, settings)
            await looping._link.wait_until(lambda: not looping._link.is_connected, PATIENCE_S)
            looping.stop()
            asking.stop()
            async with asyncio.timeout(PATIENCE_S):
                assert await tasks[0] == []
                assert (await tasks[1]).is_empty

    with running(runtime_dir) as settings:
        asyncio.run(work(settings))


def test_stop_ends_an_awaited_reserve_that_is_sent_after_it(runtime_dir: Path) -> None:
    async def work(settings: Settings) -> None:
        async with opsq.connect_async(settings.socket) as queue, queue.consumer() as consumer:
            async with consumer._syncing:
                task = asyncio.create_task(consumer.reserve(16, wait_s=None))
                await asyncio.sleep(0)
                consumer.stop()
            async with asyncio.timeout(PATIENCE_S):
                assert (await task).chunks_count == 0

    with running(runtime_dir) as settings:
        asyncio.run(work(settings))


def _wait_until_parked(settings: Settings, count: int) -> None:
    with opsq.connect(settings.socket) as queue:
        wait_until(lambda: queue.status().parked_count >= count, PATIENCE_S, "parked reserves")
