"""Failed and lost chunks: each waits for its back-off, is free again, or is dead.

Validates requests against facts and intents and adds entries to the batch; facts change when it settles. A failure
counts only under a live reservation; failures and losses are counted apart. Must not know completions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from opsq.clock import Now, after
from opsq.ids import mask_indexes
from opsq.queue.batch import Batch
from opsq.queue.chunks.attempts import held_s, tried, wait_s
from opsq.queue.chunks.backoff import backoff_s
from opsq.queue.chunks.refusals import refusal
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import BlockWork, LiveSubmission, Part
from opsq.queue.state import EngineState
from opsq.store import events, history, submissions
from opsq.store.backlog import AttemptRow, DeadRow
from opsq.store.database import Database
from opsq.store.history import HistoryRow
from opsq.wire.messages import AfterFailure, Failure, HeldChunks, Refusal

DEATHS_TOLD = 16
"""Deaths of a submission that are told one by one; then each time that they are twice as many."""
TRIED_ROWS = 2000
"""Rows that one batch writes for failed and lost chunks: what has no room waits for the next."""
_REASON_CHARACTERS = 512
"""A row counts once more for each so many of its reason."""
DUE_LIMIT = 500
"""Blocks brought back by one tick: the attempts of each are read from the file, all in 4 ms."""


class Failures:
    """Decides what failures and losses mean.

    Args:
        end: ends a submission, in a state, for a reason.
    """

    def __init__(
        self, state: EngineState, reservations: Reservations, end: Callable[[LiveSubmission, str, str, Now], None]
    ) -> None:
        self._state = state
        self._reservations = reservations
        self._end = end

    @property
    def has_room(self) -> bool:
        """Whether the batch may count more chunks as failed or lost; the rest is for the next."""
        return self._state.batch.tried_rows < TRIED_ROWS

    def fail(
        self, failures: list[Failure], refusals: list[Refusal], counted: list[AfterFailure], now: Now
    ) -> list[Failure]:
        """Count failed attempts: each chunk waits for its back-off, or dies.

        What is refused, as every failure under a lost reservation is, is added to `refusals`; what becomes of the
        others to `counted`.

        Returns:
            The failures that the batch has no room for.
        """
        for place, failure in enumerate(failures):
            if not self.has_room:
                return failures[place:]
            held = failure.held
            part = self._reservations.find(held)
            mask = held.mask & part.mask & ~part.work.settling if part is not None and part.submission.is_open else 0
            if held.mask & ~mask:
                refusals.append(refusal(self._state, held, held.mask & ~mask, "reservation_lost"))
            if part is not None and mask:
                counted += self._count(part, mask, failure, now)
        return []

    def lose(self, part: Part, mask: int, reason: str, now: Now) -> None:
        """Count a loss: the consumer is gone, or its time is over. The chunks are free again at once, or dead."""
        if not part.submission.is_open:
            if part.reservation.is_lease:
                self._reservations.look_again(
                    part.reservation, now
                )  # its row goes with the end of the submission, if that comes about
            else:
                self._reservations.free(part.submission, part.work, mask)
            return
        held = HeldChunks(
            part.submission.id, part.work.index, mask, part.reservation.id, part.attempt, part.granted, part.mac
        )
        self._count(part, mask, Failure(held, reason, delay_s=0.0), now, is_loss=True)

    def _count(self, part: Part, mask: int, failure: Failure, now: Now, *, is_loss: bool = False) -> list[AfterFailure]:
        state, submission, work = self._state, part.submission, part.work
        batch = state.batch
        work.settling |= mask
        self._reservations.touch_leases(work, mask)
        before = submission.attempts_of(state.reader, work)
        waited_s = wait_s(submission, work, mask, part.reservation)
        _, new = tried(before, mask, attempts=int(not is_loss), lost=int(is_loss), due_at=0, delay_ms=0)
        dead_mask = 0
        counted: list[AfterFailure] = []
        max_attempts = submission.row.max_attempts
        for row in new:
            delay_s: float | None = None
            if failure.is_final or row.attempts >= max_attempts or row.lost >= submission.row.max_lost:
                dead_mask |= row.mask
                batch.dead += [
                    DeadRow(
                        submission.id,
                        index,
                        row.attempts,
                        row.lost,
                        now.wall,
                        failure.reason,
                        failure.exit_status,
                        failure.signal,
                    )
                    for index in mask_indexes(work.index, row.mask)
                ]
            else:
                delay_s = failure.delay_s
                if delay_s is None:
                    delay_s = backoff_s(submission.backoff, row.attempts, state.rng)
                delay_ms = int(delay_s * 1000)
                due_at = now.wall + delay_ms
                work.attempts, _ = tried(
                    submission.attempts_of(state.reader, work),
                    row.mask,
                    attempts=int(not is_loss),
                    lost=int(is_loss),
                    due_at=due_at,
                    delay_ms=delay_ms,
                )
                batch.tried[submission.id, work.index] = (submission, work)
                self._add_tried(submission, work, row, delay_s, before)
            counted.append(AfterFailure(submission.id, work.index, row.mask, row.attempts, max_attempts, delay_s))
        self._record(part, mask, history.LOST if is_loss else history.FAILED, failure, waited_s, now)
        rows_count = (1 if is_loss else mask.bit_count()) + 2 * dead_mask.bit_count()
        batch.tried_rows += rows_count * (1 + len(failure.reason) // _REASON_CHARACTERS)
        if dead_mask:
            self._bury(part, dead_mask, failure, waited_s, now)
        return counted

    def _bury(self, part: Part, mask: int, failure: Failure, waited_s: float, now: Now) -> None:
        submission, work, count = part.submission, part.work, mask.bit_count()
        batch = self._state.batch
        self._record(part, mask, history.DEAD, failure, waited_s, now)
        submission.unfinished -= count
        batch.count(submission.lanes, (0, 0, 0, count, 0))
        index = next(mask_indexes(work.index, mask))
        event = events.new(now.wall, history.DEAD, submission.id, failure.reason, chunk=index)

        def write(database: Database, _: Batch) -> None:
            submissions.add_dead(database.writer, submission.id, count)
            dead_count = event.detail.count = submissions.dead_count(database.writer, submission.id)
            event.is_told = _is_notable(dead_count - count, dead_count)

        batch.add(
            lambda _: self._settle_dead(submission, work, mask),
            lambda _: self._cancel_dead(submission, work, mask),
            write,
        )
        batch.events.append(event)
        if not submission.row.keep_on_dead:
            self._end(submission, "failed", f"Chunk {index} is dead: {failure.reason}".strip(), now)
        elif not submission.unfinished:
            self._end(submission, "completed", "", now)

    def _record(self, part: Part, mask: int, event: str, failure: Failure, waited_s: float, now: Now) -> None:
        """A failed attempt is a row of its own; chunks that are lost together are one."""
        run_s = failure.run_s
        if not run_s and (part.reservation.is_lease or event != history.FAILED):
            run_s = held_s(part.reservation, now)
        self._state.batch.history += [
            HistoryRow(
                now.wall,
                event,
                part.submission.id,
                part.work.index,
                hit,
                part.attempt,
                part.reservation.id,
                part.reservation.consumer,
                run_s * hit.bit_count(),
                run_s,
                waited_s,
                failure.exit_status,
                failure.signal,
                failure.reason,
            )
            for hit in (
                (mask,) if event == history.LOST else (1 << index % 64 for index in mask_indexes(part.work.index, mask))
            )
        ]

    def _add_tried(
        self,
        submission: LiveSubmission,
        work: BlockWork,
        row: AttemptRow,
        delay_s: float,
        before: tuple[AttemptRow, ...],
    ) -> None:
        def cancel(_: Now) -> None:
            work.attempts = before  # entries are cancelled last first, so this ends at what the file says
            self._reservations.keep_held(submission, work, row.mask)

        self._state.batch.add(lambda now: self._settle_tried(submission, work, row, delay_s, now), cancel)

    def _settle_tried(
        self, submission: LiveSubmission, work: BlockWork, row: AttemptRow, delay_s: float, now: Now
    ) -> None:
        mask = row.mask
        work.settling &= ~mask
        self._reservations.take_from_holders(submission, work, mask)
        if delay_s and submission.is_open:
            work.delayed |= mask
            submission.delayed_count += mask.bit_count()
            self._state.add_retry(after(now.mono, delay_s), submission, work, row)
            work.rest()
        else:
            self._state.give_back(submission, work)

    def _settle_dead(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        work.settling &= ~mask
        work.done |= mask
        submission.dead += mask.bit_count()
        self._reservations.take_from_holders(submission, work, mask)

    def _cancel_dead(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        submission.unfinished += mask.bit_count()
        self._reservations.keep_held(submission, work, mask)

    def tick(self, now: Now) -> None:
        """Bring back the chunks whose back-off is over."""
        state = self._state
        for submission_id, index, mask, tries in islice(state.retries.take(now.mono), DUE_LIMIT):
            submission = state.live.get(submission_id)
            work = submission.blocks.get(index) if submission is not None else None
            if submission is None or work is None:
                continue
            # A chunk may have been reserved, and have failed again, since this timer was set: then a later one is its
            # own.
            hit = 0
            for row in submission.attempts_of(state.reader, work):
                if row.attempts + row.lost == tries:
                    hit |= work.delayed & mask & row.mask
            if hit:
                work.delayed &= ~hit
                submission.delayed_count -= hit.bit_count()
                state.gates.slot_freed(submission)
                state.give_back(submission, work)


def _is_notable(before: int, count: int) -> bool:
    """Whether people are told that so many chunks of a submission are dead: of 10⁶ deaths in 32 events."""
    return before < DEATHS_TOLD or before.bit_length() < count.bit_length()
