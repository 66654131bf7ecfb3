"""Stories: the same steps told to the engine and to the naive queue, which must agree on every chunk that is given.

A step is a name and three numbers, which mean whatever there is at that moment: so any part of a story is a story.
Where stories come from is not known here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from opsq.queue.engine import Peer
from opsq.queue.policy import Policy
from opsq.strategy.tree import Strategy
from opsq.wire import messages as m
from unit.model.rig import NO_RESULTS, Rig, Ticket, tickets_of
from unit.naive import Naive

KEYS = ["a", "b"]
VALUES: list[int | str] = [1, "1", "x"]
RATES = [0.5, 1.0, 2.0]
COUNTS = [1, 1, 2, 5, 40]

Step = tuple[str, int, int, int]


class Held(NamedTuple):
    """One chunk that somebody holds; a lease until `lease_ends_s`."""

    submission_id: int
    index: int
    ticket: Ticket
    peer: Peer
    lease_s: float | None = None
    lease_ends_s: float = float("inf")


class Call(NamedTuple):
    """A reserve that has not been answered."""

    peer: Peer
    strategy: Strategy
    count: int
    lease_s: float | None = None


class Story:
    """The engine and the naive queue, told the same.

    Args:
        strategies: what consumers ask for.
    """

    def __init__(self, folder: Path, strategies: list[Strategy]) -> None:
        self.rig = Rig(folder, Policy(restart_lease_s=1e6))
        self.naive = Naive(self.now_s)
        self.strategies = strategies
        self.peers: list[Peer] = []
        self.held: list[Held] = []
        self.lost: list[Held] = []
        """What connections held when the process was killed."""
        self.calls: dict[int, Call] = {}
        self.submitted: list[m.NewSubmission] = []

    @property
    def now_s(self) -> float:
        return self.rig.now.mono / 1e9

    def play(self, steps: list[Step]) -> None:
        """Tell both a step, one after the other."""
        for name, a, b, c in steps:
            self.naive.look_at_clock(self.now_s)
            getattr(self, f"on_{name}")(a, b, c)
            self.rig.settle()
            self.look()

    def look(self) -> None:
        """After each step: what was given is what the naive queue gives, and whoever is parked may have nothing."""
        for request_id, given in self.rig.take_given():
            call = self.calls.pop(request_id)
            chunks = [(ticket.submission_id, index) for ticket in tickets_of(given) for index in ticket.indexes]
            assert chunks, "a call was answered with nothing that was to wait"
            self.naive.give(call.strategy, call.count, chunks)
            ends_s = self.now_s + call.lease_s if call.lease_s is not None else float("inf")
            self.held += [
                Held(ticket.submission_id, index, ticket, call.peer, call.lease_s, ends_s)
                for ticket in tickets_of(given)
                for index in ticket.indexes
            ]
        for call in self.calls.values():
            picks = self.naive.picks(call.strategy, 1)
            assert not picks, f"{call.strategy} stays parked, though {picks[0].submission.id} is allowed"

    def _peer(self, number: int) -> Peer:
        if not self.peers or number % 4 == 0:
            self.peers.append(self.rig.connect())
        return self.peers[number % len(self.peers)]

    def _metadata(self, number: int) -> dict[str, int | str]:
        """Of each key one of the values, or none."""
        choices = [None, *VALUES]
        chosen = {key: choices[number // len(choices) ** at % len(choices)] for at, key in enumerate(KEYS)}
        return {key: value for key, value in chosen.items() if value is not None}

    # --- producers ---

    def on_submit(self, a: int, b: int, c: int) -> None:
        self._submit(a, b, c)

    def on_schedule(self, a: int, b: int, c: int) -> None:
        self._submit(a, b, c, **[{"delay_s": 1.5}, {"expires_s": 2.0}, {"delay_s": 1.0, "expires_s": 3.0}][c % 3])

    def _submit(self, a: int, b: int, c: int, **times: float) -> None:
        new = m.NewSubmission(
            self.rig.request_key(),
            [1, 2, 3, 9, 70][b % 5],
            metadata=self._metadata(a),
            priority=c % 3,
            max_attempts=1000,
            max_lost=1000,
            reservation_s=1e6,
            keep_on_dead=b % 2 == 0,
            **times,
        )
        self.submitted.append(new)
        reply = self.rig.only(self.rig.connect(), m.Submit(next(self.rig.ids), [new]), m.Submitted)
        self.naive.submit(
            reply.created[0].submission_id,
            new.chunks_count,
            new.metadata,
            new.priority,
            keep_on_dead=new.keep_on_dead,
            **times,
        )

    def on_submit_again(self, a: int, _b: int, _c: int) -> None:
        """The reply was lost: it changes nothing."""
        if self.submitted:
            again = m.Submit(next(self.rig.ids), [self.submitted[a % len(self.submitted)]])
            assert not self.rig.only(self.rig.connect(), again, m.Submitted).created[0].is_new

    def on_cancel(self, a: int, b: int, _: int) -> None:
        known = [*self.naive.submissions, *self.naive.scheduled]
        if known and b % 2:
            submission_id = known[a % len(known)]
            self.rig.ask(self.rig.connect(), m.Cancel(next(self.rig.ids), submission_id))
            self.naive.cancel(submission_id)
            self._forget_ended()

    def on_requeue(self, a: int, _b: int, _c: int) -> None:
        known = [*self.naive.ended, *(one.id for one in self.naive.submissions.values() if one.dead)]
        if known:
            submission_id = known[a % len(known)]
            self.rig.ask(self.rig.connect(), m.Requeue(next(self.rig.ids), submission_id))
            self.naive.requeue(submission_id)

    def _forget_ended(self) -> None:
        """Nobody holds anything of what has ended."""
        self.held = [one for one in self.held if one.submission_id in self.naive.submissions]

    # --- consumers ---

    def on_reserve(self, a: int, b: int, c: int) -> None:
        """The heart of it: both give the same, in the same order."""
        self._reserve(a, b, c)

    def on_lease(self, a: int, b: int, c: int) -> None:
        self._reserve(a, b, c, lease_s=[1.0, 2.5, 100.0][c % 3])

    def _reserve(self, a: int, b: int, c: int, lease_s: float | None = None) -> None:
        call = self._call(a, b, c, lease_s)
        request = m.Reserve(next(self.rig.ids), call.count, str(call.strategy), 0.0, lease_s)
        self.calls[request.id] = call
        replies = self.rig.ask(call.peer, request)
        if not any(isinstance(reply, m.Reserved) and reply.grants for reply in replies):
            del self.calls[request.id]
            assert not self.naive.picks(call.strategy, call.count), f"{call.strategy} gives nothing"

    def on_park(self, a: int, b: int, c: int) -> None:
        """The same, but it waits until something is there."""
        call = self._call(a, b, c, [None, None, 2.5][b % 3])
        self.calls[self.rig.park(call.peer, call.count, str(call.strategy), lease_s=call.lease_s)] = call

    def _call(self, a: int, b: int, c: int, lease_s: float | None = None) -> Call:
        peer = self._peer(c)
        self.naive.consumers.add(peer)
        return Call(peer, self.strategies[a % len(self.strategies)], COUNTS[b % len(COUNTS)], lease_s)

    def on_follow(self, a: int, b: int, c: int) -> None:
        """Several completions in one batch, each with a reserve of one chunk that follows."""
        if not self.held:
            return
        call, followed = self._call(a, 0, c), []
        for one in self._some_held(a, b):
            done = m.Completion(one.ticket.held([one.index]), NO_RESULTS)
            request = m.CompleteAndReserve(next(self.rig.ids), [done], 1, str(call.strategy))
            self.rig.send(call.peer, request)
            self.naive.complete(one.submission_id, one.index)
            self.calls[request.id] = call
            followed.append(request.id)
        self.rig.settle()
        for request_id in followed:
            replies = self.rig.replies(call.peer, request_id)
            if not any(isinstance(reply, m.Reserved) and reply.grants for reply in replies):
                del self.calls[request_id]

    def _some_held(self, a: int, b: int) -> list[Held]:
        """Up to three of the chunks that are held, taken out of the list."""
        return [self.held.pop(a % len(self.held)) for _ in range(min(b % 3 + 1, len(self.held)))]

    def on_complete(self, a: int, b: int, _: int) -> None:
        for one in self._some_held(a, b):
            assert self.rig.complete(self._peer(1), one.ticket.held([one.index])) == []
            self.naive.complete(one.submission_id, one.index)
            self.look()

    def on_release(self, a: int, b: int, _: int) -> None:
        for one in self._some_held(a, b):
            assert self.rig.release(self._peer(1), one.ticket.held([one.index])) == []
            self.naive.release(one.submission_id, one.index)
            self.look()

    def on_fail(self, a: int, b: int, c: int) -> None:
        for one in self._some_held(a, b):
            delay_s = [0.0, 1.0, 2.5, 4.0][c % 4]
            assert self.rig.fail(self._peer(1), one.ticket.held([one.index]), delay_s=delay_s) == []
            self.naive.fail(one.submission_id, one.index, delay_s)
            self.look()

    def on_bury(self, a: int, _b: int, _c: int) -> None:
        for one in self._some_held(a, 0):
            assert self.rig.fail(self._peer(1), one.ticket.held([one.index]), is_final=True) == []
            self.naive.bury(one.submission_id, one.index)
            self._forget_ended()

    def on_disconnect(self, a: int, _b: int, _c: int) -> None:
        if self.peers:
            peer = self.peers.pop(a % len(self.peers))
            self.rig.disconnect(peer)
            self.naive.consumers.discard(peer)
            self.calls = {request_id: call for request_id, call in self.calls.items() if call.peer is not peer}
            for one in [one for one in self.held if one.peer is peer and one.lease_s is None]:
                self.held.remove(one)
                self.naive.release(one.submission_id, one.index)

    def on_reclaim(self, a: int, b: int, c: int) -> None:
        """Whoever held it when the process was killed is back."""
        peer = self._peer(c)
        for _ in range(min(b % 3 + 1, len(self.lost))):
            one = self.lost.pop(a % len(self.lost))
            refusals = self.rig.reclaim(peer, one.ticket.held([one.index]))
            assert bool(refusals) != self.naive.take_up(one.submission_id, one.index)
            if not refusals:
                self.held.append(one)
            reservation_id = one.ticket.reservation_id  # which is its connection's now, with all that is in it
            self.held = [
                other._replace(peer=peer, lease_s=None) if other.ticket.reservation_id == reservation_id else other
                for other in self.held
            ]
            self.look()

    # --- time ---

    def on_pass_time(self, a: int, _b: int, _c: int) -> None:
        for _ in range(a % 6 + 1):
            self.rig.pass_time(0.5)
            self.naive.look_at_clock(self.now_s)
            self.naive.tick()
            self.rig.tick()
            self.look()
            self.rig.settle()
            self._commit()
            self.look()

    def _commit(self) -> None:
        """What a tick has begun is committed."""
        for one in [one for one in self.held if one.lease_ends_s <= self.now_s]:
            self.held.remove(one)
            self.naive.fail(one.submission_id, one.index, 0.0)
        self.naive.commit()
        self._forget_ended()

    # --- operators ---

    def on_pause(self, a: int, b: int, _: int) -> None:
        pairs = self._metadata(a) if b % 8 else {}
        self.rig.ask(self.rig.connect(), m.Pause(next(self.rig.ids), pairs))
        self.naive.pauses[frozenset(pairs.items())] = True

    def on_resume(self, a: int, _b: int, _c: int) -> None:
        if self.naive.pauses:
            pairs = list(self.naive.pauses)[a % len(self.naive.pauses)]
            self.rig.ask(self.rig.connect(), m.Resume(next(self.rig.ids), dict(pairs)))
            del self.naive.pauses[pairs]

    def on_limit(self, a: int, b: int, c: int) -> None:
        key = [*KEYS, "submission"][a % 3]
        value = [None, *VALUES][b % 4] if key != "submission" else None
        concurrency = [None, 1, 3][c % 3]
        rate_per_s, burst = [(None, None), (RATES[b % 3], None), (RATES[a % 3], 1)][c // 3 % 3]
        if concurrency is None and rate_per_s is None:
            return
        request = m.Limit(next(self.rig.ids), key, value, concurrency, rate_per_s, burst)
        self.rig.ask(self.rig.connect(), request)
        self.naive.limit((key, value), concurrency, rate_per_s, burst)

    def on_unlimit(self, a: int, _b: int, _c: int) -> None:
        if self.naive.limits:
            pair = list(self.naive.limits)[a % len(self.naive.limits)]
            self.rig.ask(self.rig.connect(), m.Unlimit(next(self.rig.ids), *pair))
            self.naive.unlimit(pair)

    def on_weight(self, a: int, b: int, c: int) -> None:
        pair, weight = (KEYS[a % 2], VALUES[b % 3]), [0.5, 1.0, 3.0][c % 3]
        self.rig.ask(self.rig.connect(), m.Weight(next(self.rig.ids), *pair, weight))
        self.naive.weights[pair] = weight

    # --- the process ---

    def on_fold(self, _a: int, _b: int, _c: int) -> None:
        self.rig.engine.fold_all()
        self.rig.settle()
        self.rig.engine._folding.is_urgent = False

    def on_restart(self, a: int, b: int, _: int) -> None:
        if b % 3:
            return
        self.peers.clear()
        self.calls.clear()
        self.rig.restart(away_s=float(a % 3))
        self.held = [one._replace(lease_s=one.lease_s or 1e6) for one in self.held]
        self.naive.restart(self.now_s)
        self._opened_again()

    def on_crash(self, _a: int, b: int, _c: int) -> None:
        """What connections hold is free again, until they come back. Passes are those of the last fold."""
        if b % 3:
            return
        self.on_fold(0, 0, 0)
        self.peers.clear()
        self.calls.clear()
        self.rig.crash()
        for one in [one for one in self.held if one.lease_s is None]:
            self.held.remove(one)
            self.lost.append(one)
            self.naive.release(one.submission_id, one.index)
        self.naive.restart(self.now_s)
        self._opened_again()

    def _opened_again(self) -> None:
        """The first tick of the new process."""
        self.naive.tick()
        self.rig.tick()
        self.rig.settle()
        self._commit()


@contextmanager
def in_folder() -> Iterator[Path]:
    """A folder for one example of a property."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def play(strategies: list[Strategy], steps: list[Step]) -> None:
    """Play a story in a folder of its own."""
    with in_folder() as folder:
        story = Story(folder, strategies)
        try:
            story.play(steps)
        finally:
            story.rig.close()
