"""Writes one content from many processes: each writes its own parts, and one process composes them.

This file must not know who the processes are. Each writer names its part uniquely, so that a second attempt at the same
work never touches the first; parts that are not passed to `compose` are left for the sweep.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from opsq.content.content_store import ObjectWriter, Store
from opsq.content.file_io import Buffer
from opsq.content.manifest import (
    ABOUT_LIMIT_BYTES,
    ENDS_LIMIT_COUNT,
    HEADER_LIMIT_BYTES,
    PARTS_LIMIT_BYTES,
    Content,
    Part,
    encode,
    encode_parts,
    pack_numbers,
    unpack_numbers,
)
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES
from opsq.errors import ChunkTooLarge
from opsq.units import counted

_GATHER_BYTES = 1 << 20
"""Small chunks are buffered up to this size before they are written."""


class WrittenPart(NamedTuple):
    """A part that was written.

    Attributes:
        name: of its object in the folder of the submission.
        ends: the chunk ends in it, as a table (`manifest.pack_numbers`).
        size_bytes: of all chunks.
        digest: of the bytes and ends of all chunks.
    """

    name: str
    ends: bytes
    size_bytes: int
    digest: bytes


class PartWriter:
    """Writes one part of a submission. Use it in a `with` block: an unfinished part is deleted.

    The object is created with the first chunk; a writer without chunks leaves nothing.

    Args:
        store: the destination.
        folder: of the submission.
        stem: start of the name of the object; the rest makes it unique.
        makes_folder: creates the folder if there is none; otherwise a writer that comes after its deletion fails.
        chunk_limit_bytes: larger chunks are refused.
        is_durable: what `finish` returns survives a power failure.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        stem: str,
        *,
        makes_folder: bool = True,
        chunk_limit_bytes: int = DEFAULT_CHUNK_LIMIT_BYTES,
        is_durable: bool = True,
    ) -> None:
        self._store = store
        self._folder = folder
        self._makes_folder = makes_folder
        self._name = f"{stem}-{os.urandom(6).hex()}"
        self._limit_bytes = chunk_limit_bytes
        self._is_durable = is_durable
        self._object: ObjectWriter | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._ends = array("Q")
        self._size_bytes = 0
        self._digest = sha256()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()

    @property
    def chunks_count(self) -> int:
        """How many chunks were added."""
        return len(self._ends)

    def add_chunk(self, chunk: Buffer) -> None:
        """Append one chunk.

        Raises:
            ChunkTooLarge: it exceeds the chunk limit.
            StorageFull: the store is full.
        """
        size_bytes = len(chunk)
        if size_bytes > self._limit_bytes:
            raise ChunkTooLarge(
                f"A chunk of {counted(size_bytes, 'byte')} exceeds the chunk limit of "
                f"{counted(self._limit_bytes, 'byte')}.",
                hint="Use smaller chunks, or raise the daemon's chunk_limit_bytes.",
            )
        self._digest.update(chunk)
        self._size_bytes += size_bytes
        self._ends.append(self._size_bytes)
        if size_bytes < _GATHER_BYTES:
            self._gathered.append(bytes(chunk))
            self._gathered_bytes += size_bytes
            if self._gathered_bytes < _GATHER_BYTES:
                return
            chunk = b""
        self._flush()
        if chunk:
            self._open().write(chunk)

    def finish(self) -> WrittenPart | None:
        """Finish the part; None if it has no chunks. Effects: the part is durable (unless `is_durable` is false)."""
        if not self._ends:
            return None
        self._flush()
        self._open().close()
        if self._is_durable:
            self._store.sync_folder(self._folder)
        self._object = None
        ends = pack_numbers(self._ends)
        self._digest.update(ends)
        return WrittenPart(self._name, ends, self._size_bytes, self._digest.digest())

    def abort(self) -> None:
        """Delete the part; does nothing after `finish`."""
        writer, self._object = self._object, None
        self._gathered.clear()
        if writer is not None:
            writer.abort()

    def _open(self) -> ObjectWriter:
        if self._object is None:
            if self._makes_folder:
                self._store.ensure_folder(self._folder)
            self._object = self._store.open_writer(f"{self._folder}/{self._name}", is_durable=self._is_durable)
        return self._object

    def _flush(self) -> None:
        if self._gathered or self._object is None:
            self._open().write(b"".join(self._gathered))
            self._gathered.clear()
            self._gathered_bytes = 0


def compose(
    store: Store,
    folder: str,
    written: Sequence[WrittenPart],
    *,
    header: bytes = b"",
    about: bytes = b"",
    is_durable: bool = True,
) -> Content:
    """Compose parts, in the order given, into one content; tables too long for the description become objects.

    Args:
        store: holds the parts.
        folder: of the submission.
        written: the parts.
        header: put in front of each chunk.
        about: describes the format of the chunks, for their readers.
        is_durable: the tables survive a power failure, as the parts do.
    """

    def as_object(name: str, content: bytes) -> str:
        store.write_object(f"{folder}/{name}", content, is_durable=is_durable)
        return name

    parts = [Part(part.name.encode(), part.size_bytes) for part in written]
    ends, start = array("Q"), 0
    for part in written:
        ends.extend(
            array("Q", (start + end for end in unpack_numbers(part.ends))) if start else unpack_numbers(part.ends)
        )
        start += part.size_bytes
    table = pack_numbers(ends)
    has_object = len(ends) > ENDS_LIMIT_COUNT
    has_parts_object = sum(len(encode(part)) for part in parts) > PARTS_LIMIT_BYTES
    return Content(
        folder=folder,
        chunks_count=len(ends),
        total_bytes=start,
        parts=[] if has_parts_object else parts,
        parts_count=len(parts),
        inline=None if ends else [],
        ends=None if has_object or not ends else table,
        manifest=as_object("manifest", table) if has_object else None,
        parts_object=as_object("parts", encode_parts(parts)) if has_parts_object else None,
        header=b"" if len(header) > HEADER_LIMIT_BYTES else header,
        header_object=as_object("header", header) if len(header) > HEADER_LIMIT_BYTES else None,
        about=b"" if len(about) > ABOUT_LIMIT_BYTES else about,
        about_object=as_object("about", about) if len(about) > ABOUT_LIMIT_BYTES else None,
    )


def digest_of(written: Sequence[WrittenPart]) -> bytes:
    """Return a digest that is equal for the same chunks in the same parts, whatever the names of the parts."""
    whole = sha256()
    for part in written:
        whole.update(part.digest)
    return whole.digest()
