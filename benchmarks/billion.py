"""A billion chunks in a hundred thousand submissions: to submit, to store, to start with, to choose from, to complete.

Submissions have 10⁴ chunks, in whole blocks, and three metadata keys. What should not depend on the backlog is measured
at a million, too. The orders are measured on the engine alone, by processor time, as `strategies` does, and the rest
over the Unix socket.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

from harness import (
    Benchmark,
    Context,
    Ratio,
    Row,
    alternate,
    at_most,
    main,
    median,
    paired_row,
    quantile,
    ratio_at_most,
)
from opsq.wire.messages import NewSubmission, Reserve, Reserved, Show, Shown, Submit, Submitted
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon, settled_bytes
from ours.engine import EngineAlone
from ours.mill import SHARES, Mill, Quantiles, compared
from ours.named import metadata_of, priority_of

_BLOCK_CHUNKS = 64
_SUBMISSION_CHUNKS = 157 * _BLOCK_CHUNKS
_PER_FRAME = 250
"""Submissions in one request, which is one transaction: others wait for all of it, 0.2 s for a thousand."""
_IN_FLIGHT = 64
_LOOK_S = 0.002
_STALL_S = 0.100
_FLAT = 2.0
_ORDERS = ("OldestFirst", "NewestFirst", "CustomPriority", "Random", "Fair(tenant)")
_MIB = 1 << 20


def measure(context: Context) -> Iterator[Row]:
    """Fill one queue and start its daemon again; then completions and the orders, in turns with a small one."""
    many, few = context.size(100_000, 1000), 100
    daemon = Daemon(context.folder("many"))
    yield from _submit_and_start(context, daemon, many)
    yield from _completions(context, daemon, many, few)
    yield from _orders(context, daemon.database_path, many, few)


def _chunks(submissions_count: int) -> str:
    return f"{submissions_count * _SUBMISSION_CHUNKS:.0e} chunks"


# --- to submit, to store, to start with ---------------------------------------------------------------------


def _submit_and_start(context: Context, daemon: Daemon, count: int) -> Iterator[Row]:
    of = f"{_chunks(count)} in {count:.0e} submissions"
    context.say(of)
    with daemon, connect(daemon) as producer, connect(daemon) as other:
        shown_id = other.submit(1, 0)[0]
        started = time.perf_counter()
        waits = [waited for batch in _submissions(count) for waited in _submit(producer, other, shown_id, batch)]
        taken = time.perf_counter() - started
        anonymous_bytes = settled_bytes(daemon)
    yield Row(f"{of}: submit", "s", taken, at_most(60.0, "s"))
    yield _stall(f"{of}, other requests meanwhile", waits)
    file_bytes = daemon.database_path.stat().st_size + daemon.log_bytes()
    yield Row(f"{of}: size of the file", "bytes", file_bytes, at_most(200e6, "bytes"))
    starts, firsts = [], []
    for _ in range(context.pairs):
        context.say("start")
        started = time.perf_counter()
        with daemon, connect(daemon) as client:
            answered = time.perf_counter()
            reserved = client.call(Reserve(client.next_id(), 1, "OldestFirst"), Reserved)
            firsts.append(time.perf_counter() - answered)
            starts.append(answered - started)
            if loads.chunks_of(reserved) != 1:
                raise RuntimeError("the daemon that was started again handed nothing out")
    note = f"RssAnon {anonymous_bytes / _MIB:.1f} MiB after the submits"
    yield Row(f"{of}: start", "s", median(starts), at_most(2.0, "s"), note=note, samples={"ours": starts})
    yield Row(f"{of}: first reserve", "s", median(firsts), at_most(_STALL_S, "s"), samples={"ours": firsts})


def _submissions(count: int) -> Iterator[list[NewSubmission]]:
    """Frame by frame."""
    for first in range(0, count, _PER_FRAME):
        metadata = map(metadata_of, range(first, min(first + _PER_FRAME, count)))
        yield [
            NewSubmission(os.urandom(16), _SUBMISSION_CHUNKS, metadata=pairs, priority=priority_of(pairs))
            for pairs in metadata
        ]


def _submit(producer: Client, other: Client, shown_id: int, batch: list[NewSubmission]) -> Iterator[float]:
    """Submit a frame; how long each small request of somebody else takes meanwhile."""
    producer.send([Submit(producer.next_id(), batch)])
    while True:
        started = time.perf_counter()
        other.call(Show(other.next_id(), shown_id), Shown)
        yield time.perf_counter() - started
        if select.select([producer], [], [], _LOOK_S)[0]:
            producer.await_one(Submitted)
            return


# --- to complete --------------------------------------------------------------------------------------------


def _completions(context: Context, daemon: Daemon, many: int, few: int) -> Iterator[Row]:
    total = context.size(10**8, 10**6)
    turns_count = context.size(20, 5)
    context.say(f"{total:.0e} completions in blocks of {_BLOCK_CHUNKS}")
    turn_chunks = total // turns_count // _BLOCK_CHUNKS * _BLOCK_CHUNKS
    half = few // 2
    pauses: list[float] = []
    small = Daemon(context.folder("small"), heartbeat_s="600")  # it is silent while the other works
    with daemon, small, connect(daemon) as client, connect(small) as small_client:
        _fill(small_client, few - half)

        def on_many() -> float:
            return _completed_s(client, turn_chunks, pauses)

        def on_few() -> float:
            _fill(small_client, half)
            return _completed_s(small_client, half * _SUBMISSION_CHUNKS, [])

        taken, small_taken = alternate(turns_count, on_many, on_few, warm_up=False)
    what = f"{turns_count * turn_chunks:.0e} completions in blocks of {_BLOCK_CHUNKS}"
    yield paired_row(
        f"{what} at {_chunks(many)} against {_chunks(few)}: a chunk",
        "s",
        taken,
        small_taken,
        ratio_at_most(_FLAT),
        rival_name=_chunks(few),
        reads=Ratio.OURS_OVER_RIVAL,
        note=f"{1 / median(taken):,.0f} chunks a second",
    )
    yield _stall(what, pauses)


def _fill(client: Client, count: int) -> None:
    for batch in _submissions(count):
        client.call(Submit(client.next_id(), batch), Submitted)


def _completed_s(client: Client, chunks_count: int, pauses: list[float]) -> float:
    """The seconds for each chunk, a block a call."""
    last = time.perf_counter()

    def on_reply() -> None:
        nonlocal last
        here = time.perf_counter()
        pauses.append(here - last)
        last = here

    return (
        loads.complete(
            client,
            chunks_count,
            strategy="OldestFirst",
            per_call=_BLOCK_CHUNKS,
            in_flight=_IN_FLIGHT,
            on_reply=on_reply,
        )
        / chunks_count
    )


# --- to choose from -----------------------------------------------------------------------------------------


def _orders(context: Context, database_path: Path, many: int, few: int) -> Iterator[Row]:
    warm_up, calls = context.size((2000, 2000), (500, 500))
    small = EngineAlone(context.folder("few") / "opsq.sqlite", is_durable=False)
    for batch in _submissions(few):
        small.ask(Submit(1, batch))
    engines = {many: EngineAlone(database_path, is_durable=False), few: small}
    for order in _ORDERS:
        context.say(order)
        mills: dict[int, Mill] = {}
        first_s: dict[int, float] = {}
        for size, engine in engines.items():
            engine.renew()
            mills[size] = Mill(engine, order)
            first_s[size] = mills[size].reserve().wall_s
            mills[size].turn(warm_up)
        turns: dict[int, list[Quantiles]] = {size: [] for size in engines}
        for _ in range(context.pairs):
            for size, mill in mills.items():
                turns[size].append(mill.turn(calls))
        told = ", ".join(f"{taken * 1e6:.0f} µs at {_chunks(size)}" for size, taken in first_s.items())
        for share in SHARES:
            yield compared(
                f"{order} at {_chunks(many)} in large submissions against {_chunks(few)}",
                share,
                turns[many],
                turns[few],
                ratio_at_most(_FLAT),
                rival_name=_chunks(few),
                note=f"first call {told}",
            )
    for engine in engines.values():
        engine.close()


def _stall(what: str, waits: list[float]) -> Row:
    note = f"{len(waits)} waits, p99 {quantile(waits, 0.99) * 1e3:.2f} ms"
    return Row(f"{what}: the longest stall", "s", max(waits), at_most(_STALL_S, "s"), note=note)


BENCHMARK = Benchmark("billion", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
