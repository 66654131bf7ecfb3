"""What becomes of a call: results, exceptions as reasons, wishes, and what is no failure of the chunk."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from opsq import Bury, Retry
from opsq.client.core.operations import EachOperation
from opsq.client.core.outcome import REASON_LIMIT, Outcome, outcome_of, reason_of
from opsq.errors import ContentChanged, ContentMissing, InputUnreadable, StoreNotVisible, UsageError


class Data:
    """A chunk of which only the bytes are asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def call(f: Callable[[Any], Any], data: bytes = b"") -> Outcome:
    return outcome_of(f, Data(data))


def raises(error: BaseException) -> Callable[[Any], Any]:
    def f(chunk: Any) -> Any:
        raise error

    return f


@pytest.mark.parametrize("result", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_are_the_result(result: Any) -> None:
    assert call(lambda chunk: result).result == b"x"


def test_none_is_an_empty_result() -> None:
    assert call(lambda chunk: None).result == b""


def test_anything_else_that_is_returned_fails_the_chunk() -> None:
    outcome = call(lambda chunk: "text")
    assert outcome.result is None
    assert outcome.reason == "TypeError: The function returned str; a result is bytes, or None for an empty one."


def test_the_reason_has_the_exception_first_and_the_users_frames_only() -> None:
    def inner() -> None:
        raise ValueError("bad")

    reason = call(lambda chunk: inner()).reason
    first, *rest = reason.split("\n")
    assert first == "ValueError: bad"
    assert rest[0] == "Traceback (most recent call last):"
    assert "in inner" in reason
    assert "opsq/client" not in reason


def test_a_chained_exception_tells_its_cause() -> None:
    def f(chunk: Any) -> None:
        try:
            raise KeyError("k")
        except KeyError as error:
            raise ValueError("bad") from error

    reason = call(f).reason
    assert reason.startswith("ValueError: bad\n")
    assert "KeyError: 'k'" in reason


def test_a_long_reason_keeps_its_beginning_and_the_last_frames() -> None:
    def deep(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError("x" * 100_000)

    def deeper(left: int) -> None:
        deep(left)

    try:
        deep(300)
    except ValueError as error:
        reason = reason_of(error)
    assert len(reason) == REASON_LIMIT
    assert reason.startswith("ValueError: xxx")
    assert "characters left out" in reason
    assert reason.endswith("xxx")


@pytest.mark.parametrize("make", [OSError, Retry, Bury])
def test_a_reason_can_be_sent_whatever_stands_in_it(make: type[Exception]) -> None:
    """The name of a file may hold bytes that are no text."""
    reason = call(raises(make("caf\udce9"))).reason
    assert "caf\\udce9" in reason.splitlines()[0]
    assert reason.encode()


def test_a_wish_for_a_retry_has_its_delay_and_no_traceback() -> None:
    outcome = call(raises(Retry("later", delay_s=5)))
    assert (outcome.result, outcome.reason, outcome.delay_s, outcome.is_final) == (None, "later", 5.0, False)


def test_a_wish_to_bury_is_final() -> None:
    outcome = call(raises(Bury("no good")))
    assert (outcome.result, outcome.reason, outcome.is_final) == (None, "no good", True)


@pytest.mark.parametrize(
    ("error", "is_final"), [(ContentChanged(), True), (InputUnreadable("no"), True), (ContentMissing(), False)]
)
def test_what_would_be_the_same_next_time_is_final(error: Exception, is_final: bool) -> None:
    outcome = call(raises(error))
    assert outcome.result is None
    assert outcome.is_final is is_final


@pytest.mark.parametrize("error", [StoreNotVisible(), KeyboardInterrupt()])
def test_what_is_no_fault_of_the_chunk_is_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        call(raises(error))


@pytest.mark.parametrize(("code", "reason"), [(0, "SystemExit: 0"), ("no licence", "SystemExit: no licence")])
def test_an_exit_fails_the_chunk(code: object, reason: str) -> None:
    outcome = call(raises(SystemExit(code)))
    assert outcome.result is None
    assert outcome.reason.startswith(reason)


def test_an_exit_by_the_handler_of_a_signal_ends_the_run() -> None:
    def stop(number: int, frame: object) -> None:
        sys.exit(7)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(SystemExit, match="7"):
            call(lambda chunk: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_failing_operation_is_named_by_its_number() -> None:
    outcome = call(EachOperation(lambda line: b"%d" % (1 // int(line)), "bytes"), b"1\n2\n0\n4\n")
    assert outcome.result is None
    assert outcome.reason.startswith(
        "ZeroDivisionError: integer division or modulo by zero (operation 3 of 4)\nTraceback"
    )


def test_a_wish_of_an_operation_names_it_too() -> None:
    assert call(EachOperation(raises(Bury("no good")), "text"), b"a").reason == "no good (operation 1 of 1)"
    assert call(EachOperation(raises(Retry()), "text"), b"a").reason == "(operation 1 of 1)"


def test_stop_iteration_in_an_operation_ends_nothing_silently() -> None:
    reason = call(EachOperation(lambda line: next(iter(())), "bytes"), b"1\n2\n").reason
    assert reason.startswith("RuntimeError: The function raised StopIteration. (operation 1 of 2)")


def test_a_chunk_that_cannot_be_decoded_is_dead_at_once() -> None:
    outcome = call(EachOperation(str, "json"), b"{\n")
    assert outcome.is_final
    assert outcome.reason.startswith("Line 1 is not the expected JSON")


def test_a_result_that_cannot_be_written_fails_the_chunk() -> None:
    outcome = call(EachOperation(lambda line: "text", "bytes"), b"a\n")
    assert not outcome.is_final
    assert "Record 1 is of type str; it must be bytes" in outcome.reason


def test_results_may_have_a_format_of_their_own_or_none() -> None:
    assert call(EachOperation(len, "text", "json"), b"ab\nc\n").result == b"2\n1\n"
    assert call(EachOperation(len, "text", keeps_results=False), b"ab\n").result == b""
    assert call(EachOperation(lambda line: line if b"5" in line else None, "bytes"), b"4\n5\n15\n").result == b"5\n15\n"


def test_an_unknown_format_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match="'yaml' is not a serialisation"):
        EachOperation(len, "yaml")


@pytest.mark.parametrize("delay_s", [-1, 1e10, float("nan"), "soon"])
def test_delay_that_no_daemon_takes_is_refused_where_it_is_made(delay_s: Any) -> None:
    """The daemon would refuse the failures of other chunks with it."""
    with pytest.raises(UsageError, match="it must be seconds from 0 to 10⁹, or None"):
        Retry(delay_s=delay_s)
