"""What a DataFrame tells of its chunks to whoever reads them later: their format, the schema, how many rows.

It travels in the description of the content, and a long schema lies beside it. This file must not import PySpark: consumers
that are no Spark tasks read it too.
"""

from __future__ import annotations

import msgspec

from opsq.content.content_store import Store
from opsq.content.manifest import decode as decode_content
from opsq.content.manifest import read_about


class About(msgspec.Struct, array_like=True, frozen=True, tag="spark1"):
    """The form of the chunks of a submission that a DataFrame made.

    Attributes:
        chunk_format: parquet, arrow, jsonl, csv or text.
        schema: of the DataFrame, as Spark's JSON.
        rows_count: of the DataFrame.
        digest: of all chunks; equal if the same rows were cut in the same way.
    """

    chunk_format: str
    schema: str
    rows_count: int
    digest: bytes


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(About)


def about_of(content: bytes, store: Store) -> About | None:
    """What a submission tells of its chunks; None: it was not made from a DataFrame."""
    blob = read_about(store, decode_content(content))
    try:
        return _decoder.decode(blob)
    except msgspec.DecodeError:
        return None
