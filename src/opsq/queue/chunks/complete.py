"""Completed chunks: what a completion means, also a late or repeated one, and the row of history that it becomes.

Validates requests against facts and intents and adds entries to the batch; facts change when it settles. A right token
for an unfinished chunk is accepted even when it comes late. Must not know failures.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from opsq.clock import Now
from opsq.queue.batch import Batch
from opsq.queue.chunks.attempts import held_s, wait_s
from opsq.queue.chunks.refusals import refusal
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.folding import Folding
from opsq.queue.live_submission import BlockWork, LiveSubmission, Part, Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import history
from opsq.store.history import HistoryRow
from opsq.wire.messages import NO_RESULTS, Completion, Created, Refusal


class Completions:
    """Decides what completions mean.

    Args:
        end: ends a submission, in a state, for a reason.
        on_completed: notified of chunks whose completion was committed.
        follow: makes the follow-ups of a completion.
    """

    def __init__(
        self,
        state: EngineState,
        reservations: Reservations,
        folding: Folding,
        end: Callable[[LiveSubmission, str, str, Now], None],
        on_completed: Callable[[LiveSubmission, BlockWork, int], None],
        follow: Callable[[Peer, Completion, Now], list[Created]],
    ) -> None:
        self._state = state
        self._reservations = reservations
        self._folding = folding
        self._end = end
        self._on_completed = on_completed
        self.follow = follow
        self._batch: Batch | None = None
        self._open: dict[tuple[BlockWork, int, int, int | None, str], Completed] = {}
        """Completions of that batch by block, reservation, attempt, exit status, consumer: equal ones are one row."""

    def complete(
        self,
        peer: Peer,
        completions: list[Completion],
        refusals: list[Refusal],
        created: list[Created],
        now: Now,
    ) -> list[Completion]:
        """Complete chunks; what cannot be is added to `refusals`, follow-ups to `created`, the rest goes on.

        Returns:
            The completions of chunks about which something else is being committed: only then can they be judged.

        Cost: a few microseconds a block, whatever the backlog; one appended row.
        """
        undecided = []
        for completion in completions:
            held = completion.held
            part = self._reservations.find(held)
            if part is not None and part.submission.is_open and not held.mask & ~(part.mask & ~part.work.settling):
                self._accept(part.submission, part.work, held.mask, part, completion, peer, created, now)
            elif not self._complete_late(peer, completion, refusals, created, now):
                undecided.append(completion)
        return undecided

    def _complete_late(
        self, peer: Peer, completion: Completion, refusals: list[Refusal], created: list[Created], now: Now
    ) -> bool:
        """A completion whose reservation does not hold (all of) its chunks any more.

        False when it cannot be judged yet.
        """
        held = completion.held
        state = self._state
        submission = state.submission(held.submission_id) if self._reservations.tokens.is_genuine(held) else None
        if submission is None or held.block >= submission.blocks_count:
            refusals.append(refusal(self._state, held, held.mask, "reservation_lost"))
            return True
        work = submission.block(state.reader, held.block)
        if held.mask & work.settling:
            return False
        open_mask = held.mask & work.unfinished
        finished = held.mask & ~work.unfinished
        other = finished & ~self._completed_by(submission, work, finished, held.reservation_id)
        if other:
            refusals.append(refusal(self._state, held, other, "already_finished"))
        if open_mask and not submission.is_open:
            refusals.append(refusal(self._state, held, open_mask, "reservation_lost"))
        elif open_mask and open_mask != held.mask and completion.results != NO_RESULTS:
            # Only whole rows of results are stored: the client sends the unfinished chunks again, alone.
            refusals.append(refusal(self._state, held, open_mask, "reservation_lost"))
        elif open_mask:
            self._reservations.touch_leases(work, open_mask)
            self._accept(submission, work, open_mask, self._reservations.find(held), completion, peer, created, now)
        submission.forget_if_plain(work)
        return True

    def _completed_by(self, submission: LiveSubmission, work: BlockWork, mask: int, reservation_id: int) -> int:
        """Which of these finished chunks this reservation completed: a repeated request, to be answered as done."""
        if not mask:
            return 0
        state = self._state
        found = self._folding.completed_under(submission.id, work.index, reservation_id)
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
        peer: Peer,
        created: list[Created],
        now: Now,
    ) -> None:
        batch, held = self._state.batch, completion.held
        reservation = part.reservation if part is not None else None
        work.settling |= mask
        if part is not None and part.reservation.is_lease:
            batch.leased[id(part)] = part
        submission.unfinished -= mask.bit_count()
        if completion.results != NO_RESULTS:
            batch.results.append((submission.id, work.index, mask, completion.results))
        run_s, run_max_s = completion.run_s, completion.run_max_s
        if not run_s and reservation is not None and reservation.is_lease:
            run_max_s = held_s(reservation, now)
            run_s = run_max_s * mask.bit_count()
        key = (work, held.reservation_id, held.attempt, completion.exit_status, peer.consumer)
        if batch is not self._batch:
            self._batch, self._open = batch, {}
        known = self._open.get(key)
        if known is not None and not work.attempts:
            waited_s = 0.0  # handed out together and never failed before, they have waited as long as the first of them
        else:
            waited_s = wait_s(submission, work, mask, reservation)
        if known is not None:
            known.add(mask, part, run_s, run_max_s, waited_s)
        else:
            row = HistoryRow(
                now.wall,
                history.COMPLETED,
                submission.id,
                work.index,
                mask,
                held.attempt,
                held.reservation_id,
                peer.consumer,
                run_s,
                run_max_s,
                waited_s,
                completion.exit_status,
                None,
                "",
            )
            entry = self._open[key] = Completed(self, submission, work, part, reservation, row)
            batch.history.append(row)
            batch.entries.append(entry)
        if completion.then:
            created += self.follow(peer, completion, now)  # before the end: who waits for it sees what has followed
        if not submission.unfinished:
            self._end(submission, "completed", "", now)

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
        self._on_completed(submission, work, mask)

    def _clear_delay(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        hit = work.delayed & mask
        work.delayed &= ~hit
        submission.delayed_count -= hit.bit_count()
        self._state.gates.slot_freed(submission)

    def cancel(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """The batch of a completion is gone."""
        submission.unfinished += mask.bit_count()
        self._reservations.keep_held(submission, work, mask)


class Completed(msgspec.Struct, eq=False):
    """Chunks of a block completed under one reservation in one batch: one row of history for any number of requests."""

    completions: Completions
    submission: LiveSubmission
    work: BlockWork
    part: Part | None
    """Held all of it; None: several parts did, or none."""
    reservation: Reservation | None
    row: HistoryRow

    def add(self, mask: int, part: Part | None, run_s: float, run_max_s: float, wait_s: float) -> None:
        """One more completion that agrees in all that the row tells."""
        if part is not self.part:
            self.part = None
        row = self.row
        row.mask |= mask
        row.run_s += run_s
        row.run_max_s = max(row.run_max_s, run_max_s)
        row.wait_s = max(row.wait_s, wait_s)

    def settle(self, now: Now) -> None:
        """The chunks are done."""
        self.completions.settle_completed(self.submission, self.work, self.row.mask, self.part, self.reservation)

    def cancel(self, now: Now) -> None:
        """They are not, and their requests are refused."""
        mask = self.row.mask
        self.completions.cancel(self.submission, self.work, mask)
