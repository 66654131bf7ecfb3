"""Writes the content of one submission into a store: `ContentWriter` takes streams, files in place and single chunks.

This file must not look for records (`input_chunks` does) and knows no kind of store. Unfinished content leaves nothing
behind: any error, including an interrupt, removes the folder of the submission.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from operator import eq
from types import TracebackType

from msgspec.structs import replace

from opsq.content.content_store import ObjectWriter, Store, WholeObjectWriter
from opsq.content.file_io import Buffer, identity_of, sync_input
from opsq.content.input_chunks import (
    LIMIT_HINT,
    READ_BYTES,
    HeaderCheck,
    InputStream,
    cut_file,
    cut_stream,
)
from opsq.content.input_file import RETRY_UNCHANGED, check_in_place, open_raw
from opsq.content.manifest import (
    ABOUT_LIMIT_BYTES,
    ENDS_LIMIT_COUNT,
    HEADER_LIMIT_BYTES,
    INLINE_LIMIT_BYTES,
    INLINE_LIMIT_COUNT,
    INPUTS_LIMIT_BYTES,
    INPUTS_OBJECT,
    PARTS_LIMIT_BYTES,
    Content,
    Input,
    Inputs,
    Part,
    encode,
    encode_inputs,
    encode_parts,
    pack_numbers,
)
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES, Splitting
from opsq.errors import Bug, ChunkTooLarge, ContentChanged
from opsq.fsync import sync_descriptor, sync_path
from opsq.units import counted

PART_LIMIT_BYTES = 1 << 30
"""A part ends with the first chunk that reaches this size."""
_GATHER_BYTES = 1 << 20
"""Small pieces are buffered up to this size before they are written."""
_SMALL_BYTES = 1 << 16
_ENDS_GATHER_COUNT = 1 << 15


class ContentWriter:
    """Writes the content of one submission. Use it in a `with` block, or call `abort` if `finish` is not reached.

    Args:
        store: the destination.
        folder: of the submission, created on demand: the hex digits of its request key.
        chunk_limit_bytes: larger chunks, including the header, are refused.
        is_durable: what `finish` returns survives a power failure. False skips all syncs.
        is_repeated: the same content may have been written before, or be written by another process now, and be in use.
            Then each object is replaced as a whole, by the same bytes, and nothing is deleted. Objects are gathered in
            memory.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        *,
        chunk_limit_bytes: int = DEFAULT_CHUNK_LIMIT_BYTES,
        is_durable: bool = True,
        is_repeated: bool = False,
    ) -> None:
        self._store = store
        self._folder = folder
        self._limit_bytes = chunk_limit_bytes
        self._is_durable = is_durable
        self._is_repeated = is_repeated
        self._has_folder = False
        self._is_ended = False
        self._header = HeaderCheck()
        self._about = b""
        self._inputs: list[Input] = []
        self._parts: list[Part] = []
        self._part: ObjectWriter | None = None
        self._part_bytes = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._manifest: ObjectWriter | None = None
        self._ends = array("Q")
        """Chunk ends that are not yet in the manifest."""
        self._last_end = 0
        self._in_place_folders: set[str] = set()
        self._buffer: bytearray | None = None
        self.chunks_count = 0
        self.total_bytes = 0

    def __enter__(self) -> ContentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write_stream(self, stream: InputStream, splitting: Splitting, name: str) -> None:
        """Copy a whole stream, cutting it into chunks.

        Args:
            stream: read from its current position.
            splitting: the rule.
            name: of the input.

        Raises:
            ChunkTooLarge: a record, or the records of a chunk, exceed the chunk limit.
            InputUnreadable: reading fails, or the CSV header differs from that of earlier streams.
            StorageFull: the store is full.

        Effects: after any error the content is deleted, and the writer cannot be used any more.
        """
        with self._all_or_nothing():
            buffer = self._buffer = self._buffer or bytearray(READ_BYTES)
            start = self.total_bytes
            is_new = True
            for content, ends, header in cut_stream(stream, name, splitting, self._limit_bytes, buffer):
                self._header.take(header, name, splitting)
                if is_new:
                    self.begin_input(name, len(header))
                    is_new = False
                self._append(content, [start + end for end in ends] if start else ends)

    def append(
        self, content: Buffer, ends: list[int], header: bytes, name: str, splitting: Splitting, offset_bytes: int = 0
    ) -> None:
        """Append a stretch of a stream that the caller cuts; all that is appended is of one stream.

        Args:
            content: the bytes; copied or written on return.
            ends: chunk ends, as offsets in everything appended so far, including `content`.
            header: of the stream, with its line end; b"" if it has none, or none yet.
            name: of the stream.
            splitting: the rule by which it is cut.
            offset_bytes: where what is appended here begins in it, after its header.

        Raises:
            StorageFull: the store is full.
        """
        with self._all_or_nothing():
            self._header.take(header, name, splitting)
            if not self._inputs:
                self.begin_input(name, len(header) + offset_bytes)
            self._append(content, ends)

    def add_in_place(self, path: str | os.PathLike[str], splitting: Splitting) -> None:
        """Cut a file without copying it: consumers read it in place, as long as it does not change.

        Raises:
            ChunkTooLarge: as `write_stream`.
            InputUnreadable: the file cannot be read, or is not a regular file.
            ContentChanged: it changed while it was being split.

        Effects: what its author has not synced is synced, so that the submission is as durable as any other.

        Cost: by bytes, a read of a few KiB per chunk; by records or CSV, reads the whole file.
        """
        name = os.fspath(path)
        with self._all_or_nothing(), open_raw(path) as file:
            check_in_place(file, name)
            identity = identity_of(file.fileno())
            self._end_part()
            start, skipped_bytes = self.total_bytes, 0
            for _, ends, header in cut_file(file, name, splitting, self._limit_bytes):
                self._header.take(header, name, splitting)
                skipped_bytes = len(header)
                self._add_ends([start + end for end in ends])
            if self._is_durable:
                self._in_place_folders.add(os.path.dirname(os.path.abspath(name)))
                sync_input(lambda: sync_descriptor(file.fileno()), name)
            if identity_of(file.fileno()) != identity:
                raise ContentChanged(
                    f"{name} changed while it was being split.",
                    hint=RETRY_UNCHANGED,
                )
            part = Part(os.fsencode(os.path.abspath(name)), identity[0] - skipped_bytes, skipped_bytes, identity)
            if self._last_end > start or splitting.by == "file":
                self._parts.append(part)
                self.total_bytes += part.size_bytes

    def begin_input(self, name: str, offset_bytes: int) -> None:
        """The next chunk is of another input, and begins there in it."""
        self._end_input()
        self._inputs.append(Input(os.fsencode(name), self.chunks_count, offset_bytes))

    def take_format(self, header: bytes, about: bytes) -> None:
        """Put the header in front of each chunk, and describe the format of chunks as another submission has it."""
        self._header.header = header
        self._about = about

    def add_chunk(self, chunk: Buffer) -> None:
        """Append one chunk unchanged; small ones are buffered, so that most calls write nothing.

        Raises:
            ChunkTooLarge: it exceeds the chunk limit.
            StorageFull: the store is full.
        """
        size = len(chunk)
        is_only_gathered = (
            size < _SMALL_BYTES
            and self._gathered_bytes + size < _GATHER_BYTES
            and len(self._ends) + 1 < _ENDS_GATHER_COUNT
            and self._part_bytes + self._gathered_bytes < PART_LIMIT_BYTES
        )
        if is_only_gathered and size <= self._limit_bytes and not self._is_ended:
            self._gathered.append(bytes(chunk))
            self._gathered_bytes += size
            self.total_bytes = self._last_end = self.total_bytes + size
            self._ends.append(self._last_end)
            self.chunks_count += 1
            return
        with self._all_or_nothing():
            if size > self._limit_bytes:
                raise ChunkTooLarge(
                    f"Chunk {self.chunks_count} has {counted(size, 'byte')}; the chunk "
                    f"limit is {counted(self._limit_bytes, 'byte')}.",
                    hint=LIMIT_HINT,
                )
            self._append(chunk, [self.total_bytes + size])

    def finish(self) -> Content:
        """Finish the content.

        Returns:
            The description for the submission.

        Effects: everything it refers to is durable (unless `is_durable` is false).
        """
        with self._all_or_nothing():
            content = self._describe()
            for path in self._in_place_folders:
                sync_input(lambda path=path: sync_path(path), path)  # type: ignore[misc]
            if self._has_folder and self._is_durable:
                self._store.sync_folder(self._folder)
            self._is_ended = True
            return content

    def abort(self) -> None:
        """Delete what was written; does nothing after `finish`."""
        if self._is_ended:
            return
        self._is_ended = True
        self._gathered.clear()
        try:
            for writer in (self._part, self._manifest):
                if writer is not None:
                    writer.abort()
        finally:
            if self._has_folder and not self._is_repeated:
                self._store.delete_folder(self._folder)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        if self._is_ended:
            raise Bug(f"The content of {self._folder} is already finished.")
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def _end_input(self) -> None:
        """Forget the last input if it has no chunks."""
        if self._inputs and self._inputs[-1].first_index == self.chunks_count:
            self._inputs.pop()

    def _append(self, content: Buffer, ends: list[int]) -> None:
        """Append bytes and chunk ends; start a new part at a chunk end if the current one is large enough."""
        if self._part_bytes + self._gathered_bytes >= PART_LIMIT_BYTES:
            end = next((end for end in (self._last_end, *ends) if end >= self.total_bytes), None)
            if end is not None:
                cut = end - self.total_bytes
                self._write(memoryview(content)[:cut])
                self._end_part()
                content = memoryview(content)[cut:]
        self._write(content)
        self._add_ends(ends)

    def _write(self, content: Buffer) -> None:
        self.total_bytes += len(content)
        if len(content) < _SMALL_BYTES:
            self._gathered.append(bytes(content))
            self._gathered_bytes += len(content)
            if self._gathered_bytes >= _GATHER_BYTES:
                self._flush()
        else:
            self._flush()
            self._open_part().write(content)
            self._part_bytes += len(content)

    def _flush(self) -> None:
        if self._gathered_bytes:
            self._open_part().write(b"".join(self._gathered))
            self._part_bytes += self._gathered_bytes
        self._gathered.clear()
        self._gathered_bytes = 0

    def _open_part(self) -> ObjectWriter:
        if self._part is None:
            self._part = self._open_writer(f"part-{len(self._parts)}")
        return self._part

    def _end_part(self) -> None:
        self._flush()
        if self._part is not None:
            self._part.close()
            self._parts.append(Part(b"part-%d" % len(self._parts), self._part_bytes))
            self._part, self._part_bytes = None, 0

    def _open_writer(self, name: str) -> ObjectWriter:
        if self._is_repeated:
            self._has_folder = True
            return WholeObjectWriter(self._store, f"{self._folder}/{name}", is_durable=self._is_durable)
        if not self._has_folder:
            self._store.create_folder(self._folder)
            self._has_folder = True
        return self._store.open_writer(f"{self._folder}/{name}", is_durable=self._is_durable)

    def _write_object(self, name: str, content: bytes) -> str:
        writer = self._open_writer(name)
        writer.write(content)
        writer.close()
        return name

    def _add_ends(self, ends: list[int]) -> None:
        if not ends:
            return
        self._ends.extend(ends)
        self._last_end = ends[-1]
        self.chunks_count += len(ends)
        if len(self._ends) >= _ENDS_GATHER_COUNT and (self._manifest or self.chunks_count != len(self._parts) + 1):
            self._flush_ends()

    def _flush_ends(self) -> None:
        if self._manifest is None:
            self._manifest = self._open_writer("manifest")
        self._manifest.write(pack_numbers(self._ends))
        self._ends = array("Q")

    def _describe(self) -> Content:
        header = self._header.header or b""
        header_object = self._write_object("header", header) if len(header) > HEADER_LIMIT_BYTES else None
        about_object = self._write_object("about", self._about) if len(self._about) > ABOUT_LIMIT_BYTES else None
        inputs = self._describe_inputs()
        content = Content(
            folder=self._folder,
            chunks_count=self.chunks_count,
            total_bytes=self.total_bytes,
            header=b"" if header_object else header,
            header_object=header_object,
            about=b"" if about_object else self._about,
            about_object=about_object,
            inputs=inputs,
        )
        is_new = self._part is None and self._manifest is None and not self._parts
        is_new = is_new and (inputs is None or bool(inputs.listed))  # what is inline needs no store
        if is_new and self.total_bytes <= INLINE_LIMIT_BYTES and self.chunks_count <= INLINE_LIMIT_COUNT:
            gathered = b"".join(self._gathered)
            starts = [0, *self._ends[:-1]]
            inline = [gathered[low:high] for low, high in zip(starts, self._ends, strict=True)] if self._ends else []
            return replace(content, inline=inline)
        self._end_part()
        ends = manifest = parts_object = None
        if self._manifest is None and self._is_part_per_chunk():
            pass
        elif self._manifest is None and self.chunks_count <= ENDS_LIMIT_COUNT:
            ends = pack_numbers(self._ends)
        else:
            self._flush_ends()
            if self._manifest is not None:
                self._manifest.close()
            manifest = "manifest"
        parts, parts_count = self._parts, len(self._parts)
        if sum(len(encode(part)) for part in parts) > PARTS_LIMIT_BYTES:
            parts_object = self._write_object("parts", encode_parts(parts))
            parts = []
        return replace(
            content, parts=parts, parts_count=parts_count, ends=ends, manifest=manifest, parts_object=parts_object
        )

    def _describe_inputs(self) -> Inputs | None:
        self._end_input()
        inputs = Inputs(len(self._inputs), self._inputs) if self._inputs else None
        if inputs is not None and len(encode(inputs)) > INPUTS_LIMIT_BYTES:
            self._write_object(INPUTS_OBJECT, encode_inputs(self._inputs))
            return Inputs(len(self._inputs))
        return inputs

    def _is_part_per_chunk(self) -> bool:
        part_ends = accumulate(part.size_bytes for part in self._parts)
        return len(self._parts) == self.chunks_count and all(map(eq, part_ends, self._ends))
