"""What is stored with the chunks of a DataFrame for later readers: their format, the schema, the number of rows.

It is part of the content's description; a long schema is stored beside the content. This file must not import PySpark:
consumers outside Spark read it too.
"""

from __future__ import annotations

import msgspec

from opsq.content.content_store import Store
from opsq.content.manifest import decode as decode_content
from opsq.content.manifest import read_about


class ChunkFormat(msgspec.Struct, array_like=True, frozen=True, tag="spark1"):
    """The format of the chunks of a submission made from a DataFrame.

    Attributes:
        name: parquet, arrow, jsonl, csv or text.
        schema: of the DataFrame, as Spark's JSON.
        rows_count: of the DataFrame.
        digest: of all chunks; equal if the same rows were cut the same way.
    """

    name: str
    schema: str
    rows_count: int
    digest: bytes


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(ChunkFormat)


def read_chunk_format(content: bytes, store: Store) -> ChunkFormat | None:
    """The format stored with a submission; None: it was not made from a DataFrame."""
    blob = read_about(store, decode_content(content))
    try:
        return _decoder.decode(blob)
    except msgspec.DecodeError:
        return None
