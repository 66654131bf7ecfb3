"""Fetches results of a submission for Spark: what exists, how to split it into partitions, and the bytes by chunk.

This file must not import PySpark nor decode results. Small results come from the daemon, large ones straight from its
store.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from opsq.client.core.held_block import Result
from opsq.client.core.result_pages import results_of
from opsq.client.sync.queue import Queue
from opsq.content.content_store import Store
from opsq.content.manifest import decode as decode_content
from opsq.content.manifest import input_note
from opsq.content.result_joiner import content_of as content_in
from opsq.content.result_joiner import size_of
from opsq.errors import Moved, NotFinished, NotFound, WorkFailed
from opsq.ids import BLOCK_CHUNKS, first_bits, mask_indexes
from opsq.spark.formats.chunk_format import ChunkFormat, read_chunk_format
from opsq.spark.source.daemon_address import StoreAccess, content_of, store_of
from opsq.units import counted
from opsq.wire.messages import (
    STATES,
    UNFINISHED_STATES,
    History,
    HistoryFilter,
    HistoryRows,
    ResultRow,
    ResultRows,
    Results,
    SubmissionState,
)

FINAL_STATES = frozenset(STATES) - {*UNFINISHED_STATES}
PARTITION_BYTES = 32 << 20
"""A partition has about this many bytes of results, unless that would leave cores idle."""
PARTITION_CHUNKS = 1000
"""The most chunks in one partition of a micro-batch."""
_PARTITIONS_LIMIT = 10_000
_PAGE_BLOCKS = 256
_HISTORY_ROWS = 10_000


class SourceSubmission(NamedTuple):
    """What a reader needs to know of a submission.

    Attributes:
        submission_id: its id.
        folder: of its large results, in the store.
        chunks_count: how many chunks it has.
        chunk_format: of its chunks; None: it was not made from a DataFrame.
        store: has its content.
    """

    submission_id: int
    folder: str
    chunks_count: int
    chunk_format: ChunkFormat | None
    store: StoreAccess


class Fetched(NamedTuple):
    """The result of one chunk."""

    chunk: int
    result: bytes


class Pieces(NamedTuple):
    """Chunks of one block, and the attempts that each of them took."""

    submission_id: int
    block: int
    mask: int
    attempts: int


def split_pieces(pieces: Iterable[Pieces], size: int) -> Iterator[list[Pieces]]:
    """Split into lists of `size` chunks; the last one may have fewer."""
    chosen: list[Pieces] = []
    count = 0
    for piece in pieces:
        left = piece.mask
        while left:
            taken = first_bits(left, size - count)
            chosen.append(piece._replace(mask=taken))
            count += taken.bit_count()
            left &= ~taken
            if count == size:
                yield chosen
                chosen, count = [], 0
    if chosen:
        yield chosen


def attempts_by_chunk(pieces: Iterable[Pieces]) -> dict[int, int]:
    """The attempts of each chunk of one submission."""
    return {index: piece.attempts for piece in pieces for index in mask_indexes(piece.block, piece.mask)}


def find_source(queue: Queue, submission: str) -> SourceSubmission:
    """Look up what must be known of a submission before its results are read.

    Raises:
        NotFound: there is none with this id.
    """
    number = queue.submission(submission).id
    described = content_of(queue, number)
    if described is None:
        raise NotFound(f"Submission {submission} is not known.", hint="`opsq list` shows the known ones.")
    content = decode_content(described.content)
    access = store_of(queue)
    has_format = content.about or content.about_object
    chunk_format = read_chunk_format(described.content, access.open()) if has_format else None
    return SourceSubmission(number, content.folder, content.chunks_count, chunk_format, access)


def check_final(queue: Queue, source: SourceSubmission, *, skips_dead: bool) -> SubmissionState:
    """Check that all results exist, or that missing ones may be skipped.

    Raises:
        NotFinished: more results may come.
        WorkFailed: a chunk has no result; the first is named with its reason.
    """
    submission = queue.submission(source.submission_id)
    state = submission.state()
    if state.state not in FINAL_STATES:
        done = f"{state.completed_count} of {counted(state.chunks_count, 'chunk')} completed"
        raise NotFinished(
            f"Submission {source.submission_id} is {state.state}: {done}.",
            hint=f"`opsq wait {source.submission_id}` first, or read the results as they are completed with "
            f"spark.readStream.",
        )
    lacking = state.chunks_count - state.completed_count
    if lacking and not skips_dead:
        what = (
            f"{lacking} of {counted(state.chunks_count, 'chunk')} of submission {source.submission_id} have no result"
        )
        named = "".join(
            f"; chunk {chunk.index}{input_note(found)} died: {chunk.reason.strip() or 'no reason was given'}"
            for chunk, found in submission.first_dead(1)
        )
        raise WorkFailed(
            f"{what}{named}.",
            hint=f"`opsq dead list {source.submission_id}` shows why, `opsq dead requeue` retries; deadChunks=skip "
            f"reads the rest.",
        )
    return state


class ResultReader:
    """Reads results of one submission; the store is opened when the first large one is met."""

    def __init__(self, source: SourceSubmission) -> None:
        self._source = source
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store; it must have been opened before threads share this reader."""
        if self._store is None:
            self._store = self._source.store.open()
        return self._store

    def read(self, place: Result) -> bytes:
        """The bytes of a result, from wherever they are."""
        return place if isinstance(place, bytes) else content_in(place, self.store, self._source.folder)

    def read_part(self, place: Result, offset: int, size: int) -> bytes:
        """Some bytes of a result."""
        if isinstance(place, bytes):
            return place[offset : offset + size]
        return self.read((place[0], place[1] + offset, size))


def first_result(queue: Queue, source: SourceSubmission) -> bytes:
    """The first result that is not empty; empty if there is none."""
    return next(map(ResultReader(source).read, places(queue, source)), b"")


def places(queue: Queue, source: SourceSubmission) -> Iterator[Result]:
    """Every result that is not empty, in chunk order: a small one itself, of a large one its place in the store."""
    return (place for _, place in indexed_places(queue, source))


def indexed_places(queue: Queue, source: SourceSubmission) -> Iterator[tuple[int, Result]]:
    """The same, each with its chunk."""
    index, limit_blocks = 0, 1  # most callers want the first result only
    while index < source.chunks_count:
        page = _page(queue, source, index, limit_blocks)
        for _, rows in sorted(_by_block(page).items()):
            yield from (
                (chunk, place)
                for chunk, place in sorted(results_of(rows, source.submission_id).items())
                if size_of(place)
            )
        index, limit_blocks = page.next_block * BLOCK_CHUNKS, _PAGE_BLOCKS


def sample(queue: Queue, source: SourceSubmission, limit_bytes: int) -> list[bytes]:
    """Results that have some bytes, but fewer than a quarter of the limit: all of them, or the largest that fill it.

    They are the same whichever chunks have them, except that of stored results of equal size those of later chunks are
    taken. If every result is larger, it is the smallest one alone.

    Cost: memory for a quarter more than the limit, or for that one result.
    """
    reader = ResultReader(source)
    chosen: list[tuple[int, bytes, int, Result]] = []
    smallest: tuple[int, Result] | None = None
    total = 0
    for chunk, place in indexed_places(queue, source):
        size_bytes = size_of(place)
        if size_bytes >= limit_bytes // 4:
            if smallest is None or size_bytes < smallest[0]:
                smallest = size_bytes, place
            continue
        digest = blake2b(place, digest_size=8).digest() if isinstance(place, bytes) else b""
        heapq.heappush(chosen, (size_bytes, digest, chunk, place))
        total += size_bytes
        while total - chosen[0][0] >= limit_bytes:
            total -= heapq.heappop(chosen)[0]
    if not chosen and smallest is not None:
        return [reader.read(smallest[1])]
    return [reader.read(place) for *_, place in chosen]


def runs(queue: Queue, source: SourceSubmission, chunks_per_partition: int | None) -> list[tuple[int, int]]:
    """Split the chunks into runs (from, to), one for each partition.

    The size of results is estimated from those of the first page; there are at least as many runs as the driver has
    cores.
    """
    count = source.chunks_count
    if chunks_per_partition is None:
        page = _page(queue, source, 0, 64)
        sizes = [size_of(result) for row in page.rows for result in results_of([row], source.submission_id).values()]
        seen = min(page.next_block * BLOCK_CHUNKS, count)
        whole_bytes = sum(sizes) * count / max(seen, 1)
        wanted = max(-(-int(whole_bytes) // PARTITION_BYTES), os.cpu_count() or 1)
        chunks_per_partition = -(-count // min(wanted, _PARTITIONS_LIMIT, max(count, 1))) or 1
    return [(start, min(start + chunks_per_partition, count)) for start in range(0, count, chunks_per_partition)]


def fetch(
    queue: Queue,
    source: SourceSubmission,
    first: int,
    end: int,
    *,
    skips_dead: bool,
    wants: Callable[[int], bool] | None = None,
) -> Iterator[Fetched]:
    """The results of the chunks from `first` to before `end`, ascending; of some if `wants` chooses among them.

    Raises:
        WorkFailed: one has none, and missing results may not be skipped.
    """
    reader = ResultReader(source)
    index = first
    while index < end:
        page = _page(queue, source, index, min(-(-end // BLOCK_CHUNKS) - index // BLOCK_CHUNKS, _PAGE_BLOCKS))
        rows = _by_block(page)
        for block, completed in enumerate(page.completed, index // BLOCK_CHUNKS):
            kept = results_of(rows.get(block, []), source.submission_id)
            for chunk in range(max(index, block * BLOCK_CHUNKS), min((block + 1) * BLOCK_CHUNKS, end)):
                if wants is not None and not wants(chunk):
                    continue
                if completed >> chunk % BLOCK_CHUNKS & 1:
                    yield Fetched(chunk, reader.read(kept.get(chunk, b"")))
                elif not skips_dead:
                    raise WorkFailed(
                        f"Chunk {source.submission_id}/{chunk} no longer has a result: it was completed when the read "
                        f"was planned."
                    )
        index = page.next_block * BLOCK_CHUNKS


def fetch_pieces(queue: Queue, source: SourceSubmission, pieces: Sequence[Pieces]) -> Iterator[Fetched]:
    """The results of completed chunks, in the order of the pieces."""
    reader = ResultReader(source)
    for piece in pieces:
        kept = results_of(_page(queue, source, piece.block * BLOCK_CHUNKS, 1).rows, source.submission_id)
        for chunk in mask_indexes(piece.block, piece.mask):
            yield Fetched(chunk, reader.read(kept.get(chunk, b"")))


def attempts_beyond_one(queue: Queue, source: SourceSubmission) -> Mapping[int, int]:
    """The attempts of each completed chunk that took more than one; without chunks whose history is pruned.

    Cost: reads the history of the submission.
    """
    found: dict[int, int] = {}
    for event in completions(queue, source.submission_id, 0, None):
        if event.attempts > 1:
            found.update(dict.fromkeys(mask_indexes(event.block, event.mask), event.attempts))
    return found


class Completion(NamedTuple):
    """Chunks of a block that were completed together; `seq` is their place in the order of completions."""

    seq: int
    block: int
    mask: int
    attempts: int


class Place(NamedTuple):
    """A place in the order of the completions of a submission.

    Each shard has an order of its own: what moves to another one is put into the order there.
    """

    shard: int
    seq: int


def completions(
    queue: Queue, submission_id: int, after: int, upto: int | None, shard: int | None = None
) -> Iterator[Completion]:
    """The completions after one place in their order, up to another (None: up to now).

    Args:
        shard: whose order it is; None: that of the one that has the submission now.

    Raises:
        Moved: the submission is on another shard.
    """
    where = HistoryFilter(submission_id=submission_id, events=["completed"])
    place: int | None = after
    while place is not None:
        page = queue.link.call(History(queue.link.next_id(), where, place, _HISTORY_ROWS), HistoryRows)
        shard = page.shard if shard is None else shard
        if page.shard != shard:
            raise has_moved(submission_id)
        for row in page.rows:
            if upto is not None and row.seq > upto:
                return
            yield Completion(row.seq, row.block, row.mask, row.attempt + 1)
        place = page.next_after


def last_completion(queue: Queue, submission_id: int) -> Place:
    """The place of the latest completion; 0 if there is none."""
    where = HistoryFilter(submission_id=submission_id, events=["completed"])
    place: int | None = None
    while True:
        page = queue.link.call(History(queue.link.next_id(), where, place, 1, newest_first=True), HistoryRows)
        if page.rows:
            return Place(page.shard or 0, page.rows[0].seq)
        if page.next_after is None:
            return Place(page.shard or 0, 0)
        place = page.next_after


def has_moved(submission_id: int) -> Moved:
    """Why the completions of a submission cannot be read on from a place."""
    return Moved(
        f"Submission {submission_id} has moved to another daemon while its results were read as they were completed. "
        f"They are in another order there, so it is not known which of them were read.",
        hint="Read them from the start: with another checkpointLocation, or, once the submission has ended, with "
        "spark.read.",
    )


def _page(queue: Queue, source: SourceSubmission, index: int, limit_blocks: int) -> ResultRows:
    return queue.link.call(Results(queue.link.next_id(), source.submission_id, index, limit_blocks), ResultRows)


def _by_block(page: ResultRows) -> dict[int, list[ResultRow]]:
    rows: dict[int, list[ResultRow]] = {}
    for row in page.rows:
        rows.setdefault(row.block, []).append(row)
    return rows
