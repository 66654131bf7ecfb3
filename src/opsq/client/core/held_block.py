"""Chunks of one block under one token, as a consumer holds them: the unit of the ledger and of the verdict batch.

This file only keeps masks and names them in the protocol; ledger.py and verdict_batch.py decide how they change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from opsq.ids import Handle, SubmissionId, Token, mask_indexes
from opsq.wire.messages import Grant, HeldChunks

Result = bytes | tuple[str, int, int]
"""A result: its bytes, or the object, offset and length where it is stored."""


class Lost(msgspec.Struct, frozen=True):
    """A chunk whose reservation was lost, or whose verdict was refused, and why."""

    submission_id: SubmissionId
    index: int
    code: str
    message: str


class HeldBlock:
    """Chunks of one block under one token.

    Masks: `ready` wait here, `open` are being worked on, `done` wait to be sent.

    `held` are all that are reserved by this consumer as far as it knows, including those whose completion was not
    answered yet; `revoked` are open ones that the daemon may have given to others. `length_s` is how long they stay
    reserved without a heartbeat.
    """

    __slots__ = (
        "done",
        "exit_status",
        "granted",
        "held",
        "is_offered",
        "is_reported",
        "length_s",
        "number",
        "open",
        "ready",
        "results",
        "revoked",
        "run_max_s",
        "run_s",
        "submission_id",
        "token",
    )

    def __init__(self, grant: Grant, reservation_id: int, length_s: float) -> None:
        self.submission_id = SubmissionId(grant.submission_id)
        self.number = grant.block
        self.granted = grant.mask
        self.token = Token(reservation_id, grant.attempt, grant.mask, grant.mac)
        self.length_s = length_s
        self.held = self.ready = grant.mask
        self.open = self.done = self.revoked = 0
        self.is_offered = self.is_reported = False
        self.results: dict[int, Result] = {}
        self.run_s = self.run_max_s = 0.0
        self.exit_status: int | None = None

    def handle(self, bit: int) -> Handle:
        """The handle of the chunk at `bit`."""
        return Handle(self.submission_id, self.number * 64 + bit, self.token)

    def is_revoked(self, bit: int) -> bool:
        """Whether the chunk at `bit` was taken away."""
        return bool(~self.held >> bit & 1 or self.revoked >> bit & 1)

    def name(self, mask: int) -> HeldChunks:
        """Some of the chunks as the protocol names them."""
        token = self.token
        return HeldChunks(
            self.submission_id, self.number, mask, token.reservation_id, token.attempt, token.granted, token.mac
        )


def granted_bits(blocks: Sequence[HeldBlock]) -> Iterator[tuple[HeldBlock, int]]:
    """The chunks that were granted, as block and bit, in the order of their results."""
    return ((block, bit) for block in blocks for bit in mask_indexes(0, block.granted))
