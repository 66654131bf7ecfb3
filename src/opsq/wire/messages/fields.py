"""The types of fields, and what every message and every part of one is built on.

This file must not define a message.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

VERSION = 1
"""Protocol version. A daemon refuses any other with `version_mismatch`."""

RESULT_INLINE_BYTES = 4096
"""Results up to this size travel in the message; of a larger one only the place in the store does."""

_MOST = (1 << 63) - 1
"""The largest integer of SQLite; what is added to a field on its way there must leave it below that."""

Key = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")]
Value = Annotated[int, Meta(ge=-_MOST - 1, le=_MOST)] | Annotated[str, Meta(max_length=1024)]
Metadata = Annotated[dict[Key, Value], Meta(max_length=1024)]
Int64 = Annotated[int, Meta(ge=-_MOST - 1, le=_MOST)]
Id = Annotated[int, Meta(ge=0, le=_MOST)]
Block = Annotated[int, Meta(ge=0, lt=1 << 57)]
Mask = Annotated[int, Meta(gt=0)]
"""1 … 2**64 - 1; MessagePack has no larger integers."""
Unsigned = Annotated[int, Meta(ge=0)]
"""0 … 2**64 - 1."""
Count = Annotated[int, Meta(ge=0, le=_MOST)]
ChunksCount = Annotated[int, Meta(ge=0, le=1 << 40)]
"""How many chunks, or the index of one."""
Instant = Annotated[int, Meta(ge=0, lt=253_370_764_800_000)]
"""Milliseconds since 1970 UTC, before the year 9999: the last that every clock and calendar can show."""
Duration = Annotated[float, Meta(ge=0, le=1e9)]
PositiveDuration = Annotated[float, Meta(gt=0, le=1e9)]
ExitStatus = Annotated[int, Meta(ge=0, le=255)]
Signal = Annotated[int, Meta(ge=1, le=255)]
RequestKey = Annotated[bytes, Meta(min_length=16, max_length=16)]
UserKey = Annotated[str, Meta(min_length=1, max_length=1024)]
Title = Annotated[str, Meta(max_length=256)]
"""In bytes, which `opsq.titles` counts, it may be no longer."""
Name = Annotated[str, Meta(max_length=255)]
Reason = Annotated[str, Meta(max_length=16384)]
Bytes = Annotated[bytes, Meta(max_length=1 << 24)]
RATE_MIN_PER_S, RATE_MAX_PER_S = 1 / (30 * 86400), 1e9
"""One chunk in 30 days; a billion a second."""
Concurrency = Annotated[int, Meta(ge=1, le=1 << 31)]
Rate = Annotated[float, Meta(ge=RATE_MIN_PER_S, le=RATE_MAX_PER_S)]
Burst = Annotated[int, Meta(ge=1, le=1 << 31)]
WeightNumber = Annotated[float, Meta(gt=0, le=1e9)]
StrategyText = Annotated[str, Meta(max_length=65536)]
StateName = Literal["blocked", "scheduled", "open", "completed", "failed", "cancelled", "expired"]
EventName = Literal["completed", "failed", "lost", "dead", "requeued", "dropped", "cancelled", "expired"]
STATES, EVENTS = get_args(StateName), get_args(EventName)
"""Of submissions, and of the history; later daemons may know more."""
UNFINISHED_STATES: tuple[StateName, ...] = ("blocked", "scheduled", "open")
Detail = int | float | str
"""A number or name in a sentence."""


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message."""


class Finding(Record):
    """One thing that was found about work: its code, and the details that `opsq.findings` puts into its sentence."""

    code: str
    details: dict[str, Detail] = {}


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    """A whole message."""
