"""The description of a submission's content that is sent with it, and tables too long to send.

This file must not read chunks.

`Content` is opaque to the daemon: producers encode it, the daemon stores it as bytes, consumers decode it. Chunk *i* is
the range [end[i − 1], end[i]) of the concatenated parts; a chunk never spans two parts.

With `inline`, the description contains the chunks themselves; else the ends are in `ends`, or in the object `manifest`
of the folder; with none of the three, chunk *i* is the whole part *i*. All tables are little-endian unsigned 64-bit
numbers.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, overload

import msgspec

from opsq.content.content_store import Store
from opsq.errors import OpsqError, VersionMismatch
from opsq.printable import printable

INLINE_LIMIT_BYTES = 4096
"""Content up to this size is sent with the submission and needs no file."""
INLINE_LIMIT_COUNT = 1024
"""…if it has at most this many chunks."""
ENDS_LIMIT_COUNT = 256
"""At most this many ends are sent with the submission; more become an object."""
PARTS_LIMIT_BYTES = 32 << 10
"""Encoded parts larger than this become an object."""
HEADER_LIMIT_BYTES = 8 << 10
"""A larger header becomes an object."""
ABOUT_LIMIT_BYTES = 8 << 10
"""A longer `about` becomes an object."""
INPUTS_LIMIT_BYTES = 6 << 10
"""Encoded inputs larger than this become an object; the longest path fits."""
INPUTS_OBJECT = "inputs"

NUMBER_BYTES = 8


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A run of bytes that holds whole chunks.

    Attributes:
        name: of an object in the submission's folder, or, with `identity`, the absolute path of a file submitted in
            place; bytes, because paths need not be text.
        size_bytes: size of the content in it.
        skipped_bytes: size of what precedes the content (a CSV header).
        identity: size in bytes, mtime in nanoseconds and inode of a file in place; None for an object.
    """

    name: bytes
    size_bytes: int
    skipped_bytes: int = 0
    identity: tuple[int, int, int] | None = None


class Input(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What some chunks were cut from, and copied.

    Attributes:
        name: as it was given; bytes, because paths need not be text.
        first_index: the first chunk of it; the last is the one before the first of the next input.
        offset_bytes: where that chunk begins in it.
    """

    name: bytes
    first_index: int
    offset_bytes: int


class Inputs(msgspec.Struct, array_like=True, frozen=True):
    """The inputs of a submission, in order: `listed`, or if that is empty, in the object `INPUTS_OBJECT`."""

    count: int
    listed: list[Input] = []


class InputRange(NamedTuple):
    """The input of a chunk, and which bytes of it as it was read, decompressed and without carriage returns if asked.

    Attributes:
        name: as it was given, `-` for stdin; of a file in place its absolute path.
    """

    name: str
    offset_bytes: int
    size_bytes: int

    def follows(self, other: InputRange) -> bool:
        """Whether it begins where the other ends, in the same input."""
        return self.name == other.name and self.offset_bytes == other.offset_bytes + other.size_bytes

    @property
    def text(self) -> str:
        """As people read it: `access.log, bytes 0-1023`."""
        name = "stdin" if self.name == "-" else printable(self.name)
        end = self.offset_bytes + self.size_bytes
        return f"{name}, bytes {self.offset_bytes}-{end - 1}" if self.size_bytes else f"{name}, empty"


def known_input(find: Callable[[], InputRange | None]) -> InputRange | None:
    """The input of a chunk, None also if it cannot be found out: what is reported may be that."""
    try:
        return find()
    except OpsqError:
        return None


def input_note(found: InputRange | None) -> str:
    """What a sentence says behind the name of a chunk: ` (access.log, bytes 0-1023)`, nothing if that is unknown."""
    return "" if found is None else f" ({found.text})"


class Content(msgspec.Struct, array_like=True, frozen=True, tag="content1"):
    """What a consumer needs to read the chunks of a submission.

    Attributes:
        folder: of the submission in the store; it need not exist (inline, or in place with few chunks).
        chunks_count: how many chunks there are.
        total_bytes: of all chunks, without headers.
        parts: in order; empty with `inline` or `parts_object`.
        parts_count: how many parts there are.
        inline: the chunks themselves.
        ends: the table of chunk ends.
        manifest: the object that holds the table of chunk ends.
        parts_object: the object that holds the parts (`encode_parts`).
        header: put in front of each chunk.
        header_object: the object that holds a header too long to send.
        about: the producer's description of the chunk format, such as a schema; opaque here.
        about_object: the object that holds an `about` too long to send.
        inputs: what the chunks were cut from; None: parts are files in place, or no producer of files made them.
        trace: `traceparent` and `tracestate` of what submitted it, as W3C Trace Context has them; None: there is none.
    """

    folder: str
    chunks_count: int
    total_bytes: int
    parts: list[Part] = []
    parts_count: int = 0
    inline: list[bytes] | None = None
    ends: bytes | None = None
    manifest: str | None = None
    parts_object: str | None = None
    header: bytes = b""
    header_object: str | None = None
    about: bytes = b""
    about_object: str | None = None
    inputs: Inputs | None = None
    trace: tuple[str, str] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether some of it may be in its folder."""
        return self.inline is None or self.header_object is not None or self.about_object is not None


_decoder = msgspec.msgpack.Decoder(Content)
_part_decoder = msgspec.msgpack.Decoder(Part)
_input_decoder = msgspec.msgpack.Decoder(Input)
encode = msgspec.msgpack.Encoder().encode
"""A `Content`, `Part` or `Input` as bytes; a `Content` has at most about 61 KiB."""


def decode(blob: bytes) -> Content:
    """Read what `encode` wrote.

    Raises:
        VersionMismatch: this version cannot decode it.
    """
    try:
        return _decoder.decode(blob)
    except msgspec.DecodeError as error:
        raise VersionMismatch(
            f"The description of the content cannot be decoded ({error}).",
            hint="It was written by another version of opsq, or another program: use the version that submitted it.",
        ) from error


def pack_numbers(numbers: array[int]) -> bytes:
    """Convert an array of type `Q` to a table."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def unpack_numbers(table: bytes) -> array[int]:
    """Convert a table to an array of type `Q`."""
    numbers = array("Q", table)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def encode_parts(parts: Sequence[Part]) -> bytes:
    """Encode parts as an object of records; their keys are where they end in the content."""
    return _encode_records(array("Q", accumulate(part.size_bytes for part in parts)), list(map(encode, parts)))


def encode_inputs(inputs: Sequence[Input]) -> bytes:
    """Encode inputs as an object of records; their keys are their first chunks."""
    return _encode_records(array("Q", [found.first_index for found in inputs]), list(map(encode, inputs)))


def _encode_records(keys: array[int], records: Sequence[bytes]) -> bytes:
    """A table of keys, ascending, a table of the records' ends, and the records."""
    return b"".join((pack_numbers(keys), pack_numbers(array("Q", accumulate(map(len, records)))), *records))


def read_about(store: Store, content: Content) -> bytes:
    """Read the producer's description of the chunk format; empty if there is none."""
    if content.about_object is None:
        return content.about
    name = f"{content.folder}/{content.about_object}"
    return store.read_range(name, 0, store.size_bytes(name))


class Table(Sequence[int]):
    """A table in an object, read page by page on demand.

    Args:
        store: holds the object.
        name: of the object.
        offset: of the table in the object, in bytes.
        count: how many numbers it has.
    """

    _PAGE_COUNT = 512
    _PAGES_LIMIT = 16

    def __init__(self, store: Store, name: str, offset: int, count: int) -> None:
        self._store, self._name, self._offset, self._count = store, name, offset, count
        self._pages: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        number, place = divmod(index, self._PAGE_COUNT)
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        return page[place]

    def _load(self, number: int) -> array[int]:
        first = number * self._PAGE_COUNT
        count = min(self._PAGE_COUNT, self._count - first)
        page = unpack_numbers(
            self._store.read_range(self._name, self._offset + first * NUMBER_BYTES, count * NUMBER_BYTES)
        )
        if len(self._pages) >= self._PAGES_LIMIT:
            self._pages.pop(next(iter(self._pages)), None)
        self._pages[number] = page
        return page


class _Records:
    """Records in an object, read page by page on demand, and the keys by which they are found."""

    _PAGE_COUNT = 256

    def __init__(self, store: Store, name: str, count: int) -> None:
        self._store, self._name, self._count = store, name, count
        self.keys = Table(store, name, 0, count)
        self._ends = Table(store, name, NUMBER_BYTES * count, count)
        self._first = 0
        """The first record of the page that was read last."""
        self._page: list[bytes] = []

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index - self._first < len(self._page):
            self._load(index - index % self._PAGE_COUNT)
        return self._page[index - self._first]

    def _load(self, first: int) -> None:
        low = self._ends[first - 1] if first else 0
        ends = [end - low for end in self._ends[first : first + self._PAGE_COUNT]]
        records = self._store.read_range(self._name, 2 * NUMBER_BYTES * self._count + low, ends[-1])
        self._page = [records[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        self._first = first


class PartTable:
    """The parts of a content, wherever they are stored."""

    def __init__(self, store: Store, content: Content) -> None:
        self._parts = content.parts
        self._records: _Records | None = None
        self.ends: Sequence[int]
        """Where each part ends in the content."""
        if content.parts_object:
            self._records = _Records(store, f"{content.folder}/{content.parts_object}", content.parts_count)
            self.ends = self._records.keys
        else:
            ends, end = array("Q"), 0
            for part in content.parts:
                end += part.size_bytes
                ends.append(end)
            self.ends = ends

    def __getitem__(self, index: int) -> Part:
        return self._parts[index] if self._records is None else _part_decoder.decode(self._records[index])


class InputTable:
    """The inputs of a content, wherever they are stored."""

    def __init__(self, store: Store, content: Content, inputs: Inputs) -> None:
        self._listed = inputs.listed
        self._has_one_each = inputs.count == content.chunks_count
        self._records: _Records | None = None
        self._first_indexes: Sequence[int] = [found.first_index for found in inputs.listed]
        if not inputs.listed:
            self._records = _Records(store, f"{content.folder}/{INPUTS_OBJECT}", inputs.count)
            self._first_indexes = self._records.keys

    def __getitem__(self, number: int) -> Input:
        return self._listed[number] if self._records is None else _input_decoder.decode(self._records[number])

    def of(self, index: int) -> Input:
        """The input of a chunk."""
        return self[index if self._has_one_each else bisect_right(self._first_indexes, index) - 1]
