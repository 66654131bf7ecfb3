"""Fetches results of a submission for Spark: what there is, how it may be cut into runs, and the bytes chunk by chunk.

This file must not import PySpark nor decode results. Small results come from the daemon, large ones straight from its store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from opsq.client.core.held_block import Result
from opsq.client.core.result_pages import results_of
from opsq.client.sync.queue import Queue
from opsq.content.content_store import Store
from opsq.content.manifest import decode as decode_content
from opsq.errors import NotFinished, NotFound, WorkFailed
from opsq.ids import BLOCK_CHUNKS, mask_indexes
from opsq.spark.formats.chunk_format import About, about_of
from opsq.spark.source.daemon_address import StoreAccess, store_of
from opsq.wire.messages import (
    Describe,
    Described,
    History,
    HistoryFilter,
    HistoryRows,
    ResultRow,
    ResultRows,
    Results,
    SubmissionState,
)

FINAL_STATES = frozenset({"completed", "failed", "cancelled", "expired"})
PARTITION_BYTES = 32 << 20
"""About so many bytes of results go into one partition, unless that would leave cores idle."""
PARTITION_CHUNKS = 1000
"""So many chunks go into one partition of a micro-batch, at most."""
_PARTITIONS_LIMIT = 10_000
_HISTORY_ROWS = 10_000


class Made(NamedTuple):
    """A submission as a reader needs to know it.

    Attributes:
        submission_id: its id.
        folder: where its large results are.
        chunks_count: how many chunks it has.
        about: what a DataFrame told of its chunks; None: it was not made from one.
        store: where its content is.
    """

    submission_id: int
    folder: str
    chunks_count: int
    about: About | None
    store: StoreAccess


class Fetched(NamedTuple):
    """The result of one chunk."""

    chunk: int
    result: bytes


def look_up(queue: Queue, submission: str) -> Made:
    """What there is to know of a submission before its results are read.

    Raises:
        NotFound: there is none with this id.
    """
    number = queue.submission(submission).id
    described = queue.link.call(Describe(queue.link.next_id(), [number]), Described).submissions
    if not described:
        raise NotFound(f"Submission {submission} is not known.", hint="`opsq list` shows those that are.")
    content = decode_content(described[0].content)
    access = store_of(queue)
    about = about_of(described[0].content, access.open()) if content.about or content.about_object else None
    return Made(number, content.folder, content.chunks_count, about, access)


def check_final(queue: Queue, made: Made, *, skips_dead: bool) -> SubmissionState:
    """See to it that the results are all there, or that those which never will be may be passed over.

    Raises:
        NotFinished: more results may come.
        WorkFailed: a chunk has no result; it is named with its reason.
    """
    submission = queue.submission(made.submission_id)
    state = submission.state()
    if state.state not in FINAL_STATES:
        done = f"{state.completed_count} of {state.chunks_count} chunks are completed"
        raise NotFinished(
            f"Submission {made.submission_id} is {state.state}: {done}.",
            hint=f"`opsq wait {made.submission_id}` first, or read the results as they come with spark.readStream.",
        )
    lacking = state.chunks_count - state.completed_count
    if lacking and not skips_dead:
        first = next(iter(submission.dead()), None)
        what = f"{lacking} of {state.chunks_count} chunks of submission {made.submission_id} have no result"
        named = (
            f"; chunk {first.index} died: {first.reason.strip() or 'no reason was given'}" if first is not None else ""
        )
        raise WorkFailed(
            f"{what}{named}.",
            hint=f"`opsq dead list {made.submission_id}` tells why, `opsq dead requeue` tries again; deadChunks=skip reads the rest.",
        )
    return state


def first_result(queue: Queue, made: Made) -> bytes:
    """The first result that is not empty; empty if there is none."""
    store: Store | None = None
    limit_blocks, index = 1, 0
    while index < made.chunks_count:
        page = _page(queue, made, index, limit_blocks)
        for row in page.rows:
            for result in results_of([row]).values():
                if isinstance(result, bytes):
                    if result:
                        return result
                elif result[2]:
                    store = store or made.store.open()
                    return read_place(store, made, result)
        index, limit_blocks = page.next_block * BLOCK_CHUNKS, 256
    return b""


def places(queue: Queue, made: Made) -> Iterator[Result]:
    """Every result that is not empty, in chunk order: a small one itself, of a large one where it lies."""
    index = 0
    while index < made.chunks_count:
        page = _page(queue, made, index, 256)
        for _, rows in sorted(_by_block(page).items()):
            yield from (
                result
                for _, result in sorted(results_of(rows).items())
                if (result if isinstance(result, bytes) else result[2])
            )
        index = page.next_block * BLOCK_CHUNKS


def runs(queue: Queue, made: Made, chunks_per_partition: int | None) -> list[tuple[int, int]]:
    """The chunks cut into runs (from, to), one for each partition.

    How large results are is judged by those of the first page; no fewer runs than the machine of the driver has cores.
    """
    count = made.chunks_count
    if chunks_per_partition is None:
        page = _page(queue, made, 0, 64)
        sizes = [
            len(result) if isinstance(result, bytes) else result[2]
            for row in page.rows
            for result in results_of([row]).values()
        ]
        seen = min(page.next_block * BLOCK_CHUNKS, count)
        whole_bytes = sum(sizes) * count / max(seen, 1)
        wanted = max(-(-int(whole_bytes) // PARTITION_BYTES), os.cpu_count() or 1)
        chunks_per_partition = -(-count // min(wanted, _PARTITIONS_LIMIT, max(count, 1))) or 1
    return [(start, min(start + chunks_per_partition, count)) for start in range(0, count, chunks_per_partition)]


def fetch(queue: Queue, made: Made, first: int, end: int, *, skips_dead: bool) -> Iterator[Fetched]:
    """The results of the chunks from `first` to before `end`, ascending.

    Raises:
        WorkFailed: one has none, and that is not to be passed over.
    """
    store: Store | None = None
    index = first
    while index < end:
        page = _page(queue, made, index, min(-(-end // BLOCK_CHUNKS) - index // BLOCK_CHUNKS, 256))
        rows = _by_block(page)
        for block, completed in enumerate(page.completed, index // BLOCK_CHUNKS):
            kept = results_of(rows.get(block, []))
            for chunk in range(max(index, block * BLOCK_CHUNKS), min((block + 1) * BLOCK_CHUNKS, end)):
                if completed >> chunk % BLOCK_CHUNKS & 1:
                    result = kept.get(chunk, b"")
                    if not isinstance(result, bytes):
                        store = store or made.store.open()
                        result = read_place(store, made, result)
                    yield Fetched(chunk, result)
                elif not skips_dead:
                    raise WorkFailed(
                        f"Chunk {made.submission_id}/{chunk} has no result any more: it was completed when this was planned."
                    )
        index = page.next_block * BLOCK_CHUNKS


def fetch_some(queue: Queue, made: Made, chosen: Sequence[tuple[int, int]]) -> Iterator[Fetched]:
    """The results of the completed chunks that (block, mask) pairs name, in that order."""
    store: Store | None = None
    for block, mask in chosen:
        page = _page(queue, made, block * BLOCK_CHUNKS, 1)
        kept = results_of(page.rows)
        for chunk in mask_indexes(block, mask):
            result = kept.get(chunk, b"")
            if not isinstance(result, bytes):
                store = store or made.store.open()
                result = read_place(store, made, result)
            yield Fetched(chunk, result)


def attempts_beyond_one(queue: Queue, made: Made) -> Mapping[int, int]:
    """By chunk, how many attempts it took, of the completed ones that took more than one.

    Chunks whose history is pruned are not found. Cost: reads the history of the submission.
    """
    found: dict[int, int] = {}
    for event in completions(queue, made.submission_id, 0, None):
        if event.attempts > 1:
            found.update(dict.fromkeys(mask_indexes(event.block, event.mask), event.attempts))
    return found


class Completion(NamedTuple):
    """Chunks of a block that were completed together; `seq` grows with time and is the place in the order of completions."""

    seq: int
    block: int
    mask: int
    attempts: int


def completions(queue: Queue, submission_id: int, after: int, upto: int | None) -> Iterator[Completion]:
    """What was completed after one place in the order of completions, up to another one (None: up to now)."""
    where = HistoryFilter(submission_id=submission_id, events=["completed"])
    place: int | None = after
    while place is not None:
        page = queue.link.call(History(queue.link.next_id(), where, place, _HISTORY_ROWS), HistoryRows)
        for row in page.rows:
            if upto is not None and row.seq > upto:
                return
            yield Completion(row.seq, row.block, row.mask, row.attempt + 1)
        place = page.next_after


def last_completion(queue: Queue, submission_id: int) -> int:
    """The place of the latest completion; 0 if there is none."""
    where = HistoryFilter(submission_id=submission_id, events=["completed"])
    place: int | None = None
    while True:
        page = queue.link.call(History(queue.link.next_id(), where, place, 1, newest_first=True), HistoryRows)
        if page.rows:
            return page.rows[0].seq
        if page.next_after is None:
            return 0
        place = page.next_after


def first_kept(queue: Queue) -> int:
    """The place of the oldest event of the history; 0 if there is none."""
    rows = queue.link.call(History(queue.link.next_id(), HistoryFilter(), None, 1), HistoryRows).rows
    return rows[0].seq if rows else 0


def _page(queue: Queue, made: Made, index: int, limit_blocks: int) -> ResultRows:
    return queue.link.call(Results(queue.link.next_id(), made.submission_id, index, limit_blocks), ResultRows)


def _by_block(page: ResultRows) -> dict[int, list[ResultRow]]:
    rows: dict[int, list[ResultRow]] = {}
    for row in page.rows:
        rows.setdefault(row.block, []).append(row)
    return rows


def read_place(store: Store, made: Made, place: Result) -> bytes:
    """The bytes of a result, wherever they are."""
    if isinstance(place, bytes):
        return place
    return store.read_range(f"{made.folder}/{place[0]}", place[1], place[2])
