"""Steps of the wall clock: durations that are stored as instants move with it, so that they end on time.

While a process lives its deadlines are monotonic and no step matters to them. Must not decide what a deadline means.
The instants of retries are not moved: they are many, and never longer away than their back-off.
"""

from __future__ import annotations

from functools import partial

import apsw

from opsq.clock import Now
from opsq.queue.batch import Batch
from opsq.queue.state import EngineState
from opsq.store import backlog, meta, submissions
from opsq.store.database import Database

STEP_MS = 500
"""What makes a step; a clock that is slewed makes one now and then."""


class ClockSteps:
    """Compares the clocks.

    Args:
        boot: names the boot of the machine, within which monotonic instants can be compared; empty: it is not known.
    """

    def __init__(self, state: EngineState, boot: str) -> None:
        self._state = state
        self._boot = boot
        self._offset_ms = _offset_ms(state.now)
        reader = state.reader
        is_same_boot = bool(boot) and meta.get_text(reader, "boot") == boot
        step_ms = self._offset_ms - meta.get_int(reader, "clock_offset") if is_same_boot else 0
        state.missed_step_ms = step_ms if abs(step_ms) >= STEP_MS else 0
        if (state.missed_step_ms or (boot and not is_same_boot)) and not state.database.is_read_only:
            self._move_now(state.missed_step_ms)

    def watch(self, now: Now) -> None:
        """Check whether the wall clock has been stepped."""
        step_ms = _offset_ms(now) - self._offset_ms
        if abs(step_ms) >= STEP_MS:
            self._offset_ms += step_ms
            self._move(step_ms)

    def _move_now(self, step_ms: int) -> None:
        """Write it before anybody is served; with the first batch if there is no room for it."""
        database = self._state.database
        try:
            database.begin()
            _move(self._boot, self._offset_ms, step_ms, database, self._state.batch)
            database.commit()
        except apsw.FullError:
            database.rollback()
            self._move(step_ms)
            return
        self._state.missed_step_ms = 0

    def _move(self, step_ms: int) -> None:
        write = partial(_move, self._boot, self._offset_ms, step_ms)
        self._state.batch.add(lambda _: self._settle(step_ms), lambda _: self._cancel(step_ms), write)

    def _settle(self, step_ms: int) -> None:
        """The instants were moved in the file."""
        for submission in self._state.live.values():
            row = submission.row
            is_coming = submission.state in {"blocked", "scheduled"}
            if row.delay_ms is not None and row.not_before_at is not None and is_coming:
                submission.row = row = row._replace(not_before_at=row.not_before_at + step_ms)
            is_unfinished = submission.state in submissions.UNFINISHED_STATES
            if row.expires_ms is not None and row.expires_at is not None and is_unfinished:
                submission.row = row._replace(expires_at=row.expires_at + step_ms)

    def _cancel(self, step_ms: int) -> None:
        """The batch is gone: the step is seen again."""
        self._offset_ms -= step_ms


def _offset_ms(now: Now) -> int:
    return now.wall - now.mono // 1_000_000


def _move(boot: str, offset_ms: int, step_ms: int, database: Database, _: Batch) -> None:
    writer = database.writer
    if step_ms:
        submissions.move_durations(writer, step_ms)
        backlog.move_leases(writer, step_ms)
    meta.put(writer, "boot", boot)
    meta.put(writer, "clock_offset", offset_ms)
