"""The state machine: all that producers, consumers, clocks, disks and crashes can do to the engine, in any order, against the model.

After each step the file is sound and says what the model says; every chunk is held once at most; no reply has left before its commit;
orders are those of the naive definition; and nobody is parked while there is something for them.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from opsq.clock import Now
from opsq.errors import OpsqError
from opsq.ids import FULL, mask_indexes
from opsq.queue import core, folding, following, fronts, parked, supply
from opsq.queue.engine import Peer
from opsq.queue.policy import Policy
from opsq.store import submissions
from opsq.wire import messages as m
from unit.model.naive import FINAL, SECOND, Chunk, Model, Refusals
from unit.model.rig import Rig, Ticket, tickets_of

STRATEGIES = ["OldestFirst", "NewestFirst", "CustomPriority", "Random"]
EVERYTHING = 1_000_000
POLICY = Policy(finished_days=10_000.0, history_days=10_000.0)

SMALL = {
    (folding, "SLICE_EVENTS"): 5,
    (folding, "SLICE_GAPS"): 3,
    (folding, "LAZY_EVENTS"): 12,
    (supply, "READ_BLOCKS"): 2,
    (fronts, "WALK_ROWS"): 2,
    (core, "SUPPLIES_KEPT"): 3,
    (parked, "TURN_ROWS"): 2000,
    (following, "TURN_CALLS"): 2,
    (submissions, "REMOVE_ROWS"): 2,
}
"""Bounds made so small that the few chunks of a test pass them."""

numbers = st.integers(0, 1 << 16)
times = st.sampled_from([0.5, 1.0, 2.0, 5.0, 11.0])
bits = st.integers(1, FULL)


@pytest.fixture(scope="module", autouse=True)
def small_bounds() -> Iterator[None]:
    """Have every bound met by a few chunks."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in SMALL.items():
            patch.setattr(module, name, value)
        yield


@dataclass
class Waiting:
    """A reserve call that has not been answered."""

    peer: Peer
    request: m.Reserve | m.CompleteAndReserve
    deadline: int | None


class Machine(RuleBasedStateMachine):
    """Rules do one thing each to the engine and to the model, then compare what both say."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.rig = Rig(self.folder, POLICY)
        self.model = Model()
        self.model.hold_until = self.model.last_tick = self.rig.now.mono
        self.model.hold_until = 0
        self.peers: list[Peer] = []
        self.tickets: list[Ticket] = []
        self.waiting: dict[int, Waiting] = {}
        self.requeues: dict[int, m.Requeue] = {}
        self.promises: dict[int, m.Reply | None] = {}  # what is to be answered by a batch, by request
        self.flying_promises: dict[int, m.Reply | None] = {}
        self.predicted: dict[int, Callable[[m.Reply], bool]] = {}
        self.owners: dict[int, Peer] = {}  # who sent each request
        self.seen: tuple[object, int] = (None, 0)
        self.is_committed = False  # the COMMIT has ended, and the engine has not been told
        self.refused_as_full: set[int] = set()
        self.is_draining = False
        self.has_short_turns = False
        self.has_unread_delays = False
        self.turns: dict[int, list[int]] = {}
        self.free_since: dict[int, int] = {}
        self.turn = 0
        for _ in range(2):
            self.connect()

    @property
    def now(self) -> Now:
        return self.rig.now

    def teardown(self) -> None:
        self.rig.close()
        shutil.rmtree(self.folder)

    # --- comparing ----------------------------------------------------------------------------------------------------------------

    def send(self, peer: Peer, request: m.Request) -> None:
        """Have the engine handle a request; the model has taken it already."""
        self.model.heard[peer] = self.now.mono
        self.owners[getattr(request, "id", 0)] = peer
        self.rig.send(peer, request)
        self.compare()

    def compare(self, ended: dict[int, m.Reply | None] | None = None) -> None:
        """Hold all that the engine has said, and promised, against the model."""
        granted: list[tuple[Peer, m.Reserved]] = []
        empty: list[tuple[Peer, m.Reserved]] = []
        self._note_free()
        for peer, reply in self._promised():
            if isinstance(reply, m.Reserved):
                granted.append((peer, reply))
            elif reply.id in self.requeues:
                request = self.requeues.pop(reply.id)
                assert self.model.requeue(request.submission_id, request.indexes) == reply.count, reply
            else:
                assert self.predicted.pop(reply.id)(reply), reply
            self.promises[reply.id] = reply
        said, self.rig.told = self.rig.told, []
        for peer, reply in said:
            if isinstance(reply, m.Revoked):
                continue
            request_id = reply.id
            if ended is not None and request_id in ended:
                promised = ended.pop(request_id)
                assert reply == promised, (reply, promised)
                if isinstance(reply, m.Reserved):
                    self._know(reply)
                continue
            assert request_id not in self.promises, ("before its commit", reply)
            assert request_id not in self.flying_promises, ("before its commit", reply)
            if isinstance(reply, m.Reserved):
                (granted if reply.grants else empty).append((peer, reply))
            elif request_id in self.requeues:
                request = self.requeues.pop(request_id)
                expected = self.model.requeue(request.submission_id, request.indexes)
                assert expected == (reply.code if isinstance(reply, m.ErrorReply) else reply.count), (reply, expected)
            else:
                assert isinstance(reply, m.ErrorReply), ("nobody asked", reply)
                assert reply.code == "storage_full"
                self.refused_as_full.remove(request_id)
        if ended is not None:
            gone = [request_id for request_id, reply in ended.items() if self._owner_is_gone(request_id)]
            assert len(gone) == len(ended), ("promised and not said", ended)
        order = {request_id: place for place, request_id in enumerate(self.rig.answered)}
        self.rig.answered.clear()
        for peer, reply in sorted(granted, key=lambda item: order[item[1].id]):
            self._take(peer, reply, is_alone=len(granted) == 1)
        for peer, reply in empty:
            self._take_nothing(peer, reply)
        self._note_free()
        self._look_at_parked()

    def _promised(self) -> list[tuple[Peer, m.Reply]]:
        """Replies that have been added to the batch that is being formed."""
        batch = self.rig.engine._core.batch
        known = self.seen[1] if self.seen[0] is batch else 0
        self.seen = (batch, len(batch.replies))
        return batch.replies[known:]

    def _owner_is_gone(self, request_id: int) -> bool:
        return self.owners[request_id] not in self.model.heard

    def _take(self, peer: Peer, reply: m.Reserved, *, is_alone: bool) -> None:
        """Chunks were handed out: the right ones, in the right order, as many as may be, to whoever waits longest.

        No order can be told while the engine does not know of a COMMIT, nor when runs of several calls were interrupted for each other.
        """
        before = list(self.waiting.values())[: list(self.waiting).index(reply.id)]
        call = self.waiting.pop(reply.id)
        assert call.peer is peer
        strategy = call.request.strategy
        assert not any(other.request.strategy == strategy for other in before), "not the longest waiting"
        chunks: dict[Ticket, list[Chunk]] = {ticket: self.model.named(ticket, ticket.indexes) for ticket in tickets_of(reply)}
        flat = [chunk for hit in chunks.values() for chunk in hit]
        expected = self.model.expected(strategy, call.request.count)
        assert not [chunk for chunk in flat if not chunk.is_free], "not free"
        assert len(set(map(id, flat))) == len(flat), "twice in one reply"
        if not self.is_committed and (is_alone or not self.has_short_turns):
            if strategy == "Random":
                self._check_laps(flat, call.request.count)
            else:
                assert [(c.submission.id, c.index) for c in sorted(flat, key=expected_key(expected))] == [
                    (c.submission.id, c.index) for c in expected
                ]
                runs = [ticket.submission_id for ticket in chunks]
                order = [c.submission.id for c in expected]
                assert list(dict.fromkeys(runs)) == list(dict.fromkeys(order))
            assert len(flat) == len(expected), (len(flat), len(expected))
        for ticket, hit in chunks.items():
            assert all(ticket.attempt == chunk.attempts + chunk.lost for chunk in hit)
        self.model.hand_out(chunks, reply.reservation_id, peer, call.request.lease_s, self.now)
        if call.request.lease_s is None:
            self._know(reply)
        self._note_free()

    def _know(self, reply: m.Reserved) -> None:
        """A consumer has tickets now, and may use them ever after."""
        self.tickets = [*self.tickets, *tickets_of(reply)][-40:]

    def _take_nothing(self, peer: Peer, reply: m.Reserved) -> None:
        call = self.waiting.pop(reply.id)
        assert call.peer is peer
        if reply.is_empty:
            assert call.request.until_empty
            assert self.is_committed or not self.model.has_open()
        elif not self.is_committed and not self.is_draining:
            is_late = call.deadline is not None and call.deadline <= self.now.mono
            assert is_late, "answered with nothing before its time"
            assert self.model.is_full or not self.model.free(), "answered with nothing while something is free"

    def _look_at_parked(self) -> None:
        """Nobody stays parked while something is free for them, or while nothing can come any more."""
        if self.model.is_full or self.is_committed or self.is_draining:
            return
        assert not (self.waiting and self.model.free()), ("parked while something is free", self.waiting)
        for call in self.waiting.values():
            assert call.request.wait_s != 0, "parked without waiting"
            assert not (call.request.until_empty and not self.model.has_open()), "parked until empty"

    # --- laps of Random -----------------------------------------------------------------------------------------------------------

    def _note_free(self) -> None:
        """Since which turn each submission has had something free without a break."""
        free = {chunk.submission.id for chunk in self.model.free()}
        self.free_since = {submission_id: self.free_since.get(submission_id, self.turn) for submission_id in free}

    def _check_laps(self, flat: list[Chunk], count: int) -> None:
        """Between two turns of a submission each other that had work all the time has a turn; a turn takes the lowest chunks."""
        size = max(1, count // fronts.DECK_TURNS)
        size = -(-size // 64) * 64 if size >= 32 else size
        at = 0
        left = {submission_id: [c for c in self.model.free() if c.submission.id == submission_id] for submission_id in self.free_since}
        while at < len(flat):
            submission_id = flat[at].submission.id
            taken = []
            while at < len(flat) and len(taken) < size and flat[at].submission.id == submission_id:
                taken.append(flat[at])
                at += 1
            free = left[submission_id]
            assert {c.index for c in taken} == {c.index for c in free[: len(taken)]}, "not the lowest"
            left[submission_id] = free[len(taken) :]
            self.turn += 1
            last = self.turns.get(submission_id, [-1])[-1]
            for other, since in self.free_since.items():
                if other != submission_id and since < last and left[other]:
                    assert any(turn > last for turn in self.turns.get(other, [])), "a lap without a turn"
            self.turns.setdefault(submission_id, []).append(self.turn)
            self.free_since = {other: since for other, since in self.free_since.items() if left[other]}

    # --- producers ----------------------------------------------------------------------------------------------------------------

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
                "backoff": st.sampled_from([m.Backoff(0.5, 2.0, 3.0), m.Backoff(0.0, 1.0, 0.0), m.Backoff(4.0, 3.0, 600.0)]),
            },
            optional={
                "unique_key": st.sampled_from(["u", "v"]),
                "metadata": st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from([1, "a"]), max_size=2),
            },
        ),
        starts=st.sampled_from([None, None, None, "delay_s", "not_before_at"]),
        ends=st.sampled_from([None, None, None, "expires_s", "expires_at"]),
        in_s=times,
    )
    def submit(self, chunks_count: int, peer: int, options: dict[str, object], starts: str | None, ends: str | None, in_s: float) -> None:
        if len(self.model.submissions) > 6:
            return
        if self.is_committed:
            options.pop("unique_key", None)  # whose keys are taken is told by the file
        for name in (starts, ends):
            if name is not None:
                options[name] = in_s if name.endswith("_s") else self.now.wall + int(in_s * 1000)
        new = msgspec.structs.replace(m.NewSubmission(self.rig.request_key(), chunks_count), **options)
        self._submit(self._peer(peer), [new])

    @initialize(turn_rows=st.sampled_from([6, 2000]))
    def turns_are_short_or_not(self, turn_rows: int) -> None:
        parked.TURN_ROWS = turn_rows
        self.has_short_turns = turn_rows == 6

    @initialize(counts=st.lists(st.sampled_from([1, 3, 64, 70, 200]), min_size=1, max_size=3), keeps=st.booleans())
    def begin_with_some_work(self, counts: list[int], keeps: bool) -> None:
        options = {"max_attempts": 2, "max_lost": 2, "reservation_s": 5.0, "keep_on_dead": keeps}
        self._submit(self._peer(0), [msgspec.structs.replace(m.NewSubmission(self.rig.request_key(), n), **options) for n in counts])
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

    @rule(peer=numbers, number=numbers, chunk=st.none() | numbers)
    def requeue(self, peer: int, number: int, chunk: int | None) -> None:
        final = [s.id for s in self.model.submissions.values() if s.count("dead", "skipped")]
        if final and not self.is_committed:
            submission = self.model.submissions[final[number % len(final)]]
            dead = [c.index for c in submission.chunks if c.state == "dead"]
            indexes = [dead[chunk % len(dead)]] if chunk is not None and dead else None
            request = m.Requeue(next(self.rig.ids), submission.id, indexes)
            self.requeues[request.id] = request
            self.send(self._peer(peer), request)

    @rule(peer=numbers, number=numbers)
    def remove(self, peer: int, number: int) -> None:
        final = [s.id for s in self.model.submissions.values() if s.state in FINAL and not s.is_closing]
        if final:
            submission_id = final[number % len(final)]
            self.model.remove(submission_id)
            self._ask(self._peer(peer), m.Remove(next(self.rig.ids), submission_id), lambda reply: reply.count == 1)

    # --- consumers ----------------------------------------------------------------------------------------------------------------

    @rule()
    def connect(self) -> None:
        if len(self.peers) < 4:
            peer = self.rig.connect()
            self.peers.append(peer)
            self.model.heard[peer] = self.now.mono

    @precondition(lambda self: len(self.peers) > 1)
    @rule(number=numbers)
    def disconnect(self, number: int) -> None:
        peer = self.peers.pop(number % len(self.peers))
        for request_id in [request_id for request_id, call in self.waiting.items() if call.peer is peer]:
            if request_id not in self.predicted and request_id not in self.promises and request_id not in self.flying_promises:
                del self.waiting[request_id]
        self.model.disconnect(peer, self.now)
        self.rig.disconnect(peer)
        self.compare()

    @rule(
        peer=numbers,
        count=st.one_of(st.integers(1, 4), st.integers(1, 200), st.just(EVERYTHING)),
        strategy=st.sampled_from(STRATEGIES),
        wait_s=st.sampled_from([0.0, 0.0, None, 2.0, 5.0]),
        lease_s=st.sampled_from([None, None, 2.0, 30.0]),
        until_empty=st.booleans(),
    )
    def reserve(self, peer: int, count: int, strategy: str, wait_s: float | None, lease_s: float | None, until_empty: bool) -> None:
        self._reserve(self._peer(peer), m.Reserve(next(self.rig.ids), count, strategy, wait_s, lease_s, until_empty))

    def _reserve(self, peer: Peer, request: m.Reserve) -> None:
        if self.model.is_full and request.wait_s == 0:
            with pytest.raises(OpsqError):
                self.send(peer, request)
            return
        self._wait(peer, request)
        self.send(peer, request)

    def _wait(self, peer: Peer, request: m.Reserve | m.CompleteAndReserve) -> None:
        deadline = self.now.mono + int(request.wait_s * SECOND) if request.wait_s is not None else None
        self.waiting[request.id] = Waiting(peer, request, deadline)

    @precondition(lambda self: self.waiting)
    @rule(number=numbers)
    def abandon(self, number: int) -> None:
        request_id, call = list(self.waiting.items())[number % len(self.waiting)]
        if request_id not in self.predicted and call.peer in self.model.heard and self._is_parked(request_id):
            call.deadline = self.now.mono
            self.model.is_full, was_full = True, self.model.is_full  # it gets nothing, whatever there is
            try:
                self.send(call.peer, m.Abandon(request_id))
            finally:
                self.model.is_full = was_full
            assert request_id not in self.waiting

    def _is_parked(self, request_id: int) -> bool:
        return request_id not in self.promises and request_id not in self.flying_promises

    @precondition(lambda self: self.tickets)
    @rule(
        peer=numbers,
        picks=st.lists(st.tuples(numbers, bits), min_size=1, max_size=3),
        has_results=st.booleans(),
        is_genuine=st.integers(0, 9),
        count=st.none() | st.integers(1, 70),
        strategy=st.sampled_from(STRATEGIES),
        wait_s=st.sampled_from([0.0, None]),
    )
    def complete(
        self,
        peer: int,
        picks: list[tuple[int, int]],
        has_results: bool,
        is_genuine: int,
        count: int | None,
        strategy: str,
        wait_s: float | None,
    ) -> None:
        """Also late, twice, with a wrong token; and with the next reserve in the same request."""
        sender = self._peer(peer)
        request_id = next(self.rig.ids)
        todo = [(self._ticket(number), mask, is_genuine > 0) for number, mask in picks]
        completions = [
            m.Completion(self._held(ticket, mask, good), results_of(self._indexes(ticket, mask)) if has_results else m.msgspec.Raw(b"\xc0"))
            for ticket, mask, good in todo
        ]
        request: m.Complete | m.CompleteAndReserve
        if count is None:
            request = m.Complete(request_id, completions)
        else:
            request = m.CompleteAndReserve(request_id, completions, count, strategy, wait_s)
        self._judge(sender, request, todo, {}, has_results)
        self.send(sender, request)

    def _judge(
        self,
        peer: Peer,
        request: m.Complete | m.CompleteAndReserve,
        todo: list[tuple[Ticket, int, bool]],
        refusals: Refusals,
        has_results: bool,
    ) -> None:
        undecided = []
        for ticket, mask, good in todo:
            judged = self.model.complete(ticket, self._indexes(ticket, mask), is_genuine=good, has_results=has_results, now=self.now)
            if judged is None:
                undecided.append((ticket, mask, good))
            else:
                refusals |= judged
        if undecided:
            self.promises[request.id] = None
            self.model.forming.after.append(lambda now: self._judge(peer, request, undecided, refusals, has_results))
            return
        self.promises.pop(request.id, None)
        self.predicted[request.id] = lambda reply: refused(reply) == refusals
        if isinstance(request, m.CompleteAndReserve):
            self.model.forming.following.append(lambda now: self._reserve_after(peer, request))

    def _reserve_after(self, peer: Peer, request: m.CompleteAndReserve) -> None:
        if peer not in self.model.heard:
            return
        if self.model.is_full and request.wait_s == 0:
            self.refused_as_full.add(request.id)
        else:
            self._wait(peer, request)

    @precondition(lambda self: self.tickets)
    @rule(
        peer=numbers,
        number=numbers,
        mask=bits,
        delay_s=st.none() | times | st.just(0.0),
        is_final=st.integers(0, 5),
        is_genuine=st.integers(0, 9),
    )
    def fail(self, peer: int, number: int, mask: int, delay_s: float | None, is_final: int, is_genuine: int) -> None:
        ticket = self._ticket(number)
        refusals = self.model.fail(
            ticket,
            self._indexes(ticket, mask),
            is_genuine=is_genuine > 0,
            delay_s=delay_s,
            is_final=is_final == 0,
            now=self.now,
        )
        failure = m.Failure(self._held(ticket, mask, is_genuine > 0), "broken", delay_s=delay_s, is_final=is_final == 0)
        self._ask(self._peer(peer), m.Fail(next(self.rig.ids), [failure]), lambda reply: refused(reply) == refusals)

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits, is_genuine=st.integers(0, 9))
    def release(self, peer: int, number: int, mask: int, is_genuine: int) -> None:
        ticket = self._ticket(number)
        refusals = self.model.release(ticket, self._indexes(ticket, mask), is_genuine=is_genuine > 0)
        held = self._held(ticket, mask, is_genuine > 0)
        self._ask(self._peer(peer), m.Release(next(self.rig.ids), [held]), lambda reply: refused(reply) == refusals)

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits, lease_s=st.none() | times, is_genuine=st.integers(0, 9))
    def extend(self, peer: int, number: int, mask: int, lease_s: float | None, is_genuine: int) -> None:
        ticket = self._ticket(number)
        refusals = self.model.extend(ticket, self._indexes(ticket, mask), lease_s, is_genuine=is_genuine > 0, now=self.now)
        held = self._held(ticket, mask, is_genuine > 0)
        self._ask(self._peer(peer), m.Extend(next(self.rig.ids), [held], lease_s), lambda reply: refused(reply) == refusals)

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits, is_genuine=st.integers(0, 9))
    def reassert(self, peer: int, number: int, mask: int, is_genuine: int) -> None:
        ticket = self._ticket(number)
        request = m.Reassert(next(self.rig.ids), [self._held(ticket, mask, is_genuine > 0)])
        sender = self._peer(peer)
        self._reassert(sender, request, ticket, self._indexes(ticket, mask), is_genuine=is_genuine > 0)
        self.send(sender, request)

    def _reassert(self, peer: Peer, request: m.Reassert, ticket: Ticket, indexes: list[int], *, is_genuine: bool) -> None:
        if self.model.must_wait(ticket, indexes):
            self.promises[request.id] = None
            self.model.forming.after.append(lambda now: self._reassert(peer, request, ticket, indexes, is_genuine=is_genuine))
            return
        self.promises.pop(request.id, None)
        refusals = self.model.reassert(peer, ticket, indexes, is_genuine=is_genuine, now=self.now)
        self.predicted[request.id] = lambda reply: refused(reply) == refusals

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits)
    def start(self, peer: int, number: int, mask: int) -> None:
        ticket, sender = self._ticket(number), self._peer(peer)
        self.model.start(sender, ticket, self._indexes(ticket, mask))
        chunks = m.ChunkMask(ticket.submission_id, ticket.block, self._held(ticket, mask, True).mask)
        self.send(sender, m.Started([chunks]))

    @rule(number=numbers)
    def heartbeat(self, number: int) -> None:
        peer = self._peer(number)
        self.model.heard[peer] = self.now.mono
        self.rig.send(peer, m.Heartbeat(0))
        assert self.rig.replies(peer, 0) == [m.Alive(0)]
        self.compare()

    # --- time ---------------------------------------------------------------------------------------------------------------------

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
        self._read_all_delays()
        if not self.has_unread_delays:
            self.rig.pass_time(0, wall_s=step_s)

    def _tick(self) -> None:
        self.model.tick(self.now)
        self.rig.tick()
        self.compare()

    def _read_all_delays(self) -> None:
        """What remains of a back-off over a restart is worked out when its block is read: have that done now."""
        if self.has_unread_delays and not self.model.is_full:
            peer = self._peer(0)
            request = m.Reserve(next(self.rig.ids), EVERYTHING, "OldestFirst")
            self._wait(peer, request)
            known = set(self.tickets)
            self.send(peer, request)
            for ticket in list(self.tickets):
                if ticket not in known:
                    self.model.release(ticket, ticket.indexes, is_genuine=True)
                    self._ask(peer, m.Release(next(self.rig.ids), [ticket.held()]), lambda reply: refused(reply) == {})
            self.has_unread_delays = any(c.state == "delayed" and not c.submission.is_open for c in self.model.chunks())

    # --- commits ------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.flying is None)
    @rule()
    def begin(self) -> None:
        """Apply a batch; from here to its end other requests are handled, and form the next one."""
        if not self.rig.engine.has_batch(self.now):
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
        self.model.become_visible()
        self.is_committed = True

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
            self.end()

    @precondition(lambda self: self.model.flying is not None and not self.is_committed)
    @rule()
    def commit_fails(self) -> None:
        """The disk is full at COMMIT: the whole batch is refused, and all that has come since."""
        refused_ids = {*self.flying_promises, *self.promises}
        for request_id in refused_ids:
            self.waiting.pop(request_id, None)
        self.model.fail_batch(self.now)
        self.promises, self.flying_promises = {}, {}
        self.seen = (None, 0)
        self.rig.end(apsw.FullError("full"))
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
        self.rig.database.checkpoint_passive()
        if restarts:
            self.rig.database.checkpoint_restart()

    # --- ends of the process ------------------------------------------------------------------------------------------------------

    @rule(step_s=st.sampled_from([0.0, 0.0, 3.0, 60.0]), steps_back=st.booleans())
    def crash(self, step_s: float, steps_back: bool) -> None:
        """At a boundary of commits, between apply and COMMIT, or between COMMIT and its end."""
        if self.is_committed:
            self.model.succeed(self.now, had_rows=True)
        self.rig.pass_time(step_s, wall_s=-step_s if steps_back else step_s)
        self.rig.crash()
        self._after_restart()

    @precondition(lambda self: self.model.flying is None and not self.model.is_full)
    @rule(away_s=st.sampled_from([0.0, 10.0, 40.0]))
    def stop_and_start(self, away_s: float) -> None:
        """In good order: what connections hold becomes leases, everything is folded."""
        for request_id in [request_id for request_id in self.waiting if self._is_parked(request_id) and request_id not in self.predicted]:
            del self.waiting[request_id]
        self.rig.engine.stop_handing_out()
        self.rig.run_turns()
        self.rig.told = [(peer, reply) for peer, reply in self.rig.told if not isinstance(reply, m.Reserved)]
        self.rig.engine.save_reservations(self.now)
        for reservation in self.model.reservations().values():
            if not reservation.is_lease:
                reservation.is_lease = reservation.is_for_restart = True
                reservation.length_s = 30.0
                reservation.deadline = self.now.mono + 30 * SECOND
        self.is_draining = True
        self.fold()
        self.is_draining = False
        assert self.rig.rows("SELECT count(*) FROM history WHERE seq > (SELECT value FROM meta WHERE key = 'folded_seq')") == [(0,)]
        self.rig.database.close()
        self.rig.pass_time(away_s)
        self.rig._open(self.rig.path.parent)
        self._after_restart()

    def _after_restart(self) -> None:
        self.is_committed = False
        self.model.restart(self.now)
        self.waiting.clear()
        self.requeues.clear()
        self.predicted.clear()
        self.promises, self.flying_promises, self.seen = {}, {}, (None, 0)
        self.peers.clear()
        self.turns.clear()
        self.free_since.clear()
        leases = list(
            self.rig.database.reader.execute(
                "SELECT reservation_id, submission_id, block, granted, mask, attempt, deadline_at, length_ms, for_restart "
                "FROM lease ORDER BY reservation_id, submission_id, block, granted"
            )
        )
        found = {}
        for reservation_id, submission_id, block, granted, mask, attempt, deadline_at, length_ms, for_restart in leases:
            mac = self.rig.engine._core.mac(submission_id, block, reservation_id, attempt, granted & FULL)
            ticket = Ticket(submission_id, block, granted & FULL, reservation_id, attempt, mac)
            indexes = frozenset(mask_indexes(block, mask & FULL))
            found[reservation_id, ticket] = indexes
            self.model.restore_lease(reservation_id, ticket, indexes, deadline_at, length_ms, self.now, for_restart=bool(for_restart))
        assert found == self.model.leases
        self.has_unread_delays = any(chunk.state == "delayed" for chunk in self.model.chunks())
        for _ in range(2):
            self.connect()
        if any(chunk.due_at - self.now.wall > chunk.delay_ms for chunk in self.model.chunks() if chunk.state == "delayed"):
            self._read_all_delays()
        self.compare()

    # --- what always holds --------------------------------------------------------------------------------------------------------

    @invariant()
    def all_say_the_same(self) -> None:
        """The file is sound, and file, engine and model agree; while the engine does not know of a COMMIT they cannot."""
        assert self.rig.broken_rules() == []
        if not self.is_committed:
            self._check_file()
            self._check_counts()
            if self.turn % 4 == 0:
                self._check_results()

    def _check_file(self) -> None:
        rows = self.rig.database.reader.execute(
            "SELECT id, state, chunks_total, chunks_dead, chunks_skipped FROM submission WHERE state != 'removed'"
        )
        stored = {row[0]: row[1:] for row in rows}
        expected = {s.id: (s.state, len(s.chunks), s.count("dead"), s.count("skipped")) for s in self.model.submissions.values()}
        assert stored == expected

    def _check_counts(self) -> None:
        engine_core = self.rig.engine._core
        for submission in self.model.submissions.values():
            held = engine_core.supply(submission.id)
            assert held is not None
            counts = (held.completed, held.dead, held.reserved_count)
            assert counts == (submission.count("done"), submission.count("dead"), submission.count("reserved")), submission
            if not self.has_unread_delays:
                assert held.delayed_count == submission.count("delayed")
        states = {state: count for state, count in engine_core.states.items() if count}
        expected: dict[str, int] = {}
        for submission in self.model.submissions.values():
            expected[submission.state] = expected.get(submission.state, 0) + 1
        assert states == expected

    def _check_results(self) -> None:
        for submission in self.model.submissions.values():
            peer = self._peer(0)
            self.rig.send(peer, m.Results(0, submission.id, 0, 64))
            [reply] = self.rig.replies(peer, 0)
            self.model.heard[peer] = self.now.mono
            assert isinstance(reply, m.ResultRows)
            completed = {index for block, mask in enumerate(reply.completed) for index in mask_indexes(block, mask)}
            assert completed == {chunk.index for chunk in submission.chunks if chunk.state == "done"}

    # --- picking ------------------------------------------------------------------------------------------------------------------

    def _ask(self, peer: Peer, request: m.Request, is_right: Callable[..., bool]) -> None:
        self.predicted[request.id] = is_right  # type: ignore[union-attr]  # every request that is asked so has an id
        self.send(peer, request)

    def _peer(self, number: int) -> Peer:
        if not self.peers:
            self.connect()
        return self.peers[number % len(self.peers)]

    def _submission(self, number: int) -> int | None:
        ids = sorted(self.model.submissions)
        return ids[number % len(ids)] if ids else None

    def _ticket(self, number: int) -> Ticket:
        return self.tickets[number % len(self.tickets)]

    def _indexes(self, ticket: Ticket, mask: int) -> list[int]:
        """Some of the chunks of a ticket, all of them for most masks that Hypothesis likes."""
        return list(mask_indexes(ticket.block, ticket.granted & mask)) or ticket.indexes

    def _held(self, ticket: Ticket, mask: int, is_genuine: bool) -> m.Held:
        held = ticket.held(self._indexes(ticket, mask))
        return held if is_genuine else msgspec.structs.replace(held, mac=held.mac ^ 1)


def expected_key(expected: list[Chunk]) -> Callable[[Chunk], int]:
    """Sorts chunks as they stand in `expected`; what does not stand there comes last."""
    places = {id(chunk): place for place, chunk in enumerate(expected)}
    return lambda chunk: places.get(id(chunk), len(places))


def refused(reply: m.Reply) -> Refusals:
    """Chunk → code of all that a reply refuses."""
    assert isinstance(reply, m.Completed), reply
    return {(r.submission_id, index): r.code for r in reply.refusals for index in mask_indexes(r.block, r.mask)}


@functools.cache
def _encoded(indexes: tuple[int, ...]) -> bytes:
    return msgspec.msgpack.encode([b"%d" % index for index in indexes])


def results_of(indexes: list[int]) -> msgspec.Raw:
    """A result for each chunk: its number."""
    return msgspec.Raw(_encoded(tuple(indexes)))


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=50, max_examples=60)
