"""What becomes of reserved chunks: completed, failed, lost, dead; and the end of a submission that follows from it.

Validates requests against facts and intents, and adds entries to the batch; facts change when it settles. The rules: a right
token for an unfinished chunk is accepted even when late; a failure counts only under a live reservation; losses and failures count apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from opsq.clock import Now, after
from opsq.ids import mask_indexes
from opsq.queue.chunks.live_submission import BlockWork, LiveSubmission, tried
from opsq.queue.chunks.reservations import Part, Reservation, Reservations
from opsq.queue.state import EngineState
from opsq.store import history, submissions
from opsq.store.backlog import AttemptRow, DeadRow
from opsq.store.history import HistoryRow
from opsq.wire.messages import Completion, Failure, HeldChunks, Refusal

if TYPE_CHECKING:
    from opsq.queue.submissions.finish import Finisher

JITTER = 0.2
_NO_RESULTS = Raw(b"\xc0")


class Outcomes:
    """Decides what the reports of consumers mean."""

    def __init__(self, state: EngineState, reservations: Reservations, finisher: Finisher) -> None:
        self._state = state
        self._reservations = reservations
        self._finisher = finisher

    # --- completed ----------------------------------------------------------------------------------------------------------------

    def complete(
        self, consumer: str, completions: list[Completion], refusals: list[Refusal], now: Now
    ) -> list[Completion]:
        """Complete chunks; what cannot be is added to `refusals`, the rest goes on.

        Returns:
            The completions of chunks about which something else is being committed: only then can they be judged.

        Cost: a few microseconds a block, whatever the backlog; one appended row.
        """
        undecided = []
        for completion in completions:
            held = completion.held
            part = self._reservations.find(held)
            if part is not None and part.submission.is_open and not held.mask & ~(part.mask & ~part.work.settling):
                self._accept(part.submission, part.work, held.mask, part, completion, consumer, now)
            elif not self._complete_late(consumer, completion, refusals, now):
                undecided.append(completion)
        return undecided

    def _complete_late(self, consumer: str, completion: Completion, refusals: list[Refusal], now: Now) -> bool:
        """A completion whose reservation does not hold (all of) its chunks any more; False when it cannot be judged yet."""
        held = completion.held
        state = self._state
        submission = state.submission(held.submission_id) if self._reservations.is_genuine(held) else None
        if submission is None or held.block >= submission.blocks_count:
            refusals.append(self._reservations.refusal(held, held.mask, "reservation_lost"))
            return True
        work = submission.block(state.reader, held.block)
        if held.mask & work.settling:
            return False
        open_mask = held.mask & work.unfinished
        finished = held.mask & ~work.unfinished
        other = finished & ~self._completed_by(submission, work, finished, held.reservation_id)
        if other:
            refusals.append(self._reservations.refusal(held, other, "already_finished"))
        if open_mask and not submission.is_open:
            refusals.append(self._reservations.refusal(held, open_mask, "reservation_lost"))
        elif open_mask and open_mask != held.mask and completion.results != _NO_RESULTS:
            # Only whole rows of results are stored: the client sends the unfinished chunks again, alone.
            refusals.append(self._reservations.refusal(held, open_mask, "reservation_lost"))
        elif open_mask:
            self._reservations.touch_leases(work, open_mask)
            self._accept(submission, work, open_mask, self._reservations.find(held), completion, consumer, now)
        submission.forget_if_plain(work)
        return True

    def _completed_by(self, submission: LiveSubmission, work: BlockWork, mask: int, reservation_id: int) -> int:
        """Which of these finished chunks were completed under this very reservation: a repeated request, to be answered as done."""
        if not mask:
            return 0
        state = self._state
        found = state.folding.completed_under(submission.id, work.index, reservation_id)
        if mask & ~found:
            for row in history.of_block(state.reader, submission.id, work.index):
                if row.event == history.COMPLETED and row.reservation_id == reservation_id:
                    found |= row.mask
        return mask & found

    def _accept(
        self,
        submission: LiveSubmission,
        work: BlockWork,
        mask: int,
        part: Part | None,
        completion: Completion,
        consumer: str,
        now: Now,
    ) -> None:
        batch, held = self._state.batch, completion.held
        work.settling |= mask
        if part is not None and part.reservation.is_lease:
            batch.leased[id(part)] = part
        submission.unfinished -= mask.bit_count()
        if completion.results != _NO_RESULTS:
            batch.results.append((submission.id, work.index, mask, bytes(completion.results)))
        run_s, run_max_s = completion.run_s, completion.run_max_s
        if not run_s and part is not None and part.reservation.is_lease:
            run_max_s = _held_s(part.reservation, now)
            run_s = run_max_s * mask.bit_count()
        key = (work, held.reservation_id, held.attempt, completion.exit_status, consumer)
        known = batch.completed.get(key)
        if known is not None and not work.attempts:
            wait_s = 0.0  # handed out together and never tried in vain, they have waited as long as the first of them
        else:
            wait_s = self._wait_s(submission, work, mask, part.reservation if part is not None else None)
        if known is not None:
            known.add(mask, part, run_s, run_max_s, wait_s)
        else:
            row = HistoryRow(
                now.wall,
                history.COMPLETED,
                submission.id,
                work.index,
                mask,
                held.attempt,
                held.reservation_id,
                consumer,
                run_s,
                run_max_s,
                wait_s,
                completion.exit_status,
                None,
                "",
            )
            entry = batch.completed[key] = Completed(self, submission, work, part, row)
            batch.history.append(row)
            batch.entries.append(entry)
        if not submission.unfinished:
            self._finisher.end(submission, "completed", "", now)

    def settle_completed(
        self, submission: LiveSubmission, work: BlockWork, mask: int, part: Part | None, spared: Reservation | None
    ) -> None:
        """The commit of a completion succeeded; `part` held all of it, unless it is None."""
        work.settling &= ~mask
        work.done |= mask
        submission.completed += mask.bit_count()
        if work.delayed & mask:
            self._clear_delay(submission, work, mask)
        if part is not None and not mask & ~part.mask:
            self._reservations.take(part, mask)
        else:
            self._reservations.take_from_holders(submission, work, mask, code="already_finished", spared=spared)
        self._state.subscriptions.completed(submission, work, mask)

    def _clear_delay(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        hit = work.delayed & mask
        work.delayed &= ~hit
        submission.delayed_count -= hit.bit_count()
        self._state.gates.slot_freed(submission)

    # --- failed -------------------------------------------------------------------------------------------------------------------

    def fail(self, consumer: str, failures: list[Failure], now: Now) -> list[Refusal]:
        """Count failed attempts: each chunk waits for its back-off, or dies. A failure under a lost reservation is refused."""
        refusals: list[Refusal] = []
        for failure in failures:
            held = failure.held
            part = self._reservations.find(held)
            mask = held.mask & part.mask & ~part.work.settling if part is not None and part.submission.is_open else 0
            if held.mask & ~mask:
                refusals.append(self._reservations.refusal(held, held.mask & ~mask, "reservation_lost"))
            if part is not None and mask:
                self._count(part, mask, failure, now)
        return refusals

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

    def _count(self, part: Part, mask: int, failure: Failure, now: Now, *, is_loss: bool = False) -> None:
        state, submission, work = self._state, part.submission, part.work
        batch = state.batch
        work.settling |= mask
        self._reservations.touch_leases(work, mask)
        before = submission.attempts_of(state.reader, work)
        wait_s = self._wait_s(submission, work, mask, part.reservation)
        _, new = tried(before, mask, attempts=int(not is_loss), lost=int(is_loss), due_at=0, delay_ms=0)
        dead_mask = 0
        for row in new:
            if failure.is_final or row.attempts >= submission.row.max_attempts or row.lost >= submission.row.max_lost:
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
                delay_s = 0.0 if is_loss else self._delay_s(submission, row, failure)
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
                batch.entries.append(_Tried(self, submission, work, row, delay_s, before))
        self._record(part, mask, history.LOST if is_loss else history.FAILED, failure, wait_s, now)
        if dead_mask:
            self._bury(part, dead_mask, failure, wait_s, now)

    def _bury(self, part: Part, mask: int, failure: Failure, wait_s: float, now: Now) -> None:
        submission, work, count = part.submission, part.work, mask.bit_count()
        batch = self._state.batch
        self._record(part, mask, history.DEAD, failure, wait_s, now)
        submission.unfinished -= count
        batch.statements.append(lambda database, _: submissions.add_dead(database.writer, submission.id, count))
        batch.count(submission.lanes, (0, 0, 0, count, 0))
        batch.entries.append(_Dead(self, submission, work, mask))
        if not submission.row.keep_on_dead:
            index = next(mask_indexes(work.index, mask))
            self._finisher.end(submission, "failed", f"Chunk {index} is dead: {failure.reason}".strip(), now)
        elif not submission.unfinished:
            self._finisher.end(submission, "completed", "", now)

    def _record(self, part: Part, mask: int, event: str, failure: Failure, wait_s: float, now: Now) -> None:
        """A failed attempt is a row of its own; chunks that are lost together are one."""
        run_s = failure.run_s
        if not run_s and (part.reservation.is_lease or event != history.FAILED):
            run_s = _held_s(part.reservation, now)
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
                wait_s,
                failure.exit_status,
                failure.signal,
                failure.reason,
            )
            for hit in (
                (mask,) if event == history.LOST else (1 << index % 64 for index in mask_indexes(part.work.index, mask))
            )
        ]

    @staticmethod
    def _wait_s(submission: LiveSubmission, work: BlockWork, mask: int, reservation: Reservation | None) -> float:
        """How long chunks that were handed out together waited for that, by the wall clock; of several, the one that waited longest.

        A chunk waits from when it may be handed out: it was submitted, or its submission was not before due (`--at`, `--delay`) or was
        revived; after a failure its back-off is over, after a loss it is free again, after its death it is requeued. 0 when nobody knows:
        the reservation is over, or was taken up again.
        """
        if reservation is None:
            return 0.0
        row = submission.row
        since = max(row.submitted_at, row.not_before_at or 0, row.revived_at or 0)
        tries = work.attempts
        if tries:
            hits = [(one.mask & mask, one.due_at) for one in tries if one.mask & mask]
            if sum(hit for hit, _ in hits) == mask:
                since = max(since, min(due_at for _, due_at in hits))
        return max(0.0, (reservation.granted_at.wall - since) / 1000)

    def _delay_s(self, submission: LiveSubmission, row: AttemptRow, failure: Failure) -> float:
        if failure.delay_s is not None:
            return failure.delay_s
        backoff = submission.backoff
        exponent = min(row.attempts - 1, 64)  # clamp first, then multiply: 2.0 ** 1024 overflows
        delay_s = min(backoff.base_s * backoff.factor**exponent, backoff.max_s)
        return delay_s * (1 + self._state.rng.uniform(-JITTER, JITTER))

    def settle_tried(
        self, submission: LiveSubmission, work: BlockWork, row: AttemptRow, delay_s: float, now: Now
    ) -> None:
        """The commit of a failed or lost attempt succeeded."""
        mask = row.mask
        work.settling &= ~mask
        self._reservations.take_from_holders(submission, work, mask)
        if delay_s and submission.is_open:
            work.delayed |= mask
            submission.delayed_count += mask.bit_count()
            self._state.add_retry(after(now.mono, delay_s), submission, work, row)
        else:
            self._state.give_back(submission, work)

    def settle_dead(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """The commit of a death succeeded."""
        work.settling &= ~mask
        work.done |= mask
        submission.dead += mask.bit_count()
        self._reservations.take_from_holders(submission, work, mask)

    def cancel(self, submission: LiveSubmission, work: BlockWork, mask: int, *, unfinished: int = 0) -> None:
        """The batch of an outcome is gone: chunks that are still held stay so, those that nobody holds any more are free."""
        work.settling &= ~mask
        submission.unfinished += unfinished
        for part in list(work.parts):
            if part.mask & mask:
                self._reservations.still_held(part, mask)
        self._state.give_back(submission, work)

    def tick(self, now: Now) -> None:
        """Bring back the chunks whose back-off is over."""
        state = self._state
        for submission_id, index, mask, tries in state.retries.take(now.mono):
            submission = state.live.get(submission_id)
            work = submission.blocks.get(index) if submission is not None else None
            if submission is None or work is None:
                continue
            # A chunk may have been taken up, and have failed again, since this timer was set: then a later one is its own.
            hit = 0
            for row in submission.attempts_of(state.reader, work):
                if row.attempts + row.lost == tries:
                    hit |= work.delayed & mask & row.mask
            if hit:
                work.delayed &= ~hit
                submission.delayed_count -= hit.bit_count()
                state.gates.slot_freed(submission)
                state.give_back(submission, work)


def _held_s(reservation: Reservation, now: Now) -> float:
    """How long a reservation has been held: what is taken for the run time where nobody has measured one."""
    return (now.mono - reservation.granted_at.mono) / 1e9


class Completed:
    """Chunks of one block that were completed under one reservation, all in one batch: one row of history, however many requests."""

    __slots__ = ("_outcomes", "_part", "_reservation", "_row", "_submission", "_work")

    def __init__(
        self, outcomes: Outcomes, submission: LiveSubmission, work: BlockWork, part: Part | None, row: HistoryRow
    ) -> None:
        self._outcomes = outcomes
        self._submission = submission
        self._work = work
        self._part = part
        self._reservation = part.reservation if part is not None else None
        self._row = row

    def add(self, mask: int, part: Part | None, run_s: float, run_max_s: float, wait_s: float) -> None:
        """One more completion that agrees in all that the row tells."""
        if part is not self._part:
            self._part = None
        row = self._row
        row.mask |= mask
        row.run_s += run_s
        row.run_max_s = max(row.run_max_s, run_max_s)
        row.wait_s = max(row.wait_s, wait_s)

    def settle(self, now: Now) -> None:
        """The chunks are done."""
        self._outcomes.settle_completed(self._submission, self._work, self._row.mask, self._part, self._reservation)

    def cancel(self, now: Now) -> None:
        """They are not, and their requests are refused."""
        mask = self._row.mask
        self._outcomes.cancel(self._submission, self._work, mask, unfinished=mask.bit_count())


class _Tried:
    __slots__ = ("_before", "_delay_s", "_outcomes", "_row", "_submission", "_work")

    def __init__(
        self,
        outcomes: Outcomes,
        submission: LiveSubmission,
        work: BlockWork,
        row: AttemptRow,
        delay_s: float,
        before: tuple[AttemptRow, ...],
    ) -> None:
        self._outcomes = outcomes
        self._submission = submission
        self._work = work
        self._row = row
        self._delay_s = delay_s
        self._before = before

    def settle(self, now: Now) -> None:
        self._outcomes.settle_tried(self._submission, self._work, self._row, self._delay_s, now)

    def cancel(self, now: Now) -> None:
        self._work.attempts = self._before  # entries are cancelled last first, so this ends at what the file says
        self._outcomes.cancel(self._submission, self._work, self._row.mask)


class _Dead:
    __slots__ = ("_mask", "_outcomes", "_submission", "_work")

    def __init__(self, outcomes: Outcomes, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        self._outcomes = outcomes
        self._submission = submission
        self._work = work
        self._mask = mask

    def settle(self, now: Now) -> None:
        self._outcomes.settle_dead(self._submission, self._work, self._mask)

    def cancel(self, now: Now) -> None:
        self._outcomes.cancel(self._submission, self._work, self._mask, unfinished=self._mask.bit_count())
