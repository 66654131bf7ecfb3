"""What is forgotten, and when: finished submissions, old history, leftovers of removals. In slices, each within one batch."""

from __future__ import annotations

from opsq.clock import MonoNs, Now
from opsq.queue.core import Core
from opsq.queue.endings import Endings
from opsq.store import history, request_keys, submissions
from opsq.store.database import Database

PERIOD_NS = 60_000_000_000
MORE_NS = 1_000_000_000
"""How soon the next look comes when one has found as much as it may take."""
HIDE_LIMIT = 100
DAY_MS = 86_400_000


class Retention:
    """Prunes."""

    def __init__(self, core: Core, endings: Endings) -> None:
        self._core = core
        self._endings = endings
        self._next: MonoNs = core.now.mono
        self._is_pruning = False
        self._is_busy = False

    @property
    def is_active(self) -> bool:
        """Whether a slice is ready for the next batch."""
        return (bool(self._endings.removing) or self._is_pruning) and not self._is_busy and not self._core.is_full

    def tick(self, now: Now) -> None:
        """Once a minute, look for what is old enough; in between, add a slice to the batch if there is one."""
        core, policy = self._core, self._core.policy
        if now.mono >= self._next:
            old = submissions.finished_before(core.reader, now.wall - int(policy.finished_days * DAY_MS), HIDE_LIMIT)
            self._next = MonoNs(now.mono + (PERIOD_NS if len(old) < HIDE_LIMIT else MORE_NS))
            for submission_id in old:
                supply = core.supply(submission_id)
                if supply is not None and not supply.is_closing and supply.state in submissions.FINAL_STATES:
                    self._endings.hide(supply)
            self._is_pruning = True
        if self.is_active:
            self._is_busy = True
            if self._endings.removing:
                self._endings.remove_slice()
            if self._is_pruning:
                before_at = now.wall - int(policy.history_days * DAY_MS)
                core.batch.statements.append(lambda database, _: self._prune(database, before_at))
                withdrawn_before = now.wall - int(policy.finished_days * DAY_MS)
                core.batch.statements.append(lambda database, _: request_keys.prune(database.writer, withdrawn_before))
            core.batch.entries.append(self)

    def _prune(self, database: Database, before_at: int) -> None:
        if history.prune_slice(database.writer, before_at, self._core.policy.history_rows, self._core.folding.folded_seq):
            self._is_pruning = False

    def settle(self, now: Now) -> None:
        """A slice is gone; the next may follow."""
        self._is_busy = False

    def cancel(self, now: Now) -> None:
        """The slice comes again."""
        self._is_busy = False

    def next_due(self) -> MonoNs:
        """When `tick` looks again."""
        return self._next
