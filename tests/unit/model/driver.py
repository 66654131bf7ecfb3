"""The part of the state machine that looks.

It sends requests to the engine and to the model, and compares all that the engine says.

It holds no rules; those are in the test. What it finds wrong it asserts.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant

from opsq.clock import Now
from opsq.ids import mask_indexes
from opsq.queue.chunks import dead, dead_slices
from opsq.queue.clock_steps import STEP_MS
from opsq.queue.dispatch import random_order
from opsq.queue.engine import Peer
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.naive import Model
from unit.model.rig import Rig, Ticket, tickets_of
from unit.model.things import FINAL, Chunk, Refusals
from unit.model.views import Sums, check_views, naive_counts

POLICY = Policy(finished_days=10_000.0, history_days=10_000.0, max_backlog_chunks=1 << 50)


@dataclass
class Asked:
    """A requeue or drop that has not been answered.

    What was dead when it came, and how many chunks its slices have taken.
    """

    request: m.Requeue | m.Drop
    dead: list[tuple[Chunk, int]]
    count: int = 0


@dataclass
class Waiting:
    """A reserve call that has not been answered."""

    peer: Peer
    request: m.Reserve | m.CompleteAndReserve
    deadline: int | None


class Driver(RuleBasedStateMachine):
    """Keeps an engine, a model, and what is known of every request under way."""

    VIEWS_EVERY = 1
    """All views are asked after every step, or every so many."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.rig = self.make_rig()
        self.model = Model()
        self.model.hold_until = self.model.last_tick = self.rig.now.mono
        self.model.hold_until = 0
        self.peers: list[Peer] = []
        self.tickets: list[Ticket] = []
        self.waiting: dict[int, Waiting] = {}
        self.requeues: dict[int, Asked] = {}
        self.promises: dict[int, m.Reply | None] = {}  # what is to be answered by a batch, by request
        self.flying_promises: dict[int, m.Reply | None] = {}
        self.followers: list[m.NewSubmission] = []
        """Follow-ups of completions that the model has accepted."""
        self.predicted: dict[int, Callable[[m.Reply], bool]] = {}
        self.owners: dict[int, Peer] = {}  # who sent each request
        self.begun: dict[int, list[tuple[Ticket, list[int]]]] = {}
        """What was said to have started while a reclaim of its connection waits, by that request."""
        self.seen: tuple[object, int] = (None, 0)
        self.seen_entries: tuple[object, int] = (None, 0)
        self.is_committed = False  # the COMMIT has ended, and the engine has not been told
        self.refused_as_full: set[int] = set()
        self.is_draining = False
        self.has_short_turns = False
        self.turns: dict[int, list[int]] = {}
        self.free_since: dict[int, int] = {}
        self.turn = 0
        self.checks_count = 0
        self.checked: tuple[int, Now, bool] | None = None
        """What engine and file were like when all was compared last."""
        self.stored: dict[int, tuple[str, int, int, int]] = {}
        for _ in range(2):
            self.connect()

    def make_rig(self) -> Rig:
        """What is driven."""
        return Rig(self.folder, POLICY)

    @property
    def now(self) -> Now:
        return self.rig.now

    def teardown(self) -> None:
        self.rig.close()
        shutil.rmtree(self.folder)

    def _see_missed_step(self) -> None:
        """Whatever the engine is asked, it looks at the clocks first."""
        self.model.wall = self.now.wall
        step_ms, self.model.missed_step_ms = self.model.missed_step_ms, 0
        if abs(step_ms) >= STEP_MS:
            self.model.step(step_ms)

    # --- comparing ---

    def send(self, peer: Peer, request: m.Request) -> None:
        """Have the engine handle a request; the model has taken it already."""
        self._see_missed_step()
        self.model.heard[peer] = self.now.mono
        self.owners[getattr(request, "id", 0)] = peer
        self.rig.send(peer, request)
        self.compare()

    def compare(self, ended: dict[int, m.Reply | None] | None = None) -> None:
        """Hold all that the engine has said, and promised, against the model."""
        granted: list[tuple[Peer, m.Reserved]] = []
        empty: list[tuple[Peer, m.Reserved]] = []
        self._note_free()
        self._take_slices()
        self._take_followers()
        for peer, reply in self._promised():
            if isinstance(reply, m.Reserved):
                granted.append((peer, reply))
            elif reply.id in self.requeues:
                self._check_letters(self.requeues.pop(reply.id), reply)
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
                self._check_letters(self.requeues.pop(request_id), reply)
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

    def _take_followers(self) -> None:
        """Follow-ups that have been added to the batch: those of the completions that the model has accepted."""
        followed, self.rig.followed = self.rig.followed, []
        followers, self.followers = self.followers, []
        assert [new for new, _ in followed] == followers
        for new, created in followed:
            assert created.is_new
            self.model.submit(new, created.submission_id, self.now)

    def _promised(self) -> list[tuple[Peer, m.Reply]]:
        """Replies that have been added to the batch that is being formed."""
        batch = self.rig.engine._state.batch
        known = self.seen[1] if self.seen[0] is batch else 0
        self.seen = (batch, len(batch.replies))
        return batch.replies[known:]

    def ask_letters(self, peer: Peer, request: m.Requeue | m.Drop) -> None:
        """Have dead letters requeued or dropped."""
        dead = [
            (chunk, chunk.deaths)
            for chunk in self.model.chunks()
            if chunk.state == "dead" and not chunk.is_requeued and request.submission_id in {None, chunk.submission.id}
        ]
        if request.indexes is not None:
            dead = [(chunk, deaths) for chunk, deaths in dead if chunk.index in request.indexes]
        self.requeues[request.id] = Asked(request, dead)
        self.send(peer, request)

    def _take_slices(self) -> None:
        """Slices that have been added to the batch that is being formed: the model takes the same chunks, if it may."""
        batch = self.rig.engine._state.batch
        known = self.seen_entries[1] if self.seen_entries[0] is batch else 0
        self.seen_entries = (batch, len(batch.entries))
        for entry in batch.entries[known:]:
            if entry.cancel == self.rig.engine._finisher._waiting._try_again:
                self.model.tell()
            if isinstance(entry, dead_slices.Slice):
                asked = self.requeues[entry.request_id]
                indexes = [index for block, mask in entry.masks.items() for index in mask_indexes(block, mask)]
                assert len(indexes) <= dead.SLICE_CHUNKS
                assert asked.request.submission_id in {None, entry.submission_id}
                take = self.model.drop if entry.is_drop else self.model.requeue
                asked.count += take(entry.submission_id, indexes)

    def _check_letters(self, asked: Asked, reply: m.Reply) -> None:
        """The last slice has been taken: all that was dead when the request came is done with, and was counted.

        Or it is refused.
        """
        request = asked.request
        if isinstance(reply, m.ErrorReply):
            if self.is_draining:
                assert reply.code == "conflict", reply
            elif isinstance(request, m.Requeue) and request.submission_id is not None and not asked.count:
                assert reply.code == self.model.refusal_of_requeue(request.submission_id, request.indexes), reply
            else:
                assert reply.code in {"conflict", "not_found"}, reply
            return
        assert isinstance(reply, m.Changed)
        assert reply.count == asked.count, (reply, asked)
        there = [
            (chunk, deaths) for chunk, deaths in asked.dead if chunk.submission.id in self.model.submissions
        ]  # and not removed since
        left = [
            chunk
            for chunk, deaths in there
            if chunk.state == "dead" and not chunk.is_requeued and chunk.deaths == deaths
        ]
        is_over = {chunk.submission.state in FINAL or chunk.submission.is_closing for chunk in left} <= {True}
        assert not left or (isinstance(request, m.Requeue) and asked.count and is_over), (reply, left)

    def _owner_is_gone(self, request_id: int) -> bool:
        return self.owners[request_id] not in self.model.heard

    def _take(self, peer: Peer, reply: m.Reserved, *, is_alone: bool) -> None:
        """Chunks were handed out: the right ones, in the right order, as many as may be, to whoever waits longest.

        No order can be told while the engine does not know of a COMMIT, nor when runs of several calls were interrupted
        for each other.
        """
        before = list(self.waiting.values())[: list(self.waiting).index(reply.id)]
        call = self.waiting.pop(reply.id)
        assert call.peer is peer
        strategy = call.request.strategy
        assert not any(other.request.strategy == strategy for other in before), "not the longest waiting"
        chunks: dict[Ticket, list[Chunk]] = {
            ticket: self.model.named(ticket, ticket.indexes) for ticket in tickets_of(reply)
        }
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

    # --- laps of Random ---

    def _note_free(self) -> None:
        """Since which turn each submission has had something free without a break."""
        free = [submission.id for submission in self.model.submissions.values() if submission.free()]
        self.free_since = {submission_id: self.free_since.get(submission_id, self.turn) for submission_id in free}

    def _check_laps(self, flat: list[Chunk], count: int) -> None:
        """Between two turns of a submission each other that had work all the time has a turn.

        Each gives its lowest chunks.
        """
        size = max(1, count // random_order.DECK_TURNS)
        size = -(-size // 64) * 64 if size >= 32 else size
        at = 0
        left = {submission_id: self.model.submissions[submission_id].free() for submission_id in self.free_since}
        for submission_id, free in left.items():
            given = {chunk.index for chunk in flat if chunk.submission.id == submission_id}
            assert given == {chunk.index for chunk in free[: len(given)]}, "not the lowest"
        while at < len(flat):
            submission_id = flat[at].submission.id
            taken = []
            while at < len(flat) and len(taken) < size and flat[at].submission.id == submission_id:
                taken.append(flat[at])
                at += 1
            left[submission_id] = [chunk for chunk in left[submission_id] if chunk not in taken]
            self.turn += 1
            last = self.turns.get(submission_id, [-1])[-1]
            for other, since in self.free_since.items():
                if other != submission_id and since < last and left[other]:
                    assert any(turn > last for turn in self.turns.get(other, [])), "a lap without a turn"
            self.turns.setdefault(submission_id, []).append(self.turn)
            self.free_since = {other: since for other, since in self.free_since.items() if left[other]}

    # --- what always holds ---

    @invariant()
    def all_say_the_same(self) -> None:
        """The file is sound, and file, engine and model agree.

        While the engine does not know of a COMMIT they cannot.
        """
        now = (self.rig.uses_count, self.now, self.is_committed)
        if now == self.checked:
            return  # the rule had nothing to do: it has not come near engine and file, and no time has passed
        has_new_rows = self.rig.has_new_rows()
        if has_new_rows:
            assert self.rig.broken_rules() == []
            self.stored = self._stored()
        if self.model.waiting.has_due() and self.model.flying is None:
            waiting = self.rig.engine._finisher._waiting
            assert waiting._is_telling or waiting.next_due() == 0, "nobody tells those who wait"
        if not self.is_committed:
            counts = {submission.id: naive_counts(submission) for submission in self.model.submissions.values()}
            self._check_file(counts)
            self._check_counts(counts)
            self.check_schedules()
            self.checks_count += 1
            is_turn = self.checks_count % self.VIEWS_EVERY == 0
            if self.model.flying is None and is_turn:
                self._see_missed_step()
                check_views(self.rig, self.model)
            if has_new_rows or is_turn:
                self._check_results()
        self.checked = (self.rig.uses_count, self.now, self.is_committed)

    def check_schedules(self) -> None:
        """What schedules say of themselves; see `Scheduling`."""

    def _stored(self) -> dict[int, tuple[str, int, int, int]]:
        """State and counts of each submission, as the file has them."""
        rows = self.rig.database.reader.execute(
            "SELECT id, state, chunks_total, chunks_dead, chunks_skipped FROM submission WHERE state != 'removed'"
        )
        return {row[0]: row[1:] for row in rows}

    def _check_file(self, counts: dict[int, Sums]) -> None:
        assert self.stored == {
            s.id: (s.state, len(s.chunks), counts[s.id][4], counts[s.id][5]) for s in self.model.submissions.values()
        }

    def _check_counts(self, counts: dict[int, Sums]) -> None:
        engine_state = self.rig.engine._state
        for submission in self.model.submissions.values():
            held = engine_state.submission(submission.id)
            assert held is not None
            assert held.counts == counts[submission.id], submission
        states = {state: count for state, count in engine_state.states.items() if count}
        assert states == Counter([submission.state for submission in self.model.submissions.values()])
        unfinished = sum(sum(busy[:3]) for busy in counts.values())
        assert self.rig.engine._admission._backlog_count == unfinished

    def _check_results(self) -> None:
        self._see_missed_step()
        for submission in self.model.submissions.values():
            peer = self._peer(0)
            self.rig.send(peer, m.Results(0, submission.id, 0, 64))
            [reply] = self.rig.replies(peer, 0)
            self.model.heard[peer] = self.now.mono
            assert isinstance(reply, m.ResultRows)
            completed = {index for block, mask in enumerate(reply.completed) for index in mask_indexes(block, mask)}
            assert completed == {chunk.index for chunk in submission.chunks if chunk.state == "done"}

    # --- picking ---

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

    def _held(self, ticket: Ticket, mask: int, is_genuine: bool) -> m.HeldChunks:
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
