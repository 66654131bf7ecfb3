"""A reserve call over shards: from one that has something, else parked at several until one has.

It must not know connections. A consumer gets the chunks of one shard with each answer; what a second one grants at the
same moment is given back at once, so that nobody holds more than was asked for. That this is rare, each call waits at
each of its shards with another rank: of calls that wait everywhere, each shard serves another one first. No shard is
waited for alone: one that does not answer at once is left to itself, and the others are asked.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from opsq.client.core.pending_requests import OnReply
from opsq.client.shards.poll import is_gone
from opsq.client.shards.shard import QUESTION_S, Shard
from opsq.client.shards.shard_set import ShardSet
from opsq.errors import BY_CODE, UsageError
from opsq.wire.messages import ErrorReply, Reply, Reserve, Reserved, SubmissionContent

PARKED_AT = 16
"""At how many shards a call that waits for ever is parked at a time, so that a chunk costs as much however many are."""
MOVE_S = 0.25
"""How long it waits at these, if there are more, until it moves on to the next ones: twice as long for each other call
that waits at a shard on average, because the more there are, the less likely a shard has none."""
MOVE_LIMIT_S = 30.0
"""And at most so long."""
STAY_S = 0.1
"""How often a call that follows a completion moves on though its shard has more: else the others would starve."""
PROBE_S = 1.0
"""How long the answer of one that is asked first may take until the call waits at the others too."""
RETRY_S = 1.0
"""After how long a shard is asked again that could not take part, as when its disk is full."""
_COMPANY_LIMIT = 10


class Timer(Protocol):
    """What is to be called later."""

    def cancel(self) -> None:
        """Do not call it."""


Later = Callable[[float, Callable[[], None]], Timer]
"""Has something called in so many seconds."""
AskFirst = Callable[[OnReply], int]
"""Asks the first shard of a call for what it has now, on behalf of who is given; returns the id of the request."""


class Parking:
    """The reserve calls of one client.

    Args:
        shards: that may be asked.
        say: gives the client its answer.
        say_missing: tells it, once a call, which shards it waits for in vain.
        later: see `Later`.
    """

    def __init__(
        self,
        shards: ShardSet,
        say: Callable[[Reply], None],
        say_missing: Callable[[int, Sequence[Shard]], None],
        later: Later,
    ) -> None:
        self.shards = shards
        self.later = later
        self._say = say
        self._say_missing = say_missing
        self._calls: dict[int, _Call] = {}
        self._turn = random.randrange(1 << 16)  # of many clients that start at once, each begins at another shard
        self._moved_at = 0.0
        self._company = 2.0  # how many others wait at a shard, as shards have told recently
        self._dry: set[Shard] = set()  # had nothing when they were asked last
        self._untold: dict[int, SubmissionContent] = {}  # came with chunks that were given back

    def reserve(self, request: Reserve, first: Shard | None = None, ask: AskFirst | None = None) -> None:
        """Begin a call.

        Args:
            first: that shard is asked first.
            ask: how, if not with a request of its own.
        """
        self._calls[request.id] = call = _Call(self, request)
        call.begin(first, ask)

    def may_stay(self, shard: Shard) -> bool:
        """Whether a client that has just completed chunks of this shard should ask it first for the next ones."""
        now = time.monotonic()
        if now - self._moved_at >= STAY_S:
            self._moved_at = now
            return False
        return shard.hands_out and shard not in self._dry and shard in self.shards.served

    def cancel(self, request_id: int) -> bool:
        """End a call now, as `CancelWait` does; False: there is none with this id."""
        call = self._calls.get(request_id)
        if call is not None:
            call.end_wait()
        return call is not None

    def abandon(self, request_id: int) -> None:
        """End a call of which the client expects no answer any more."""
        call = self._calls.pop(request_id, None)
        if call is not None:
            call.abandon()

    def end(self) -> None:
        """End all calls; nobody wants an answer."""
        for request_id in list(self._calls):
            self.abandon(request_id)

    def look_again(self) -> None:
        """A shard has come, or gone: calls that wait park there too, or wait for it no more."""
        for call in list(self._calls.values()):
            call.look_again()

    def chosen_anew(self) -> None:
        """Shards were added, or removed: nobody is to wait at those any more."""
        self._dry.intersection_update(self.shards.served)
        for call in list(self._calls.values()):
            call.leave()
        self.look_again()

    # --- for calls ---

    def next_turn(self) -> int:
        """At which shard the next call begins: at another one each time."""
        self._turn += 1
        return self._turn

    @property
    def move_s(self) -> float:
        """How long a call waits until it moves on."""
        return min(MOVE_S * math.pow(2.0, self._company), MOVE_LIMIT_S)

    def order(self, turn: int) -> list[Shard]:
        """The shards, beginning with one, and then as in a circle."""
        served = self.shards.served
        first = turn % max(len(served), 1)
        return served[first:] + served[:first]

    def is_dry(self, shard: Shard) -> bool:
        """Whether the shard had nothing when it was asked last."""
        return shard in self._dry

    def fell_silent(self, shard: Shard) -> None:
        """A shard does not answer: it is not asked first any more until it hands something out."""
        self._dry.add(shard)

    def heard(self, shard: Shard, reply: Reserved) -> None:
        """Note whether a shard has work, whose, and what it described."""
        if reply.grants:
            self._dry.discard(shard)
            self.shards.note_owner(shard, {grant.submission_id for grant in reply.grants})
        else:
            self._dry.add(shard)
            self._company += (min(reply.waiting_count, _COMPANY_LIMIT) - self._company) / PARKED_AT
        for described in reply.submissions:
            self._untold[described.submission_id] = described

    def answer(self, call: _Call, reply: Reply, shard: Shard | None = None) -> None:
        """End a call with an answer."""
        del self._calls[call.request.id]
        if isinstance(reply, Reserved) and shard is not None:
            if call.request.lease_s is None:
                shard.holdings.granted(reply)
            else:
                shard.leased(reply.deadline_s)
            reply = replace(reply, submissions=list(self._untold.values()))
            self._untold.clear()
        self._say(replace(reply, id=call.request.id))

    def tell_missing(self, call: _Call, shards: Sequence[Shard]) -> None:
        """Tell the client which shards it waits for."""
        self._say_missing(call.request.id, shards)


class _Call:
    """One reserve call that has no answer yet."""

    def __init__(self, parking: Parking, request: Reserve) -> None:
        self.request = request
        self._parking = parking
        self._turn = parking.next_turn()
        self._deadline = math.inf if request.wait_s is None else time.monotonic() + request.wait_s
        self._is_limited = self._deadline == math.inf and not request.until_empty
        self._asked: dict[Shard, int] = {}  # who has not answered, and the id of what it was asked
        self._probed: set[Shard] = set()  # have been asked before all were
        self._empty: set[Shard] = set()  # could serve nothing more without a new submission
        self._next: list[Shard] | None = None  # to be asked before all are; None: that is not decided yet
        self._is_answered = False
        self._is_cancelled = False
        self._has_told = False
        self._will_move = False
        self._timers: set[Timer] = set()  # that have not rung
        self._errors: dict[Shard, ErrorReply] = {}  # of those that would take part, and cannot

    def begin(self, first: Shard | None, ask: AskFirst | None) -> None:
        """Ask, one after the other, those that may have something; then park.

        Args:
            first: begin with this one.
            ask: asks it.
        """
        if first is not None:
            self._probe(first, ask)
        elif self._parking.shards.served:
            self.look_again()
        else:
            numbers = ", ".join(map(str, sorted(self._parking.shards.numbers or [])))
            self._finish(ErrorReply.of(0, UsageError(cause="no_such_shards", shards=numbers)))

    def _plan(self) -> None:
        """Decide who is asked before all are, and when the call ends."""
        self._next = [shard for shard in self._places() if shard not in self._probed]
        if self.request.wait_s == 0:  # what was given back to one could be what the next call looks for
            self._next.sort(key=self._parking.is_dry)
        else:
            self._next = [shard for shard in self._next if not self._parking.is_dry(shard)]
        if self._deadline < math.inf:
            self._end_within(self._deadline - time.monotonic())

    def _probe(self, shard: Shard, ask: AskFirst | None = None) -> None:
        self._probed.add(shard)
        if ask is None:
            self._ask(shard, 0.0)
        else:
            self._asked[shard] = ask(lambda reply: self._heard(shard, reply))
        self._later(PROBE_S, lambda: self._go_on(shard))

    def look_again(self) -> None:
        """Ask the next; if there is none, park at every shard at which the call should be and is not."""
        if self._is_answered:
            return
        if self._is_cancelled:
            self._end_if_over()
            return
        if self._next is None:
            if self._asked:
                return
            self._plan()
        if self._next:
            if not self._asked:
                self._probe(self._next.pop(0))
            return
        wait_s = None if self._deadline == math.inf else max(self._deadline - time.monotonic(), 0.0)
        for rank, shard in enumerate(self._places()):
            if shard not in self._asked and (wait_s != 0 or shard not in self._probed):
                self._probed.add(shard)
                self._ask(shard, wait_s, rank)
        self._end_if_over()
        if self._is_limited and not self._will_move and len(self._parking.shards.served) > PARKED_AT:
            self._will_move = True
            self._later(self._parking.move_s, self._move)
        self._tell_missing()

    def _places(self) -> list[Shard]:
        """Where the call should be parked now, in the order of its ranks."""
        order = self._parking.order(self._turn)
        reached = (shard for shard in order if shard.hands_out and shard not in self._errors)
        return list(itertools.islice(reached, PARKED_AT if self._is_limited else None))

    def _go_on(self, silent: Shard) -> None:
        """A shard may have been lost and nobody knows yet: do not wait for its answer alone, nor ask it first again."""
        if silent in self._asked and not self._is_answered:
            self._parking.fell_silent(silent)
            if self._next is None:
                self._plan()
            self._next = []
            self.look_again()

    def _move(self) -> None:
        """Nothing has come at these shards: wait at the next ones."""
        if self._is_answered or self._is_cancelled:
            return
        self._will_move = False
        before = dict(self._asked)
        self._turn += PARKED_AT
        self.look_again()
        places = self._places()
        for shard, request_id in before.items():
            if shard not in places:
                shard.cancel(request_id)

    def end_wait(self) -> None:
        """Answer with nothing, as soon as no shard can grant anything any more."""
        self._deadline = 0.0
        self._is_cancelled = True
        self._next = []
        self._cancel_all()
        self._end_within(0.0)
        self._end_if_over()

    def abandon(self) -> None:
        """Ask nobody any more; what is granted is given back."""
        self._is_answered = True
        self._cancel_all()
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _end_within(self, wait_s: float) -> None:
        """A shard may never say that the time is over: it is away, or hangs."""
        self._later(max(wait_s, 0.0) + QUESTION_S, self._end_late)

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        def ring() -> None:
            self._timers.discard(timer)
            call()

        timer = self._parking.later(delay_s, ring)
        self._timers.add(timer)

    def _end_late(self) -> None:
        if not self._is_answered:
            self._finish(Reserved(0))

    def _ask(self, shard: Shard, wait_s: float | None, rank: int = 0) -> None:
        until_empty = self.request.until_empty and shard not in self._empty
        request = replace(self.request, wait_s=wait_s, until_empty=until_empty, rank=rank)
        self._asked[shard] = shard.ask(request, lambda reply: self._heard(shard, reply), QUESTION_S)

    def _heard(self, shard: Shard, reply: Reply) -> None:
        self._asked.pop(shard, None)
        if isinstance(reply, Reserved):
            self._parking.heard(shard, reply)
            if reply.is_empty:
                self._empty.add(shard)
        if self._is_answered:
            if isinstance(reply, Reserved) and reply.grants:
                shard.give_back(reply)
        elif isinstance(reply, Reserved) and reply.grants:
            self._finish(reply, shard)
        elif isinstance(reply, ErrorReply) and not is_gone(reply):
            self._refused(shard, reply)
        else:
            self.look_again()

    def _refused(self, shard: Shard, error: ErrorReply) -> None:
        """A mistake in the call is one everywhere; what is wrong with one shard alone is left to the others."""
        self._errors[shard] = error
        is_mistake = issubclass(BY_CODE.get(error.code, UsageError), UsageError)
        if is_mistake or not self._places():
            self._finish(error)
        else:
            self._later(RETRY_S, lambda: self._retry(shard))
            self.look_again()

    def _retry(self, shard: Shard) -> None:
        self._errors.pop(shard, None)
        self.look_again()

    def leave(self) -> None:
        """End the wait at shards that are not among the addresses any more."""
        served = self._parking.shards.served
        for shard, request_id in list(self._asked.items()):
            if shard not in served:
                shard.cancel(request_id)

    def _tell_missing(self) -> None:
        """Tell the client, once, that it waits only for shards that are away."""
        may_answer = any(not shard.is_away for shard in self._asked)
        if self._is_answered or self._has_told or (may_answer and not self._empty):
            return
        served = self._parking.shards.served
        away = [shard for shard in served if shard.is_away]
        if away and (not may_answer or self._empty >= {*served} - {*away}):
            self._has_told = True
            self._parking.tell_missing(self, away)

    def _end_if_over(self) -> None:
        """Answer with nothing, if nobody can grant anything any more."""
        if self._is_answered:
            return
        is_empty = (
            self.request.until_empty and bool(self._empty) and self._empty.issuperset(self._parking.shards.served)
        )
        if is_empty or (not self._asked and not self._next and time.monotonic() >= self._deadline):
            self._finish(Reserved(0, is_empty=is_empty))

    def _finish(self, reply: Reply, shard: Shard | None = None) -> None:
        self._is_answered = True
        self._next = []
        self._cancel_timers()
        self._parking.answer(self, reply, shard)
        self._cancel_all()

    def _cancel_all(self) -> None:
        for shard, request_id in list(self._asked.items()):
            shard.cancel(request_id)
