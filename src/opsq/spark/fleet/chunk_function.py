"""Turns a function of tables or frames into one of chunks: decode, call, encode in the same format.

This file must not know where it runs nor what happens to the chunk. PySpark is only used for the types of chunks made
from a DataFrame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from opsq.client.core.outcome import Done
from opsq.errors import InputUnreadable
from opsq.spark.formats.chunk_format import read_chunk_format

if TYPE_CHECKING:
    import pyarrow as pa

    from opsq.client.core.chunk_view import ChunkView
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


class ChunkFunction:
    """A function of chunks that calls one of tables, frames or bytes, and turns what it returns into bytes.

    Args:
        function: see `opsq.spark.consume`.
        frames: what it gets.
        schema: declared columns of what it returns.
    """

    def __init__(self, function: Callable[[Any], Any], frames: Frames, schema: pa.Schema | None) -> None:
        self._function = function
        self._frames = frames
        self._schema = schema
        self._forms: dict[int, _Form] = {}
        self.rows_count = 0
        """Of the tables and frames for which it has returned a result."""

    def __call__(self, chunk: ChunkView) -> bytes | Done:
        """Call it. What it raises that is no Exception, an exit or the panic of a library, is a RuntimeError then."""
        form, argument, rows_count = self._given(chunk)
        try:
            returned = self._function(argument)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RuntimeError(f"The function raised {type(error).__name__}: {error}") from error
        kept = _kept(returned, form)
        self.rows_count += rows_count
        return kept

    async def awaited(self, chunk: ChunkView) -> bytes | Done:
        """The same of a coroutine function; reading and writing wait in threads, for a store may be far away."""
        form, argument, rows_count = await asyncio.to_thread(self._given, chunk)
        try:
            returned = await self._function(argument)
        except (Exception, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise RuntimeError(f"The function raised {type(error).__name__}: {error}") from error
        kept = await asyncio.to_thread(_kept, returned, form)
        self.rows_count += rows_count
        return kept

    def _given(self, chunk: ChunkView) -> tuple[_Form, Any, int]:
        """What the function gets of a chunk, and how many rows are in it."""
        form = self._form_of(chunk)
        if form.decode is None:
            return form, chunk.data, 0
        from opsq.spark.formats.result_types import frame_of

        table = form.decode(chunk.data)
        return form, frame_of(table) if self._frames == "pandas" else table, table.num_rows

    def _form_of(self, chunk: ChunkView) -> _Form:
        submission_id = 0 if self._frames == "bytes" else chunk.submission_id
        form = self._forms.get(submission_id)
        if form is None:
            if len(self._forms) >= _KNOWN_COUNT:
                self._forms.clear()
            form = _form_of(chunk, self._schema) if submission_id else _bare_form(self._schema)
            self._forms[submission_id] = form
        if form.decode is None and self._frames in ("arrow", "pandas"):
            raise InputUnreadable(
                f"Submission {chunk.submission_id} was not made from a DataFrame, so its chunks cannot be read as "
                f"{self._frames}.",
                hint="With frames='bytes' the function gets their bytes.",
            )
        return form


def _bare_form(schema: pa.Schema | None) -> _Form:
    from opsq.spark.formats.result_types import ResultTypes

    return _Form("parquet", None, ResultTypes(None, schema))


def _form_of(chunk: ChunkView, schema: pa.Schema | None) -> _Form:
    chunk_format = read_chunk_format(chunk.content, chunk.reader.store)
    if chunk_format is None:
        return _bare_form(schema)
    from opsq.spark.formats.decoder import decoder
    from opsq.spark.formats.result_types import ResultTypes
    from opsq.spark.formats.schemas import arrow_schema, read_schema

    name, of_chunks = chunk_format.name, arrow_schema(read_schema(chunk_format.schema))
    return _Form(name, decoder(name, of_chunks), ResultTypes(of_chunks, schema))


def _kept(returned: Any, form: _Form) -> bytes | Done:
    if isinstance(returned, Done):
        return Done(encoded(returned.result, form.chunk_format, form.types), returned.then)
    return encoded(returned, form.chunk_format, form.types)


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
