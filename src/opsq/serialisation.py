"""How the operations of a chunk stand in its bytes: bytes, text lines, JSON lines, MessagePack.

Nothing here is ever pickled.

This file only turns bytes into records and back; it must not read chunks or call anybody's function. Each format holds
what it holds also when chunks are joined: the records in `a + b` are those in `a`, then those in `b`, if `a` came from
`encode`.

    Bytes        records end with a delimiter, which they do not contain; each is `bytes` without it
    TextLines    lines in UTF-8; each is a `str` without its line end (a carriage return before it belongs to the line)
    JsonLines    one JSON value a line; blank lines are skipped
    MessagePack  batches of records: the length of a batch in 4 bytes, big-endian, then a MessagePack array of them
"""

from __future__ import annotations

import math
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from opsq.errors import InputUnreadable, UsageError
from opsq.units import counted

_ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_DECODE_ERRORS = (ValueError, RecursionError, msgspec.MsgspecError)
_LENGTH_BYTES = 4

_PATH_MAX = 200
"""How long the path to a value becomes in a message; a record that holds itself has no end."""

_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""What MessagePack holds wherever there is NaN or infinity, and by chance elsewhere: a double with that exponent."""


class Serialisation(ABC):
    """A format. One of your own must be picklable to be used in worker processes."""

    @abstractmethod
    def decode(self, data: bytes) -> list[Any]:
        """The records in `data`, in order.

        Raises:
            InputUnreadable: a record is not of this format; it is named by its number, from 1.
        """

    @abstractmethod
    def encode(self, records: Sequence[Any]) -> bytes:
        """The bytes that hold these records.

        Raises:
            UsageError: a record cannot be written in this format; it is named by its number, from 1.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Bytes(Serialisation):
    """Records that end with a delimiter; the last one of a chunk may lack it.

    `None` among the records to encode is none.

    Args:
        delimiter: what ends a record, at least one byte.
    """

    def __init__(self, delimiter: bytes = b"\n") -> None:
        if not delimiter:
            raise UsageError("A delimiter has at least one byte.")
        self._delimiter = delimiter

    def __repr__(self) -> str:
        return f"Bytes({self._delimiter!r})"

    def decode(self, data: bytes) -> list[bytes]:
        records = data.split(self._delimiter)
        if not records[-1]:
            records.pop()
        return records

    def encode(self, records: Sequence[Any]) -> bytes:
        delimiter = self._delimiter
        try:
            data = delimiter.join(records)
        except TypeError:
            records = [self._checked(number, record) for number, record in enumerate(records, 1) if record is not None]
            data = delimiter.join(records)
        if not records:
            return b""
        data += delimiter
        # A longer delimiter may also come about by the end of a record and the delimiter behind it.
        if data.count(delimiter) != len(records) or (
            len(delimiter) > 1 and self.decode(data) != list(map(bytes, records))
        ):
            number = next(
                number
                for number, record in enumerate(map(bytes, records), 1)
                if self.decode(record + delimiter) != [record]
            )
            raise UsageError(f"Record {number} cannot be distinguished from its delimiter {delimiter!r}.")
        return data

    def _checked(self, number: int, record: Any) -> bytes:
        if not isinstance(record, bytes | bytearray | memoryview):
            raise UsageError(
                f"Record {number} is of type {type(record).__name__}; it must be bytes.",
                hint="Encode text first: text.encode().",
            )
        return bytes(record)


class TextLines(Serialisation):
    """Lines of text in UTF-8; the last one of a chunk may lack its line end.

    `None` among the records to encode is none.
    """

    def decode(self, data: bytes) -> list[str]:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            number = data.count(b"\n", 0, error.start) + 1
            raise InputUnreadable(
                f"Record {number} is not UTF-8: {error.reason} (byte {data[error.start]:#04x})."
            ) from None
        records = text.split("\n")
        if not records[-1]:
            records.pop()
        return records

    def encode(self, records: Sequence[Any]) -> bytes:
        try:
            text = "\n".join(records)
        except TypeError:
            records = [self._checked(number, record) for number, record in enumerate(records, 1) if record is not None]
            text = "\n".join(records)
        if not records:
            return b""
        if text.count("\n") != len(records) - 1:
            number = next(number for number, record in enumerate(records, 1) if "\n" in record)
            raise UsageError(f"Record {number} contains a line end.")
        try:
            return (text + "\n").encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"Record {text.count(chr(10), 0, error.start) + 1} cannot be written in UTF-8: {error.reason}."
            ) from None

    def _checked(self, number: int, record: Any) -> str:
        if not isinstance(record, str):
            raise UsageError(f"Record {number} is of type {type(record).__name__}; it must be a str.")
        return record


class JsonLines(Serialisation):
    """One JSON value a line, read and written by msgspec.

    What JSON has no type for is written as msgspec does: a set or a tuple as an array, `Decimal`, `UUID`, dates and
    bytes (in base64) as a string, a Struct or dataclass as an object, a number as a key of an object as a string. It is
    read as what it was only if `type` says so. NaN and infinity are refused: JSON has no such numbers.

    Args:
        type: what each record must be, as msgspec understands it (a Struct, a dataclass, `int`, …).
    """

    def __init__(self, type: Any = Any) -> None:  # noqa: A002  # as msgspec calls it
        self._type = type
        self._decoder = msgspec.json.Decoder(type)
        self._encoder = msgspec.json.Encoder()

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonLines, (self._type,)

    def decode(self, data: bytes) -> list[Any]:
        try:
            records = self._decoder.decode_lines(data)
        except _DECODE_ERRORS:
            pass
        else:
            # A value over two lines, or two on one, is no record: where chunks are cut, it would be torn.
            if len(records) == data.count(b"\n") + (data[-1:] not in {b"", b"\n"}):
                return records
        lines = data.split(b"\n")
        return [self._one(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    def encode(self, records: Sequence[Any]) -> bytes:
        try:
            data = self._encoder.encode_lines(records)
        except _ENCODE_ERRORS as error:
            raise _unwritable(records, self._encoder.encode, "JSON", error) from error
        if b"null" in data:  # which msgspec also writes for what is not finite
            _check_finite(records)
        return data

    def _one(self, line: bytes, number: int) -> Any:
        try:
            return self._decoder.decode(line)
        except _DECODE_ERRORS as error:
            raise InputUnreadable(f"Line {number} is not the expected JSON: {error}.") from error


class MessagePack(Serialisation):
    """Batches of values, each one MessagePack array behind its length in 4 bytes (big-endian).

    What is encoded at once is one batch, so a chunk usually is one. (A length for each record would take ten times as
    long.)

    Args:
        type: what each record must be, as msgspec understands it.
    """

    def __init__(self, type: Any = Any) -> None:  # noqa: A002  # as msgspec calls it
        self._type = type
        self._decoder: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(list[type])
        self._encoder = msgspec.msgpack.Encoder()

    def __reduce__(self) -> tuple[Any, ...]:
        return MessagePack, (self._type,)

    def decode(self, data: bytes) -> list[Any]:
        records: list[Any] = []
        end, size = 0, len(data)
        while end < size:
            start = end + _LENGTH_BYTES
            end = start + int.from_bytes(data[end:start], "big")
            if end > size:
                raise InputUnreadable(
                    f"The batch behind record {len(records)} is cut off, and lacks {counted(end - size, 'byte')}."
                )
            batch = data[start:end]
            try:
                records += self._decoder.decode(batch)
            except _DECODE_ERRORS as error:
                raise self._unreadable(batch, len(records), error) from error
        return records

    def encode(self, records: Sequence[Any]) -> bytes:
        if not records:
            return b""
        try:
            batch = self._encoder.encode(records)
        except _ENCODE_ERRORS as error:
            raise _unwritable(records, self._encoder.encode, "MessagePack", error) from error
        return len(batch).to_bytes(_LENGTH_BYTES, "big") + batch

    def _unreadable(self, batch: bytes, records_before: int, error: Exception) -> InputUnreadable:
        """What to say of the first record of a batch that is not as wanted, or of the batch."""
        try:
            values = msgspec.msgpack.decode(batch, type=list[msgspec.Raw])
        except _DECODE_ERRORS:
            return InputUnreadable(f"The batch behind record {records_before} is not a MessagePack array: {error}.")
        for number, value in enumerate(values, records_before + 1):
            try:
                msgspec.msgpack.decode(value, type=self._type)
            except _DECODE_ERRORS as found:
                return InputUnreadable(f"Record {number} is not the expected MessagePack: {found}.")
        return InputUnreadable(f"The batch behind record {records_before} cannot be read: {error}.")


_NAMED: dict[str, Callable[[], Serialisation]] = {
    "bytes": Bytes,
    "text": TextLines,
    "json": JsonLines,
    "msgpack": MessagePack,
}


def find(wanted: Serialisation | str) -> Serialisation:
    """The format by its name (`bytes`, `text`, `json`, `msgpack`), or the one that is given.

    Raises:
        UsageError: there is none of that name.
    """
    if isinstance(wanted, Serialisation):
        return wanted
    if not isinstance(wanted, str) or wanted not in _NAMED:
        raise UsageError(
            f"{reprlib.repr(wanted)} is not a serialisation.",
            hint=f"There are {', '.join(_NAMED)}, and the classes of opsq.serialisation.",
        )
    return _NAMED[wanted]()


def _check_finite(records: Sequence[Any]) -> None:
    """Refuse the first record that holds a number that JSON does not have; the number is named by its path."""
    with suppress(OverflowError):  # an integer beyond 64 bits: then each record is looked through
        if not _NOT_FINITE.search(msgspec.msgpack.encode(records)):
            return
    for number, record in enumerate(records, 1):
        for path, value in _numbers(msgspec.to_builtins(record, str_keys=True)):
            if not math.isfinite(value):
                raise UsageError(
                    f"Record {number} cannot be written as JSON: {path} is {value}.",
                    hint="Use None in its place, or msgpack, which has such numbers.",
                )


def _numbers(record: Any) -> Iterator[tuple[str, float]]:
    """The floats in a value made of plain types, each with its path."""
    rest = [("$", record)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, float):
            yield path, value
        elif isinstance(value, dict):
            rest += [(f"{path}.{key}", item) for key, item in reversed(value.items())]
        elif isinstance(value, list | tuple):
            rest += [(f"{path}[{index}]", item) for index, item in reversed([*enumerate(value)])]


def _place(record: Any, encode: Callable[[Any], bytes]) -> str:
    """Where in a record that cannot be encoded the cause is, before what is said of it; "" where it is all of it."""
    path, inner = "$", record
    while True:
        items: Iterable[tuple[str, Any]] = ()
        if isinstance(inner, dict):
            items = ((f".{key}", item) for key, item in inner.items())
        elif isinstance(inner, list | tuple):
            items = ((f"[{index}]", item) for index, item in enumerate(inner))
        step = next((found for found in items if not _is_writable(found[1], encode)), None)
        if step is None or len(path) > _PATH_MAX:
            return f"at {path}: " if 1 < len(path) <= _PATH_MAX else ""
        path, inner = path + step[0], step[1]


def _is_writable(item: Any, encode: Callable[[Any], bytes]) -> bool:
    try:
        encode(item)
    except _ENCODE_ERRORS:
        return False
    return True


def _unwritable(records: Iterable[Any], encode: Callable[[Any], bytes], kind: str, error: Exception) -> UsageError:
    """What to say of the first record that cannot be encoded."""
    for number, record in enumerate(records, 1):
        try:
            encode(record)
        except _ENCODE_ERRORS as found:
            place = _place(record, encode)
            return UsageError(f"Record {number} cannot be written as {kind}: {place}{str(found).rstrip('.')}.")
    return UsageError(f"The records cannot be written as {kind}: {error}.")
