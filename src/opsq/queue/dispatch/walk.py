"""Which lane a front walks, and what it looks up for each row. Must not read the walk itself."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from opsq.store import lanes
from opsq.strategy.arms import SUBMISSION_KEY, Arm, Filter

RARE_COUNT = 1000
"""Of several lanes the rarest is walked; counting stops here."""


class Walk(NamedTuple):
    """The lane that is walked, other lanes that each row must be in too, and keys that it must not have."""

    lane_id: int
    """`~id` when a filter names one submission."""
    probes: tuple[int, ...] = ()
    absent_keys: tuple[str, ...] = ()
    is_single: bool = False
    """There is nothing to walk."""


def choose_walk(reader: apsw.Connection, arm: Arm, known: tuple[Filter, int] | None = None) -> Walk | None:
    """Choose how to walk the submissions that pass the filters of an arm: the rarest lane, and look-ups in the others.

    Args:
        known: the lane of one of the filters, if it need not be looked for.

    Returns:
        None when nothing can pass: filters contradict each other, or no submission has ever had one of the pairs.
        A filter that names one submission leaves nothing to walk; the lane is then `~id`.
    """
    own, own_lane = known or (None, 0)
    if arm.filters == (own,) and own_lane > lanes.ALL:
        return Walk(own_lane)
    if arm.is_impossible:
        return None
    absent = tuple(entry.key for entry in arm.filters if entry.value is None)
    for entry in arm.filters:
        if entry.key == SUBMISSION_KEY:
            return Walk(~entry.value, is_single=True) if isinstance(entry.value, int) and entry.value >= 0 else None
    found = [
        own_lane if entry == own else lanes.find(reader, entry.key, entry.value)
        for entry in arm.filters
        if entry.value is not None
    ]
    lane_ids = [lane_id for lane_id in found if lane_id is not None]
    if len(lane_ids) < len(found):
        return None
    if len(lane_ids) > 1:
        lane_ids.sort(key=lambda lane_id: lanes.open_count(reader, lane_id, RARE_COUNT))
    return Walk(lane_ids[0] if lane_ids else lanes.ALL, tuple(lane_ids[1:]), absent)
