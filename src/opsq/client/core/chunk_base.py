"""What a reserved chunk is to blocking and asyncio programs alike: where it belongs, and whether it has its verdict.

This file gives no verdicts; what may wait (content, verdicts) differs in sync/chunk.py and aio/chunk.py.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod

from opsq import traces
from opsq.client.core.arguments import delay
from opsq.client.core.held_block import HeldBlock
from opsq.errors import UsageError
from opsq.ids import Handle, SubmissionId


class ChunkBase(ABC):
    """One reserved chunk.

    Args:
        consumer: reads content and takes the verdict.
        block: the block that it belongs to.
        bit: its place in the block.
    """

    __slots__ = ("_bit", "_block", "_consumer", "_has_verdict", "_processing", "_started_at")

    _consumer: object

    def __init__(self, consumer: object, block: HeldBlock, bit: int) -> None:
        self._consumer = consumer
        self._block = block
        self._bit = bit
        self._has_verdict = False
        self._started_at = time.monotonic()
        self._processing = (
            traces.Processing(self._carried(), self.submission_id, self.index, self.attempt)
            if traces.is_tracing()
            else None
        )

    @abstractmethod
    def _carried(self) -> traces.TraceContext | None:
        """The trace context that its submission carries."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.submission_id}/{self.index}>"

    @property
    def submission_id(self) -> SubmissionId:
        """The submission that it belongs to."""
        return self._block.submission_id

    @property
    def index(self) -> int:
        """Its place in the submission, from 0."""
        return self._block.number * 64 + self._bit

    @property
    def attempt(self) -> int:
        """How many attempts failed or were lost before."""
        return self._block.token.attempt

    @property
    def handle(self) -> Handle:
        """What names it under this reservation, for any other process: `str` gives one shell word."""
        return self._block.handle(self._bit)

    @property
    def has_verdict(self) -> bool:
        """Whether it was completed, failed or released."""
        return self._has_verdict

    @property
    def is_revoked(self) -> bool:
        """Whether the daemon took it away: another consumer may have it, it may be finished or cancelled."""
        return self._block.is_revoked(self._bit)

    @property
    def trace_context(self) -> traces.TraceContext | None:
        """What work on it belongs to: the span of that, where OpenTelemetry makes one, else what was submitted with it.

        Its `variables` are for the environment of a program.
        """
        return self._carried() if self._processing is None else self._processing.context

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the span of the work on it is the current one of OpenTelemetry, where there is one."""
        return contextlib.nullcontext() if self._processing is None else self._processing.active()

    def _end_span(self, outcome: str, *, result: object = None, reason: str = "") -> None:
        if self._processing is not None:
            size = len(result) if isinstance(result, bytes | bytearray | memoryview) else None
            self._processing.end(outcome, result_bytes=size, reason=reason)

    def _take_verdict(self) -> None:
        if self._has_verdict:
            raise UsageError(f"Chunk {self.submission_id}/{self.index} already has a verdict.")
        self._has_verdict = True

    def _note_verdict(self, outcome: str, *, result: object = None, reason: str = "") -> None:
        """Its span ends with a verdict that was entered; one that raised before that, for a mistake in it, is none."""
        self._has_verdict = not self._block.open >> self._bit & 1
        if self._has_verdict:
            self._end_span(outcome, result=result, reason=reason)

    def _run_s(self, run_s: float | None) -> float:
        """A run time as given, else that since it was handed out, in seconds."""
        if run_s is None:  # the common case costs no call
            return time.monotonic() - self._started_at
        return delay("run_s", run_s) or 0.0
