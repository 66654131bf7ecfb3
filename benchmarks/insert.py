"""Insert 10⁶ chunks against one row per chunk with an index in random order: time, and size of the file.

Ours is a `Submit` over the Unix socket, durable when answered; the rival writes its file directly, in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from harness import (
    Benchmark,
    Context,
    Must,
    Ratio,
    Row,
    alternate,
    at_most,
    main,
    median,
    paired_row,
    ratio_at_least,
    reported,
)
from opsq.wire.messages import Complete, Completed, Completion, DaemonState, HeldChunks, Reserve, Reserved, Status
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon
from rivals.row_per_chunk import RowPerChunk

_SMALL_CHUNKS = 1000
_FOLD_DEADLINE_S = 30.0


def measure(context: Context) -> Iterator[Row]:
    """One large submission, then many of 1000 chunks with three metadata keys, then those with every block begun."""
    total = context.size(1_000_000, 100_000)
    yield from _against_rival(
        context, f"1 submission of {total} chunks", total, [{}], ratio_at_least(30), ratio_at_least(20)
    )
    many = [_metadata(number) for number in range(total // _SMALL_CHUNKS)]
    what = f"{len(many)} submissions of {_SMALL_CHUNKS} chunks, 3 metadata keys"
    yield from _against_rival(context, what, _SMALL_CHUNKS, many, reported(), reported())
    yield from _every_block_begun(context, what, many)


def _metadata(number: int) -> dict[str, int | str]:
    """Three keys as people use them: one with many values, one with few, one that is unique."""
    return {"tenant": f"tenant-{number % 100}", "kind": ("nightly", "hourly", "once")[number % 3], "run": number}


def _against_rival(
    context: Context,
    what: str,
    chunks_count: int,
    metadata: list[dict[str, int | str]],
    time_must: Must,
    size_must: Must,
) -> Iterator[Row]:
    context.say(what)
    total = chunks_count * len(metadata)
    our_sizes: list[float] = []
    rival_sizes: list[float] = []

    def ours() -> float:
        with Daemon(context.folder("opsq")) as daemon, connect(daemon) as client:
            started = time.perf_counter()
            client.submit(len(metadata), chunks_count, metadata)
            taken = time.perf_counter() - started
        our_sizes.append(_size_bytes(daemon.database_path) / total)
        return taken

    def theirs() -> float:
        rival = RowPerChunk(context.folder("rows") / "file")
        taken = rival.insert(chunks_count, metadata)
        rival_sizes.append(rival.size_bytes() / total)
        rival.close()
        return taken

    mine, other = alternate(context.pairs, ours, theirs)
    name = "row per chunk"
    reads = Ratio.RIVAL_OVER_OURS
    yield paired_row(f"insert {what}: time", "s", mine, other, time_must, rival_name=name, reads=reads)
    size = f"insert {what}: size"
    yield paired_row(size, "bytes/chunk", our_sizes, rival_sizes, size_must, rival_name=name, reads=reads)
    if len(metadata) > 1:
        bound = at_most(1.2, "bytes/chunk")
        yield Row(f"{size} of the file", "bytes/chunk", median(our_sizes), bound, samples={"ours": our_sizes})


def _every_block_begun(context: Context, what: str, metadata: list[dict[str, int | str]]) -> Iterator[Row]:
    """The most that a backlog can need: one chunk of every block is completed, so each block must be a row."""
    context.say("every block begun")
    total = _SMALL_CHUNKS * len(metadata)
    with Daemon(context.folder("opsq")) as daemon, connect(daemon) as client:
        client.submit(len(metadata), _SMALL_CHUNKS, metadata)
        _begin_blocks(client, total)
    connection = apsw.Connection(str(daemon.database_path))
    block_bytes = connection.execute("SELECT sum(pgsize) FROM dbstat WHERE name = 'block'").get
    connection.close()
    yield Row(f"{what}, every block begun: block rows", "bytes/chunk", block_bytes / total, reported())


def _begin_blocks(client: Client, total: int) -> None:
    """Reserve everything and complete one chunk of each block; the rest is given back when the connection ends."""
    taken = 0
    while taken < total:
        reserved = client.call(Reserve(client.next_id(), 10_000, "OldestFirst"), Reserved)
        taken += loads.chunks_of(reserved)
        if not reserved.grants:
            raise RuntimeError(f"nothing is free any more after {taken} of {total} chunks")
        completions = [Completion(_first_of(loads.held(reserved.reservation_id, grant))) for grant in reserved.grants]
        client.call(Complete(client.next_id(), completions), Completed)
    deadline = time.monotonic() + _FOLD_DEADLINE_S
    while client.call(Status(client.next_id()), DaemonState).unfolded_count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"history was not folded within {_FOLD_DEADLINE_S:g} s")
        time.sleep(0.1)


def _first_of(held: HeldChunks) -> HeldChunks:
    return msgspec.structs.replace(held, mask=held.mask & -held.mask)


def _size_bytes(path: Path) -> int:
    """The size of the file once its log is copied into it."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path.stat().st_size


BENCHMARK = Benchmark("insert", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
