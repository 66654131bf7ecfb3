"""What became of a chunk that a function was called for: its outcome, and how an exception becomes one.

This file gives no verdicts: those who called the function do.
"""

from __future__ import annotations

import inspect
import logging
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opsq.client.core.arguments import delay
from opsq.content.manifest import input_note
from opsq.errors import READER_ERRORS, ContentChanged, InputUnreadable, UsageError
from opsq.units import counted
from opsq.wire.messages import NewSubmission

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.manifest import InputRange

REASON_LIMIT = 16384
"""The daemon keeps this many characters of a reason."""
_MESSAGE_LIMIT = 2048
_OURS = "opsq.client."


CHUNK_ERRORS = (Exception, SystemExit)
"""What fails the chunk when a function raises it; `sys.exit` is how scripts say that something went wrong."""


class Retry(Exception):
    """Raised by a function that works on chunks or operations: this attempt failed, try it again.

    Args:
        reason: for people.
        delay_s: how long to wait before that, in seconds; replaces the back-off.

    Raises:
        UsageError: the delay is negative, or over 10⁹ s.
    """

    def __init__(self, reason: str = "", *, delay_s: float | None = None) -> None:
        super().__init__(reason)
        self.delay_s = delay("delay_s", delay_s)


class Bury(Exception):
    """Raised by a function that works on chunks or operations: no attempt will succeed, the chunk is dead.

    Args:
        reason: for people.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Done:
    """Returned by a function that works on chunks or operations, in place of the result: that, and follow-ups.

    Args:
        result: what the function would return without follow-ups.
        then: submissions to be made in the commit of the chunk's completion, or not at all.
    """

    __slots__ = ("result", "then")

    def __init__(self, result: Any = None, then: Iterable[Follower] = ()) -> None:
        self.result = result
        self.then = then


class Outcome(msgspec.Struct, array_like=True, tag=True):
    """What became of one call. `result` is None if the attempt failed.

    `aside` and `lane` are for whoever runs the worker process, not for the daemon.
    """

    result: bytes | None
    reason: str = ""
    delay_s: float | None = None
    is_final: bool = False
    run_s: float = 0.0
    exit_status: int | None = None
    signal: int | None = None
    then: list[NewSubmission] = []
    aside: bytes | None = None
    lane: int = 0


class Tally(NamedTuple):
    """What became of the chunks of one run.

    Attributes:
        completed_count: chunks that were completed.
        failed_count: attempts that failed; one chunk may fail several times.
        released_count: chunks that were given back: they were taken away, or the grace was over.
        stop_signal: the signal that ended the run; None if none did.
    """

    completed_count: int
    failed_count: int
    released_count: int
    stop_signal: int | None = None


def outcome_of(f: Callable[[Any], Any], chunk: Any) -> Outcome:
    """Call `f(chunk)`.

    Raises:
        BaseException: what is no failure of the chunk: an interrupt, a signal, a store that cannot be seen from here.
    """
    started_at = time.monotonic()
    try:
        result = f(chunk)
        outcome = succeeded(result)
        if isinstance(result, Done):
            outcome.then = chunk.prepare(result.then)
    except CHUNK_ERRORS as error:
        outcome = failed(error)
    outcome.run_s = time.monotonic() - started_at
    return outcome


def is_awaited(f: Callable[..., Any]) -> bool:
    """Whether what a function returns is to be awaited."""
    return inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(getattr(f, "__call__", None))  # noqa: B004


def check_counts(jobs: int, concurrency: int, *, awaited: bool) -> None:
    """Refuse numbers of chunks at once that make no sense.

    Args:
        awaited: whether the function is a coroutine function.

    Raises:
        UsageError: there are such.
    """
    for name, count in (("jobs", jobs), ("concurrency", concurrency)):
        if count < 1:
            raise UsageError(f"{name} is {count}; it must be at least 1.")
    if concurrency > 1 and not awaited:
        raise UsageError(
            "concurrency is for coroutine functions (async def): several chunks are awaited at once.",
            hint="jobs says for how many chunks at once another function is called.",
        )


async def outcome_awaited(f: Callable[[Any], Awaitable[Any]], chunk: Any) -> Outcome:
    """Await `f(chunk)`; see `outcome_of`."""
    started_at = time.monotonic()
    try:
        result = await f(chunk)
        outcome = succeeded(result)
        if isinstance(result, Done):
            outcome.then = await chunk.prepare(result.then)
    except CHUNK_ERRORS as error:
        outcome = failed(error)
    outcome.run_s = time.monotonic() - started_at
    return outcome


def succeeded(result: Any) -> Outcome:
    """The outcome of a call that returned, without follow-ups, which are to be prepared.

    Raises:
        TypeError: `result` is neither bytes nor None.
    """
    if isinstance(result, Done):
        result = result.result
    if result is None:
        return Outcome(b"")
    if not isinstance(result, bytes | bytearray | memoryview):
        raise TypeError(f"The function returned {type(result).__name__}; a result is bytes, or None for an empty one.")
    return Outcome(bytes(result))


def failed(error: Exception | SystemExit) -> Outcome:
    """The outcome of a call that raised one of the `CHUNK_ERRORS`.

    Raises:
        StoreNotVisible, ContentNotPermitted, SystemExit: that is what it raised, and no chunk is to blame: an exit
            by the handler of a signal.
    """
    if isinstance(error, READER_ERRORS) or (isinstance(error, SystemExit) and _is_of_handler(error.__traceback__)):
        raise error
    if isinstance(error, Retry):
        return Outcome(None, _noted(error, str(error)), error.delay_s)
    if isinstance(error, Bury):
        return Outcome(None, _noted(error, str(error)), is_final=True)
    if isinstance(error, InputUnreadable | ContentChanged):  # it would be the same the next time
        return Outcome(None, _noted(error, str(error)), is_final=True)
    return Outcome(None, reason_of(error))


def overrun(reason: str, limit_s: float) -> str:
    """The reason of an attempt that was cancelled because it took too long."""
    return f"The function ran for more than {limit_s:g} s, so it was cancelled.\n{reason}"[:REASON_LIMIT]


def reason_of(error: BaseException) -> str:
    """An exception as the reason of a failure: first the exception, then the user's part of the traceback."""
    shown = traceback.TracebackException.from_exception(error)
    last = "".join(shown.format_exception_only()).split("\n", 1)[0]
    summary = _noted(error, _shortened(last, _MESSAGE_LIMIT))
    frames = _users(error.__traceback__)
    if frames is None:
        return summary
    text = _sendable("".join(traceback.format_exception(type(error), error, frames)).rstrip("\n"))
    return f"{summary}\n{_shortened(text, REASON_LIMIT - len(summary) - 1)}"


def log_failure(chunk: Any, outcome: Outcome, found: InputRange | None) -> None:
    """Say in the log `opsq` that a chunk failed; the whole reason is kept by the daemon."""
    how = " for good" if outcome.is_final else ""
    first_line = outcome.reason.partition("\n")[0]
    name = f"{chunk.submission_id}/{chunk.index}{input_note(found)}"
    logging.getLogger("opsq").warning("Chunk %s failed%s: %s", name, how, first_line)


def _is_of_handler(frames: TracebackType | None) -> bool:
    """Whether an exception was raised by the handler of a signal, ours or the program's."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    while frames is not None:
        if frames.tb_frame.f_code in handlers:
            return True
        frames = frames.tb_next
    return False


def _noted(error: BaseException, text: str) -> str:
    """The text with the notes of the exception, the first of which says in which operation it was raised."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return _sendable(f"{text} ({'; '.join(notes)})".lstrip() if notes else text)


def _sendable(text: str) -> str:
    """The text without halves of surrogate pairs, which names of files may have."""
    return text.encode(errors="backslashreplace").decode()


def _users(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is outside the client."""
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__", "")).startswith(_OURS):
        frames = frames.tb_next
    return frames


def _shortened(text: str, limit: int) -> str:
    """A text of at most `limit` characters: of a longer one the beginning and the end, where the user's frames are."""
    if len(text) <= limit:
        return text
    left_out = f"\n… {counted(len(text) - limit, 'character')} left out …\n"
    kept = limit - len(left_out)
    return text[: kept // 3] + left_out + text[len(text) - (kept - kept // 3) :]
