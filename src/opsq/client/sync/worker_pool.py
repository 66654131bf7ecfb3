"""Worker processes that call a function for one chunk after the other: hand over, hear what became of each.

This file gives no verdicts, and must not know how a process is watched and ended (child_process.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opsq.client.core.outcome import Outcome
from opsq.client.core.worker_frames import AttachmentWanted, Interrupted, Lot
from opsq.client.sync.child_process import ChildProcess, attachment_for, cut_off, ended, exception_of

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

_LOT_S = 0.005
"""A process gets as many chunks at once as it needs this long for; the next ones must not wait behind a long one."""
_LOT_LIMIT_COUNT = 64


class WorkerSlot(ChildProcess):
    """A process that works on one chunk at a time; the arguments are those of `ChildProcess`."""

    def __init__(self, *of_process: Any) -> None:
        super().__init__(*of_process)
        self._run_s: float | None = None

    @property
    def lot_count(self) -> int:
        """See `Slot.lot_count`: with short chunks the way to the process and back is paid for once for many of them."""
        return 1 if self._run_s is None else max(1, min(int(_LOT_S / max(self._run_s, 1e-6)), _LOT_LIMIT_COUNT))

    def work(self, chunks: Sequence[Chunk]) -> Iterator[Outcome | None]:
        """See `Slot.work`. A process that dies at a chunk fails it, with its signal or exit status.

        Those behind it go to the next process.
        """
        sent_count = 0
        for at, chunk in enumerate(chunks):
            if at == sent_count and not self._is_given_up:
                self.prepare()
                sent_count += self._send_lot(chunks[at:])
            if at == sent_count:  # its submission is gone, or time is up
                sent_count += 1
                yield None
                continue
            is_alive, outcome = self._outcome_of(chunk)
            if not is_alive:
                sent_count = at + 1
            yield outcome

    def _send_lot(self, chunks: Sequence[Chunk]) -> int:
        """Send chunks, up to the first whose submission was removed; returns how many."""
        lot = []
        for chunk in chunks:
            work = self._work_for(chunk)
            if work is None:
                break
            lot.append(work)
        if lot:
            self._send(Lot(lot))
        return len(lot)

    def _outcome_of(self, chunk: Chunk) -> tuple[bool, Outcome | None]:
        """Whether the process is alive, and what became of the chunk that it works on; None: to be given back."""
        started_at = time.monotonic()
        self._deadline = None if self._limits.max_runtime_s is None else started_at + self._limits.max_runtime_s
        self._excess = ""
        while isinstance(frame := self._receive(), AttachmentWanted):
            self._send(attachment_for(frame, chunk))
        if isinstance(frame, Outcome):
            self._excess = self._memory_excess()
            if not self._excess:
                self._note(frame)
                return True, frame
        if isinstance(frame, Interrupted):
            self.close()
            raise exception_of(frame)
        if self._excess:
            self._kill()
        exit_code = self._end()
        self.hold(started_at)
        if self._is_given_up:
            return False, None
        reason = self._excess or f"The worker process {ended(exit_code)} while it worked on the chunk."
        return False, cut_off(exit_code, reason, started_at)

    def _note(self, outcome: Outcome) -> None:
        run_s = outcome.run_s
        self._run_s = run_s if self._run_s is None else max(run_s, 0.8 * self._run_s + 0.2 * run_s)
        if outcome.aside is not None:
            self._program.on_aside(outcome.aside)
