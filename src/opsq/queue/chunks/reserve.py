"""Reserve calls: answered from the fronts of their arms, or parked until something becomes free.

Parked calls with equal strategies are served by one run, by rank and then the longest waiting first; while nothing
changes they cost no query. A run visits at most `TURN_ROWS` rows in one turn of the event loop and continues in the
next. Must not decide which submission comes next.
"""

from __future__ import annotations

from itertools import islice

from opsq.clock import MonoNs, Now, after
from opsq.ids import first_bits
from opsq.queue.chunks.descriptions import Descriptions
from opsq.queue.chunks.parked_calls import Call, Line, Plan
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.chunks.slow_runs import SlowRuns
from opsq.queue.dispatch.fair import FairFront
from opsq.queue.dispatch.front import Front
from opsq.queue.live_submission import LiveSubmission, Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.timers import Timers
from opsq.strategy.arms import compile_arms
from opsq.strategy.text import check_named, parse
from opsq.wire.messages import CompleteAndReserve, Grant, Reserve, Reserved

TURN_ROWS = 2_000
"""Rows visited and grants made in one turn of the event loop; a few milliseconds."""
ANSWER_ROWS = 40
"""Answering a parked call costs its turn as much as this many rows: up to 100 µs with encoding and sending."""
PLANS_KEPT = 4_096
PARTS_LIMIT = 32_768
"""Grants in one reply, so that it fits into a frame whatever count was asked for."""


class ReserveCalls:
    """Serves and parks reserve calls."""

    def __init__(self, state: EngineState, reservations: Reservations) -> None:
        check_named(state.policy.strategies)
        self._state = state
        self._reservations = reservations
        self.descriptions = Descriptions(state)
        self._plans: dict[str, Plan] = {}
        self._lines: dict[str, Line] = {}
        self._calls: dict[Peer, dict[int, Call]] = {}
        """Parked calls by request."""
        self._deadlines: Timers[Call] = Timers()
        self._has_turn = False
        self._until_empty = state.until_empty
        self._slow_runs = SlowRuns(state.fronts, state.rules)

    def plan(self, text: str) -> Plan:
        """The canonical text and the arms of a strategy; `InvalidStrategy` if it is none."""
        plan = self._plans.get(text)
        if plan is None:
            if len(self._plans) >= PLANS_KEPT:
                self._plans.clear()
            tree = parse(text, self._state.policy.strategies)
            plan = self._plans[text] = Plan(str(tree), [(arm.name, arm) for arm in compile_arms(tree)])
        return plan

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def waiting(self) -> dict[str, str]:
        """The strategy that each waiting consumer waits with."""
        return {call.peer.consumer: text for text, line in self._lines.items() for call in line}

    def waiting_since(self) -> dict[str, MonoNs]:
        """By strategy, since when the call waits that has waited longest."""
        return {text: line.since for text, line in self._lines.items()}

    def waiting_with(self, text: str, most: int) -> list[str]:
        """Consumers that wait with a strategy, the first calls' first."""
        return list(dict.fromkeys(call.peer.consumer for call in islice(self._lines.get(text, ()), most)))

    # --- calls ---

    def reserve(self, peer: Peer, request: Reserve | CompleteAndReserve, now: Now) -> None:
        """Answer with grants now, or park the call.

        Raises:
            InvalidStrategy: the strategy cannot be parsed.
            StorageFull: nothing is handed out while the disk is full, and the call does not want to wait.
            UsageError: it would have to wait, and another call with its id does already.
        """
        if not peer.is_connected:
            return  # it is handled again, as its batch could not be written, and nobody is there any more
        plan = self.plan(request.strategy)
        state = self._state
        state.consumers[peer] = plan.text
        if state.is_draining:
            state.reply(peer, Reserved(request.id))
            return
        if state.is_full and request.wait_s == 0:
            raise state.no_room()
        is_first = plan.text not in self._lines
        if is_first and not state.is_full:
            state.rows_left = TURN_ROWS
            if _is_single(request) and self._deal(peer, request, plan, now):
                return
        peer.check_parked(request.id)
        call = Call(peer, request, plan.text, now)
        if not state.is_full:
            # Calls that wait already have found nothing, and nothing has become free since, unless their run goes on.
            if is_first:
                if self._answer(call, plan, now):
                    return
            elif not (self._has_turn or state.has_news) and self._answer_nothing(call, plan):
                return
        peer.parked_ids.add(request.id)
        self._line(plan).join(call)
        self._calls.setdefault(peer, {})[request.id] = call
        if request.wait_s is not None:
            call.deadline = after(now.mono, request.wait_s)
            self._deadlines.add(call.deadline, call)

    def _deal(self, peer: Peer, request: Reserve | CompleteAndReserve, plan: Plan, now: Now) -> bool:
        """Give one chunk from the first arm, as nearly all calls of one chunk are answered.

        False: the call must go the long way.

        It spares what only longer calls need: half of what a reserve costs.
        """
        state = self._state
        state.wanted = 1
        front = state.fronts.front_of(*plan.arms[0]) if not state.rules.is_all_paused else None
        found = front.next(state) if front is not None else None
        if front is None or found is None:
            return False
        submission = found[0]
        parts = self._reservations.take_each(peer, submission, 1, now)
        if not parts:
            return False
        front.served(state, 1, has_more=submission.may_have_more)
        (part,) = parts
        grant = Grant(submission.id, part.work.index, part.granted, 0, part.mac)
        state.has_granted = True
        state.reply(peer, self.descriptions.reserved(peer, request.id, part.reservation, [grant]))
        return True

    def ready_front(self, peer: Peer, request: CompleteAndReserve) -> Front | FairFront | None:
        """The front from which a call of one chunk may take it without ceremony.

        None: it must be asked for by `reserve`.
        """
        state = self._state
        if not _is_single(request) or not peer.is_connected:
            return None
        plan = self.plan(request.strategy)
        if state.is_draining or state.is_full or state.rules.is_all_paused or plan.text in self._lines:
            return None
        state.consumers[peer] = plan.text
        state.rows_left = TURN_ROWS
        state.wanted = 1
        return state.fronts.front_of(*plan.arms[0])

    def cancel_wait(self, peer: Peer, request_id: int) -> None:
        """The caller does not want to wait any longer."""
        call = self._calls.get(peer, {}).get(request_id)
        if call is not None:
            self._end(call)

    def disconnect(self, peer: Peer) -> None:
        """Forget the calls of a connection."""
        self._state.consumers.pop(peer, None)
        for call in list(self._calls.get(peer, {}).values()):
            self._end(call)

    def stop(self) -> None:
        """Answer all parked calls with nothing: the daemon drains."""
        for line in list(self._lines.values()):
            for call in list(line):
                self._end(call)

    def tick(self, now: Now) -> None:
        """Answer the calls whose time is over, unless a run that may serve them is not at its end."""
        if self.has_turn:
            return
        for call in self._deadlines.take(now.mono):
            if not call.is_over:
                self._end(call)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to do."""
        return self._deadlines.next_due()

    def _end(self, call: Call) -> None:
        """Answer a parked call with nothing; what was found for it so far is free again."""
        self._leave(call)
        for part in call.parts:
            if part.mask:
                self._reservations.free(part.submission, part.work, part.mask)
        waiting_count = len(self._lines.get(call.text, ()))
        self._state.reply(call.peer, Reserved(call.request.id, waiting_count=waiting_count))

    def _line(self, plan: Plan) -> Line:
        """The line of those who wait with a strategy."""
        line = self._lines.get(plan.text)
        if line is None:
            line = self._lines[plan.text] = Line(plan)
            self._state.awaited_arms_count += len(plan.arms)
        return line

    def _leave(self, call: Call) -> None:
        call.is_over = True
        call.peer.parked_ids.remove(call.request.id)
        if call.deadline is not None:
            self._deadlines.discard(call.deadline, call)
        calls = self._calls[call.peer]
        del calls[call.request.id]
        if not calls:
            del self._calls[call.peer]
        line = self._lines[call.text]
        if line.first is call:
            self._slow_runs.abandoned(call.text)
        line.leave(call)
        if not line:
            del self._lines[call.text]
            self._state.awaited_arms_count -= len(line.plan.arms)

    # --- serving ---

    @property
    def has_turn(self) -> bool:
        """Whether a run stopped at its bound and wants to go on."""
        return self._has_turn and not (self._state.is_full or self._state.is_draining)

    def serve(self, now: Now, *, is_turn: bool = False) -> None:
        """Serve parked calls after something has changed; the strategy whose first call waits longest comes first.

        Args:
            is_turn: a new turn of the event loop: a run that stopped at its bound goes on.
        """
        state = self._state
        if not (state.has_news or (is_turn and self._has_turn)) or state.is_full or state.is_draining:
            return
        state.take_news()
        self._has_turn = False
        state.rows_left = TURN_ROWS
        for line in sorted(self._lines.values(), key=lambda line: line.since):
            plan = line.plan
            while line and state.rows_left > 0:
                call = line.first
                is_dealt = (
                    not call.parts and _is_single(call.request) and self._deal(call.peer, call.request, plan, now)
                )
                if is_dealt:
                    self._slow_runs.ended(plan.text, plan.arms, now)
                elif not self._answer(call, plan, now):
                    if call.parts:
                        line.leave(call)
                        line.join(call)
                    break
                self._leave(call)
                state.charge(ANSWER_ROWS)
            if state.rows_left <= 0:
                self._has_turn = True
                return
            if line.no_wait_count or (line.until_empty_count and self._is_over(plan)):
                for call in list(line):
                    if self._answer_nothing(call, plan):
                        self._leave(call)

    def _answer(self, call: Call, plan: Plan, now: Now) -> bool:
        """Answer a call if it can be answered now: with grants, or with nothing when it does not want to wait."""
        state, request = self._state, call.request
        if not self._fill(call, plan, now):
            self._slow_runs.interrupted(plan.text, plan.arms, now)
            self._has_turn = True
            return False
        self._slow_runs.ended(plan.text, plan.arms, now)
        reservation, grants = call.reservation, self._grants(call)
        if reservation is None or not grants:
            return self._answer_nothing(call, plan)
        self._reservations.seal(reservation, request.lease_s or call.shortest_s, now)
        if request.lease_s is not None:
            self._reply_after_commit(call, reservation, grants)
        else:
            state.has_granted = True
            state.reply(call.peer, self.descriptions.reserved(call.peer, request.id, reservation, grants))
        return True

    def _answer_nothing(self, call: Call, plan: Plan) -> bool:
        """Nothing is free: answer a call that does not want to wait for more."""
        request = call.request
        if request.until_empty:
            can_still_yield = self._until_empty.can_still_yield(plan.arms)
            if can_still_yield is None:
                self._has_turn = True  # then it is known in one of the next turns
                return False
            if not can_still_yield:
                self._state.reply(call.peer, Reserved(request.id, is_empty=True))
                return True
        if request.wait_s == 0:
            waiting_count = len(self._lines.get(call.text, ()))
            self._state.reply(call.peer, Reserved(request.id, waiting_count=waiting_count))
            return True
        return False

    def _grants(self, call: Call) -> list[Grant]:
        """What was found for a call and is still all there."""
        grants = []
        for part in call.parts:
            if part.mask == part.granted:
                grants.append(Grant(part.submission.id, part.work.index, part.granted, part.attempt, part.mac))
            elif part.mask:  # some of it was finished by an earlier holder while the run was interrupted
                self._reservations.free(part.submission, part.work, part.mask)
        return grants

    def _fill(self, call: Call, plan: Plan, now: Now) -> bool:
        """Reserve up to the count asked for, from the first arms that have work.

        False: the turn is over before that was done.
        """
        state, request = self._state, call.request
        if call.parts and not any(part.mask for part in call.parts):
            call.reservation, call.parts, call.wanted = None, [], request.count  # its submissions have ended since
        for name, arm in () if state.rules.is_all_paused else plan.arms:
            front = state.fronts.front_of(name, arm)
            while call.wanted and front is not None:
                if len(call.parts) >= PARTS_LIMIT:
                    return True
                turn = front.turn(request.count)
                state.wanted = min(call.wanted, turn)
                found = front.next(state)
                if found is None:
                    break
                submission, room = found
                most = min(call.wanted, room)
                taken = (
                    self._take(call, submission, turn, now, ends_whole=True)
                    if turn < most
                    else self._take(call, submission, most, now)
                )
                call.wanted -= taken
                state.rows_left -= 1
                front.served(state, taken, has_more=submission.may_have_more)
            if call.wanted and state.rows_left <= 0:
                return False
        return True

    def _take(self, call: Call, submission: LiveSubmission, count: int, now: Now, *, ends_whole: bool = False) -> int:
        """Reserve up to `count` chunks of one submission, in index order.

        If it `ends_whole`, rather fewer than a part of a last block.

        A turn that began within a block would else end within one too, and each call get twice as many parts of blocks.
        """
        state, reservation = self._state, call.reservation
        left = count
        while left and state.rows_left > 0:
            work = submission.next_block(state.reader)
            if work is None:
                break
            state.rows_left -= 1
            mask = work.free
            if mask.bit_count() > left:
                if ends_whole and left < count:
                    break
                mask = first_bits(mask, left)
            left -= mask.bit_count()
            if reservation is None:
                reservation = call.reservation = self._open(call, submission.row.reservation_s, now)
            call.parts += self._reservations.add(reservation, submission, work, mask)
        if left < count:
            state.gates.taken(submission, count - left)
            call.shortest_s = min(call.shortest_s, submission.row.reservation_s)
        return count - left

    def _open(self, call: Call, length_s: float, now: Now) -> Reservation:
        request = call.request
        if request.count == 1 and request.lease_s is None:
            return self._reservations.open_single(call.peer, length_s, now)
        return self._reservations.open(call.peer, length_s, now, is_lease=request.lease_s is not None)

    def _reply_after_commit(self, call: Call, reservation: Reservation, grants: list[Grant]) -> None:
        """A lease is a row, so its reply waits for the commit."""
        batch = self._state.batch
        self._reservations.store_lease(reservation)
        batch.add(lambda _: self._settle_leased(reservation), lambda _: self._cancel_leased(reservation))
        batch.replies.append((call.peer, self.descriptions.reserved(call.peer, call.request.id, reservation, grants)))
        batch.again.append((self.reserve, call.peer, call.request))

    def _settle_leased(self, reservation: Reservation) -> None:
        if reservation.peer is not None and not reservation.peer.is_connected:
            self._reservations.give_back(reservation)  # nobody received it

    def _cancel_leased(self, reservation: Reservation) -> None:
        if reservation.peer is not None:
            reservation.peer.described.clear()
        for part in list(reservation.parts.values()):
            self._reservations.free(part.submission, part.work, part.mask)

    def _is_over(self, plan: Plan) -> bool:
        """Whether nothing may come any more; where that is not known yet, the next turn goes on with the search."""
        can_still_yield = self._until_empty.can_still_yield(plan.arms)
        self._has_turn = self._has_turn or can_still_yield is None
        return can_still_yield is False


def _is_single(request: Reserve | CompleteAndReserve) -> bool:
    """Whether a call is for one chunk that its connection is to hold."""
    return request.count == 1 and request.lease_s is None
