"""Walks the results of a submission in chunk order, page by page, and names what has none; splits lists of indexes.

This file does no I/O: it says what to ask for next and reads the answers, for blocking and asyncio callers alike.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from opsq.client.core.arguments import converted
from opsq.client.core.held_block import Result
from opsq.errors import ContentMissing, DatabaseDamaged, NotFinished, NotFound, OpsqError, UsageError, WorkFailed
from opsq.ids import BLOCK_CHUNKS, mask_indexes
from opsq.wire.messages import (
    DeadChunk,
    Described,
    ResultPlace,
    ResultRow,
    ResultRows,
    Results,
    SubmissionContent,
    SubmissionState,
)

if TYPE_CHECKING:
    from opsq.content.manifest import InputRange

OnClose = Literal["leave", "cancel"]

INDEXES_LIMIT = 10_000
"""Indexes that one request may carry."""
NAMED_DEAD_COUNT = 3
"""At most this many dead chunks are named by an exception."""
CLOSED_REASON = "Nobody waits for its results any more."

_decode = msgspec.msgpack.Decoder(list[bytes | ResultPlace] | None).decode


class ResultCursor:
    """A place in the results of a submission.

    Args:
        submission_id: whose results.
        is_following: wait for chunks that are not completed yet; False refuses a submission that is not final.
        skip_dead: pass over chunks that will have no result.
        on_bad: called with the index of each chunk whose result cannot be read, which is then passed over; None: that
            is an error.

    Attributes:
        content: the description of the submission's content, once a page was taken.
        index: the chunk whose result was given last.
        is_done: nothing more comes.
    """

    def __init__(
        self,
        submission_id: int,
        *,
        is_following: bool = False,
        skip_dead: bool = False,
        on_bad: Callable[[int], None] | None = None,
    ) -> None:
        self.content = b""
        self.is_done = False
        self._state = ""
        self._submission_id = submission_id
        self._is_following = is_following
        self._skip_dead = skip_dead
        self.on_bad = on_bad
        self.index = 0

    def request(self, request_id: int) -> Results:
        """What to ask the daemon for next."""
        wait_s = None if self._is_following else 0.0
        return Results(request_id, self._submission_id, from_index=self.index, wait_s=wait_s)

    def take(self, page: ResultRows) -> Iterator[Result]:
        """The results in the answer, in chunk order, as far as they go without a gap. To be read to its end.

        Raises:
            NotFinished: the submission is not final.
            WorkFailed: the next chunk has no result and will have none.
            DatabaseDamaged: the result of the next chunk is malformed.
        """
        self.content = page.content or self.content  # it comes with the first page only
        self._state = page.state
        if not (page.is_final or self._is_following):
            raise NotFinished(
                f"Submission {self._submission_id} is {page.state}, so it has no results yet.",
                hint="Wait for it, or follow it.",
            )
        rows: dict[int, list[ResultRow]] = {}
        for row in page.rows:
            rows.setdefault(row.block, []).append(row)
        first_block = self.index // BLOCK_CHUNKS
        for block, completed in enumerate(page.completed, first_block):
            kept = _results_of(rows.get(block, []))
            end = min((block + 1) * BLOCK_CHUNKS, page.chunks_count)
            for index in range(self.index, end):
                self.index = index
                if completed >> index % BLOCK_CHUNKS & 1:
                    result = kept.get(index, b"")
                    if result is not None:
                        yield result
                    elif self.on_bad is not None:
                        self.on_bad(index)
                    else:
                        raise _malformed(self._submission_id, index)
                elif not page.is_final:
                    return
                elif not self._skip_dead:
                    raise self.lacking(None)
            self.index = end
        self.is_done = self.index >= page.chunks_count

    def lacking(self, found: InputRange | None, why: str = "") -> WorkFailed:
        """Why nothing comes after `take` has raised it, with the input of the chunk, which the caller has looked up."""
        from opsq.content.manifest import input_note

        why = why or f"it died or was skipped; the submission is {self._state}."
        name = f"Chunk {self._submission_id}/{self.index}{input_note(found)}"
        error = WorkFailed(f"{name} has no result: {why}")
        error.details = _details(self._submission_id, self.index, found)
        return error

    def read(self, read: Callable[[bytes, ResultPlace], bytes], result: Result) -> bytes | None:
        """The bytes of the result that was given last; None: it is gone from the store, and passed over.

        Raises:
            ContentMissing: it is gone, and nothing is passed over.
        """
        if isinstance(result, bytes):
            return result
        try:
            return read(self.content, result)
        except ContentMissing:
            if self.on_bad is None:
                raise
            self.on_bad(self.index)
            return None


def only_described(reply: Described, submission_id: int) -> SubmissionContent:
    """The submission that was asked for alone.

    Raises:
        NotFound: it is not known.
    """
    if not reply.submissions:
        raise NotFound(cause="unknown_submission", submission_id=submission_id)
    return reply.submissions[0]


def bad_result_logger(submission_id: int) -> Callable[[int], None]:
    """What says in the log `opsq` that the result of a chunk was passed over."""

    def log(index: int) -> None:
        logging.getLogger("opsq").warning("The result of chunk %d/%d cannot be read.", submission_id, index)

    return log


def results_of(rows: list[ResultRow], submission_id: int) -> dict[int, Result]:
    """The results that are not empty, by chunk index.

    Raises:
        DatabaseDamaged: one of them is malformed.
    """
    found: dict[int, Result] = {}
    for index, result in _results_of(rows).items():
        if result is None:
            raise _malformed(submission_id, index)
        found[index] = result
    return found


def _results_of(rows: list[ResultRow]) -> dict[int, Result | None]:
    """The results that are not empty, by chunk index; None: malformed, with all of its row."""
    found: dict[int, Result | None] = {}
    for row in rows:
        indexes = list(mask_indexes(row.block, row.mask))
        try:
            results = _decode(row.results)
            if results is not None:
                found.update(zip(indexes, results, strict=True))
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors too
            found.update(dict.fromkeys(indexes))
    return found


def _malformed(submission_id: int, index: int) -> DatabaseDamaged:
    return DatabaseDamaged(
        f"The result of chunk {submission_id}/{index} is malformed: something else than a result was sent.",
        hint="`opsq results --skip-bad`, or skip_bad=True in Python, leaves such chunks out.",
    )


@contextlib.contextmanager
def logged(submission_id: int) -> Iterator[None]:
    """Log that a submission cannot be cancelled: whoever closed its stream is not to get that in place of the cause."""
    try:
        yield
    except OpsqError as error:
        logging.getLogger("opsq").warning("Submission %s could not be cancelled: %s", submission_id, error)


def check_on_close(on_close: str) -> None:
    """Refuse what is no way to close a stream."""
    if on_close not in ("leave", "cancel"):
        raise UsageError(f"on_close is {on_close!r}; it may be 'leave' or 'cancel'.")


def failure(
    state: SubmissionState, dead: Sequence[tuple[DeadChunk, InputRange | None]], error: WorkFailed
) -> WorkFailed:
    """The exception for a chunk without a result, with the names of chunks that died; its details are of the first."""
    from opsq.content.manifest import input_note

    if not dead:
        return error
    named = "; ".join(
        f"chunk {chunk.index}{input_note(found)}: {chunk.reason.partition(chr(10))[0] or 'no reason given'}"
        for chunk, found in dead
    )
    more = f"; and {state.dead_count - len(dead)} more" if state.dead_count > len(dead) else ""
    worded = WorkFailed(
        f"Submission {state.submission_id} is {state.state}, and work on it failed for good: {named}{more}.",
        hint=f"`opsq dead list {state.submission_id}` lists them;"
        f" `opsq dead requeue {state.submission_id}` retries them.",
    )
    worded.details = _details(state.submission_id, dead[0][0].index, dead[0][1])
    return worded


def _details(submission_id: int, index: int, found: InputRange | None) -> dict[str, int | float | str]:
    """A chunk and its input, for programs that catch an exception about it."""
    details: dict[str, int | float | str] = {"submission_id": submission_id, "index": index}
    if found is not None:
        details |= {"input": found.name, "offset": found.offset_bytes, "length": found.size_bytes}
    return details


def request_parts(indexes: Sequence[int] | None) -> list[list[int] | None]:
    """Indexes in lists that a request may carry; None, which means all, is one of its own."""
    if indexes is None:
        return [None]
    chosen = converted("indexes", indexes, list, "indexes of chunks")
    return [chosen[start : start + INDEXES_LIMIT] for start in range(0, max(len(chosen), 1), INDEXES_LIMIT)]
