"""A reserve of one chunk against the backlog, beside a schema with a row per chunk and Opsqueue's queries.

Submissions of 1000 chunks with a tenant of a thousand. Forty chunks are held; what has been held longest is completed,
and one in a hundred is given back. Neither waits for the disk in what is timed, so the processor's time is.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from harness import Benchmark, Context, Row, main, paired_row, quantile, reported
from ours.engine import EngineAlone
from ours.mill import BACK_EVERY, SHARES, Metadata, Mill
from rivals.row_per_chunk import RowPerChunk

_SUBMISSION_CHUNKS = 1000
_TENANTS = 1000
_HELD, _BATCH = 8, 32
_SHARE = 40
"""A turn takes at most this part of the backlog, since nothing comes in again."""
_BY_STRATEGY = {
    "OldestFirst": ("OldestFirst", ""),
    "Random": ("Random", ""),
    "PreferDistinct(tenant, 1, OldestFirst)": ("PreferDistinct", "tenant"),
}
"""What the rival calls it, and by which key."""
RIVAL = "row per chunk"


def measure(context: Context) -> Iterator[Row]:
    """The sizes take turns, and at each size ours and the rival do."""
    sizes = context.size((10**4, 10**5, 10**6, 10**7), (10**4, 10**5))
    calls = context.size(1000, 200)
    folder = context.folder("backlog")
    engines: dict[int, EngineAlone] = {}
    rivals: dict[int, RowPerChunk] = {}
    for size in sizes:
        context.say(f"{size:.0e} chunks")
        metadata: list[Metadata] = [{"tenant": number % _TENANTS} for number in range(size // _SUBMISSION_CHUNKS)]
        engines[size] = EngineAlone(folder / f"{size}.sqlite", is_durable=False)
        engines[size].submit(len(metadata), _SUBMISSION_CHUNKS, metadata)
        engines[size].settle()
        rivals[size] = RowPerChunk(folder / f"{size}-rows.sqlite")
        rivals[size].insert(_SUBMISSION_CHUNKS, metadata)
    for strategy, (named, key) in _BY_STRATEGY.items():
        context.say(strategy)
        taken: dict[str, list[tuple[float, float]]] = {}
        mills = {size: Mill(engine, strategy, held=_HELD, batch=_BATCH) for size, engine in engines.items()}
        for turn in range(context.pairs + 1):
            for size in sizes:
                few = min(calls, size // _SHARE)
                ours = mills[size].turn(few)
                theirs = _rival_turn(rivals[size], named, key, few)
                if turn:  # the first one warms up
                    taken.setdefault(f"{size:.0e} chunks", []).append((ours.p50_cpu_s, ours.p99_cpu_s))
                    taken.setdefault(f"{size:.0e} chunks, {RIVAL}", []).append(theirs)
        yield from _rows(strategy, taken, sizes[-1])
        for mill in mills.values():
            mill.end()
        for rival in rivals.values():
            rival.finish(0, BACK_EVERY)
    for size in sizes:
        engines[size].close()
        rivals[size].close()


def _rows(strategy: str, taken: dict[str, list[tuple[float, float]]], most: int) -> Iterator[Row]:
    for number, share in enumerate(SHARES):
        samples = {name: [pair[number] for pair in pairs] for name, pairs in taken.items()}
        row = paired_row(
            f"{strategy} behind {most:.0e} chunks: {share}",
            "s",
            samples[f"{most:.0e} chunks"],
            samples[f"{most:.0e} chunks, {RIVAL}"],
            reported(),
            rival_name=RIVAL,
        )
        yield dataclasses.replace(row, samples=row.samples | samples)


def _rival_turn(rival: RowPerChunk, strategy: str, key: str, calls: int) -> tuple[float, float]:
    """p50 and p99 of some reserves, in seconds of processor time."""
    seconds = []
    for number in range(calls):
        began = time.thread_time()
        rival.reserve(strategy, key)
        seconds.append(time.thread_time() - began)
        if number % _BATCH == 0:
            rival.finish(_HELD, BACK_EVERY)
    return quantile(seconds, 0.5), quantile(seconds, 0.99)


BENCHMARK = Benchmark("backlog", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
