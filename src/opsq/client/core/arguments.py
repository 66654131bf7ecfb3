"""Arguments of the Python API that are converted before any message carries them: a wrong one is named.

It must not know ranges, which are in the types of the messages, but where the daemon's refusal would come too late.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from opsq.errors import UsageError
from opsq.wire.messages import ResultPlace

T = TypeVar("T")

DELAY_LIMIT_S = 1e9
"""The longest `Duration` of a message."""


def converted(name: str, value: Any, convert: Callable[[Any], T], wanted: str) -> T:
    """What `convert` makes of an argument.

    Raises:
        UsageError: it cannot; `wanted` says what the argument must be.
    """
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        import reprlib  # hot verbs come here only to fail

        raise UsageError(f"{name} is {reprlib.repr(value)}; it must be {wanted}.") from error


def pairs(name: str, value: Any) -> dict[str, int | str]:
    """An argument of metadata."""
    return converted(name, value, dict, "a mapping of keys to values")


def path(name: str, value: Any) -> str:
    """An argument that is a path."""
    return converted(name, value, _path, "a path without zero characters")


def count(name: str, value: Any) -> int:
    """An argument that is a number of things, at least one."""
    found = converted(name, value, operator.index, "a whole number")
    if not 1 <= found <= sys.maxsize:
        raise UsageError(f"{name} is {found}; it must be from 1 to {sys.maxsize}.")
    return found


def seconds(name: str, value: Any) -> float | None:
    """An argument that is a length of time; None: without limit."""
    return None if value is None else converted(name, value, _seconds, "seconds, or None")


def delay(name: str, value: Any) -> float | None:
    """An argument that says when something is tried again; None: as others say."""
    return None if value is None else converted(name, value, _delay, "seconds from 0 to 10⁹, or None")


def result(value: Any) -> bytes | ResultPlace:
    """What is the result of a chunk: its bytes, of which a buffer gives those it has now, or where they are stored."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, tuple):
        return converted("result", value, _place, "bytes, or the place where they are stored")
    raise UsageError(f"The result is {type(value).__name__}; it must be bytes.", hint="text.encode() makes them.")


def reason(value: Any) -> str:
    """An argument that says to people why an attempt failed."""
    if not isinstance(value, str):
        raise UsageError(f"The reason is {type(value).__name__}; it must be text.", hint="str(error) makes it.")
    return value


def _path(value: Any) -> str:
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(text)
    return text


def _place(value: Any) -> ResultPlace:
    place: ResultPlace = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=ResultPlace)
    return place


def _delay(value: Any) -> float:
    length_s = float(value)
    if not 0 <= length_s <= DELAY_LIMIT_S:
        raise ValueError(value)
    return length_s


def _seconds(value: Any) -> float:
    length_s = float(value)
    if math.isnan(length_s):
        raise ValueError(value)
    return length_s
