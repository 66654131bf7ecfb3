"""How long others wait: until a parked consumer has what was submitted, and beside one very large insert or cancel.

All figures are of single requests over the Unix socket, each durable when answered.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

from harness import Benchmark, Context, Row, at_most, main, quantile
from opsq.wire.messages import (
    Cancel,
    Changed,
    Complete,
    Completed,
    Completion,
    NewSubmission,
    Reserve,
    Reserved,
    Show,
    Shown,
    Submit,
    Submitted,
)
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon

_AFTER_CANCEL_S = 5.0


def measure(context: Context) -> Iterator[Row]:
    """Submit to a parked consumer; then other requests while a submission is inserted, and while it is cancelled."""
    with (
        Daemon(context.folder("opsq")) as daemon,
        connect(daemon) as producer,
        connect(daemon) as consumer,
    ):
        context.say("submit until a parked consumer has it")
        taken = [_handed_over(producer, consumer) for _ in range(context.size(3000, 300))]
        yield _row("submit of one chunk until a parked consumer has it, p99", taken, 0.010)
        chunks_count = context.size(10_000_000, 1_000_000)

        context.say(f"other requests while {chunks_count} chunks are inserted")
        submission = NewSubmission(os.urandom(16), chunks_count)
        producer.send([Submit(producer.next_id(), [submission])])
        taken = _others(consumer, until=lambda: _is_readable(producer))
        submission_id = producer.await_one(Submitted).created[0].submission_id
        yield _row(f"other requests while {chunks_count:.0e} chunks are inserted, p99", taken, 0.025)

        context.say("other requests while it is cancelled")
        started = time.monotonic()
        producer.send([Cancel(producer.next_id(), submission_id)])
        # The rows go after the answer, in slices.
        taken = _others(consumer, until=lambda: time.monotonic() - started > _AFTER_CANCEL_S)
        producer.await_one(Changed)
        yield _row(f"other requests while {chunks_count:.0e} chunks are cancelled, p99", taken, 0.025)


def _row(what: str, taken: list[float], bound_s: float) -> Row:
    note = f"{len(taken)} requests, p50 {quantile(taken, 0.5) * 1e3:.2f} ms, longest {max(taken) * 1e3:.1f} ms"
    return Row(what, "s", quantile(taken, 0.99), at_most(bound_s, "s"), note=note)


def _handed_over(producer: Client, consumer: Client) -> float:
    consumer.send([Reserve(consumer.next_id(), 1, wait_s=None)])
    # Any answered request shows that the daemon has read the reserve sent before it on that connection.
    consumer.send([Show(consumer.next_id(), producer.submit(1, 0)[0])])
    consumer.await_one(Shown)
    started = time.perf_counter()
    producer.send([Submit(producer.next_id(), [NewSubmission(os.urandom(16), 1)])])
    reserved = consumer.await_one(Reserved)
    taken = time.perf_counter() - started
    producer.await_one(Submitted)
    _complete(consumer, reserved)
    return taken


def _others(client: Client, *, until: Callable[[], bool]) -> list[float]:
    """Submit, show, reserve and complete small submissions, one request after the other; the seconds of each."""
    taken: list[float] = []
    submission_id = 0
    reserved = Reserved(0)

    def timed(request: Callable[[], None]) -> None:
        started = time.perf_counter()
        request()
        taken.append(time.perf_counter() - started)

    def submit() -> None:
        nonlocal submission_id
        submission_id = client.submit(1, 1)[0]

    def reserve() -> None:
        nonlocal reserved
        reserved = client.call(Reserve(client.next_id(), 1, "NewestFirst"), Reserved)

    while not until():
        timed(submit)
        timed(lambda: _show(client, submission_id))
        timed(reserve)
        timed(lambda: _complete(client, reserved))
    return taken


def _show(client: Client, submission_id: int) -> None:
    client.call(Show(client.next_id(), submission_id), Shown)


def _complete(client: Client, reserved: Reserved) -> None:
    completions = [Completion(loads.held(reserved.reservation_id, grant)) for grant in reserved.grants]
    client.call(Complete(client.next_id(), completions), Completed)


def _is_readable(client: Client) -> bool:
    return bool(select.select([client], [], [], 0)[0])


BENCHMARK = Benchmark("latency", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
