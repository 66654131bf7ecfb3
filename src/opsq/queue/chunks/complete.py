"""What becomes of reserved chunks: completed, failed, lost, dead; and the end of a submission that follows from it.

Validates requests against facts and intents, and adds entries to the batch; facts change when it settles. The rules of design §7: a right
token for an unfinished chunk is accepted even when late; a failure counts only under a live reservation; losses and failures count apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from opsq.clock import Now, after
from opsq.ids import mask_indexes
from opsq.queue.chunks.live_submission import BlockWork, Supply, tried
from opsq.queue.chunks.reservations import Part, Reservation, Reservations
from opsq.queue.state import Core
from opsq.store import history, submissions
from opsq.store.backlog import AttemptRow, DeadRow
from opsq.store.history import HistoryRow
from opsq.wire.messages import Completion, Failure, HeldChunks, Refusal

if TYPE_CHECKING:
    from opsq.queue.submissions.finish import Endings

JITTER = 0.2
_NO_RESULTS = Raw(b"\xc0")


class Outcomes:
    """Decides what the reports of consumers mean."""

    def __init__(self, core: Core, reservations: Reservations, endings: Endings) -> None:
        self._core = core
        self._reservations = reservations
        self._endings = endings

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
            if part is not None and part.supply.is_open and not held.mask & ~(part.mask & ~part.work.settling):
                self._accept(part.supply, part.work, held.mask, part, completion, consumer, now)
            elif not self._complete_late(consumer, completion, refusals, now):
                undecided.append(completion)
        return undecided

    def _complete_late(self, consumer: str, completion: Completion, refusals: list[Refusal], now: Now) -> bool:
        """A completion whose reservation does not hold (all of) its chunks any more; False when it cannot be judged yet."""
        held = completion.held
        core = self._core
        supply = core.supply(held.submission_id) if self._reservations.is_genuine(held) else None
        if supply is None or held.block >= supply.blocks_count:
            refusals.append(self._reservations.refusal(held, held.mask, "reservation_lost"))
            return True
        work = supply.block(core.reader, held.block)
        if held.mask & work.settling:
            return False
        open_mask = held.mask & work.unfinished
        finished = held.mask & ~work.unfinished
        other = finished & ~self._completed_by(supply, work, finished, held.reservation_id)
        if other:
            refusals.append(self._reservations.refusal(held, other, "already_finished"))
        if open_mask and not supply.is_open:
            refusals.append(self._reservations.refusal(held, open_mask, "reservation_lost"))
        elif open_mask and open_mask != held.mask and completion.results != _NO_RESULTS:
            # Only whole rows of results are stored: the client sends the unfinished chunks again, alone.
            refusals.append(self._reservations.refusal(held, open_mask, "reservation_lost"))
        elif open_mask:
            self._reservations.touch_leases(work, open_mask)
            self._accept(supply, work, open_mask, self._reservations.find(held), completion, consumer, now)
        supply.forget_if_plain(work)
        return True

    def _completed_by(self, supply: Supply, work: BlockWork, mask: int, reservation_id: int) -> int:
        """Which of these finished chunks were completed under this very reservation: a repeated request, to be answered as done."""
        if not mask:
            return 0
        core = self._core
        found = core.folding.completed_under(supply.id, work.index, reservation_id)
        if mask & ~found:
            for row in history.of_block(core.reader, supply.id, work.index):
                if row.event == history.COMPLETED and row.reservation_id == reservation_id:
                    found |= row.mask
        return mask & found

    def _accept(
        self,
        supply: Supply,
        work: BlockWork,
        mask: int,
        part: Part | None,
        completion: Completion,
        consumer: str,
        now: Now,
    ) -> None:
        batch, held = self._core.batch, completion.held
        work.settling |= mask
        if part is not None and part.reservation.is_lease:
            batch.leased[id(part)] = part
        supply.unfinished -= mask.bit_count()
        if completion.results != _NO_RESULTS:
            batch.results.append((supply.id, work.index, mask, bytes(completion.results)))
        run_s, run_max_s = completion.run_s, completion.run_max_s
        if not run_s and part is not None and part.reservation.is_lease:
            run_max_s = _held_s(part.reservation, now)
            run_s = run_max_s * mask.bit_count()
        key = (work, held.reservation_id, held.attempt, completion.exit_status, consumer)
        known = batch.completed.get(key)
        if known is not None and not work.attempts:
            wait_s = 0.0  # handed out together and never tried in vain, they have waited as long as the first of them
        else:
            wait_s = self._wait_s(supply, work, mask, part.reservation if part is not None else None)
        if known is not None:
            known.add(mask, part, run_s, run_max_s, wait_s)
        else:
            row = HistoryRow(
                now.wall,
                history.COMPLETED,
                supply.id,
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
            entry = batch.completed[key] = Completed(self, supply, work, part, row)
            batch.history.append(row)
            batch.entries.append(entry)
        if not supply.unfinished:
            self._endings.end(supply, "completed", "", now)

    def settle_completed(
        self, supply: Supply, work: BlockWork, mask: int, part: Part | None, spared: Reservation | None
    ) -> None:
        """The commit of a completion succeeded; `part` held all of it, unless it is None."""
        work.settling &= ~mask
        work.done |= mask
        supply.completed += mask.bit_count()
        if work.delayed & mask:
            self._clear_delay(supply, work, mask)
        if part is not None and not mask & ~part.mask:
            self._reservations.take(part, mask)
        else:
            self._reservations.take_from_holders(supply, work, mask, code="already_finished", spared=spared)
        self._core.watched.completed(supply, work, mask)

    def _clear_delay(self, supply: Supply, work: BlockWork, mask: int) -> None:
        hit = work.delayed & mask
        work.delayed &= ~hit
        supply.delayed_count -= hit.bit_count()
        self._core.gates.slot_freed(supply)

    # --- failed -------------------------------------------------------------------------------------------------------------------

    def fail(self, consumer: str, failures: list[Failure], now: Now) -> list[Refusal]:
        """Count failed attempts: each chunk waits for its back-off, or dies. A failure under a lost reservation is refused."""
        refusals: list[Refusal] = []
        for failure in failures:
            held = failure.held
            part = self._reservations.find(held)
            mask = held.mask & part.mask & ~part.work.settling if part is not None and part.supply.is_open else 0
            if held.mask & ~mask:
                refusals.append(self._reservations.refusal(held, held.mask & ~mask, "reservation_lost"))
            if part is not None and mask:
                self._count(part, mask, failure, now)
        return refusals

    def lose(self, part: Part, mask: int, reason: str, now: Now) -> None:
        """Count a loss: the consumer is gone, or its time is over. The chunks are free again at once, or dead."""
        if not part.supply.is_open:
            if part.reservation.is_lease:
                self._reservations.look_again(
                    part.reservation, now
                )  # its row goes with the end of the submission, if that comes about
            else:
                self._reservations.free(part.supply, part.work, mask)
            return
        held = HeldChunks(
            part.supply.id, part.work.index, mask, part.reservation.id, part.attempt, part.granted, part.mac
        )
        self._count(part, mask, Failure(held, reason, delay_s=0.0), now, is_loss=True)

    def _count(self, part: Part, mask: int, failure: Failure, now: Now, *, is_loss: bool = False) -> None:
        core, supply, work = self._core, part.supply, part.work
        batch = core.batch
        work.settling |= mask
        self._reservations.touch_leases(work, mask)
        before = supply.attempts_of(core.reader, work)
        wait_s = self._wait_s(supply, work, mask, part.reservation)
        _, new = tried(before, mask, attempts=int(not is_loss), lost=int(is_loss), due_at=0, delay_ms=0)
        dead_mask = 0
        for row in new:
            if failure.is_final or row.attempts >= supply.row.max_attempts or row.lost >= supply.row.max_lost:
                dead_mask |= row.mask
                batch.dead += [
                    DeadRow(
                        supply.id,
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
                delay_s = 0.0 if is_loss else self._delay_s(supply, row, failure)
                delay_ms = int(delay_s * 1000)
                due_at = now.wall + delay_ms
                work.attempts, _ = tried(
                    supply.attempts_of(core.reader, work),
                    row.mask,
                    attempts=int(not is_loss),
                    lost=int(is_loss),
                    due_at=due_at,
                    delay_ms=delay_ms,
                )
                batch.tried[supply.id, work.index] = (supply, work)
                batch.entries.append(_Tried(self, supply, work, row, delay_s, before))
        self._record(part, mask, history.LOST if is_loss else history.FAILED, failure, wait_s, now)
        if dead_mask:
            self._bury(part, dead_mask, failure, wait_s, now)

    def _bury(self, part: Part, mask: int, failure: Failure, wait_s: float, now: Now) -> None:
        supply, work, count = part.supply, part.work, mask.bit_count()
        batch = self._core.batch
        self._record(part, mask, history.DEAD, failure, wait_s, now)
        supply.unfinished -= count
        batch.statements.append(lambda database, _: submissions.add_dead(database.writer, supply.id, count))
        batch.count(supply.lanes, (0, 0, 0, count, 0))
        batch.entries.append(_Dead(self, supply, work, mask))
        if not supply.row.keep_on_dead:
            index = next(mask_indexes(work.index, mask))
            self._endings.end(supply, "failed", f"Chunk {index} is dead: {failure.reason}".strip(), now)
        elif not supply.unfinished:
            self._endings.end(supply, "completed", "", now)

    def _record(self, part: Part, mask: int, event: str, failure: Failure, wait_s: float, now: Now) -> None:
        """A failed attempt is a row of its own; chunks that are lost together are one."""
        run_s = failure.run_s
        if not run_s and (part.reservation.is_lease or event != history.FAILED):
            run_s = _held_s(part.reservation, now)
        self._core.batch.history += [
            HistoryRow(
                now.wall,
                event,
                part.supply.id,
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
    def _wait_s(supply: Supply, work: BlockWork, mask: int, reservation: Reservation | None) -> float:
        """How long chunks that were handed out together waited for that, by the wall clock; of several, the one that waited longest.

        A chunk waits from when it may be handed out: it was submitted, or its submission was not before due (`--at`, `--delay`) or was
        revived; after a failure its back-off is over, after a loss it is free again, after its death it is requeued. 0 when nobody knows:
        the reservation is over, or was taken up again.
        """
        if reservation is None:
            return 0.0
        row = supply.row
        since = max(row.submitted_at, row.not_before_at or 0, row.revived_at or 0)
        tries = work.attempts
        if tries:
            hits = [(one.mask & mask, one.due_at) for one in tries if one.mask & mask]
            if sum(hit for hit, _ in hits) == mask:
                since = max(since, min(due_at for _, due_at in hits))
        return max(0.0, (reservation.granted_at.wall - since) / 1000)

    def _delay_s(self, supply: Supply, row: AttemptRow, failure: Failure) -> float:
        if failure.delay_s is not None:
            return failure.delay_s
        backoff = supply.backoff
        exponent = min(row.attempts - 1, 64)  # clamp first, then multiply: 2.0 ** 1024 overflows
        delay_s = min(backoff.base_s * backoff.factor**exponent, backoff.max_s)
        return delay_s * (1 + self._core.rng.uniform(-JITTER, JITTER))

    def settle_tried(self, supply: Supply, work: BlockWork, row: AttemptRow, delay_s: float, now: Now) -> None:
        """The commit of a failed or lost attempt succeeded."""
        mask = row.mask
        work.settling &= ~mask
        self._reservations.take_from_holders(supply, work, mask)
        if delay_s and supply.is_open:
            work.delayed |= mask
            supply.delayed_count += mask.bit_count()
            self._core.add_retry(after(now.mono, delay_s), supply, work, row)
        else:
            self._core.give_back(supply, work)

    def settle_dead(self, supply: Supply, work: BlockWork, mask: int) -> None:
        """The commit of a death succeeded."""
        work.settling &= ~mask
        work.done |= mask
        supply.dead += mask.bit_count()
        self._reservations.take_from_holders(supply, work, mask)

    def cancel(self, supply: Supply, work: BlockWork, mask: int, *, unfinished: int = 0) -> None:
        """The batch of an outcome is gone: chunks that are still held stay so, those that nobody holds any more are free."""
        work.settling &= ~mask
        supply.unfinished += unfinished
        for part in list(work.parts):
            if part.mask & mask:
                self._reservations.still_held(part, mask)
        self._core.give_back(supply, work)

    def tick(self, now: Now) -> None:
        """Bring back the chunks whose back-off is over."""
        core = self._core
        for submission_id, index, mask, tries in core.retries.take(now.mono):
            supply = core.supplies.get(submission_id)
            work = supply.blocks.get(index) if supply is not None else None
            if supply is None or work is None:
                continue
            # A chunk may have been taken up, and have failed again, since this timer was set: then a later one is its own.
            hit = 0
            for row in supply.attempts_of(core.reader, work):
                if row.attempts + row.lost == tries:
                    hit |= work.delayed & mask & row.mask
            if hit:
                work.delayed &= ~hit
                supply.delayed_count -= hit.bit_count()
                core.gates.slot_freed(supply)
                core.give_back(supply, work)


def _held_s(reservation: Reservation, now: Now) -> float:
    """How long a reservation has been held: what is taken for the run time where nobody has measured one."""
    return (now.mono - reservation.granted_at.mono) / 1e9


class Completed:
    """Chunks of one block that were completed under one reservation, all in one batch: one row of history, however many requests."""

    __slots__ = ("_outcomes", "_part", "_reservation", "_row", "_supply", "_work")

    def __init__(self, outcomes: Outcomes, supply: Supply, work: BlockWork, part: Part | None, row: HistoryRow) -> None:
        self._outcomes = outcomes
        self._supply = supply
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
        self._outcomes.settle_completed(self._supply, self._work, self._row.mask, self._part, self._reservation)

    def cancel(self, now: Now) -> None:
        """They are not, and their requests are refused."""
        mask = self._row.mask
        self._outcomes.cancel(self._supply, self._work, mask, unfinished=mask.bit_count())


class _Tried:
    __slots__ = ("_before", "_delay_s", "_outcomes", "_row", "_supply", "_work")

    def __init__(
        self,
        outcomes: Outcomes,
        supply: Supply,
        work: BlockWork,
        row: AttemptRow,
        delay_s: float,
        before: tuple[AttemptRow, ...],
    ) -> None:
        self._outcomes = outcomes
        self._supply = supply
        self._work = work
        self._row = row
        self._delay_s = delay_s
        self._before = before

    def settle(self, now: Now) -> None:
        self._outcomes.settle_tried(self._supply, self._work, self._row, self._delay_s, now)

    def cancel(self, now: Now) -> None:
        self._work.attempts = self._before  # entries are cancelled last first, so this ends at what the file says
        self._outcomes.cancel(self._supply, self._work, self._row.mask)


class _Dead:
    __slots__ = ("_mask", "_outcomes", "_supply", "_work")

    def __init__(self, outcomes: Outcomes, supply: Supply, work: BlockWork, mask: int) -> None:
        self._outcomes = outcomes
        self._supply = supply
        self._work = work
        self._mask = mask

    def settle(self, now: Now) -> None:
        self._outcomes.settle_dead(self._supply, self._work, self._mask)

    def cancel(self, now: Now) -> None:
        self._outcomes.cancel(self._supply, self._work, self._mask, unfinished=self._mask.bit_count())
