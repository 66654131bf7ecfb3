"""The types of fields, and what every message and every part of one is built on.

This file must not define a message.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

VERSION = 1
"""Protocol version. A daemon refuses any other with `version_mismatch`."""

RESULT_INLINE_BYTES = 4096
"""Results up to this size travel in the message; of a larger one only the place in the store does."""

Key = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
Value = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | Annotated[str, Meta(max_length=1024)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Id = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Block = Annotated[int, Meta(ge=0, lt=1 << 57)]
Mask = Annotated[int, Meta(gt=0)]
"""1 … 2**64 - 1; MessagePack has no larger integers."""
Count = Annotated[int, Meta(ge=0)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]
Detail = int | float | str
"""A number or name in a sentence."""


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message."""


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    """A whole message."""
