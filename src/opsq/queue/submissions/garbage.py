"""Rows that nothing needs once the last submission with a metadata pair is gone; a slice is swept up each minute.

They are lanes that were kept because they were the newest, passes of fair strategies for lanes that are gone, and
weights that came with submissions. Must not decide which submissions go.
"""

from __future__ import annotations

from opsq.queue.batch import Batch, nothing_to_undo
from opsq.queue.state import EngineState
from opsq.store import lanes, rules
from opsq.store.database import Database
from opsq.store.lanes import GoneLane

SLICE_ROWS = 2_000
"""Rows of each table that are looked at together: a few milliseconds."""


class Garbage:
    """Goes round the tables; an entry of the batch in which it takes its next step."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._lane_id = 0
        self._place: tuple[str, int] = ("", 0)
        self._gone: list[GoneLane] = []

    def sweep(self) -> None:
        """Have the batch look at the next slice."""
        self._state.batch.add(lambda _: self._state.fronts.forget_lanes(self._gone), nothing_to_undo, self._write)

    def _write(self, database: Database, _: Batch) -> None:
        writer = database.writer
        self._gone, self._lane_id = lanes.prune_slice(writer, self._lane_id, SLICE_ROWS)
        rules.drop_weights(writer, ((lane.key, lane.value) for lane in self._gone))
        self._place = rules.prune_passes(writer, self._place, SLICE_ROWS)
