"""What must come out of the engine, said as plainly as possible: one object a chunk, lists and loops, nothing clever.

The model never looks into the engine. A change that waits for its commit is an intent: it is noted on what it concerns
at once, and made, or undone, when the batch in which it travels has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.clock import Now
from opsq.queue.timers import BUCKET_NS
from opsq.wire import messages as m
from unit.model.rig import Ticket
from unit.model.things import FINAL, HEARTBEAT_S, SECOND, Chunk, Intents, Leased, Reservation, Submission, Target
from unit.model.waiting_ones import WaitingOnes
from unit.model.working import Working


class Model(Working):
    """Everything there is."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = WaitingOnes(self.submissions)
        self.wall = 0  # when the engine was asked last

    def tell(self) -> None:
        """The batch tells more of those who wait."""
        wall = self.wall
        self.forming.changes.append((lambda _: self.waiting.tell(wall), lambda _: None))

    # --- submissions ---

    def submit(self, new: m.NewSubmission, submission_id: int, now: Now) -> None:
        submission = Submission(submission_id, new, "open")
        submission.chunks = [Chunk(submission, index) for index in range(new.chunks_count)]
        submission.not_before_at = now.wall + int(new.delay_s * 1000) if new.delay_s is not None else new.not_before_at
        submission.expires_at = now.wall + int(new.expires_s * 1000) if new.expires_s is not None else new.expires_at
        if not new.chunks_count:
            submission.state = "completed"
        elif submission.not_before_at is not None and submission.not_before_at > now.wall:
            submission.state = "scheduled"
        wall = now.wall
        self.coming[submission_id] = submission
        self.forming.submitted.append(submission_id)

        def settle(now: Now) -> None:
            self.submissions[submission_id] = submission
            self.coming.pop(submission_id, None)
            if new.delay_s is not None:
                submission.opens = now.mono + int(new.delay_s * SECOND)
            if new.expires_s is not None:
                submission.expires = now.mono + int(new.expires_s * SECOND)
            self.waiting.come(submission, wall)

        self.forming.changes.append((settle, lambda now: self._forget(submission_id)))

    def waited_for(self) -> set[Target]:
        """What somebody waits for, or will."""
        known = {target for submission in self.submissions.values() for target in submission.waits}
        return known | {one.submission_id or "k" for submission in self.coming.values() for one in submission.new.after}

    def _forget(self, submission_id: int) -> None:
        del self.coming[submission_id]

    def end(self, submission: Submission, state: str) -> None:
        submission.is_closing = True
        wall = self.wall

        def settle(now: Now) -> None:
            submission.is_closing = False
            if submission.state in FINAL:
                return  # what it waited for has ended it
            submission.state = state
            submission.skip_all()
            self.waiting.end(submission, wall)

        def undo(now: Now) -> None:
            submission.is_closing = False
            if state == "expired" and submission.new.expires_s is not None:
                submission.expires = now.mono + SECOND

        self.forming.changes.append((settle, undo))

    def cancel(self, submission_id: int) -> int:
        submission = self.submissions[submission_id]
        if submission.state in FINAL or submission.is_closing:
            return 0
        self.end(submission, "cancelled")
        return 1

    def remove(self, submission_id: int) -> None:
        submission = self.submissions[submission_id]
        submission.is_closing = True

        def settle(now: Now) -> None:
            del self.submissions[submission_id]

        def undo(now: Now) -> None:
            submission.is_closing = False

        self.forming.changes.append((settle, undo))

    def refusal_of_requeue(self, submission_id: int, indexes: list[int] | None) -> str | None:
        """The code with which a requeue of one submission, of which nothing was done yet, is refused.

        None: it is not.
        """
        submission = self.submissions.get(submission_id)
        if submission is None:
            return "not_found"
        dead = {chunk.index for chunk in submission.chunks if chunk.state == "dead" and not chunk.is_requeued}
        if indexes is not None and set(indexes) - dead:
            return "conflict"
        if submission.is_closing:
            return "conflict"
        return "conflict" if submission.state in FINAL and self._misses_key(submission) else None

    def _misses_key(self, submission: Submission) -> bool:
        return submission.new.unique_key is not None and self.holder_of(submission.new.unique_key) is not None

    def requeue(self, submission_id: int, indexes: list[int]) -> int:
        """Dead chunks have new attempts with the next batch, and their submission lives again.

        How many chunks that frees.
        """
        submission = self.submissions[submission_id]
        again = [submission.chunks[index] for index in indexes]
        assert all(chunk.state == "dead" and not chunk.is_requeued for chunk in again)
        is_final = submission.state in FINAL
        skipped = [chunk for chunk in submission.chunks if chunk.state == "skipped"] if is_final else []
        assert not submission.is_closing
        assert not (is_final and self._misses_key(submission))
        submission.is_closing = submission.is_reviving = is_final
        for chunk in again:
            chunk.is_requeued = True

        def settle(now: Now) -> None:
            submission.is_reviving = False
            for chunk in again:
                chunk.is_requeued = False
                chunk.state, chunk.attempts, chunk.lost, chunk.due_at, chunk.delay_ms = "free", 0, 0, 0, 0
            if is_final:
                submission.state, submission.is_closing = "open", False
                submission.expires = submission.expires_at = None
                for chunk in skipped:
                    self._wake(chunk, now)

        def undo(now: Now) -> None:
            if is_final:
                submission.is_closing = submission.is_reviving = False
            for chunk in again:
                chunk.is_requeued = False

        self.forming.changes.append((settle, undo))
        return len(again) + len(skipped)

    def drop(self, submission_id: int, indexes: list[int]) -> int:
        """Dead chunks are given up with the next batch."""
        gone = [self.submissions[submission_id].chunks[index] for index in indexes]
        assert all(chunk.state == "dead" and not chunk.is_requeued for chunk in gone)
        for chunk in gone:
            chunk.is_requeued = True

        def settle(now: Now) -> None:
            for chunk in gone:
                chunk.is_requeued, chunk.state = False, "dropped"

        def undo(now: Now) -> None:
            for chunk in gone:
                chunk.is_requeued = False

        self.forming.changes.append((settle, undo))
        return len(gone)

    def holder_of(self, unique_key: str) -> int | None:
        """The unfinished submission with a unique key; also one whose end, or whose revival, is not committed yet."""
        for submission in self.submissions.values():
            if submission.new.unique_key == unique_key and (submission.state not in FINAL or submission.is_reviving):
                return submission.id
        for coming in self.coming.values():  # what it waits for is known once it is there
            if coming.new.unique_key == unique_key and (coming.state not in FINAL or coming.new.after):
                return coming.id
        return None

    def known(self, new: m.NewSubmission) -> int | None:
        """The submission that this one would be a repetition of."""
        for submission in [*self.submissions.values(), *self.coming.values()]:
            if submission.new.request_key == new.request_key:
                return submission.id
        return self.holder_of(new.unique_key) if new.unique_key is not None else None

    # --- time ---

    def step(self, step_ms: int) -> None:
        """The engine sees a step of the wall clock.

        The next batch moves stored instants with it that came from durations before it.
        """
        before = {*self.submissions, *self.coming}

        def settle(now: Now) -> None:
            for submission in [one for submission_id, one in self.submissions.items() if submission_id in before]:
                if (
                    submission.new.delay_s is not None
                    and submission.not_before_at is not None
                    and submission.state in {"blocked", "scheduled"}
                ):
                    submission.not_before_at += step_ms
                if (
                    submission.new.expires_s is not None
                    and submission.expires_at is not None
                    and submission.state not in FINAL
                ):
                    submission.expires_at += step_ms

        def undo(now: Now) -> None:
            self.missed_step_ms += step_ms

        self.forming.changes.append((settle, undo))

    def tick(self, now: Now) -> None:
        if now.mono - self.last_tick > SECOND + HEARTBEAT_S / 2 * SECOND:
            self.hold_until = now.mono + int(HEARTBEAT_S * SECOND)
        self.last_tick = now.mono
        if not self.is_full:
            self._open_what_is_due(now)
        for chunk in self.chunks():
            if chunk.state == "delayed" and chunk.due <= now.mono:
                chunk.state = "free"

    def tick_behind_schedules(self, now: Now) -> None:
        """The rest of a tick; schedules come before it, and may cancel what would expire. Not on a full disk."""
        self._expire_submissions(now)
        if now.mono >= self.hold_until:
            self._expire_reservations(now)
        self.lose_some(now)

    def _open_what_is_due(self, now: Now) -> None:
        for submission in self.submissions.values():
            is_due = (
                submission.opens <= now.mono
                if submission.opens is not None
                else (submission.not_before_at or 0) <= now.wall
            )
            if submission.state == "scheduled" and is_due and not submission.is_opening:
                if submission.is_closing:
                    submission.opens = now.mono + SECOND if submission.opens is not None else None
                else:
                    self._open(submission)

    def _open(self, submission: Submission) -> None:
        submission.is_opening = True

        def settle(now: Now) -> None:
            submission.is_opening = False
            if submission.state == "scheduled":
                submission.state = "open"

        def undo(now: Now) -> None:
            submission.is_opening = False
            if submission.opens is not None:
                submission.opens = now.mono + SECOND

        self.forming.changes.append((settle, undo))

    def _expire_submissions(self, now: Now) -> None:
        """Times to live come first, then instants: one that expires may end another that waits for it."""
        timed: list[tuple[int, Submission]] = []
        dated: list[tuple[int, Submission]] = []
        for submission in self.submissions.values():
            if submission.state in FINAL or submission.expires_at is None:
                continue
            if submission.expires is None:
                dated.append((submission.expires_at, submission))
            elif submission.expires <= now.mono:
                timed.append((-(-submission.expires // BUCKET_NS), submission))
        for _, submission in sorted(timed, key=lambda pair: pair[0]):
            if submission.is_closing:
                submission.expires = now.mono + SECOND
            else:
                self.end(submission, "expired")
        for expires_at, submission in sorted(dated, key=lambda pair: pair[0]):
            if expires_at <= now.wall and not submission.is_closing:
                self.end(submission, "expired")

    def _expire_reservations(self, now: Now) -> None:
        rung = [one for one in self.reservations().values() if -(-one.alarm // BUCKET_NS) * BUCKET_NS <= now.mono]
        for reservation in sorted(rung, key=lambda one: (-(-one.alarm // BUCKET_NS), one.alarm_order)):
            if reservation.peer in self.heard and not reservation.is_lease:
                heard = self.heard[reservation.peer] + int(reservation.length_s * SECOND)
                reservation.deadline = max(reservation.deadline, heard)
            reservation.set_alarm(reservation.deadline)
            if reservation.deadline <= now.mono:
                reservation.peer = None
                if reservation.is_for_restart:
                    self.release_waiting(reservation)
                self.end_reservation(reservation)

    # --- batches ---

    def begin(self) -> None:
        self.flying, self.forming = self.forming, Intents()
        self.waiting.begin(is_full=self.is_full)
        for chunk in self.chunks():
            is_leased = (
                chunk.reservation is not None and chunk.reservation.is_lease and not chunk.reservation.is_taken_up
            )
            if chunk.reservation is not None and is_leased and not chunk.intent and chunk.submission.is_open:
                assert chunk.ticket is not None
                place = (chunk.reservation.id, chunk.ticket)
                indexes, started = self.flying.leases.get(place, Leased())
                is_started = chunk.reservation.is_for_restart and chunk.is_started
                self.flying.leases[place] = Leased(
                    indexes | {chunk.index}, started | {chunk.index} if is_started else started
                )

    def become_visible(self) -> None:
        """The COMMIT has ended, and the engine has not been told: walks see the new submissions already."""
        assert self.flying is not None
        for submission_id in self.flying.submitted:
            self.submissions[submission_id] = self.coming.pop(submission_id)

    def succeed(self, now: Now, *, had_rows: bool) -> list[Callable[[Now], None]]:
        """The batch is committed; what is to be done right after."""
        assert self.flying is not None
        flying, self.flying = self.flying, None
        if had_rows:
            self.leases = flying.leases
            self.is_full = False
        for settle, _ in flying.changes:
            settle(now)
        self.waiting.settled(now)
        return flying.after + flying.following

    def fail_batch(self, now: Now) -> None:
        """The batch is gone, and with it all that came later."""
        assert self.flying is not None
        forming, self.forming = self.forming, Intents()
        flying, self.flying = self.flying, None
        for lost in (forming, flying):
            for _, undo in reversed(lost.changes):
                undo(now)
        self.is_full = True

    def restart(self, now: Now) -> None:
        """The process was killed: what is left is what was committed."""
        self.forming, self.flying, self.is_full = Intents(), None, False
        self.missed_step_ms = 0  # the new process compares with nothing: it does not know that it is the same boot
        self.coming.clear()
        self.ended.clear()
        self.heard.clear()
        self.hold_until, self.last_tick = now.mono, now.mono
        for submission in self.submissions.values():
            submission.is_closing = submission.is_opening = submission.is_reviving = False
            if submission.new.delay_s is not None and submission.not_before_at is not None:
                submission.opens = now.mono + _rest(submission.not_before_at, submission.new.delay_s, now)
            if submission.new.expires_s is not None and submission.expires_at is not None:
                submission.expires = now.mono + _rest(submission.expires_at, submission.new.expires_s, now)
            for chunk in submission.chunks:
                chunk.intent, chunk.is_requeued = "", False
                chunk.let_go()
                if chunk.state in {"free", "delayed"}:
                    self._wake(chunk, now)

    def restore_lease(
        self,
        reservation_id: int,
        ticket: Ticket,
        leased: Leased,
        deadline_at: int,
        length_ms: int,
        now: Now,
        *,
        for_restart: bool,
    ) -> None:
        """A lease that the file has goes on after a restart."""
        reservation = self.reservations().get(reservation_id)
        if reservation is None:
            self._orders += 1
            deadline = now.mono + min(max(deadline_at - now.wall, 0), length_ms) * 1_000_000
            reservation = Reservation(
                reservation_id, None, True, length_ms / 1000, deadline, self._orders, is_for_restart=for_restart
            )
        reservation.add(ticket, self.named(ticket, sorted(leased.indexes)), is_new=True)
        for chunk in self.named(ticket, leased.started):
            chunk.is_started = True

    def _wake(self, chunk: Chunk, now: Now) -> None:
        """A chunk is read from the file: its back-off goes on, for no longer than its full length."""
        rest_ms = min(max(chunk.due_at - now.wall, 0), chunk.delay_ms)
        chunk.state, chunk.due = ("delayed", now.mono + rest_ms * 1_000_000) if rest_ms else ("free", 0)


def _rest(at: int, length_s: float, now: Now) -> int:
    """What remains of a duration after a restart, in nanoseconds: between nothing and all of it."""
    return min(max(at - now.wall, 0), int(length_s * 1000)) * 1_000_000
