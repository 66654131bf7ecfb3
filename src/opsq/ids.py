"""The names of submissions, chunks and handles; 64-bit masks and their conversion for SQLite.

This file must not import anything else of opsq but the errors, and does no I/O.

A **submission id** has 63 bits: 41 bits of milliseconds since 2025-01-01 UTC, 10 bits of shard, 12 bits of sequence, so
ids sort by age and fit a signed 64-bit integer until 2094. A **block** is 64 chunks of one submission; chunk `index` is
bit `index % 64` of block `index // 64`. A **mask** is an unsigned 64-bit set of chunks of one block; SQLite stores it
as two's complement, and `to_sql` and `from_sql` are the only places that convert.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NewType

from opsq.errors import InvalidHandle, NotFound

SubmissionId = NewType("SubmissionId", int)

EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z in milliseconds since 1970."""

BLOCK_CHUNKS = 64
FULL = (1 << BLOCK_CHUNKS) - 1
"""The mask of a whole block."""

SHARD_MAX = 1023
"""The largest number of a shard."""
SEQUENCE_BITS = 12
"""The lowest bits of an id; above them is the number of the shard that made it."""
_SEQUENCES = 1 << SEQUENCE_BITS


class SubmissionIds:
    """Generates submission ids, each larger than the last, whatever the wall clock does.

    Args:
        last: the largest id known before (0 for none); persisted in the database.
        shard: the writer's number, 0 to 1023.
    """

    def __init__(self, last: int = 0, shard: int = 0) -> None:
        self._shard = shard
        self._last_ms = last >> 22
        self._sequence = (last & (_SEQUENCES - 1)) if last else -1
        if last and shard_of(last) != shard:  # one that has moved here: how many of our own there were is not known
            self._sequence = _SEQUENCES - 1

    def next(self, wall_ms: int) -> SubmissionId:
        """Return the next id at wall time `wall_ms`.

        If the clock stands still or steps back, the last millisecond used continues.
        """
        ms = max(wall_ms - EPOCH_MS, 0)
        if ms > self._last_ms:
            self._last_ms, self._sequence = ms, 0
        elif self._sequence + 1 < _SEQUENCES:
            self._sequence += 1
        else:
            self._last_ms, self._sequence = self._last_ms + 1, 0
        return SubmissionId(self._last_ms << 22 | self._shard << SEQUENCE_BITS | self._sequence)


def made_at(submission_id: int) -> int:
    """When an id was generated, in milliseconds since 1970; later than by the clock, if that stood or stepped back."""
    return (submission_id >> 22) + EPOCH_MS


def shard_of(submission_id: int) -> int:
    """The number of the shard that has generated an id."""
    return submission_id >> SEQUENCE_BITS & SHARD_MAX


def parse_submission_id(text: str) -> SubmissionId:
    """Parse a submission id as people type it.

    Raises:
        NotFound: `text` is no decimal number below 2**63, so no submission can have it.
    """
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) and int(text) < 1 << 63:
        return SubmissionId(int(text))
    raise NotFound(f"No submission has the id {text!r}: ids are numbers, as `opsq list` prints them.")


def mask_indexes(block: int, mask: int) -> Iterator[int]:
    """Yield the chunk indexes selected by `mask` in `block`, ascending."""
    base = block * BLOCK_CHUNKS
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


def first_bits(mask: int, count: int) -> int:
    """Return the `count` lowest set bits of `mask`; the whole mask if it has no more."""
    if mask.bit_count() <= count:
        return mask
    taken = 0
    for _ in range(count):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken


def blocks_of(chunks_count: int) -> int:
    """Return the number of blocks that `chunks_count` chunks fill."""
    return -(-chunks_count // BLOCK_CHUNKS)


def block_mask(chunks_count: int, block: int) -> int:
    """Return the mask of all chunks in `block` of a submission of `chunks_count` chunks."""
    rest = chunks_count - block * BLOCK_CHUNKS
    return FULL if rest >= BLOCK_CHUNKS else (1 << max(rest, 0)) - 1


def to_sql(mask: int) -> int:
    """Convert a mask to what SQLite stores: two's complement."""
    return mask - (1 << 64) if mask >> 63 else mask


def from_sql(stored: int) -> int:
    """Convert a stored mask to what Python computes with: unsigned."""
    return stored & FULL


class Token(NamedTuple):
    """Proves that chunks were handed out: reservation, earlier attempts, granted chunks, and a keyed hash.

    The hash covers the submission, the block and the other three fields, so a token can be verified after its
    reservation has ended, and after a restart.
    """

    reservation_id: int
    attempt: int
    granted: int
    mac: int

    def __str__(self) -> str:
        return f"{self.reservation_id:x}.{self.attempt:x}.{self.granted:x}.{self.mac:x}"


class Handle(NamedTuple):
    """One reserved chunk, as one shell word: `SUBMISSION/INDEX@TOKEN`."""

    submission_id: SubmissionId
    index: int  # type: ignore[assignment]  # hides tuple.index, which a handle does not need
    token: Token

    def __str__(self) -> str:
        return f"{self.submission_id}/{self.index}@{self.token}"

    @property
    def block(self) -> int:
        """The block that contains the chunk."""
        return self.index // BLOCK_CHUNKS

    @property
    def mask(self) -> int:
        """The chunk as a mask in its block."""
        return 1 << self.index % BLOCK_CHUNKS


_HANDLE = re.compile(
    r"([0-9]{1,19})/([0-9]{1,18})@([0-9a-f]{1,15})\.([0-9a-f]{1,8})\.([0-9a-f]{1,16})\.([0-9a-f]{1,16})", re.ASCII
)


def parse_handle(text: str) -> Handle:
    """Parse a handle; `str` of the result returns `text`.

    Raises:
        InvalidHandle: `text` is not of the form `SUBMISSION/INDEX@TOKEN`.
    """
    match = _HANDLE.fullmatch(text)
    if match is None or int(match[1]) >> 63:
        raise InvalidHandle(
            f"{text!r} is not a handle.",
            hint="A handle has the form SUBMISSION/INDEX@TOKEN, as `opsq reserve` prints it.",
        )
    token = Token(int(match[3], 16), int(match[4], 16), int(match[5], 16), int(match[6], 16))
    return Handle(SubmissionId(int(match[1])), int(match[2]), token)
