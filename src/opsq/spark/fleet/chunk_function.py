"""Turns a function of tables or frames into one of chunks: decode, call, encode in the same format.

This file must not know where it runs nor what happens to the chunk. PySpark is only used for the types of chunks made
from a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from opsq.errors import InputUnreadable
from opsq.spark.formats.chunk_format import read_chunk_format

if TYPE_CHECKING:
    import pyarrow as pa

    from opsq.client.core.content_access import Contents
    from opsq.client.sync.chunk import Chunk
    from opsq.client.sync.consumer import Consumer
    from opsq.spark.formats.decoder import Decode
    from opsq.spark.formats.result_types import ResultTypes

Frames = Literal["auto", "arrow", "pandas", "bytes"]
"""What a function gets: Arrow tables, pandas frames or bytes; auto: Arrow for chunks of a DataFrame."""

_KNOWN_COUNT = 256
"""The number of submissions whose chunk format is cached."""


class _Form(NamedTuple):
    """The form of a submission's chunks and of results; without `decode` chunks are not tables."""

    chunk_format: str
    decode: Decode | None
    types: ResultTypes


def chunk_caller(
    function: Any, frames: Frames, schema: pa.Schema | None, consumer: Consumer, contents: Contents
) -> Callable[[Chunk], bytes]:
    """A function that calls `function` for a chunk and turns what it returns into bytes.

    Args:
        function: see `opsq.spark.consume`.
        frames: what it gets.
        schema: declared columns of what it returns.
        consumer: describes submissions.
        contents: reads what is stored with them.
    """
    from opsq.spark.formats.result_types import ResultTypes, frame_of

    if frames == "bytes":
        types = ResultTypes(None, schema)
        return lambda chunk: encoded(function(chunk.data), "parquet", types)
    forms: dict[int, _Form] = {}

    def call(chunk: Chunk) -> bytes:
        form = forms.get(chunk.submission_id)
        if form is None:
            if len(forms) >= _KNOWN_COUNT:
                forms.clear()
            form = forms[chunk.submission_id] = _form_of(
                consumer.describe(chunk.submission_id).content, contents, schema
            )
        if form.decode is None:
            if frames != "auto":
                raise InputUnreadable(
                    f"Submission {chunk.submission_id} was not made from a DataFrame, so its chunks cannot be read as "
                    f"{frames}.",
                    hint="With frames='bytes' the function gets their bytes.",
                )
            return encoded(function(chunk.data), form.chunk_format, form.types)
        table = form.decode(chunk.data)
        return encoded(function(frame_of(table) if frames == "pandas" else table), form.chunk_format, form.types)

    return call


def _form_of(content: bytes, contents: Contents, schema: pa.Schema | None) -> _Form:
    from opsq.spark.formats.result_types import ResultTypes

    chunk_format = read_chunk_format(content, contents.store)
    if chunk_format is None:
        return _Form("parquet", None, ResultTypes(None, schema))
    from opsq.spark.formats.decoder import decoder
    from opsq.spark.formats.schemas import arrow_schema, read_schema

    name, of_chunks = chunk_format.name, arrow_schema(read_schema(chunk_format.schema))
    return _Form(name, decoder(name, of_chunks), ResultTypes(of_chunks, schema))


def encoded(returned: Any, chunk_format: str, types: ResultTypes) -> bytes:
    """The bytes of a result from what a function returned: tables and frames in a format, bytes as they are.

    Raises:
        TypeError: it is none of these.
        UsageError: a column does not have its type.
    """
    if returned is None:
        return b""
    if isinstance(returned, bytes | bytearray | memoryview):
        return bytes(returned)
    table = types.table_of(returned)
    if table is None:
        raise TypeError(
            f"The function returned {type(returned).__name__}; a result is an Arrow table, a pandas frame, bytes, or "
            f"None."
        )
    if not table.num_rows:
        return b""
    from opsq.spark.formats.encoder import encoder, header_of

    return header_of(chunk_format, table.schema) + encoder(chunk_format, table.schema)(table)
