"""Copies the chunks of a submission into the content of a new one, with their header, format and inputs.

It must not submit anything, and knows no kind of store.
"""

from __future__ import annotations

from opsq.content.chunk_reader import ChunkReader
from opsq.content.content_writer import ContentWriter
from opsq.content.input_chunks import Plan
from opsq.content.manifest import InputRange, read_about


def copy_chunks(source: ChunkReader, writer: ContentWriter) -> None:
    """Append all chunks of `source` to a content that is empty so far.

    Raises:
        OpsqError: a chunk cannot be read or written.
    """
    header = source.header
    writer.take_format(header, read_about(source.store, source.content))
    last: InputRange | None = None
    for index in range(source.content.chunks_count):
        found = source.input_of(index)
        if found is not None and not (last is not None and found.follows(last)):
            writer.begin_input(found.name, found.offset_bytes)
        last = found
        writer.add_chunk(memoryview(source.read(index))[len(header) :])


def plan_of_copy(source: ChunkReader, *, first_count: int = 10) -> Plan:
    """The chunks that `copy_chunks` would append; reads none of them."""
    content, header = source.content, source.header
    sizes = [source.size(index) - len(header) for index in range(content.chunks_count)]
    first = [source.input_of(index) or InputRange("", 0, size) for index, size in enumerate(sizes[:first_count])]
    return Plan(len(sizes), content.total_bytes, min(sizes, default=0), max(sizes, default=0), first, header)
