"""Tells the log of reserves that took long: of which strategy, how long, and what was walked meanwhile.

A run that fits into one turn of the event loop is short, so only those that are interrupted are looked at. Must not
serve calls.
"""

from __future__ import annotations

import logging

from opsq.clock import MonoNs, Now
from opsq.queue.dispatch.fronts import Fronts
from opsq.queue.dispatch.rules import Rules
from opsq.store import lanes
from opsq.strategy.arms import Arm
from opsq.strategy.tree import format_value
from opsq.units import counted

SLOW_NS = 100_000_000
SILENT_NS = 60_000_000_000
"""A strategy is named at most this often."""
TOLD_KEPT = 1_000

_log = logging.getLogger(__name__)

Arms = list[tuple[str, Arm]]


class SlowRuns:
    """The runs that are interrupted, by the canonical text of their strategy."""

    def __init__(self, fronts: Fronts, rules: Rules) -> None:
        self._fronts = fronts
        self._rules = rules
        self._began: dict[str, tuple[MonoNs, list[int]]] = {}
        """When each began, and how many rows its arms had visited by the end of its first turn."""
        self._told: dict[str, MonoNs] = {}

    def interrupted(self, text: str, arms: Arms, now: Now) -> None:
        """A run stopped at its bound and will go on."""
        if text not in self._began:
            self._began[text] = now.mono, [self._rows(name) for name, _ in arms]

    def abandoned(self, text: str) -> None:
        """The call is gone for which a run was made."""
        self._began.pop(text, None)

    def ended(self, text: str, arms: Arms, now: Now) -> None:
        """A run is at its end, whatever it has found."""
        if text not in self._began:
            return
        began, rows_before = self._began.pop(text)
        told = self._told.get(text)
        if now.mono - began < SLOW_NS or (told is not None and now.mono - told < SILENT_NS):
            return
        if len(self._told) >= TOLD_KEPT:
            self._told.clear()
        self._told[text] = now.mono
        plans = [self._plan(name, arm, rows) for (name, arm), rows in zip(arms, rows_before, strict=True)]
        _log.warning(
            "A reserve by %s took %.0f ms: %s. opsq explain shows the plan.",
            text,
            (now.mono - began) / 1e6,
            "; ".join(plans),
        )

    def _rows(self, name: str) -> int:
        front = self._fronts.front_in_use(name)
        return front.rows_visited if front is not None else 0

    def _plan(self, name: str, arm: Arm, rows_before: int) -> str:
        front = self._fronts.front_in_use(name)
        if front is None:
            return f"{arm.order.name} has nothing to walk"
        looked_into = "".join(f", looking into {self._lane(lane_id)}" for lane_id in front.walk.probes)
        rows_count = max(front.rows_visited - rows_before, 0)
        return f"{arm.order.name} walked {counted(rows_count, 'row')} of {self._lane(front.walk.lane_id)}{looked_into}"

    def _lane(self, lane_id: int) -> str:
        if lane_id == lanes.ALL:
            return "all submissions"
        if lane_id < 0:
            return f"submission {~lane_id}"
        key, value = self._rules.pair_of_lane(lane_id)
        return f"{key}={format_value(value)}"
