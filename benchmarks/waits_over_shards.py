"""How long a chunk waits for a consumer over 16 shards, while ten thousand are parked at all of them.

A consumer is a parked call of a router. A chunk waits from the moment when its submit was acknowledged, over a direct
connection to its shard, until a consumer has it; the consumer completes it and parks again. Consumers live in
processes of their own. All shards are on this machine: its cores are what 16 machines would have each for themselves.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import selectors
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from harness import Benchmark, Context, Row, at_most, main, quantile, reported
from opsq.wire.messages import CompleteAndReserve, Completion, NewSubmission, Reserve, Reserved, Submit, Submitted
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon, own_bytes, raise_descriptor_limit, settled_bytes
from ours.shards import address_of, open_client, running, wait_parked

_SHARDS = 16
_PROCESSES = 2
_CALLS = 100
"""Of one router."""
_TARGET_S = 0.050
_SETTLED_S = 2.0
_STRATEGY = "OldestFirst"


def measure(context: Context) -> Iterator[Row]:
    """One chunk after the other, a few for each shard at once, and as many for one shard."""
    consumers_count = context.size(10_000, 1000)
    raise_descriptor_limit()
    with contextlib.ExitStack() as opened:
        shards = opened.enter_context(running(context.folder("shards"), _SHARDS, heartbeat_s="30"))
        producers = shards.connect_each(opened)
        first = shards.daemons[0]
        yield _connection(context, shards.daemons[-1])
        before_bytes = settled_bytes(first, for_s=_SETTLED_S)
        context.say(f"{consumers_count} consumers park at {_SHARDS} shards")
        pipes = [
            _start(opened, [daemon.socket_path for daemon in shards.daemons], consumers_count // _PROCESSES // _CALLS)
            for _ in range(_PROCESSES)
        ]
        wait_parked(producers, consumers_count)
        parked_bytes = [_ask(pipe, "memory") for pipe in pipes]
        grown_bytes = settled_bytes(first, for_s=_SETTLED_S) - before_bytes
        at = f"{_SHARDS} shards, {consumers_count} consumers, {_CALLS} calls a client"
        yield Row(f"{at}: memory of a shard for a parked call", "bytes", grown_bytes / consumers_count, reported())
        yield Row(f"{at}: memory of a client for one", "bytes", sum(parked_bytes) / consumers_count, reported())
        one_by_one = context.size(1000, 200)
        rounds = context.size(40, 10)
        for what, submit, turns, pause_s, must in (
            ("a chunk every 10 ms, at any shard", _one, one_by_one, 0.010, at_most(_TARGET_S, "s")),
            ("a chunk at each shard at once", _each, rounds, 0.25, at_most(_TARGET_S, "s")),
            ("256 chunks at one shard at once", _many, rounds, 0.5, reported()),
        ):
            context.say(what)
            acknowledged: dict[int, float] = {}
            before_s = [daemon.cpu_s() for daemon in shards.daemons]
            started = time.perf_counter()
            chunks_count = 0
            for _ in range(turns):
                chunks_count += submit(producers, acknowledged)
                time.sleep(pause_s)
            time.sleep(_SETTLED_S)
            used_s = sum(daemon.cpu_s() for daemon in shards.daemons) - sum(before_s)
            waits, given_s = _waits(pipes, acknowledged)
            if len(waits) != chunks_count:
                raise RuntimeError(f"{len(waits)} chunks were handed out of {chunks_count}")
            note = (
                f"{len(waits)} chunks, p50 {quantile(waits, 0.5) * 1e3:.1f} ms, p99 {quantile(waits, 0.99) * 1e3:.1f} "
                f"ms; a chunk takes {used_s / chunks_count * 1e3:.2f} ms of all shards' processors and "
                f"{given_s / chunks_count * 1e3:.2f} ms of consumers' in {time.perf_counter() - started:.0f} s"
            )
            where = f"{_SHARDS} shards, {consumers_count} consumers, {what}"
            yield Row(f"{where}: longest wait", "s", max(waits), must, note=note, samples={"ours": waits[:1000]})


def _connection(context: Context, daemon: Daemon) -> Row:
    """What an idle connection takes of a shard's memory."""
    count = context.size(2000, 500)
    context.say(f"{count} connections to one shard")
    before_bytes = settled_bytes(daemon, for_s=_SETTLED_S)
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(connect(daemon))
        grown_bytes = settled_bytes(daemon, for_s=_SETTLED_S) - before_bytes
    return Row("memory of a shard for a connection", "bytes", grown_bytes / count, reported())


Acknowledged = dict[int, float]


def _one(producers: list[Client], acknowledged: Acknowledged) -> int:
    return _submit([random.choice(producers)], 1, acknowledged)


def _each(producers: list[Client], acknowledged: Acknowledged) -> int:
    return _submit(producers, 1, acknowledged)


def _many(producers: list[Client], acknowledged: Acknowledged) -> int:
    return _submit([random.choice(producers)], 256, acknowledged)


def _submit(producers: list[Client], chunks_count: int, acknowledged: Acknowledged) -> int:
    """Submit at some shards at once, and note when each has acknowledged it; how many chunks that makes."""
    for producer in producers:
        producer.send([Submit(producer.next_id(), [NewSubmission(os.urandom(16), chunks_count)])])
    for producer in producers:
        [created] = producer.await_one(Submitted).created
        acknowledged[created.submission_id] = time.perf_counter()
    return chunks_count * len(producers)


def _waits(pipes: list[Pipe], acknowledged: Acknowledged) -> tuple[list[float], float]:
    """How long each chunk has waited, and the processor seconds of those who took them."""
    waits: list[float] = []
    used_s = 0.0
    for pipe in pipes:
        got, used = _ask(pipe, "chunks")
        used_s += used
        waits += [max(at - acknowledged[submission_id], 0.0) for submission_id, at, count in got for _ in range(count)]
    return waits, used_s


def _ask(pipe: Pipe, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


# --- consumers ------------------------------------------------------------------------------------------------


def _start(opened: contextlib.ExitStack, paths: list[Path], routers_count: int) -> Pipe:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_consume, args=(paths, routers_count, theirs), daemon=True
    )
    process.start()
    opened.callback(process.terminate)
    return ours


def _consume(paths: list[Path], routers_count: int, pipe: Pipe) -> None:
    """Park `_CALLS` calls with each router and take what comes; tell the memory used, or when each chunk came."""
    raise_descriptor_limit()
    got: list[tuple[int, float, int]] = []
    before_bytes = own_bytes()
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        for _ in range(routers_count):
            client = opened.enter_context(open_client(address_of(paths)))
            client.send([Reserve(client.next_id(), 1, _STRATEGY, None) for _ in range(_CALLS)])
            selector.register(client, selectors.EVENT_READ, client)
        selector.register(pipe, selectors.EVENT_READ)
        used_s = time.process_time()
        while True:
            for key, _ in selector.select():
                if key.data is None and pipe.recv() == "memory":
                    pipe.send(own_bytes() - before_bytes)
                elif key.data is None:
                    pipe.send((got, time.process_time() - used_s))
                    got, used_s = [], time.process_time()
                else:
                    _take(key.data, got)


def _take(client: Client, got: list[tuple[int, float, int]]) -> None:
    for reply in client.receive(0.0):
        if isinstance(reply, Reserved) and reply.grants:
            now = time.perf_counter()
            [grant] = reply.grants
            got.append((grant.submission_id, now, grant.mask.bit_count()))
            completion = Completion(loads.held(reply.reservation_id, grant))
            client.send([CompleteAndReserve(client.next_id(), [completion], 1, _STRATEGY, None)])


BENCHMARK = Benchmark("waits_over_shards", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
