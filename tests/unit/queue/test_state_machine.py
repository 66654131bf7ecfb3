"""The state machine: all that producers, consumers, clocks, disks and crashes can do to the engine, in any order.

Against the model.

After each step the file is sound and says what the model says; every chunk is held once at most; no reply has left
before its commit; orders are those of the naive definition; and nobody is parked while there is something for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from opsq.errors import OpsqError
from opsq.ids import FULL, mask_indexes
from opsq.queue import folding, live_submission, state
from opsq.queue.chunks import dead as dead_chunks
from opsq.queue.chunks import fail, pipelined, reserve
from opsq.queue.dispatch import front
from opsq.queue.engine import Peer
from opsq.queue.schedules import desk
from opsq.queue.submissions import dependencies
from opsq.store import dead, removals
from opsq.wire import messages as m
from unit.model.consuming import numbers, times
from unit.model.rig import Ticket
from unit.model.scheduling import NAMES, TIMINGS, Scheduling
from unit.model.things import FINAL, SECOND, Leased

SMALL = {
    (folding, "SLICE_EVENTS"): 5,
    (folding, "SLICE_GAPS"): 3,
    (folding, "LAZY_EVENTS"): 12,
    (live_submission, "READ_BLOCKS"): 2,
    (front, "WALK_ROWS"): 2,
    (state, "SUBMISSIONS_KEPT"): 3,
    (reserve, "TURN_ROWS"): 2000,
    (pipelined, "TURN_CALLS"): 2,
    (removals, "REMOVE_ROWS"): 2,
    (fail, "TRIED_ROWS"): 5,
    (dead_chunks, "SLICE_CHUNKS"): 2,
    (dead_chunks, "SLICE_SUBMISSIONS"): 1,
    (dead, "SCAN_ROWS"): 3,
    (desk, "LOOK_LIMIT"): 5,
    (desk, "WAITING_LIMIT"): 2,
    (desk, "LATE_MS"): 6_000,
    (dependencies, "SLICE_WAITING"): 2,
}
"""Bounds made so small that the few chunks of a test pass them."""


@pytest.fixture(scope="module", autouse=True)
def small_bounds() -> Iterator[None]:
    """Have every bound met by a few chunks."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in SMALL.items():
            patch.setattr(module, name, value)
        yield


class Machine(Scheduling):
    """Rules do one thing each to the engine and to the model, then compare what both say."""

    # --- producers ---

    @rule(
        chunks_count=st.sampled_from([0, 1, 2, 3, 5, 63, 64, 65, 130, 200, 450]),
        peer=numbers,
        options=st.fixed_dictionaries(
            {
                "priority": st.integers(-1, 1),
                "max_attempts": st.integers(1, 3),
                "max_lost": st.integers(1, 3),
                "keep_on_dead": st.booleans(),
                "reservation_s": st.sampled_from([2.0, 5.0, 60.0]),
                "backoff": st.sampled_from(
                    [m.Backoff(0.5, 2.0, 3.0), m.Backoff(0.0, 1.0, 0.0), m.Backoff(4.0, 3.0, 600.0)]
                ),
            },
            optional={
                "unique_key": st.sampled_from(["u", "v"]),
                "metadata": st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from([1, "a"]), max_size=2),
            },
        ),
        starts=st.sampled_from([None, None, None, "delay_s", "not_before_at"]),
        ends=st.sampled_from([None, None, None, "expires_s", "expires_at"]),
        in_s=times,
        after=st.lists(st.tuples(numbers, st.sampled_from(["completed", "completed", "ended"])), max_size=2),
        waits_for_pair=st.sampled_from([False, False, True]),
        policy=st.sampled_from(["cancel", "run", "keep"]),
    )
    def submit(
        self,
        chunks_count: int,
        peer: int,
        options: dict[str, object],
        starts: str | None,
        ends: str | None,
        in_s: float,
        after: list[tuple[int, str]],
        waits_for_pair: bool,
        policy: str,
    ) -> None:
        if len(self.model.submissions) > 6:
            return
        if self.is_committed:
            options.pop("unique_key", None)  # whose keys are taken is told by the file
        for name in (starts, ends):
            if name is not None:
                options[name] = in_s if name.endswith("_s") else self.now.wall + int(in_s * 1000)
        if "metadata" not in options and not self.is_committed:  # so that no circle can arise
            on = [s.id for s in self.model.submissions.values() if not (s.is_closing and s.state in FINAL)]
            found = [m.Dependency(on[number % len(on)], needs) for number, needs in after if on]
            found += [m.Dependency(key="k", value=1)] * waits_for_pair
            options |= {"after": found, "on_failed_dependency": policy}
        new = msgspec.structs.replace(m.NewSubmission(self.rig.request_key(), chunks_count), **options)
        self._submit(self._peer(peer), [new])

    @initialize(turn_rows=st.sampled_from([6, 2000]))
    def turns_are_short_or_not(self, turn_rows: int) -> None:
        reserve.TURN_ROWS = turn_rows
        self.has_short_turns = turn_rows == 6

    @initialize(keys=st.sampled_from([(), ("submission", "k")]))
    def limits_that_never_bind(self, keys: tuple[str, ...]) -> None:
        """They are there for what they count."""
        for key in keys:
            self.rig.ask(self._peer(0), m.Limit(next(self.rig.ids), key, None, 10_000))

    @initialize(counts=st.lists(st.sampled_from([1, 3, 64, 70, 200]), min_size=1, max_size=3), keeps=st.booleans())
    def begin_with_some_work(self, counts: list[int], keeps: bool) -> None:
        options = {"max_attempts": 2, "max_lost": 2, "reservation_s": 5.0, "keep_on_dead": keeps}
        self._submit(
            self._peer(0),
            [msgspec.structs.replace(m.NewSubmission(self.rig.request_key(), n), **options) for n in counts],
        )
        self.commit()

    @initialize(timings=st.lists(TIMINGS, max_size=2))
    def begin_with_schedules(self, timings: list[dict[str, object]]) -> None:
        for name, timing in zip(NAMES, timings, strict=False):
            self.add_or_edit_schedule(0, name, timing)
        self.commit()

    @rule(peer=numbers, number=numbers, is_unique=st.booleans())
    def submit_again(self, peer: int, number: int, is_unique: bool) -> None:
        """The reply to a submit was lost: it is sent again, with a new one in front."""
        known = [*self.model.submissions.values(), *self.model.coming.values()]
        if known and not (self.is_committed and is_unique):
            again = known[number % len(known)].new
            fresh = m.NewSubmission(self.rig.request_key(), 1, max_attempts=2, max_lost=2, reservation_s=5.0)
            self._submit(self._peer(peer), [fresh, again])

    def _submit(self, peer: Peer, news: list[m.NewSubmission]) -> None:
        request = m.Submit(next(self.rig.ids), news)
        if self.model.is_full and any(self.model.known(new) is None for new in news):
            with pytest.raises(OpsqError):
                self.send(peer, request)
            return

        def is_right(reply: m.Reply) -> bool:
            assert isinstance(reply, m.Submitted)
            for new, created in zip(news, reply.created, strict=True):
                known = self.model.known(new)
                if known is None:
                    assert created.is_new
                    assert created.submission_id > max([*self.model.submissions, *self.model.coming, 0])
                    self.model.submit(new, created.submission_id, self.now)
                elif created != m.Created(known, False):
                    return False
            return True

        self.predicted[request.id] = is_right
        self.send(peer, request)

    @rule(peer=numbers, number=numbers)
    def cancel(self, peer: int, number: int) -> None:
        submission_id = self._submission(number)
        if submission_id is not None:
            count = self.model.cancel(submission_id)
            self._ask(self._peer(peer), m.Cancel(next(self.rig.ids), submission_id), lambda reply: reply.count == count)

    @rule(peer=numbers, number=numbers, chunk=st.none() | numbers, kind=st.sampled_from([m.Requeue, m.Requeue, m.Drop]))
    def requeue_or_drop(self, peer: int, number: int, chunk: int | None, kind: type[m.Requeue] | type[m.Drop]) -> None:
        final = [s.id for s in self.model.submissions.values() if s.count("dead", "skipped")]
        if final and not self.is_committed:
            submission = self.model.submissions[final[number % len(final)]]
            dead = [c.index for c in submission.chunks if c.state == "dead"]
            indexes = [dead[chunk % len(dead)]] if chunk is not None and dead else None
            self.ask_letters(self._peer(peer), kind(next(self.rig.ids), submission.id, indexes))

    @rule(peer=numbers, kind=st.sampled_from([m.Requeue, m.Drop]))
    def requeue_or_drop_all(self, peer: int, kind: type[m.Requeue] | type[m.Drop]) -> None:
        if not self.is_committed:
            self.ask_letters(self._peer(peer), kind(next(self.rig.ids), None))

    @rule(peer=numbers, number=numbers)
    def remove(self, peer: int, number: int) -> None:
        waited_for = self.model.waited_for()
        final = [
            s.id
            for s in self.model.submissions.values()
            if s.state in FINAL and not s.is_closing and s.id not in waited_for
        ]
        if final:
            submission_id = final[number % len(final)]
            self.model.remove(submission_id)
            self._ask(self._peer(peer), m.Remove(next(self.rig.ids), submission_id), lambda reply: reply.count == 1)

    # --- time ---

    @precondition(lambda self: not self.is_committed)
    @rule(seconds=times)
    def pass_time(self, seconds: float) -> None:
        """Steps of more than a second and a half heartbeat make the tick a late one."""
        self.rig.pass_time(seconds)
        self._tick()

    @precondition(lambda self: not self.is_committed)
    @rule(seconds=st.integers(2, 12))
    def pass_time_steadily(self, seconds: int) -> None:
        for _ in range(seconds):
            self.rig.pass_time(1.0)
            self._tick()

    @precondition(lambda self: not self.is_committed)
    @rule(step_s=st.sampled_from([-86_400.0, -5.0, 5.0, 86_400.0]))
    def wall_clock_steps(self, step_s: float) -> None:
        self.rig.pass_time(0, wall_s=step_s)
        self.model.missed_step_ms += int(step_s * 1000)
        self.heartbeat(0)  # so the engine sees it before anything else

    def _tick(self) -> None:
        self._see_missed_step()
        self.model.tick(self.now)
        self.rig.tick()
        self.compare()

    # --- commits ---

    @precondition(lambda self: self.model.flying is None)
    @rule()
    def begin(self) -> None:
        """Apply a batch; from here to its end other requests are handled, and form the next one."""
        if not self.rig.idle_engine.has_batch(self.now):
            return
        self._begin()
        if not self.rig.engine.begin_batch(self.now):
            self._end(had_rows=False)

    def _begin(self) -> None:
        self.model.begin()
        self.flying_promises, self.promises = self.promises, {}
        self.seen = (None, 0)

    @precondition(lambda self: self.model.flying is not None and not self.is_committed)
    @rule()
    def sql_commit(self) -> None:
        """The COMMIT has ended in its thread; the engine does not know yet."""
        self.rig.database.commit()
        has_waiting = self.model.waiting.has_any() or bool(self.model.waited_for())
        self.model.become_visible()
        self.is_committed = True
        if has_waiting:
            self.end()  # what the batch has opened would be handed out before the model knows

    @precondition(lambda self: self.is_committed)
    @rule()
    def end(self) -> None:
        self._end(had_rows=True)

    def _end(self, *, had_rows: bool) -> None:
        self.is_committed = False
        for action in self.model.succeed(self.now, had_rows=had_rows):
            action(self.now)
        ended, self.flying_promises = self.flying_promises, {}
        ended = {request_id: reply for request_id, reply in ended.items() if reply is not None}
        self.rig.end(None)
        self.compare(ended)

    @rule()
    def commit(self) -> None:
        """Everything that waits, to its end."""
        if self.model.flying is None:
            self.begin()
        if self.model.flying is not None:
            if not self.is_committed:
                self.sql_commit()
            if self.is_committed:
                self.end()

    @precondition(lambda self: self.model.flying is not None and not self.is_committed)
    @rule()
    def commit_fails(self) -> None:
        """The disk is full at COMMIT: the whole batch is refused, and all that has come since."""
        self._refuse_all(apsw.FullError("full"))

    def _refuse_all(self, error: apsw.FullError) -> None:
        refused_ids = {*self.flying_promises, *self.promises}
        for request_id in refused_ids:
            self.waiting.pop(request_id, None)
        self.model.fail_batch(self.now)
        self.forget_what_came()
        self.promises, self.flying_promises = {}, {}
        self.begun.clear()
        self.seen = (None, 0)
        self.rig.end(error)
        errors = {reply.id: reply for _, reply in self.rig.told if isinstance(reply, m.ErrorReply)}
        self.rig.told = [(peer, reply) for peer, reply in self.rig.told if not isinstance(reply, m.ErrorReply)]
        assert all(reply.code == "storage_full" for reply in errors.values())
        assert {request_id for request_id in refused_ids if not self._owner_is_gone(request_id)} <= set(errors)
        assert set(errors) <= refused_ids | self.requeues.keys()
        for request_id in refused_ids | set(errors):
            self.requeues.pop(request_id, None)
            self.predicted.pop(request_id, None)
        self.compare()

    @rule()
    def fold(self) -> None:
        """Commit and fold all there is."""
        self.rig.engine.fold_all()
        for _ in range(200):
            if not (self.rig.engine.has_batch(self.now) or self.model.flying is not None):
                break
            self.commit()
        self.rig.engine._folding.is_urgent = False

    @precondition(lambda self: self.model.flying is None)
    @rule(restarts=st.booleans())
    def checkpoint(self, restarts: bool) -> None:
        self.rig.database.log.copy()
        if restarts:
            self.rig.database.log.restart()

    # --- ends of the process ---

    def may_end(self) -> bool:
        """Whether the process may end now."""
        return True

    @precondition(lambda self: self.may_end())
    @rule(step_s=st.sampled_from([0.0, 0.0, 3.0, 60.0]), steps_back=st.booleans())
    def crash(self, step_s: float, steps_back: bool) -> None:
        """At a boundary of commits, between apply and COMMIT, or between COMMIT and its end."""
        if self.is_committed:
            self.model.succeed(self.now, had_rows=True)
        self.rig.pass_time(step_s, wall_s=-step_s if steps_back else step_s)
        self.rig.crash()
        self._after_restart()

    @precondition(lambda self: self.may_end() and self.model.flying is None and not self.model.is_full)
    @rule(away_s=st.sampled_from([0.0, 10.0, 40.0]))
    def stop_and_start(self, away_s: float) -> None:
        """In good order: what connections hold becomes leases, everything is folded."""
        for request_id in [
            request_id
            for request_id in self.waiting
            if self._is_parked(request_id) and request_id not in self.predicted
        ]:
            del self.waiting[request_id]
        self.rig.engine.stop_handing_out()
        self.rig.run_turns()
        self.rig.told = [(peer, reply) for peer, reply in self.rig.told if not isinstance(reply, m.Reserved)]
        self.rig.engine.save_reservations(self.now)
        for reservation in self.model.reservations().values():
            if not reservation.is_lease:
                if reservation.is_ended:
                    self.model.start_all(reservation)
                reservation.is_lease = reservation.is_for_restart = True
                reservation.length_s = 30.0
                reservation.deadline = self.now.mono + 30 * SECOND
        self.is_draining = True
        self.fold()
        self.is_draining = False
        assert self.rig.rows(
            "SELECT count(*) FROM history WHERE seq > (SELECT value FROM meta WHERE key = 'folded_seq')"
        ) == [(0,)]
        self.rig.database.close()
        self.rig.pass_time(away_s)
        self.rig._open(self.rig.path.parent)
        self._after_restart()

    def _after_restart(self) -> None:
        self.is_committed = False
        self.model.restart(self.now)
        self.forget_what_came()
        self.watch_engine()
        self.waiting.clear()
        self.requeues.clear()
        self.predicted.clear()
        self.begun.clear()
        self.promises, self.flying_promises, self.seen = {}, {}, (None, 0)
        self.peers.clear()
        self.turns.clear()
        self.free_since.clear()
        leases = list(
            self.rig.database.reader.execute(
                "SELECT reservation_id, submission_id, block, granted, mask, attempt, deadline_at, length_ms, "
                "for_restart, started "
                "FROM lease ORDER BY reservation_id, submission_id, block, granted"
            )
        )
        found = {}
        for *row, deadline_at, length_ms, for_restart, started in leases:
            reservation_id, submission_id, block, granted, mask, attempt = row
            mac = self.rig.engine._reservations.tokens.mac(
                submission_id, block, reservation_id, attempt, granted & FULL
            )
            ticket = Ticket(submission_id, block, granted & FULL, reservation_id, attempt, mac)
            leased = Leased(
                frozenset(mask_indexes(block, mask & FULL)),
                frozenset(mask_indexes(block, started & FULL if for_restart else 0)),
            )
            found[reservation_id, ticket] = leased
            self.model.restore_lease(
                reservation_id, ticket, leased, deadline_at, length_ms, self.now, for_restart=bool(for_restart)
            )
        assert found == self.model.leases
        for _ in range(2):
            self.connect()
        self.compare()


TestMachine = Machine.TestCase
