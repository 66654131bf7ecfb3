"""What a consumer tells while it works, and to whom: whoever wants to see it overrides what interests him.

This file shows nothing; the pool calls it from its one thread, and nothing here may wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from opsq.wire.messages import Counts


class ChunkEnd(msgspec.Struct, frozen=True):
    """How one attempt at a chunk ended."""

    submission_id: int
    index: int
    attempt: int
    """How many attempts failed or were lost before."""
    outcome: Literal["completed", "failed"]
    exit_status: int | None
    signal: int | None
    run_s: float
    reason: str


class PoolProgress(NamedTuple):
    """How things stand."""

    running_count: int
    submissions: Sequence[tuple[int, Mapping[str, int | str]]]
    """Whose chunks run now, each once, with their metadata."""
    completed_count: int
    """By this consumer; likewise the failures."""
    failed_count: int
    operations_count: int
    """Records of the chunks that were completed by this consumer."""
    counts: Counts | None
    """What the daemon last said: of the submission that is worked on, or of all. None: nothing yet, or nobody asked."""


class ProgressViewer:
    """Sees everything and shows nothing."""

    tells_stderr = False
    """Whether what is `said` is shown, so that a failure need not repeat the last of it."""
    look_s: float | None = None
    """About so often `look` is called; None: never, and neither is the daemon asked for its counts nor are records counted."""

    @property
    def is_congested(self) -> bool:
        """Whether so much waits to be read by whoever reads our output that no more chunks shall be begun."""
        return False

    def say(self, text: str) -> None:
        """Take a sentence for a person: a failure, a chunk that was lost."""

    def said(self, chunk_name: str, piece: bytes) -> None:
        """Take what the program of a chunk wrote on its stderr, in whatever pieces it was read; b"" at its end."""

    def ended(self, end: ChunkEnd) -> None:
        """Take note of the end of an attempt."""

    def look(self, view: PoolProgress) -> None:
        """Take note of how things stand."""
