"""What becomes of dead letters: they are listed, requeued or dropped, one by one or all that fulfil conditions.

A request may touch any number of chunks, so it is served in slices, each a batch of its own: a crash between two leaves
a sound state, and the client repeats the request. Only a requeue leads a submission out of a final state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from opsq.clock import Now
from opsq.errors import Conflict, OpsqError
from opsq.queue.batch import Batch, acting
from opsq.queue.chunks.dead_slices import Job, Slice, masks_of, refusal
from opsq.queue.folding import Folding
from opsq.queue.live_submission import BlockWork, LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import backlog, dead, history, lanes, submissions
from opsq.store.backlog import AttemptRow
from opsq.store.database import Database
from opsq.store.dead import Place, Where
from opsq.store.history import HistoryRow
from opsq.wire.messages import Changed, Dead, DeadChunk, DeadChunks, DeadFilter, DeadSelection, Drop, Requeue

SLICE_CHUNKS = 512
"""Chunks of one slice: a few milliseconds when each is in a block of its own."""
SLICE_SUBMISSIONS = 64


class DeadLetters:
    """Lists, requeues and drops dead letters."""

    def __init__(self, state: EngineState, folding: Folding) -> None:
        self._state = state
        self._folding = folding
        self._ready: deque[Job] = deque()
        self._busy: set[int] = set()
        """Submissions of which letters are being requeued or dropped by a batch that has not ended."""

    # --- requests ---

    def dead(self, peer: Peer, request: Dead) -> None:
        """Answer with a page of dead letters."""
        if request.submission_id is not None:
            self._state.find(request.submission_id)
        where = self._where(request.submission_id, request.where)
        if where is None:
            self._state.reply(peer, DeadChunks(request.id, [], None))
            return
        rows, following = dead.page(self._state.reader, where, request.after, request.limit)
        self._state.reply(peer, DeadChunks(request.id, [DeadChunk(*row) for row in rows], following))

    def requeue(self, peer: Peer, request: Requeue, now: Now) -> None:
        """Give dead chunks new attempts; revive submissions that failed, were cancelled or expired.

        It waits until the deaths are folded, since a fold in the same transaction would take the chunks away again.
        """
        job = self._job(peer, request)
        if job is not None:
            self._after_folds(job)

    def drop(self, peer: Peer, request: Drop, now: Now) -> None:
        """Give dead chunks up: they count as skipped from then on."""
        job = self._job(peer, request)
        if job is not None:
            self._after_batch(job)

    def _job(self, peer: Peer, request: DeadSelection) -> Job | None:
        """What is to be done; None: the conditions name a pair that no submission has, and that was answered."""
        if request.submission_id is not None:
            self._state.find(request.submission_id)
        where = self._where(request.submission_id, request.where)
        if where is None:
            self._state.reply(peer, Changed(request.id, 0))
            return None
        indexes = None
        if request.indexes is not None:
            if request.submission_id is None:
                raise Conflict(cause="indexes_without_submission")
            indexes = sorted(set(request.indexes))
        return Job(peer, request, where, indexes)

    def _where(self, submission_id: int | None, conditions: DeadFilter) -> Where | None:
        """The conditions as the store knows them; None when a metadata pair has never been."""
        lane_ids = lanes.find_all(self._state.reader, conditions.metadata)
        wanted = set(conditions.submission_ids)
        if submission_id is not None:
            wanted = wanted & {submission_id} if wanted else {submission_id}
        if lane_ids is None or (submission_id is not None and not wanted):
            return None
        return Where(
            tuple(sorted(wanted)),
            lane_ids,
            conditions.from_at,
            conditions.to_at,
            conditions.reason,
            frozenset(conditions.exit_statuses),
            frozenset(conditions.signals),
        )

    # --- slices ---

    @property
    def has_turn(self) -> bool:
        """Whether a slice may be worked out now."""
        return bool(self._ready) and not self._state.is_full

    def turn(self, now: Now) -> None:
        """Work out one slice; no batch may be under way, since what it has written is seen and not yet known."""
        job = self._ready.popleft()
        job.committed_count = job.count
        before, batch = job.copy(), self._state.batch
        answers_count = batch.answers_count
        try:
            if self._folding.is_ending:
                raise Conflict(cause="stopping")
            self._slice(job, now)
        except OpsqError as error:
            self._state.reply(job.peer, refusal(job, error))
        if batch.answers_count > answers_count:
            batch.again.append((acting(lambda _: self._ready.append(before)), job.peer, job.request))

    def _after_batch(self, job: Job, then: Callable[[Now], None] | None = None) -> None:
        """Go on when the batch that is being formed is committed; if it fails, so does the request."""
        self._state.batch.after.append(then or (lambda _: self._ready.append(job)))
        self._state.batch.on_failed.append(lambda error: self._state.reply(job.peer, refusal(job, error)))

    def _after_folds(self, job: Job) -> None:
        """Go on when all that has been committed by then is folded."""
        folding = self._folding
        self._after_batch(job, lambda _: folding.after(folding.last_seq, lambda _: self._ready.append(job)))

    def _slice(self, job: Job, now: Now) -> None:
        """Requeue or drop the next chunks, or wait until that can be done."""
        chosen, following = self._next(job)
        state = self._state
        if not job.is_drop and chosen.keys() & self._folding.deaths():
            self._folding.after(
                self._folding.last_seq, lambda _: self._ready.append(job)
            )  # more have died while this waited
            return
        pieces: list[tuple[LiveSubmission, list[int]]] = []
        for submission_id, chunks in chosen.items():
            submission = state.submission(submission_id)
            if submission is not None and submission.is_held and submission.is_closing:
                state.after_moves.append(lambda: self._ready.append(job))
                return
            if submission_id in self._busy or (
                submission is not None and submission.is_closing and not self._is_first_of_one(job)
            ):
                self._after_batch(job)
                return
            if submission is not None:
                pieces.append((submission, chunks))
            elif job.request.submission_id is not None:
                self._state.find(submission_id)  # it was removed while this waited
        for submission, chunks in pieces:
            if job.is_drop:
                self._drop(job, submission, chunks, now)
            else:
                self._requeue(job, submission, chunks, now)
        if job.indexes is not None:
            job.indexes = job.indexes[SLICE_CHUNKS:]
        job.after = following
        self._go_on(job, has_rows=job.count > job.committed_count)

    @staticmethod
    def _is_first_of_one(job: Job) -> bool:
        """Nothing was done yet, and one submission is named: if it is being finalized, that is answered at once."""
        return not job.is_drop and job.request.submission_id is not None and not job.count

    def _go_on(self, job: Job, *, has_rows: bool) -> None:
        """Answer after the last slice, else have the next one follow."""
        if job.after is None and has_rows:
            self._state.batch.replies.append((job.peer, job.result()))
        elif job.after is None:
            self._state.reply(job.peer, job.result())
        elif not has_rows:
            self._ready.append(job)
        elif job.is_drop:
            self._after_batch(job)
        else:
            self._after_folds(job)

    def _next(self, job: Job) -> tuple[dict[int, list[int]], Place | None]:
        """The chunks of the next slice by submission, and where the one after it begins; None: this is the last."""
        reader = self._state.reader
        if job.indexes is not None:
            submission_id = job.where.submission_ids[0]
            if job.count == 0:
                self._check_indexes(submission_id, job.indexes)
            chunks, left = job.indexes[:SLICE_CHUNKS], job.indexes[SLICE_CHUNKS:]
            chosen = {submission_id: dead.are_dead(reader, submission_id, chunks)}
            return chosen, (submission_id, left[0] - 1) if left else None
        rows, following = dead.page(reader, job.where, job.after or (0, -1), SLICE_CHUNKS)
        chosen = {}
        for row in rows:
            if row.submission_id not in chosen and len(chosen) == SLICE_SUBMISSIONS:
                return chosen, (row.submission_id, row.chunk - 1)
            chosen.setdefault(row.submission_id, []).append(row.chunk)
        if job.is_whole and not rows and following is None:
            chosen[job.where.submission_ids[0]] = []
        return chosen, following

    def _check_indexes(self, submission_id: int, indexes: list[int]) -> None:
        unknown = sorted(set(indexes) - set(dead.are_dead(self._state.reader, submission_id, indexes)))
        if unknown:
            raise Conflict(cause="not_dead", submission_id=submission_id, index=unknown[0])

    # --- requeue ---

    def _requeue(self, job: Job, submission: LiveSubmission, chunks: list[int], now: Now) -> None:
        state = self._state
        if submission.is_closing:
            raise Conflict(cause="finalizing", submission_id=submission.id)
        is_final = submission.state in submissions.FINAL_STATES
        if job.touched == submission.id and is_final and submission.state != "completed":
            return  # it has ended again since, and not for want of these chunks
        skipped = submission.row.chunks_skipped - submission.row.chunks_dropped if is_final else 0
        if not chunks and not skipped:
            return
        if is_final and not self._takes_key(job, submission):
            return
        masks = masks_of(chunks)
        works = {index: submission.block(state.reader, index) for index in masks}
        batch = state.batch
        batch.history += [
            HistoryRow(now.wall, history.REQUEUED, submission.id, index, mask) for index, mask in masks.items()
        ]
        batch.forbids_fold = True

        def write(database: Database, _: Batch) -> None:
            writer = database.writer
            backlog.put_blocks(
                writer, [(submission.id, index, works[index].pending | mask) for index, mask in masks.items()]
            )
            backlog.delete_dead(writer, submission.id, chunks)
            submissions.add_dead(writer, submission.id, -len(chunks))
            if is_final:
                submissions.revive(writer, submission.row, submission.lanes, now.wall)

        for index, mask in masks.items():
            work = works[index]
            kept = [
                row._replace(mask=row.mask & ~mask)
                for row in submission.attempts_of(state.reader, work)
                if row.mask & ~mask
            ]
            work.attempts = (*kept, AttemptRow(mask, 0, 0, now.wall, 0))
            batch.tried[submission.id, index] = (submission, work)
        batch.statements.append(write)
        batch.count(submission.lanes, (0, 0, 0, -len(chunks), -skipped))
        self._begin(submission)
        submission.is_closing = is_final
        submission.unfinished += len(chunks) + skipped
        job.count += len(chunks) + skipped
        job.touched = submission.id
        at, count = now.wall, len(chunks) + skipped
        batch.entries.append(
            Slice(
                job.request.id,
                submission.id,
                masks,
                is_drop=False,
                settle=lambda now: self._settle_requeued(submission, works, masks, at, now),
                cancel=lambda _: self._cancel_requeued(submission, works, count),
            )
        )

    def _takes_key(self, job: Job, submission: LiveSubmission) -> bool:
        """Whether a submission may be revived as far as its unique key goes, which it then has."""
        state, unique_key = self._state, submission.row.unique_key
        if unique_key is None or submission.row.unique_until == submissions.STARTED:
            return True
        holder = state.unique_keys.holder(unique_key)
        if holder is not None:
            job.refused.append((submission.id, holder, unique_key))
            return False
        until_start = submission.row.unique_until == submissions.UNTIL_START
        state.unique_keys.take(unique_key, submission.id, until_start=until_start)
        return True

    def _settle_requeued(
        self, submission: LiveSubmission, works: dict[int, BlockWork], masks: dict[int, int], at: int, now: Now
    ) -> None:
        state = self._state
        self._requeue_is_over(submission)
        submission.dead -= sum(mask.bit_count() for mask in masks.values())
        is_revived = submission.state in submissions.FINAL_STATES
        if is_revived:
            state.set_state(submission, "open")
            submission.is_closing, submission.cursor = False, 0
            submission.row = submission.row._replace(
                state="open",
                finished_at=None,
                reason="",
                chunks_skipped=submission.row.chunks_dropped,
                expires_at=None,
                expires_ms=None,
                revived_at=at,
            )
            state.keep(submission)
        submission.loaded.clear()  # what was read ahead may lack a block that has work again
        for index, kept in works.items():
            work = submission.blocks.setdefault(index, kept)
            work.pending |= masks[index]
            submission.give_back(work)
        if is_revived:
            state.restore_delays(submission, now)
        state.became_free(submission)

    def _cancel_requeued(self, submission: LiveSubmission, works: dict[int, BlockWork], count: int) -> None:
        for work in works.values():
            work.attempts = None
        self._requeue_is_over(submission)
        submission.unfinished -= count
        self._state.stays_open(submission)

    def _requeue_is_over(self, submission: LiveSubmission) -> None:
        self._end(submission)
        self._state.unique_keys.release(submission.row.unique_key, submission.id)

    # --- drop ---

    def _drop(self, job: Job, submission: LiveSubmission, chunks: list[int], now: Now) -> None:
        if not chunks:
            return
        masks, batch = masks_of(chunks), self._state.batch
        batch.history += [
            HistoryRow(now.wall, history.DROPPED, submission.id, index, mask) for index, mask in masks.items()
        ]

        def write(database: Database, _: Batch) -> None:
            backlog.delete_dead(database.writer, submission.id, chunks)
            dead.put_dropped(database.writer, submission.id, masks)
            submissions.add_dropped(database.writer, submission.id, len(chunks))

        batch.statements.append(write)
        batch.count(submission.lanes, (0, 0, 0, -len(chunks), len(chunks)))
        self._begin(submission)
        job.count += len(chunks)
        batch.entries.append(
            Slice(
                job.request.id,
                submission.id,
                masks,
                is_drop=True,
                settle=lambda _: self._settle_dropped(submission, len(chunks)),
                cancel=lambda _: self._end(submission),
            )
        )

    def _settle_dropped(self, submission: LiveSubmission, count: int) -> None:
        row = submission.row
        submission.dead -= count
        submission.row = row._replace(
            chunks_skipped=row.chunks_skipped + count, chunks_dropped=row.chunks_dropped + count
        )
        self._end(submission)

    # --- one batch ---

    def _begin(self, submission: LiveSubmission) -> None:
        """Dead chunks of a submission change with the batch: it stays in memory, and other requests wait."""
        self._busy.add(submission.id)
        submission.pins += 1

    def _end(self, submission: LiveSubmission) -> None:
        self._busy.discard(submission.id)
        submission.pins -= 1
        self._state.forget_if_over(submission)
