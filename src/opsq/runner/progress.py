"""What a pool reports while it works: a viewer overrides the methods for what it wants to see.

This file shows nothing; the pool calls it from its one thread, and nothing here may wait unless it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from opsq.content.manifest import InputRange
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
    input: InputRange | None = None


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
    """About how often `look` is called, in seconds; None: never, and nothing is counted for it."""

    @property
    def is_congested(self) -> bool:
        """Whether so much of our output waits to be read that no more chunks should be started."""
        return False

    def say(self, text: str) -> None:
        """Take a sentence for a person: a failure, a chunk that was lost."""

    def remark(self, text: str) -> None:
        """Take a sentence for who has not asked for quiet: what keeps work waiting."""

    def said(self, chunk_name: str, piece: bytes) -> None:
        """Take what the program of a chunk wrote on its stderr, in whatever pieces it was read; b"" at its end."""

    def suspended(self) -> None:
        """Leave the terminal as a shell wants it: this process is about to be stopped. May wait a little."""

    def resumed(self) -> None:
        """Go on after that."""

    def ended(self, end: ChunkEnd) -> None:
        """Note the end of an attempt."""

    def look(self, view: PoolProgress) -> None:
        """Note the progress."""
