"""The fronts that differ from `OldestFirst` in their keys only: the newest first, and by priority.

This file must not know gates or how a front walks.
"""

from __future__ import annotations

from opsq.queue.dispatch.front import Front
from opsq.strategy.arms import CUSTOM_PRIORITY, NEWEST_FIRST, Key, Sortable

_END = (1 << 63) - 1


class NewestFront(Front):
    """A front in the order of submission ids, descending (`NewestFirst`)."""

    order = NEWEST_FIRST
    __slots__ = ()

    def _start(self) -> Key:
        return (-_END, _END)

    def _bound(self) -> Key:
        return self.level[-1:]

    def _key(self, submission: Sortable) -> Key:
        return (-submission.id, submission.id)

    def _key_of_row(self, row: tuple[int, ...]) -> Key:
        return (-row[0], row[0])


class PriorityFront(Front):
    """A front by falling priority, then age (`CustomPriority`): keys are (minus the priority, id)."""

    order = CUSTOM_PRIORITY
    __slots__ = ()

    def _start(self) -> Key:
        return (-_END, -1)

    def _key(self, submission: Sortable) -> Key:
        return (-submission.priority, submission.id)
