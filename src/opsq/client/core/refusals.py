"""Chunks by their handles, and the error for those of which a request was refused.

It must stay cheap to import: the hot verbs use it.
"""

from __future__ import annotations

from collections.abc import Iterable

from opsq.errors import OpsqError, from_code
from opsq.ids import mask_indexes, parse_handle
from opsq.wire.messages import Completed, HeldChunks, Refusal


def held_chunks(handles: Iterable[str]) -> list[HeldChunks]:
    """Reserved chunks as the protocol names them.

    Raises:
        InvalidHandle: one of them is none.
    """
    return HeldChunks.merged(parse_handle(text.strip()) for text in handles)


def check_refusals(reply: Completed) -> None:
    """Raise if anything was refused.

    Raises:
        OpsqError: something was; the class is that of the first refusal, and the message names all chunks.
    """
    if reply.refusals:
        raise _refused(reply.refusals)


def _refused(refusals: list[Refusal]) -> OpsqError:
    texts = []
    for refusal in refusals:
        chunks = ", ".join(f"{refusal.submission_id}/{index}" for index in mask_indexes(refusal.block, refusal.mask))
        texts.append(f"{chunks}: {refusal.message}")
    return from_code(refusals[0].code, "\n".join(texts))
