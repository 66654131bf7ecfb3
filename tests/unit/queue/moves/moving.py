"""Two engines between which submissions move, in both directions, while all else happens: the rules of random steps.

It knows only what was acknowledged. After each commit both files are sound, and each submission is seen at exactly one
of them, or is on its way; no chunk is completed twice, nor handed out once it is. At the end all moves to one of the
two and is worked off, and there is nothing that was lost, done twice, or written down twice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from opsq.errors import OpsqError
from opsq.ids import from_sql, mask_indexes
from opsq.queue.engine import Peer
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket, tickets_of
from unit.queue.moves.pair import SHARD, Killed, Pair, states
from unit.queue.moves.stepped import SteppedMover

SIDES = st.integers(0, 1)
NUMBERS = st.integers(0, 1000)
DOUBLED = (
    "SELECT h.submission_id, event, block, mask FROM history h JOIN submission s ON s.id = h.submission_id "
    "WHERE state != 'removed' AND reservation_id != 0 "
    "GROUP BY at, event, h.submission_id, block, mask, attempt, reservation_id HAVING count(*) > 1"
)
KEYS = (
    "SELECT unique_key FROM submission WHERE state IN ('open', 'scheduled', 'blocked') "
    "AND unique_key IS NOT NULL AND unique_until IS NOT 'started' GROUP BY unique_key HAVING count(*) > 1"
)


class Sent(NamedTuple):
    """What a consumer has asked for."""

    peer: Peer
    request: m.Reserve | m.Complete | m.Submit
    ticket: Ticket | None = None


class Moving(RuleBasedStateMachine):
    """Knows only what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.pair = Pair(self.folder)
        self.rigs = (self.pair.source, self.pair.target)
        self.is_begun, self.is_committed = [False, False], [False, False]
        self.movers: list[SteppedMover] = []
        self.sent: list[dict[int, Sent]] = [{}, {}]
        self.tickets: list[list[tuple[Peer, Ticket]]] = [[], []]
        self.chunks: dict[int, int] = {}
        self.removed: set[int] = set()
        self.done: set[tuple[int, int]] = set()

    def teardown(self) -> None:
        """Move all there is to the target, have it worked off, and look at everything."""
        try:
            self.finish()
        finally:
            for one in self.movers:
                one.kill()
            self.pair.close()
            shutil.rmtree(self.folder)

    # --- producers, consumers, operators ---

    @rule(
        side=SIDES,
        chunks_count=st.sampled_from([0, 1, 2, 3, 70]),
        options=st.fixed_dictionaries(
            {"max_attempts": st.integers(1, 2), "keep_on_dead": st.booleans()},
            optional={
                "unique_key": st.sampled_from(["u", "v"]),
                "unique_until_start": st.booleans(),
                "idempotency_key": st.sampled_from(["i", "j"]),
                "metadata": st.dictionaries(st.sampled_from(["k", "l"]), st.just(1), min_size=1),
                "delay_s": st.sampled_from([1.0, 20.0]),
                "on_failed_dependency": st.sampled_from(["cancel", "run", "keep"]),
            },
        ),
        after=st.lists(NUMBERS, max_size=2),
        waits_for_pair=st.sampled_from([False, False, True]),
    )
    def submit(
        self, side: int, chunks_count: int, options: dict[str, object], after: list[int], waits_for_pair: bool
    ) -> None:
        rig = self.rigs[side]
        if len(self.chunks) >= 10:
            return
        if "unique_key" not in options:
            options.pop("unique_until_start", None)
        if "metadata" not in options:
            known = sorted(self.chunks)
            waits = [m.Dependency(known[number % len(known)]) for number in after if known]
            options["after"] = waits + [m.Dependency(key="k", value=1)] * waits_for_pair
        key = rig.request_key()[1:] + bytes([side])
        new = msgspec.structs.replace(m.NewSubmission(key, chunks_count), **options)
        self.ask(side, rig.connect("producer"), m.Submit(next(rig.ids), [new]))

    @initialize(number=st.integers(0, 1 << 16))
    def is_not_the_simplest_run(self, number: int) -> None:
        """With which Hypothesis would begin: the same step, again and again."""
        assume(number)

    @initialize(counts=st.lists(st.sampled_from([1, 3, 70]), min_size=1, max_size=4))
    def begin_with_some_work(self, counts: list[int]) -> None:
        for count in counts:
            self.submit(0, count, {"max_attempts": 2, "keep_on_dead": True}, [], False)
        self.commit(0)

    @rule(side=SIDES, count=st.sampled_from([1, 2, 10, 100]))
    def reserve(self, side: int, count: int) -> None:
        rig = self.rigs[side]
        self.ask(side, rig.connect("worker"), m.Reserve(next(rig.ids), count, "OldestFirst", 0.0))

    @precondition(lambda self: any(self.tickets))
    @rule(side=SIDES, number=NUMBERS, how=st.sampled_from(["complete", "complete", "complete", "fail", "release"]))
    def work(self, side: int, number: int, how: str) -> None:
        rig, tickets = self.rigs[side], self.tickets[side]
        if not tickets:
            return
        peer, ticket = tickets.pop(number % len(tickets))
        request: m.Request
        if how == "complete":
            results = msgspec.Raw(msgspec.msgpack.encode([b"%d" % index for index in ticket.indexes]))
            request = m.Complete(next(rig.ids), [m.Completion(ticket.held(), results)])
        elif how == "fail":
            request = m.Fail(next(rig.ids), [m.Failure(ticket.held())])
        else:
            request = m.Release(next(rig.ids), [ticket.held()])
        self.ask(side, peer, request, ticket)

    @precondition(lambda self: any(self.tickets))
    @rule(side=SIDES, number=NUMBERS)
    def lose_consumer(self, side: int, number: int) -> None:
        tickets = self.tickets[side]
        if tickets:
            peer, _ = tickets[number % len(tickets)]
            self.rigs[side].disconnect(peer)
            self.tickets[side] = [one for one in tickets if one[0] is not peer]

    @precondition(lambda self: self.chunks)
    @rule(side=SIDES, number=NUMBERS, kind=st.sampled_from([m.Cancel, m.Requeue, m.Requeue, m.Drop, m.Remove]))
    def operate(self, side: int, number: int, kind: type) -> None:
        rig, submission_id = self.rigs[side], sorted(self.chunks)[number % len(self.chunks)]
        if kind is m.Remove:
            self.removed.add(submission_id)
        self.ask(side, rig.connect("operator"), kind(next(rig.ids), submission_id))

    def ask(self, side: int, peer: Peer, request: m.Request, ticket: Ticket | None = None) -> None:
        """Send a request; that it is refused is no mistake."""
        self.sent[side][request.id] = Sent(peer, request, ticket)
        try:
            self.rigs[side].send(peer, request)
        except OpsqError:
            self.refused(side, self.sent[side].pop(request.id))

    # --- movers ---

    @precondition(lambda self: len(self.movers) < 2)
    @rule(back=st.sampled_from([False, False, True]), with_final=st.booleans())
    def start_mover(self, back: bool, with_final: bool) -> None:
        here, there = self.rigs[::-1] if back else self.rigs
        self.movers.append(SteppedMover(here, there, 0 if back else SHARD, with_final=with_final))

    @precondition(lambda self: self.movers)
    @rule(number=NUMBERS, steps_count=st.integers(1, 30), commits=st.booleans())
    def step_mover(self, number: int, steps_count: int, commits: bool) -> None:
        one = self.movers[number % len(self.movers)]
        for _ in range(steps_count):
            if one.is_over:
                break
            one.step()
            if commits:
                self.pass_time(0.05)
                self.commit(0)
                self.commit(1)
        if one.is_over:
            self.end_mover(number)

    @precondition(lambda self: self.movers)
    @rule(number=NUMBERS, luck=st.integers(1, 6))
    def kill_mover(self, number: int, luck: int = 1) -> None:
        if luck > 1:  # most are to come to something
            return
        self.movers[number % len(self.movers)].kill()
        self.end_mover(number)

    def end_mover(self, number: int) -> None:
        one = self.movers.pop(number % len(self.movers))
        one.kill()
        if one.error is not None and not isinstance(one.error, (OpsqError, Killed)):
            raise one.error

    # --- time, commits, kills ---

    @rule(seconds=st.sampled_from([0.05, 0.05, 0.5, 3.0, 15.0]))
    def pass_time(self, seconds: float) -> None:
        for rig in self.rigs:
            rig.pass_time(seconds)
            rig.tick()

    @rule(side=SIDES)
    def commit_a_part(self, side: int) -> None:
        """Apply a batch, or COMMIT it, or tell the engine of that."""
        rig = self.rigs[side]
        if self.is_committed[side]:
            self.is_begun[side] = self.is_committed[side] = False
            rig.end(None)
        elif self.is_begun[side]:
            rig.database.commit()
            self.is_committed[side] = True
        elif rig.engine.has_batch(rig.now):
            self.is_begun[side] = rig.begin()

    @rule(side=SIDES)
    def commit(self, side: int) -> None:
        while self.is_begun[side] or self.rigs[side].engine.has_batch(self.rigs[side].now):
            self.commit_a_part(side)

    @precondition(lambda self: any(self.is_begun))
    @rule(side=SIDES)
    def commit_fails(self, side: int) -> None:
        if self.is_begun[side] and not self.is_committed[side]:
            self.is_begun[side] = False
            self.rigs[side].end(apsw.FullError("full"))

    @rule(side=SIDES, luck=st.integers(1, 4))
    def crash(self, side: int, luck: int = 1) -> None:
        if luck > 1:
            return
        self.is_begun[side] = self.is_committed[side] = False
        self.sent[side].clear()
        self.tickets[side].clear()
        self.rigs[side].crash()

    # --- what must hold ---

    @invariant()
    def hear(self) -> None:
        """Note what was acknowledged."""
        for side, rig in enumerate(self.rigs):
            movers = {id(caller.peer) for one in self.movers for caller in one.callers}
            for peer, reply in rig.told:
                sent = self.sent[side].pop(getattr(reply, "id", 0), None)
                if sent is not None and sent.peer is peer:
                    self.understand(side, sent, reply)
            rig.told = [(peer, reply) for peer, reply in rig.told if id(peer) in movers]

    def refused(self, side: int, sent: Sent) -> None:
        """A consumer has its chunks still."""
        if sent.ticket is not None:
            self.tickets[side].append((sent.peer, sent.ticket))

    def understand(self, side: int, sent: Sent, reply: m.Reply) -> None:
        if isinstance(reply, m.Submitted):
            [new], [created] = sent.request.submissions, reply.created
            if created.is_new:
                assert created.submission_id not in self.chunks
                self.chunks[created.submission_id] = new.chunks_count
        elif isinstance(reply, m.Reserved):
            for ticket in tickets_of(reply):
                self.tickets[side].append((sent.peer, ticket))
                assert self.done.isdisjoint(chunks_of(ticket)), "what is completed was handed out"
        elif isinstance(reply, m.ErrorReply):
            self.refused(side, sent)
        elif isinstance(sent.request, m.Complete) and sent.ticket is not None and not reply.refusals:
            assert self.done.isdisjoint(chunks_of(sent.ticket)), "it was completed twice"
            self.done |= chunks_of(sent.ticket)

    @invariant()
    def files_are_right(self) -> None:
        if sum(rig.has_new_rows() for rig in self.rigs) == 0:  # of both, so that each notes what it has seen
            return
        seen = []
        for rig in self.rigs:
            assert rig.broken_rules() == []
            assert rig.rows(DOUBLED) == []
            assert rig.rows(KEYS) == []
            seen.append({row[0] for row in rig.rows("SELECT id FROM submission WHERE state != 'removed'")})
            completed: Counter[tuple[object, int]] = Counter()
            for submission_id, block, mask in rig.rows(
                "SELECT submission_id, block, mask FROM history WHERE event = 'completed'"
            ):
                if submission_id in seen[-1]:
                    completed.update((submission_id, index) for index in mask_indexes(block, from_sql(mask)))
            assert max(completed.values(), default=1) == 1
            assert {chunk for chunk in self.done if chunk[0] in seen[-1]} <= completed.keys()
        assert not seen[0] & seen[1]
        for submission_id in self.chunks.keys() - seen[0] - seen[1] - self.removed:
            assert any(self.is_on_its_way(submission_id, *rigs) for rigs in (self.rigs, self.rigs[::-1])), "it is lost"

    def is_on_its_way(self, submission_id: int, here: Rig, there: Rig) -> bool:
        departed = here.rows("SELECT 1 FROM moved WHERE submission_id = ? AND NOT is_confirmed", submission_id)
        sql = "SELECT 1 FROM arriving WHERE submission_id = ? AND next_slice IS NULL AND NOT is_given_up"
        return bool(departed and there.rows(sql, submission_id))

    # --- the end ---

    def finish(self) -> None:
        """Have all move back, and forth; work it off; then there is nothing left but what was done once."""
        while self.movers:
            self.kill_mover(0)
        for side in (0, 1):
            self.commit(side)
        self.look()
        for side in (0, 1):
            self.crash(side)
        here, there = self.rigs
        self.move(there, here, 0)
        self.move(here, there, SHARD)
        for _ in range(12):
            self.work_off()
            self.pass_time(20.0)
        self.move(here, there, SHARD)
        for rig in self.rigs:
            rig.fold()
            assert rig.rows("SELECT submission_id FROM arriving") == []
            assert rig.rows("SELECT submission_id FROM moved WHERE NOT is_confirmed") == []
            counted = dict(rig.rows("SELECT state, count(*) FROM submission WHERE state != 'removed' GROUP BY state"))
            assert {state: count for state, count in rig.status().states.items() if count} == counted
            for submission_id, shown in states(rig).items():
                assert shown.state in {"completed", "failed", "cancelled", "blocked"}
                done = {index for one, index in self.done if one == submission_id}
                rows = rig.only(rig.connect(), m.Results(next(rig.ids), submission_id), m.ResultRows).rows
                results = [result for row in rows for result in msgspec.msgpack.decode(row.results)]
                assert len(results) == len(set(results)) == shown.completed_count
                assert {b"%d" % index for index in done} <= set(results)
        self.look()

    def look(self) -> None:
        self.hear()
        self.files_are_right()

    def move(self, source: Rig, target: Rig, shard: int) -> None:
        """Move all there is, undisturbed."""
        one = SteppedMover(source, target, shard, with_final=True)
        self.movers.append(one)
        for _ in range(20_000):
            if one.is_over:
                break
            one.step()
            self.pass_time(0.05)
            for side in (0, 1):
                self.commit(side)
            self.look()
        assert one.is_over
        if one.error is not None:
            raise one.error
        self.end_mover(0)
        assert set(states(source)) <= one.mover.left.keys()
        assert not [why for why in one.mover.left.values() if "kept changing" in why]

    def work_off(self) -> None:
        for side, rig in enumerate(self.rigs):
            self.reserve(side, 1000)
            self.commit(side)
            self.hear()
            while self.tickets[side]:
                self.work(side, 0, "complete")
                self.commit(side)
                self.look()
            rig.advance(1)


def chunks_of(ticket: Ticket) -> set[tuple[int, int]]:
    """The chunks of a ticket."""
    return {(ticket.submission_id, index) for index in ticket.indexes}
