"""Submissions that wait for one: how long it takes until all of them are open, or cancelled, and what waits meanwhile.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

from harness import Benchmark, Context, Row, at_most, main, median, quantile, reported
from opsq.wire.messages import (
    Alive,
    Cancel,
    Changed,
    Complete,
    Completed,
    Completion,
    DaemonState,
    Dependency,
    Heartbeat,
    HeldChunks,
    NewSubmission,
    Reserve,
    Reserved,
    Status,
    Submit,
    Submitted,
)
from ours.client import Client, connect
from ours.daemon import Daemon

_BATCH = 1000
_LOOK_EVERY_S = 0.05


def measure(context: Context) -> Iterator[Row]:
    """The same twice: what they wait for is completed, and is cancelled."""
    count = context.size(100_000, 5_000)
    yield from _told(context, count, "completed, and they open", _complete)
    yield from _told(context, count, "cancelled, and so are they", _cancel)


def _told(context: Context, count: int, how: str, end: Callable[[Client, int], None]) -> Iterator[Row]:
    context.say(f"{count} wait for one that is {how}")
    with Daemon(context.folder("opsq")) as daemon, connect(daemon) as client:
        [first] = _submit(client, [NewSubmission(os.urandom(16), 1)])
        for _ in range(0, count, _BATCH):
            after = [Dependency(first)]
            pairs: dict[str, int | str] = {"tenant": "a", "kind": "x"}
            _submit(client, [NewSubmission(os.urandom(16), 1, metadata=pairs, after=after) for _ in range(_BATCH)])
        answers, stop = _answers(daemon)
        time.sleep(1)
        quiet_s = max(answers)
        answers.clear()
        used_s, started = daemon.cpu_s(), time.perf_counter()
        end(client, first)
        while client.call(Status(client.next_id()), DaemonState).states["blocked"]:
            time.sleep(_LOOK_EVERY_S)
        taken_s, used_s = time.perf_counter() - started, daemon.cpu_s() - used_s
        stop()
    what = f"{count} wait for one that is {how}"
    yield Row(f"{what}: until the last", "s", taken_s, reported(), note=f"processor time of the daemon {used_s:.1f} s")
    spread = f"median {median(answers) * 1e3:.1f} ms, p99 {quantile(answers, 0.99) * 1e3:.1f} ms"
    note = f"{spread}; longest before {quiet_s * 1e3:.1f} ms"
    yield Row(f"{what}: longest answer to another client meanwhile", "s", max(answers), at_most(0.05, "s"), note=note)


def _submit(client: Client, news: list[NewSubmission]) -> list[int]:
    reply = client.call(Submit(client.next_id(), news), Submitted)
    return [one.submission_id for one in reply.created]


def _complete(client: Client, _: int) -> None:
    reserved = client.call(Reserve(client.next_id(), 1, "OldestFirst"), Reserved)
    [grant] = reserved.grants
    held = HeldChunks(
        grant.submission_id, grant.block, grant.mask, reserved.reservation_id, grant.attempt, grant.mask, grant.mac
    )
    client.call(Complete(client.next_id(), [Completion(held)]), Completed)


def _cancel(client: Client, submission_id: int) -> None:
    client.call(Cancel(client.next_id(), submission_id), Changed)


def _answers(daemon: Daemon) -> tuple[list[float], Callable[[], None]]:
    """Ask the daemon whether it lives, all the time, and note how long each answer takes."""
    found: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with connect(daemon) as client:
            while not is_over.is_set():
                asked = time.perf_counter()
                client.call(Heartbeat(client.next_id()), Alive)
                found.append(time.perf_counter() - asked)
                time.sleep(0.001)

    thread = threading.Thread(target=ask)
    thread.start()

    def stop() -> None:
        is_over.set()
        thread.join()

    return found, stop


BENCHMARK = Benchmark("dependants", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
