"""Each argument of the Python API with values that it cannot have: refused by its name, embedded and by a daemon."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import running, whole_log
from opsq.client.aio.queue import AsyncQueue
from opsq.client.sync.queue import Queue
from opsq.errors import OpsqError, UsageError

HOSTILE: list[Any] = [
    "\udc80",
    "key\n",
    "a\0b",
    "x" * 100_000,
    b"\xff",
    object(),
    [object()],
    (1, 2, 3, 4),
    {"a": object()},
    {"\udc80": 1},
    {"key\n": 1},
    {"a": "\udc80"},
    {"a": 1 << 64},
    -1,
    1 << 63,
    1 << 70,
    1.5,
    math.nan,
    math.inf,
    True,
]

SUBMIT = [
    "metadata",
    "attachment",
    "priority",
    "max_attempts",
    "max_lost",
    "backoff",
    "on_dead",
    "delay_s",
    "not_before_at",
    "expires_s",
    "expires_at",
    "unique_key",
    "unique_until",
    "reservation_s",
    "weights",
    "idempotency_key",
    "wait_for_room",
]


def submit(name: str, queue: Any, value: Any) -> Any:
    return queue.submit([b"a"], **{name: value})


def with_consumer(queue: Queue, use: Callable[[Any], object], strategy: Any = "OldestFirst", **options: Any) -> None:
    with queue.consumer(strategy, **options) as consumer:
        use(consumer)


def with_chunk(queue: Queue, use: Callable[[Any], object]) -> None:
    queue.submit([b"a"])
    for chunk in queue.consume("OldestFirst"):
        use(chunk)
        break


Call = Callable[[Any, Any], Any]

CALLS: dict[tuple[str, str], Call] = {
    **{("submit", name): partial(submit, name) for name in SUBMIT},
    ("submit", "chunks"): lambda queue, value: queue.submit(value),
    ("find", "idempotency_key"): lambda queue, value: queue.find(value),
    ("find_request", "request_key"): lambda queue, value: queue.find_request(value),
    ("withdraw", "request_key"): lambda queue, value: queue.withdraw(value),
    ("submission", "submission_id"): lambda queue, value: queue.submission(value).state(),
    ("submissions", "state"): lambda queue, value: list(queue.submissions(states=value)),
    ("submissions", "metadata"): lambda queue, value: list(queue.submissions(metadata=value)),
    ("status", "by"): lambda queue, value: queue.status(value),
    ("explain", "strategy"): lambda queue, value: queue.explain(value),
    ("explain", "analyze"): lambda queue, value: queue.explain("Random", analyze=value),
    ("explain_work", "submission_id"): lambda queue, value: queue.explain_work(value),
    ("pause", "metadata"): lambda queue, value: queue.pause(value) and queue.resume(value),
    ("pause", "by_operator"): lambda queue, value: queue.pause({"a": 1}, by_operator=value),
    ("resume", "metadata"): lambda queue, value: queue.resume(value, by_operator=True),
    ("limit", "key"): lambda queue, value: queue.limit(value, concurrency=9),
    ("limit", "value"): lambda queue, value: queue.limit("key", value, concurrency=9),
    ("limit", "concurrency"): lambda queue, value: queue.limit("key", concurrency=value),
    ("limit", "rate_per_s"): lambda queue, value: queue.limit("key", rate_per_s=value),
    ("limit", "burst"): lambda queue, value: queue.limit("key", rate_per_s=1.0, burst=value),
    ("unlimit", "key"): lambda queue, value: queue.unlimit(value),
    ("history", "submission_id"): lambda queue, value: list(queue.history(submission_id=value)),
    ("history", "events"): lambda queue, value: list(queue.history(events=value)),
    ("history", "metadata"): lambda queue, value: list(queue.history(metadata=value)),
    ("history", "reason"): lambda queue, value: list(queue.history(reason=value)),
    ("history", "signals"): lambda queue, value: list(queue.history(signals=value)),
    ("history", "from_at"): lambda queue, value: list(queue.history(from_at=value)),
    ("prune_history", "older_than_s"): lambda queue, value: queue.prune_history(older_than_s=value, keep=1),
    ("prune_history", "keep"): lambda queue, value: queue.prune_history(older_than_s=1.0, keep=value),
    ("weight", "weight"): lambda queue, value: queue.weight("key", 1, value),
    ("weight", "value"): lambda queue, value: queue.weight("key", value, 1.0),
    ("wait", "timeout_s"): lambda queue, value: queue.submit([]).wait(value),
    ("flush", "timeout_s"): lambda queue, value: with_consumer(queue, lambda c: c.flush(value)),
    ("cancel", "reason"): lambda queue, value: queue.submit([b"a"]).cancel(value),
    ("requeue", "indexes"): lambda queue, value: queue.submit([b"a"]).requeue(value),
    ("drop", "indexes"): lambda queue, value: queue.submit([b"a"]).drop([value]),
    ("run", "serialisation"): lambda queue, value: list(queue.run([], serialisation=value)),
    ("run", "operations_per_chunk"): lambda queue, value: list(
        queue.run([], serialisation="bytes", operations_per_chunk=value)
    ),
    ("run", "on_close"): lambda queue, value: list(queue.run([], on_close=value)),
    ("run", "chunks"): lambda queue, value: queue.run(value).close(),
    ("consumer", "batch"): lambda queue, value: queue.consumer(batch=value).close(),
    ("reserve", "strategy"): lambda queue, value: with_consumer(queue, lambda c: c.reserve(1).release(), value),
    ("reserve", "count"): lambda queue, value: with_consumer(queue, lambda c: c.reserve(value).release()),
    ("reserve", "lease_s"): lambda queue, value: with_consumer(queue, lambda c: c.reserve(1).release(), lease_s=value),
    ("complete", "result"): lambda queue, value: with_chunk(queue, lambda chunk: chunk.complete(value)),
    ("complete", "run_s"): lambda queue, value: with_chunk(queue, lambda chunk: chunk.complete(run_s=value)),
    ("complete", "exit_status"): lambda queue, value: with_chunk(
        queue, lambda chunk: chunk.complete(exit_status=value)
    ),
    **{
        ("fail", name): lambda queue, value, name=name: with_chunk(queue, lambda chunk: chunk.fail(**{name: value}))
        for name in ("reason", "run_s", "delay_s", "exit_status", "signal")
    },
    ("extend", "lease_s"): lambda queue, value: with_chunk(queue, lambda chunk: chunk.extend(value)),
}


def check(error: OpsqError, argument: str, value: Any) -> None:
    """An error names the argument, or is about the state of the queue; a strategy is quoted as a whole."""
    if isinstance(error, UsageError):
        assert argument in str(error) or argument == "strategy", (value, error)
        assert error.code != "protocol", (value, error)
    else:
        assert error.code in {"not_found", "conflict", "reservation_lost", "timed_out"}, (value, error)


@pytest.fixture(scope="module", params=["embedded", "daemon"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    if request.param == "embedded":
        with opsq.Queue.open(folder / "state", is_durable=False) as queue:
            yield queue
    else:
        with running(folder / "state") as settings, opsq.connect(settings.socket) as queue:
            yield queue
            assert "Traceback" not in whole_log(settings)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("call", "argument"), CALLS)
def test_impossible_argument_is_refused_by_its_name(queue: Queue, call: str, argument: str) -> None:
    """What can be is served; nothing raises anything but errors of ours, and the queue goes on."""
    for value in HOSTILE:
        try:
            CALLS[call, argument](queue, value)
        except OpsqError as error:
            check(error, argument, value)
    assert queue.submit([]).state().state == "completed"


IMPOSSIBLE: list[Callable[[Any], object]] = [
    lambda one: one.complete("text"),
    lambda one: one.complete((1, 2)),
    lambda one: one.complete((object(), 0, 1)),
    lambda one: one.complete(run_s=-1.0),
    lambda one: one.complete(run_s="1 s"),
    lambda one: one.complete(exit_status=256),
    lambda one: one.complete(exit_status=object()),
    lambda one: one.fail(ValueError("wrong")),
    lambda one: one.fail(run_s=math.nan),
    lambda one: one.fail(delay_s=-1),
    lambda one: one.fail(exit_status=-9),
    lambda one: one.fail(signal=1 << 70),
]


@pytest.mark.parametrize("mistaken", IMPOSSIBLE)
def test_mistake_in_one_verdict_costs_no_other_and_leaves_the_chunk_without_one(
    queue: Queue, mistaken: Callable[[Any], object]
) -> None:
    submission = queue.submit([b"a", b"b"])
    with queue.consumer(f"SelectOnly(submission={submission.id}, OldestFirst)", batch=2) as consumer:
        chunks = consumer.chunks(overlapping=True)
        first, second = next(chunks), next(chunks)
        first.complete(b"A")
        with pytest.raises(UsageError):
            mistaken(second)
        assert not second.has_verdict
        second.complete(b"B")
        consumer.flush()
    assert list(submission.results()) == [b"A", b"B"]


@pytest.mark.parametrize(
    "mistaken",
    [
        lambda consumer: consumer.reserve(1 << 70),
        lambda consumer: consumer.reserve(object()),
        lambda consumer: consumer.reserve(1, wait_s="1 s"),
    ],
)
def test_mistake_in_a_reserve_costs_no_verdict(queue: Queue, mistaken: Callable[[Any], object]) -> None:
    submission = queue.submit([b"a", b"b"], max_attempts=1, on_dead="keep")
    with queue.consumer(f"SelectOnly(submission={submission.id}, OldestFirst)", batch=2) as consumer:
        chunks = consumer.chunks(overlapping=True)
        first, second = next(chunks), next(chunks)
        first.complete(b"A")
        second.fail("no good")
        with pytest.raises(UsageError):
            mistaken(consumer)
        consumer.flush()
    assert list(submission.results(skip_dead=True)) == [b"A"]


@pytest.mark.parametrize(
    "mistaken",
    [
        lambda one: one.complete([b"A", "text"]),
        lambda one: one.complete([b"A", (1, 2)]),
        lambda one: one.complete([b"A", b"B"], run_s=-1.0),
        lambda one: one.fail(ValueError("wrong")),
        lambda one: one.fail("wrong", delay_s=math.nan),
    ],
)
def test_mistake_in_the_verdict_on_a_reservation_leaves_it_without_one(
    queue: Queue, mistaken: Callable[[Any], object]
) -> None:
    submission = queue.submit([b"a", b"b"])
    with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
        reservation = consumer.reserve(2)
        with pytest.raises(UsageError):
            mistaken(reservation)
        reservation.complete([b"A", b"B"])
        consumer.flush()
    assert list(submission.results()) == [b"A", b"B"]


def test_result_in_a_buffer_is_what_that_has_when_it_is_given(queue: Queue) -> None:
    submission = queue.submit([b"a", b"b"])
    buffer = bytearray(b"AAAA")
    with queue.consumer(f"SelectOnly(submission={submission.id}, OldestFirst)") as consumer:
        consumer.reserve(1).complete([buffer])  # type: ignore[list-item]
        buffer[:] = b"BBBB"
        for chunk in consumer.chunks():
            chunk.complete(memoryview(buffer))  # type: ignore[arg-type]
    assert list(submission.results()) == [b"AAAA", b"BBBB"]


@pytest.mark.parametrize("value", [object(), 5, b"x", "a\0b", ["a"]])
def test_path_that_is_none_is_refused_by_its_name(queue: Queue, value: Any) -> None:
    with pytest.raises(UsageError, match="path is "):
        queue.backup(value)
    with pytest.raises(UsageError, match="path is "):
        opsq.Queue.open(value)
    with pytest.raises(UsageError, match="address is "):
        opsq.connect(value)


def test_time_out_that_is_no_number_is_refused_before_anything_is_asked(queue: Queue) -> None:
    """NaN is shorter and longer than nothing: what waits with it would end in an error of the system, or never."""
    submission = queue.submit([b"a"])
    with pytest.raises(UsageError, match="timeout_s is nan"):
        submission.wait(math.nan)
    with pytest.raises(UsageError, match="reconnect_s is nan"):
        opsq.connect("/nowhere", reconnect_s=math.nan)
    submission.cancel()


ASYNC: dict[str, Call] = {
    **{name: partial(submit, name) for name in SUBMIT},
    "chunks": lambda queue, value: queue.submit(value),
    "key": lambda queue, value: queue.limit(value, concurrency=5),
    "concurrency": lambda queue, value: queue.limit("key", concurrency=value),
    "by": lambda queue, value: queue.status(value),
    "strategy": lambda queue, value: queue.explain(value),
}


def test_impossible_argument_is_refused_by_its_name_to_a_coroutine_too(runtime_dir: Path) -> None:
    async def ask(queue: AsyncQueue) -> None:
        for argument, call in ASYNC.items():
            for value in HOSTILE:
                try:
                    await call(queue, value)
                except OpsqError as error:
                    check(error, argument, value)
        assert (await queue.status()).pid

    async def connect(address: str) -> None:
        async with opsq.connect_async(address) as queue:
            await ask(queue)

    with running(runtime_dir / "state") as settings:
        asyncio.run(connect(settings.socket))
