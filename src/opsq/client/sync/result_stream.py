"""The results of `Producer.run`: given in order as they come, decoded, until the stream is closed.

This file must not do the work: that is done by consumers, wherever they run. The results are never in memory
as a whole.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Self

from opsq.client.core.operations import Decode
from opsq.client.core.result_pages import CLOSED_REASON, NAMED_DEAD_COUNT, OnClose, failure, logged
from opsq.client.sync.submission import Submission
from opsq.errors import Unreachable, WorkFailed


class ResultStream(Iterator[Any]):
    """The results of one submission, in order as they come; made by `Producer.run`.

    Closing it early does what was asked for.

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
        yield None  # only a generator that was started learns that it is closed
        for result in submission.follow(skip_dead=skip_dead):
            if decode is None:
                yield result
            else:
                yield from decode(result)
    except WorkFailed as error:
        raise failure(submission.state(), submission.first_dead(NAMED_DEAD_COUNT), error) from error
    except Unreachable:
        raise  # nobody could be told
    except BaseException:  # it was closed, or an interrupt or a failure ends it here: closing it later does nothing
        if on_close == "cancel":
            with logged(submission.id):
                submission.cancel(CLOSED_REASON)
        raise
