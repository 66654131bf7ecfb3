"""Takes batches through their transactions, one at a time: written, and settled once committed, or else cancelled.

Owns the batch that is being committed. It must not COMMIT, which is the driver's, nor know what follows a commit.
"""

from __future__ import annotations

import apsw

from opsq.clock import MonoNs, Now
from opsq.errors import StorageFull
from opsq.queue.batch import Batch
from opsq.queue.batch_writer import BatchWriter
from opsq.queue.chunk_counters import ChunkCounters
from opsq.queue.faults import Fatal
from opsq.queue.folding import Folding
from opsq.queue.full_disk import RETRY_NS, FullDisk
from opsq.queue.state import EngineState
from opsq.queue.submissions.admission import Admission
from opsq.queue.submissions.unique_until_start import UniqueUntilStart
from opsq.store.database import Deposed


class Commits:
    """The batch that is being committed, and what becomes of it."""

    def __init__(
        self,
        state: EngineState,
        folding: Folding,
        full_disk: FullDisk,
        admission: Admission,
        unique_until_start: UniqueUntilStart,
        counters: ChunkCounters,
        now: Now,
    ) -> None:
        self._state = state
        self._folding = folding
        self._full_disk = full_disk
        self._admission = admission
        self._unique_until_start = unique_until_start
        self._counters = counters
        self._writer = BatchWriter(
            state, lambda batch: admission.ended(batch, is_committed=False), unique_until_start.write
        )
        self._flying: Batch | None = None
        self._rest_until: MonoNs = now.mono

    @property
    def is_under_way(self) -> bool:
        """Whether a batch was begun that has not ended."""
        return self._flying is not None

    def rest_s(self, now: Now) -> float:
        """For how long nothing is written of our own accord: something of it, and no request, could not be."""
        return max((self._rest_until - now.mono) / 1e9, 0.0)

    def is_due(self, now: Now) -> bool:
        """Whether there is something to commit, and no commit is under way."""
        if self._flying is not None or self._full_disk.is_waiting(now):
            return False
        return bool(self._state.batch) or self._is_fold_due(now)

    def _is_fold_due(self, now: Now) -> bool:
        return self._folding.is_due(now) and now.mono >= self._rest_until

    def begin(self, now: Now) -> bool:
        """See `Engine.begin_batch`."""
        state = self._state
        if self._is_fold_due(now):
            state.fronts.save_passes()
        batch = self._flying = state.batch
        state.batch = Batch()
        self._unique_until_start.write(batch)
        batch.first_seq = self._folding.last_seq + 1
        if not batch.forbids_fold and self._is_fold_due(now):
            batch.fold = self._folding.slice(now)
        if not batch.has_rows:
            return False
        try:
            requests = self._writer.write(batch, now)
            if requests is not None:
                self._flying = apart = Batch()
                apart.first_seq = batch.first_seq
                if not self._writer.write_apart(requests, apart, now) and batch.cause is not None:
                    state.report(batch.cause)
                    self._rest_until = MonoNs(now.mono + RETRY_NS)
        except Deposed as error:
            raise Fatal(str(error)) from error
        return True

    def end(self, error: Exception | None, now: Now) -> Batch | None:
        """The commit succeeded (None) or not: what was in the batch settles, or is refused.

        Returns:
            The batch, if it was committed.

        Raises:
            Fatal: the outcome of the commit is unknown, or it succeeded and memory does not say so.
        """
        batch, self._flying = self._flying, None
        if batch is None:
            return None
        if error is not None:
            self._failed(batch, error, now)
            return None
        try:
            self._full_disk.committed(batch, now)
            self._folding.committed(batch.written, now)
            self._counters.note(batch.history)
            self._admission.ended(batch, is_committed=True)
            batch.settle(now)
        except Exception as bug:
            # Only the file says what is true now. Nobody was answered, and who asks again after a new start gets that.
            raise Fatal(f"What was committed is not all in memory ({type(bug).__name__}: {bug}).") from bug
        return batch

    def _failed(self, batch: Batch, error: Exception, now: Now) -> None:
        """Everything that waits is refused: later intents may rest on those of the batch that is gone."""
        state = self._state
        is_gone = state.database.rollback()
        if not isinstance(error, apsw.FullError | apsw.BusyError) or not is_gone:
            raise Fatal(f"The outcome of a commit is unknown: {error}") from error
        self._full_disk.note(now, has_failed=True)
        refusal = state.with_removable(StorageFull(cause="commit_failed", path=str(state.database.path)))
        waiting, state.batch = state.batch, Batch()
        for lost in (waiting, batch):
            self._admission.ended(lost, is_committed=False)
            state.outbox += [(peer, reply) for peer, reply in lost.cancel(refusal, now) if peer.is_connected]
