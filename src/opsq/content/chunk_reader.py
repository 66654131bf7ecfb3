"""Reads the chunks of one submission, from wherever its content is stored.

This file must not write anything. A `ChunkReader` serves one thread; descriptors are shared through the store.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from opsq.content.content_store import Store
from opsq.content.file_io import Identity, Roots, check_path
from opsq.content.manifest import (
    Content,
    InputRange,
    InputTable,
    PartTable,
    Table,
    decode,
    known_input,
    unpack_numbers,
)
from opsq.errors import ContentMissing, NotFound, StoreNotVisible
from opsq.ids import mask_indexes
from opsq.units import counted

_COALESCED_BYTES = 8 << 20
"""Adjacent chunks are read together up to this size."""


class OpenRange(NamedTuple):
    """A chunk without its header, as a range of an open file that the caller closes, for `sendfile` and the like."""

    descriptor: int
    offset_bytes: int
    size_bytes: int


class _Place(NamedTuple):
    """Where a part is: a file, or an object of a store without files.

    `shift` converts a position in the content to one in it.
    """

    path: str | bytes | None
    name: str
    shift: int
    identity: Identity | None
    roots: Roots | None


class ChunkReader:
    """Reads chunks of one submission.

    Args:
        store: where the content was written.
        content: its description.
        roots: where files in place must really be, because somebody else named them; None: anywhere.

    Attributes:
        store, content: as given.
    """

    def __init__(self, store: Store, content: Content, roots: Roots | None = None) -> None:
        self.content = content
        self._roots = roots
        self.store = store
        self._parts = PartTable(store, content)
        self._inputs = None if content.inputs is None else InputTable(store, content, content.inputs)
        self._last_number = -1
        self._last_place = _Place(None, "", 0, None, None)
        self._ends: Sequence[int]
        if content.inline is not None:
            self._ends = ()
        elif content.ends is not None:
            self._ends = unpack_numbers(content.ends)
        elif content.manifest is not None:
            self._ends = Table(store, f"{content.folder}/{content.manifest}", 0, content.chunks_count)
        else:
            self._ends = self._parts.ends

    @cached_property
    def header(self) -> bytes:
        """What is put in front of each chunk."""
        if self.content.header_object is None:
            return self.content.header
        name = f"{self.content.folder}/{self.content.header_object}"
        return self.store.read_range(name, 0, self.store.size_bytes(name))

    @cached_property
    def is_remote(self) -> bool:
        """Whether reading a chunk sends requests over the network; the same for all chunks of a submission."""
        return bool(self.content.parts_count) and self._place(0).path is None

    def size(self, index: int) -> int:
        """Return the size of a chunk in bytes, including its header."""
        if self.content.inline is not None:
            return len(self.header) + len(self.content.inline[self._checked(index)])
        start, end = self._bounds(index)
        return len(self.header) + end - start

    def read_short(self, index: int, limit_bytes: int) -> bytes | None:
        """Return a chunk; None if it is longer than `limit_bytes`, not counting its header. Raises as `read`."""
        if self.content.inline is not None:
            content = self.content.inline[self._checked(index)]
            return self.header + content if len(content) <= limit_bytes else None
        start, end = self._bounds(index)
        if end - start > limit_bytes:
            return None
        content = self._read(self._part_of(index, start), start, end)
        return self.header + content if self.header else content

    def read(self, index: int) -> bytes:
        """Return the bytes of a chunk.

        Raises:
            NotFound: there is no such chunk.
            ContentMissing: its bytes are missing.
            ContentChanged: its file, submitted in place, has changed.
            ContentNotPermitted: this user may not read them, or the file in place is not below a root.
            StoreNotVisible: nothing can be read from here.

        Cost: one read; with more than 256 chunks, sometimes a second one of the table.
        """
        if self.content.inline is not None:
            return self.header + self.content.inline[self._checked(index)]
        start, end = self._bounds(index)
        content = self._read(self._part_of(index, start), start, end)
        return self.header + content if self.header else content

    def read_block(self, block: int, mask: int) -> Iterator[bytes]:
        """Yield the chunks selected by `mask` in `block`, ascending; adjacent ones are read together.

        Raises:
            OpsqError: as `read`.
        """
        if self.content.inline is not None:
            yield from (self.read(index) for index in mask_indexes(block, mask))
            return
        group: list[tuple[int, int]] = []
        group_part = -1
        for index in mask_indexes(block, mask):
            start, end = self._bounds(index)
            part = self._part_of(index, start)
            if group and (part != group_part or start != group[-1][1] or end - group[0][0] > _COALESCED_BYTES):
                yield from self._read_group(group_part, group)
                group = []
            group.append((start, end))
            group_part = part
        if group:
            yield from self._read_group(group_part, group)

    def open_range(self, index: int) -> OpenRange | None:
        """Return a chunk as a range of an open file.

        None if it is not in a file (inline, empty, or in an object store).

        Raises:
            OpsqError: as `read`.
        """
        if self.content.inline is not None:
            return None
        start, end = self._bounds(index)
        if start == end:
            return None
        place = self._place(self._part_of(index, start))
        if place.path is None:
            return None
        try:
            descriptor = self.store.files.open(place.path, place.identity, place.roots)
        except ContentMissing:
            self._check_visible(place)
            raise
        return OpenRange(descriptor, place.shift + start, end - start)

    def whole_file(self, index: int) -> bytes | None:
        """Return the path of the file submitted in place that is exactly this chunk; None if there is none.

        The file is not read.

        Raises:
            ContentNotPermitted: it is not below a root.
        """
        if self.content.inline is not None or not self.content.parts_count or self.header:
            return None
        start, end = self._bounds(index)
        number = self._part_of(index, start)
        part = self._parts[number]
        first = self._parts.ends[number - 1] if number else 0
        if part.identity is None or part.identity[0] != end - start or start != first:
            return None
        self._place(number)
        return part.name

    def input_of(self, index: int) -> InputRange | None:
        """The input of a chunk; None if no producer of files made it. Raises as `read`, where a table is read."""
        content = self.content
        self._checked(index)
        if content.inline is not None:
            if self._inputs is None:
                return None
            size_bytes = len(content.inline[index])
            found = self._inputs.of(index)
            before_bytes = sum(map(len, content.inline[found.first_index : index]))
            return InputRange(os.fsdecode(found.name), found.offset_bytes + before_bytes, size_bytes)
        start, end = self._bounds(index)
        if self._inputs is not None:
            found = self._inputs.of(index)
            first, _ = self._bounds(found.first_index)
            return InputRange(os.fsdecode(found.name), found.offset_bytes + start - first, end - start)
        if not content.parts_count:
            return None
        number = self._part_of(index, start)
        part = self._parts[number]
        if part.identity is None:
            return None
        first = self._parts.ends[number - 1] if number else 0
        return InputRange(os.fsdecode(part.name), part.skipped_bytes + start - first, end - start)

    def input_names(self, limit: int) -> tuple[int, list[str]]:
        """How many inputs there are, and the names of the first. Raises as `input_of`."""
        content = self.content
        if content.inputs is not None and self._inputs is not None:
            count = content.inputs.count
            return count, [os.fsdecode(self._inputs[number].name) for number in range(min(count, limit))]
        count = content.parts_count
        if not count or self._parts[0].identity is None:
            return 0, []
        return count, [os.fsdecode(self._parts[number].name) for number in range(min(count, limit))]

    def _checked(self, index: int) -> int:
        if 0 <= index < self.content.chunks_count:
            return index
        raise NotFound(
            f"There is no chunk {index}: the submission has "
            f"{counted(self.content.chunks_count, 'chunk')}, numbered from 0."
        )

    def _bounds(self, index: int) -> tuple[int, int]:
        self._checked(index)
        try:
            return self._ends[index - 1] if index else 0, self._ends[index]
        except IndexError:
            raise StoreNotVisible(
                f"Chunk {index} is not in the content store: its producer keeps it elsewhere.",
                hint="Leave it to consumers that know where; SelectOnly takes other submissions.",
            ) from None

    def _part_of(self, index: int, start: int) -> int:
        if self._ends is self._parts.ends:
            return index
        return min(bisect_right(self._parts.ends, start), self.content.parts_count - 1)

    def _place(self, number: int) -> _Place:
        """Locate part `number`; the last result is cached, because chunks are read in runs."""
        if number == self._last_number:
            return self._last_place
        part = self._parts[number]
        shift = part.skipped_bytes - (self._parts.ends[number - 1] if number else 0)
        if part.identity is not None:
            if self._roots is not None:
                check_path(part.name, self._roots)  # before it is opened: it may be a device
            place = _Place(part.name, "", shift, part.identity, self._roots)
        else:
            name = f"{self.content.folder}/{part.name.decode()}"
            place = _Place(self.store.path(name), name, shift, None, self.store.roots)
        self._last_number, self._last_place = number, place
        return place

    def _read(self, number: int, start: int, end: int) -> bytes:
        if number < 0:
            return b""
        place = self._place(number)
        path, name, shift, identity, roots = place
        try:
            if path is not None:
                return self.store.files.read(path, shift + start, end - start, identity, roots)
            return self.store.read_range(name, shift + start, end - start)
        except ContentMissing:
            self._check_visible(place)
            raise

    def _check_visible(self, place: _Place) -> None:
        """Raise StoreNotVisible if what is missing is not this content alone: then no chunk is to blame."""
        if place.identity is None:
            self.store.check_again()
        elif place.path is not None and not os.path.isdir(folder := os.path.dirname(os.fsdecode(place.path))):
            raise StoreNotVisible(
                f"{os.fsdecode(place.path)} cannot be read from here: there is no folder {folder}.",
                hint="Mount it at the same path, or submit without --in-place.",
            )

    def _read_group(self, number: int, group: list[tuple[int, int]]) -> Iterator[bytes]:
        first, last = group[0][0], group[-1][1]
        content = self._read(number, first, last)
        if len(group) == 1:
            yield self.header + content
            return
        for start, end in group:
            yield self.header + content[start - first : end - first]


def input_of(store: Store, content: bytes, index: int) -> InputRange | None:
    """The input of a chunk, if it can be found out.

    Args:
        content: the description of its submission's content.
    """
    return known_input(lambda: ChunkReader(store, decode(content)).input_of(index))
