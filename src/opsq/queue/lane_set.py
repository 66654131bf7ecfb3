"""What submissions with the same metadata share: their lanes and pairs, and what the rules of operators say of these.

A backlog has far fewer of these sets than submissions, so what is worked out for one holds for thousands. Must not know
which rules there are (`dispatch/rules` does) nor count anything.
"""

from __future__ import annotations

from typing import Any

from opsq.store import lanes

SETS_KEPT = 4_096
"""Different metadata in memory, about 1 KiB each; beyond this number all are forgotten, but for those in use."""

_NOTHING: tuple[Any, ...] = ()


class LaneSet:
    """The lanes of submissions with the same metadata."""

    __slots__ = (
        "buckets",
        "buckets_of",
        "caps",
        "counted_keys",
        "counted_lanes",
        "lane_of",
        "limits",
        "metadata",
        "pauses",
        "rates",
        "rules_version",
        "taken_until",
    )

    def __init__(self, stored: bytes) -> None:
        self.lane_of: dict[str, tuple[int, int | str]] = lanes.decode(stored)
        """Key → (lane, value)."""
        self.metadata: dict[str, int | str] = {key: value for key, (_, value) in self.lane_of.items()}
        self.counted_keys: frozenset[str] | None = None
        self.counted_lanes: tuple[int, ...] = _NOTHING
        self.rules_version = 0
        """The rules that the following are of."""
        self.pauses: tuple[Any, ...] = _NOTHING
        """(pause, id of the only submission that it holds, or None) of those that these pairs fall under."""
        self.limits: tuple[Any, ...] = _NOTHING
        """(place among the rules, limit, lane)."""
        self.caps: tuple[tuple[int, int], ...] = _NOTHING
        """(lane, the most chunks of it that may be reserved), each lane once."""
        self.rates: tuple[Any, ...] = _NOTHING
        """(limit, lane) of those limits that have a rate."""
        self.buckets: tuple[Any, ...] = _NOTHING
        """Their tokens, as looked up in the table `buckets_of`."""
        self.buckets_of: object = None
        self.taken_until = 0
        """How many chunks may have been reserved in all before it must be asked again what the limits allow."""


class Stranger:
    """A submission that is not in memory: none of its chunks is reserved or waits for a retry."""

    __slots__ = ("id", "lane_set")
    reserved_count = 0
    delayed_count = 0

    def __init__(self, submission_id: int, lane_set: LaneSet) -> None:
        self.id = submission_id
        self.lane_set = lane_set


class LaneSets:
    """The lane sets in memory, by what the row of a submission keeps of them."""

    def __init__(self) -> None:
        self._sets: dict[bytes, LaneSet] = {}

    def of(self, stored: bytes) -> LaneSet:
        """The set that is stored so."""
        found = self._sets.get(stored)
        if found is None:
            if len(self._sets) >= SETS_KEPT:
                self._sets.clear()
            found = self._sets[stored] = LaneSet(stored)
        return found
