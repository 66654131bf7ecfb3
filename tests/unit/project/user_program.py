"""A program of a user: a producer, a consumer, schedules and events, blocking, from asyncio and embedded.

Type checkers see the package here as a user's do; each keyword is misspelt in turn, and must be found. It is not run.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import opsq
from opsq.types import Event, Explained, ScheduleState, SubmissionState


def doubled(number: int) -> int:
    return number * 2


def worked(chunk: opsq.Chunk) -> opsq.Done:
    return opsq.Done(chunk.data.upper(), then=[opsq.FollowUp([b"page 2"], metadata={"step": 2}, title="two")])


async def fetched(chunk: opsq.AsyncChunk) -> bytes:
    return await chunk.data()


def produce(queue: opsq.Queue) -> SubmissionState:
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    first = queue.submit([b"a"], metadata={"tenant": "acme"}, unique_key="k", unique_until="start", title="one")
    second = queue.submit(
        range(10), serialisation="json", after=[first], backoff=(1.0, 2.0, 300.0), expires_at=tomorrow, on_dead="keep"
    )
    prepared = queue.prepare([b"b"], priority=1, max_attempts=2, idempotency_key="once", wait_for_room=5.0)
    queue.submit_many([prepared], wait_for_room=True)
    print(sum(queue.run(range(10), serialisation="json", operations_per_chunk=5, unique_key="sum", skip_dead=True)))
    print(list(second.results(skip_dead=True)), [chunk.reason for chunk in second.dead()])
    return second.wait(timeout_s=60.0)


def consume(queue: opsq.Queue) -> opsq.Tally:
    for chunk in queue.consume("OldestFirst", batch=8, until_idle=True, lease_s=60.0):
        chunk.complete(bytes(chunk), then=[], run_s=0.1)
    with queue.consumer("Random", batch=3, reconnect_s=5.0, on_lost=lambda lost: print(lost.index)) as consumer:
        consumer.run_each_chunk(worked, jobs=2, until_empty=True)
        for reservation in consumer.reservations(64, ahead=2):
            reservation.complete([data.upper() for data in reservation.read()], run_s=1.0)
        return consumer.run_each_operation(
            doubled, serialisation="json", mode="processes", jobs=4, max_runtime_s=9.0, max_memory_bytes=1 << 30
        )


def administer(queue: opsq.Queue) -> Iterator[Event]:
    queue.add_schedule("nightly", "30 2 * * *", b"x", timing={"zone": "UTC", "overlap": "skip"}, metadata={"a": 1})
    schedule: ScheduleState = queue.schedule("nightly", upcoming=5)
    explained: Explained = queue.explain(opsq.strategy.parse("OldestFirst"), analyze=True)
    print(schedule.upcoming, explained.arms, queue.status(by="tenant").connections_count)
    queue.limit("tenant", "acme", concurrency=5, rate_per_s=2.0)
    queue.pause({"tenant": "acme"}, by_operator=True)
    print([row.reason for row in queue.history(events=["failed"], metadata={"tenant": "acme"}, newest_first=True)])
    print(queue.prune_history(older_than_s=3600.0, keep=10), queue.backup("copy.sqlite"), queue.check())
    return queue.events(since=1, follow=False, kinds=["submission"])


async def both() -> list[opsq.AsyncSubmission]:
    async with opsq.connect_async(state_dir="state", reconnect_s=5.0) as queue:
        found = [await queue.submit([b"a"], metadata={"tenant": "acme"}, delay_s=1.0, weights={"tenant": 2.0})]
        async for chunk in queue.consume("OldestFirst", batch=8, until_empty=True):
            await chunk.fail("no", delay_s=1.0, retry=True)
        async with queue.consumer("Random", lease_s=60.0, batch=3) as consumer:
            tally = await consumer.run_each_chunk(fetched, concurrency=10, until_idle=True, max_runtime_s=9.0)
            await consumer.run_each_operation(doubled, serialisation="json", jobs=4)
            reservation: opsq.AsyncReservation = await consumer.reserve(64, wait_s=1.0, until_empty=True)
            await reservation.complete([one async for one in reservation.read()], run_s=1.0)
        print(tally.completed_count, [event async for event in queue.events(since=1, follow=False)])
        await queue.add_schedule("hourly", "@hourly", replaces=True, title="hourly")
        return found


def main() -> None:
    with opsq.connect(state_dir="state", token="secret", name="me") as queue:
        print(produce(queue).state, consume(queue).failed_count, list(administer(queue)))
    with opsq.Queue.open(Path("state"), policy=opsq.Policy(max_attempts=2), is_durable=False) as embedded:
        print(list(embedded.submissions(states=["failed"], metadata={"tenant": "acme"})))
    print(asyncio.run(both()))


if __name__ == "__main__":
    main()
