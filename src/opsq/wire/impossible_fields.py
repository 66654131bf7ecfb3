"""Finds and names the field for which a message cannot be encoded or decoded.

This file is only asked after that has failed; it must not decide what is possible: the types of the messages do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec

from opsq.errors import UsageError
from opsq.printable import printable

COMPLAINT_CHARACTERS = 200

UNENCODABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What encoding raises for what no message may hold: lone surrogates, longer integers, objects, deep nesting."""

_PLACE = re.compile(r"(.*) - at (`key` in )?`\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.(\w+)")

Part = TypeVar("Part", bound=msgspec.Struct)


def checked(part: Part) -> Part:
    """The part of a message as its receiver will see it.

    Raises:
        UsageError: a field cannot be sent, or has a value that its type does not allow.
    """
    kind = type(part)
    try:
        encoded = msgspec.msgpack.encode(part)
    except UNENCODABLE as error:
        raise unencodable(part, error) from error
    try:
        return msgspec.msgpack.decode(encoded, type=kind)
    except msgspec.DecodeError as error:
        raise refusal(kind, str(error)) from error


def refusal(kind: type[msgspec.Struct], complaint: str) -> UsageError:
    """The error for a message of that kind, or a part of one, about which msgspec complains."""
    found = _PLACE.fullmatch(complaint)
    if found is None:
        return _usage(kind, "", complaint)
    return _usage(kind, _name(kind, found[3]), found[1] + (" as each key" if found[2] else ""))


def unencodable(part: msgspec.Struct, error: Exception) -> UsageError:
    """The error for a message, or a part of one, that could not be encoded."""
    return _usage(type(part), _culprit(part).removeprefix("."), str(error))


def _usage(kind: type[msgspec.Struct], field: str, complaint: str) -> UsageError:
    complaint = printable(complaint.rstrip("."))[:COMPLAINT_CHARACTERS]
    return UsageError(cause="impossible_field", field=field or kind.__name__, complaint=complaint)


def _name(kind: type[msgspec.Struct], path: str) -> str:
    """A path of msgspec, such as `[2][0][5]`, with the names of fields in place of their numbers."""
    found, here = "", _described(kind)
    for step in _STEP.finditer(path):
        place = step[1] or step[2]
        for candidate in _alternatives(here):
            if isinstance(candidate, msgspec.inspect.StructType) and place.isdigit():
                number = int(place) - (candidate.tag is not None)
                if 0 <= number < len(candidate.fields):
                    field = candidate.fields[number]
                    found, here = f"{found}.{field.name}", field.type
                break
            if isinstance(candidate, msgspec.inspect.ListType):
                found, here = f"{found}[{place}]", candidate.item_type
                break
            if isinstance(candidate, msgspec.inspect.DictType):
                here = candidate.value_type
                break
    return found.removeprefix(".")


@cache
def _described(kind: type[msgspec.Struct]) -> msgspec.inspect.Type:
    """The fields of a message. They take milliseconds to find out, and a hostile peer would have it done each time."""
    return msgspec.inspect.type_info(kind)


def _alternatives(kind: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return tuple(kind.types) if isinstance(kind, msgspec.inspect.UnionType) else (kind,)


def _culprit(value: Any) -> str:
    """Where in a value is what cannot be encoded; empty: it is the value as such."""
    for place, part in _parts(value):
        try:
            msgspec.msgpack.encode(part)
        except UNENCODABLE:
            return place + _culprit(part)
    return ""


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, list | tuple):
        return ((f"[{number}]", part) for number, part in enumerate(value))
    return ()
