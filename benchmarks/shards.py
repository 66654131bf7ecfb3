"""Throughput of 1, 2 and 4 shards on this machine, and what a router costs against a direct connection.

Each shard brings a client process with a router over all of them; one shard has one, connected directly. All share the
cores of this machine, so two shards do twice the work of one only if cores are free: the notes tell how many were
used. Sides take turns.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

from harness import Benchmark, Context, Row, alternate, main, median, paired_row, reported
from opsq.client.shards.dialling import dial
from opsq.wire.messages import (
    CompleteAndReserve,
    Completed,
    Completion,
    NewSubmission,
    Request,
    Reserve,
    Reserved,
    Submit,
    Submitted,
)
from ours import loads
from ours.client import Client, connect
from ours.shards import Shards, address_of, open_client, running

_COUNTS = (1, 2, 4)
_ORDER = "OldestFirst"


class _Load(NamedTuple):
    """What each client does: `total` chunks or submissions, with so many calls under way; `per_call` 0: submits."""

    name: str
    total: int
    per_call: int
    calls: int


def measure(context: Context) -> Iterator[Row]:
    """Two and four shards against one, for each load; then a router against none, for each load."""
    loads_of_clients = (
        _Load("reserve + complete, 1000 a call", context.size(1_600_000, 400_000), 1000, 4),
        _Load("reserve + complete, 1 a call, 64 in flight", context.size(64_000, 16_000), 1, 64),
        _Load("submits of one chunk, 64 in flight", context.size(32_000, 8_000), 0, 64),
    )
    with contextlib.ExitStack() as opened:
        sets = [_Fleet(opened, context.folder(f"of{count}"), count) for count in _COUNTS]
        for load in loads_of_clients:
            context.say(f"{' and '.join(map(str, _COUNTS))} shards: {load.name}")
            cores: list[list[float]] = [[] for _ in sets]
            sides = [functools.partial(_rate, fleet, load, used) for fleet, used in zip(sets, cores, strict=True)]
            one, *more = alternate(context.pairs, *sides)
            for count, rates, used in zip(_COUNTS[1:], more, cores[1:], strict=True):
                note = f"{median(used):.1f} cores were used, by one shard {median(cores[0]):.1f}, of {os.cpu_count()}"
                yield paired_row(
                    f"{count} shards: {load.name}", "1/s", rates, one, reported(), rival_name="one shard", note=note
                )
        yield from _through_router(context, opened, sets[0].shards, loads_of_clients)


def _through_router(
    context: Context, opened: contextlib.ExitStack, shards: Shards, loads_of_clients: Sequence[_Load]
) -> Iterator[Row]:
    """A client with a router against one without, at the same daemon; by rate, and by processor time."""
    direct = opened.enter_context(connect(shards.daemons[0]))
    through = opened.enter_context(shards.connect())
    for load in loads_of_clients:
        context.say(f"through a router and without: {load.name}")
        used: dict[Client, list[float]] = {through: [], direct: []}
        sides = [functools.partial(_rate_of_client, client, direct, load, shards, used[client]) for client in used]
        routed, plain = alternate(context.pairs, *sides)
        costs = [median(used[client]) * 1e6 for client in used]
        yield paired_row(
            f"through a router: {load.name}",
            "1/s",
            routed,
            plain,
            reported(),
            rival_name="direct connection",
            note=f"processor time of client and daemon for each: {costs[0]:.3g} µs, without a router {costs[1]:.3g} µs",
        )


class _Fleet:
    """Shards, and as many client processes."""

    def __init__(self, opened: contextlib.ExitStack, folder: Path, count: int) -> None:
        self.shards: Shards = opened.enter_context(running(folder, count, heartbeat_s="600"))
        self.clients = self.shards.connect_each(opened)
        self.pipes: list[Pipe] = []
        for _ in range(count):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_work_on_demand,
                args=([daemon.socket_path for daemon in self.shards.daemons], theirs),
                daemon=True,
            )
            process.start()
            opened.callback(process.terminate)
            self.pipes.append(ours)


def _rate(fleet: _Fleet, load: _Load, used_cores: list[float]) -> float:
    """How much the shards do per second; how many cores are used is appended."""
    count = len(fleet.pipes)
    if load.per_call:
        spare = 2 * load.per_call * load.calls
        for client in fleet.clients:
            client.submit((load.total // count + spare) // 1000 + 1, 1000)
    for pipe in fleet.pipes:
        pipe.send(load._replace(total=load.total // count))
    for pipe in fleet.pipes:
        pipe.recv()
    before_s = sum(daemon.cpu_s() for daemon in fleet.shards.daemons)
    started = time.perf_counter()
    for pipe in fleet.pipes:
        pipe.send("go")
    used_s = sum(pipe.recv() for pipe in fleet.pipes)
    taken_s = time.perf_counter() - started
    used_s += sum(daemon.cpu_s() for daemon in fleet.shards.daemons) - before_s
    used_cores.append(used_s / taken_s)
    return load.total / taken_s


def _work_on_demand(paths: list[Path], pipe: Pipe) -> None:
    """A client process: does each load that it is told on a connection of its own, and tells its processor seconds."""
    while True:
        load: _Load = pipe.recv()
        with open_client(address_of(paths)) if len(paths) > 1 else _direct(paths[0]) as client:
            pipe.send("ready")
            pipe.recv()
            used_s = time.process_time()
            _do(client, load)
            pipe.send(time.process_time() - used_s)


def _direct(path: Path) -> Client:
    return Client(dial(str(path)), str(path), name="benchmark")


def _rate_of_client(client: Client, producer: Client, load: _Load, shards: Shards, used_s: list[float]) -> float:
    """How much a client of this process does per second; the processor seconds that each takes are appended."""
    if load.per_call:
        producer.submit(load.total // 1000, 1000)
    before_s = time.process_time() + shards.daemons[0].cpu_s()
    started = time.perf_counter()
    if load.per_call:
        loads.complete(client, load.total, strategy=_ORDER, per_call=load.per_call, in_flight=load.calls)
    else:
        _do(client, load)
    taken_s = time.perf_counter() - started
    used_s.append((time.process_time() + shards.daemons[0].cpu_s() - before_s) / load.total)
    return load.total / taken_s


def _do(client: Client, load: _Load) -> None:
    """Complete or submit as much as the load says."""

    def reserve() -> Request:
        return Reserve(client.next_id(), load.per_call, _ORDER, None)

    def submit() -> Request:
        return Submit(client.next_id(), [NewSubmission(os.urandom(16), 1)])

    ask: Callable[[], Request] = reserve if load.per_call else submit
    sizes: dict[int, int] = {}
    asked, done = load.calls, 0
    client.send([ask() for _ in range(load.calls)])
    while done < load.total:
        requests: list[Request] = []
        for reply in client.replies():
            if isinstance(reply, Reserved):
                sizes[request_id := client.next_id()] = loads.chunks_of(reply)
                completions = [Completion(loads.held(reply.reservation_id, grant)) for grant in reply.grants]
                requests.append(CompleteAndReserve(request_id, completions, load.per_call, _ORDER, None))
            elif isinstance(reply, Completed):
                done += sizes.pop(reply.id)
            elif isinstance(reply, Submitted):
                done += 1
                if asked < load.total:
                    asked += 1
                    requests.append(ask())
        if requests:
            client.send(requests)


BENCHMARK = Benchmark("shards", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
