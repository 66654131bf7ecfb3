"""What is forgotten, and when: finished submissions, old history, leftovers of removals. In slices, each within one batch.

History goes by age and count, by itself or when asked for; only what is folded goes.
"""

from __future__ import annotations

from opsq.clock import MonoNs, Now
from opsq.errors import Conflict, OpsqError, UsageError
from opsq.queue.batch import Batch
from opsq.queue.state import Core, Peer
from opsq.queue.submissions.finish import Endings
from opsq.queue.submissions.garbage import Leftovers
from opsq.store import history, request_keys, submissions
from opsq.store.database import Database
from opsq.wire.messages import Changed, ErrorReply, Prune

PERIOD_NS = 60_000_000_000
MORE_NS = 1_000_000_000
"""How soon the next look comes when one has found as much as it may take."""
HIDE_LIMIT = 100
DAY_MS = 86_400_000
_EVERYTHING = 1 << 62


class Retention:
    """Prunes."""

    def __init__(self, core: Core, endings: Endings) -> None:
        self._core = core
        self._endings = endings
        self._leftovers = Leftovers(core)
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
            self._leftovers.sweep()
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
        if not history.prune_slice(
            database.writer, before_at, self._core.policy.history_rows, self._core.folding.folded_seq
        ):
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

    def prune(self, peer: Peer, request: Prune, now: Now) -> None:
        """Forget history that is older, or more, than is asked for; answered when the last slice is committed.

        Raises:
            UsageError: neither an age nor a count was given.
        """
        if request.older_than_s is None and request.keep_count is None:
            raise UsageError(
                "Neither an age nor a count was given.", hint="Say what is to be forgotten, or how much is to be kept."
            )
        before_at = now.wall - int(request.older_than_s * 1000) if request.older_than_s is not None else 0
        keep_count = request.keep_count if request.keep_count is not None else _EVERYTHING
        pruning = _Pruning(self._core, peer, request.id, before_at, keep_count)
        folding = self._core.folding
        self._core.batch.after.append(lambda _: folding.after(folding.last_seq, lambda _: pruning.go_on()))
        self._core.batch.on_failed.append(pruning.refuse)


class _Pruning:
    """A request to prune, slice by slice."""

    __slots__ = ("_before_at", "_core", "_count", "_keep_count", "_peer", "_request_id", "_slice_count")

    def __init__(self, core: Core, peer: Peer, request_id: int, before_at: int, keep_count: int) -> None:
        self._core = core
        self._peer = peer
        self._request_id = request_id
        self._before_at = before_at
        self._keep_count = keep_count
        self._count = 0
        self._slice_count = 0

    def go_on(self) -> None:
        """Have the next batch take a slice."""
        self._core.batch.statements.append(self._write)
        self._core.batch.entries.append(self)
        self._core.batch.on_failed.append(self.refuse)

    def _write(self, database: Database, _: Batch) -> None:
        self._slice_count = history.prune_slice(
            database.writer, self._before_at, self._keep_count, self._core.folding.folded_seq
        )

    def settle(self, now: Now) -> None:
        """A slice is gone; the next follows, or there is none."""
        self._count += self._slice_count
        if self._slice_count and self._core.is_ending:
            self.refuse(Conflict("The daemon is ending.", hint="Send it again to the next one."))
        elif self._slice_count:
            self.go_on()
        else:
            self._core.reply(self._peer, Changed(self._request_id, self._count))

    def cancel(self, now: Now) -> None:
        """The slice is still there; the request is refused."""

    def refuse(self, error: OpsqError) -> None:
        """The batch is gone."""
        done = f" {self._count} rows were pruned before." if self._count else ""
        self._core.reply(self._peer, ErrorReply(self._request_id, error.code, error.message + done, error.hint))
