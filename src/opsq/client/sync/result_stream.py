"""The whole round for a producer: cut operations into chunks, and give what came of them in order, as it comes.

This file must not do the work: that is done by consumers, wherever they run. Neither input nor results are ever in memory
as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self

from opsq.errors import OpsqError, UsageError, WorkFailed
from opsq.serialisation import Serialisation, find

if TYPE_CHECKING:
    from opsq.client.sync.submission import Submission
    from opsq.wire.messages import DeadChunk, SubmissionState

OnClose = Literal["leave", "cancel"]

NAMED_DEAD_COUNT = 3
"""So many dead chunks are named by an exception."""
CLOSED_REASON = "Nobody waits for its results any more."
Decode = Callable[[bytes], Iterable[Any]]


class ResultStream(Iterator[Any]):
    """The results of one submission, in order as they come; made by `Producer.run`. Closing it early does what was asked for.

    Attributes:
        submission: whose results they are.
    """

    def __init__(self, submission: Submission, decode: Decode | None, *, skip_dead: bool, on_close: OnClose) -> None:
        self.submission = submission
        self._results = _results(submission, decode, skip_dead=skip_dead, on_close=on_close)
        next(self._results)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._results)

    def close(self) -> None:
        """Give no more results."""
        self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _results(
    submission: Submission, decode: Decode | None, *, skip_dead: bool, on_close: OnClose
) -> Generator[Any, None, None]:
    try:
        yield None  # only a generator that has begun hears of its end
        for result in submission.follow(skip_dead=skip_dead):
            if decode is None:
                yield result
            else:
                yield from decode(result)
    except WorkFailed as error:
        raise failure(submission.state(), list(islice(submission.dead(), NAMED_DEAD_COUNT)), error) from error
    except GeneratorExit:
        if on_close == "cancel":
            try:
                submission.cancel(CLOSED_REASON)
            except OpsqError as error:  # nobody can be told otherwise: the stream may be closed by being forgotten
                logging.getLogger("opsq").warning("Submission %s could not be cancelled: %s", submission.id, error)
        raise


def formats(
    serialisation: Serialisation | str | None, result_serialisation: Serialisation | str | None
) -> tuple[Serialisation | None, Decode | None]:
    """What encodes operations and decodes results; None for chunks and results as they are."""
    operations = None if serialisation is None else find(serialisation)
    results = operations if result_serialisation is None else find(result_serialisation)
    return operations, None if results is None else results.decode


def chunks_of(items: Iterable[Any], serialisation: Serialisation | None, operations_per_chunk: int) -> Iterable[bytes]:
    """The chunks of an input: the items themselves, or so many operations in each.

    Raises:
        UsageError: an operation cannot be written; it is named.
    """
    if operations_per_chunk < 1:
        raise UsageError(f"{operations_per_chunk} operations per chunk are not possible: it starts at 1.")
    return items if serialisation is None else _encoded(items, serialisation, operations_per_chunk)


def check_on_close(on_close: str) -> None:
    """Refuse what is no way to close a stream."""
    if on_close not in ("leave", "cancel"):
        raise UsageError(f"on_close is {on_close!r}; it may be 'leave' or 'cancel'.")


def failure(state: SubmissionState, dead: Sequence[DeadChunk], error: WorkFailed) -> WorkFailed:
    """The exception for a chunk without a result, with the names of chunks that died."""
    if not dead:
        return error
    named = "; ".join(
        f"chunk {chunk.index}: {chunk.reason.partition(chr(10))[0] or 'no reason given'}" for chunk in dead
    )
    more = f"; and {state.dead_count - len(dead)} more" if state.dead_count > len(dead) else ""
    return WorkFailed(
        f"Submission {state.submission_id} is {state.state}, and work on it failed for good: {named}{more}.",
        hint=f"`opsq dead list {state.submission_id}` tells all; `opsq dead requeue {state.submission_id}` has them tried again.",
    )


def _encoded(operations: Iterable[Any], serialisation: Serialisation, count: int) -> Iterator[bytes]:
    rest = iter(operations)
    first = 1
    while some := list(islice(rest, count)):
        try:
            chunk = serialisation.encode(some)
        except UsageError as error:
            raise UsageError(
                f"Of the operations from number {first} on, one cannot be sent: {error.message}", hint=error.hint
            ) from error
        yield chunk
        first += len(some)
