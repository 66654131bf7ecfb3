"""What is forgotten, and when: finished submissions, old history and events, leftovers of removals.

In slices, each within one batch.

History goes by age and count, by itself or when asked for; only what is folded goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from opsq.clock import MonoNs, Now
from opsq.errors import Conflict, OpsqError, UsageError
from opsq.queue.batch import Batch, acting, nothing_to_undo
from opsq.queue.folding import Folding
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.submissions.finish import Finisher
from opsq.queue.submissions.garbage import Garbage
from opsq.store import events, history, idempotency_keys, submissions
from opsq.store.database import Database
from opsq.wire.messages import Changed, ErrorReply, Prune

PERIOD_NS = 60_000_000_000
HIDE_LIMIT = 100
"""So many finished submissions one look takes; the next comes as soon as fewer are being removed."""
DAY_MS = 86_400_000
_EVERYTHING = 1 << 62


class Retention:
    """Prunes."""

    def __init__(self, state: EngineState, folding: Folding, finisher: Finisher) -> None:
        self._state = state
        self._folding = folding
        self._finisher = finisher
        self._garbage = Garbage(state)
        self._next: MonoNs = state.now.mono
        self._has_more = False
        """Finished submissions that are old enough."""
        self._is_pruning = False
        self._is_busy = False

    @property
    def is_active(self) -> bool:
        """Whether a slice is ready for the next batch."""
        return (bool(self._state.removing) or self._has_more or self._is_pruning) and not self._is_busy

    def tick(self, now: Now) -> None:
        """Once a minute, look for what is old enough; in between, add a slice to the batch if there is one."""
        state, policy = self._state, self._state.policy
        if now.mono >= self._next:
            self._next = MonoNs(now.mono + PERIOD_NS)
            self._has_more = self._is_pruning = True
            self._garbage.sweep()
        if self.is_active:
            self._is_busy = True
            if self._has_more and len(state.removing) < HIDE_LIMIT:
                self._has_more = self._hide_old(now)
            if self._state.removing:
                self._finisher.remove_slice()
            if self._is_pruning:
                before_at = now.wall - int(policy.history_days * DAY_MS)
                events_before_at = now.wall - int(policy.event_days * DAY_MS)
                state.batch.statements.append(lambda database, _: self._prune(database, before_at, events_before_at))
                withdrawn_before = now.wall - int(policy.finished_days * DAY_MS)
                state.batch.statements.append(
                    lambda database, _: idempotency_keys.prune(database.writer, withdrawn_before)
                )
            state.batch.add(self._end_slice, self._end_slice)

    def _hide_old(self, now: Now) -> bool:
        """Hide the oldest that are old enough; whether there are more behind them."""
        state = self._state
        before_at = now.wall - int(state.policy.finished_days * DAY_MS)
        old = submissions.finished_before(state.reader, before_at, HIDE_LIMIT)
        hidden_count = 0
        for submission_id in old:
            submission = state.submission(submission_id)
            if (
                submission is not None
                and not submission.is_closing
                and not submission.is_held
                and submission.state in submissions.FINAL_STATES
            ):
                self._finisher.hide(submission)
                hidden_count += 1
        return len(old) == HIDE_LIMIT and hidden_count > 0

    def _prune(self, database: Database, before_at: int, events_before_at: int) -> None:
        writer, policy, slice_of = database.writer, self._state.policy, self._state.slice_of
        count = history.prune_slice(
            writer, before_at, policy.history_rows, self._folding.folded_seq, slice_of(history.PRUNE_ROWS)
        )
        count += events.prune_slice(writer, events_before_at, policy.event_rows, slice_of(events.PRUNE_ROWS))
        if not count:
            self._is_pruning = False

    def _end_slice(self, _: Now) -> None:
        """A slice is gone and the next may follow, or it comes again."""
        self._is_busy = False

    def prune(self, peer: Peer, request: Prune, now: Now) -> None:
        """Forget history that is older, or more, than is asked for; answered when the last slice is committed.

        Raises:
            UsageError: neither an age nor a count was given.
        """
        if request.older_than_s is None and request.keep_count is None:
            raise UsageError(cause="nothing_to_prune")
        before_at = now.wall - int(request.older_than_s * 1000) if request.older_than_s is not None else 0
        keep_count = request.keep_count if request.keep_count is not None else _EVERYTHING
        folding = self._folding
        pruning = _Pruning(self._state, folding, peer, request, before_at, keep_count)
        self._state.batch.after.append(lambda _: folding.after(folding.last_seq, lambda _: pruning.go_on()))
        self._state.batch.on_failed.append(pruning.refuse)


@dataclass(slots=True)
class _Pruning:
    """A request to prune, slice by slice."""

    _state: EngineState
    _folding: Folding
    _peer: Peer
    _request: Prune
    _before_at: int
    _keep_count: int
    _count: int = 0
    _slice_count: int = 0

    def go_on(self) -> None:
        """Have the next batch take a slice."""
        self._state.batch.add(self._settle, nothing_to_undo, self._write)
        self._state.batch.on_failed.append(self.refuse)
        self._state.batch.again.append((acting(lambda _: self.go_on()), self._peer, self._request))

    def _write(self, database: Database, _: Batch) -> None:
        self._slice_count = history.prune_slice(
            database.writer,
            self._before_at,
            self._keep_count,
            self._folding.folded_seq,
            self._state.slice_of(history.PRUNE_ROWS),
        )

    def _settle(self, _: Now) -> None:
        """A slice is gone; the next follows, or there is none."""
        self._count += self._slice_count
        if self._slice_count and self._folding.is_ending:
            self.refuse(Conflict(cause="stopping"))
        elif self._slice_count:
            self.go_on()
        else:
            self._state.reply(self._peer, Changed(self._request.id, self._count))

    def refuse(self, error: OpsqError) -> None:
        """The batch is gone."""
        self._state.reply(self._peer, ErrorReply.of(self._request.id, error, done=self._count))
