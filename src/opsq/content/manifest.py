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
from collections.abc import Sequence
from typing import overload

import msgspec

from opsq.content.content_store import Store
from opsq.errors import VersionMismatch

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


_decoder = msgspec.msgpack.Decoder(Content)
_part_decoder = msgspec.msgpack.Decoder(Part)
encode = msgspec.msgpack.Encoder().encode
"""A `Content` or `Part` as bytes; a `Content` has at most about 55 KiB."""


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
    """Encode parts as an object: a table of their ends, a table of their records' ends, and the records."""
    records = [encode(part) for part in parts]
    content_ends, record_ends = array("Q"), array("Q")
    content_end = record_end = 0
    for part, record in zip(parts, records, strict=True):
        content_end += part.size_bytes
        record_end += len(record)
        content_ends.append(content_end)
        record_ends.append(record_end)
    return b"".join((pack_numbers(content_ends), pack_numbers(record_ends), *records))


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


class PartTable:
    """The parts of a content, wherever they are stored."""

    def __init__(self, store: Store, content: Content) -> None:
        self._store = store
        self._parts = content.parts
        self._object = f"{content.folder}/{content.parts_object}" if content.parts_object else ""
        self._records_offset = 2 * NUMBER_BYTES * content.parts_count
        self.ends: Sequence[int]
        """Where each part ends in the content."""
        if self._object:
            self.ends = Table(store, self._object, 0, content.parts_count)
            self._record_ends = Table(store, self._object, NUMBER_BYTES * content.parts_count, content.parts_count)
        else:
            ends, end = array("Q"), 0
            for part in content.parts:
                end += part.size_bytes
                ends.append(end)
            self.ends = ends

    def __getitem__(self, index: int) -> Part:
        if not self._object:
            return self._parts[index]
        low = self._record_ends[index - 1] if index else 0
        size = self._record_ends[index] - low
        return _part_decoder.decode(self._store.read_range(self._object, self._records_offset + low, size))
