"""What a client does with chunks, over shards: each verdict goes to the shard of its chunk, and the answers are joined.

Which shard hands out is decided in `parking`. What completes chunks of one shard that is likely to have more, and
reserves, goes there whole: the shard answers it as a daemon does. Else its halves go their own ways, and only the order
of their answers is kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from opsq.client.core.pending_requests import OnReply
from opsq.client.shards.parking import Later, Parking
from opsq.client.shards.poll import is_gone
from opsq.client.shards.shard import QUESTION_S, WORK_S, Shard
from opsq.client.shards.shard_set import ShardSet
from opsq.wire import messages as m

_Parts = dict[Shard, list[Any]]
"""What concerns chunks, by the shard that has them."""


class ChunkCalls:
    """The requests of one client that reserve chunks, or are about chunks that it holds.

    Args:
        shards: that have them.
        say: gives the client a message.
        say_missing: tells it which shards a request waits for.
        later: calls something in so many seconds.
    """

    def __init__(
        self,
        shards: ShardSet,
        say: Callable[[m.Reply], None],
        say_missing: Callable[[int, Sequence[Shard]], None],
        later: Later,
    ) -> None:
        self._shards = shards
        self._say = say
        self._say_missing = say_missing
        self._later = later
        self.parking = Parking(shards, self._say_reserved, say_missing, later)
        self._undecided: dict[int, _Verdicts] = {}
        self._is_consumer = False
        """Its verdicts are its own: whoever brings a handle of a lease does not say that work on it has started."""

    def started(self, chunks: Iterable[m.ChunkMask]) -> None:
        """Tell shards that work on their chunks has started."""
        self._is_consumer = True
        parts, _ = self._by_shard(chunks)
        for shard, part in parts.items():
            shard.started(part)

    def divide(self, request: Any) -> None:
        """Have each shard take the part of a request that is about its chunks."""
        name = next(field for field in ("completions", "failures", "held") if hasattr(request, field))
        parts, unknown = self._by_shard(getattr(request, name))
        questions = {shard: replace(request, **{name: part}) for shard, part in parts.items()}
        self._ask_each(_Verdicts(request, parts, unknown, is_consumer=self._is_consumer), questions)

    def complete_and_reserve(self, request: m.CompleteAndReserve) -> None:
        """Complete chunks, each at its shard, and reserve, at first where chunks were completed."""
        self._is_consumer = True
        parts, unknown = self._by_shard(request.completions)
        verdicts = _Verdicts(request, parts, unknown, is_consumer=True)
        last = next(reversed(parts), None)
        first = last if last is not None and self.parking.may_stay(last) else None
        if first is not None and len(parts) == 1 and not unknown:
            self._undecided[request.id] = verdicts
            self.parking.reserve(request.second_half(), first, functools.partial(self._ask_whole, verdicts, first))
        else:
            self._ask_each(verdicts, {shard: m.Complete(0, part) for shard, part in parts.items()})
            self.parking.reserve(request.second_half(), first)

    def changed(self, shard: Shard) -> None:
        """A shard has been reached, or lost."""
        for verdicts in list(self._undecided.values()):
            self._say_second(verdicts)
        if shard.is_away and any(shard in verdicts.left for verdicts in self._undecided.values()):
            self._later(QUESTION_S, functools.partial(self._tell_undecided, shard))
        self.parking.look_again()

    # --- shards ---

    def _by_shard(self, chunks: Iterable[Any]) -> tuple[_Parts, list[Any]]:
        """What concerns chunks, by the shard that has them; and what is of a shard that is not known."""
        found: _Parts = {}
        unknown: list[Any] = []
        for one in chunks:
            shard = self._shards.numbered(self._shards.owner(_held(one).submission_id))
            (unknown if shard is None else found.setdefault(shard, [])).append(one)
        return found, unknown

    def _ask_each(self, verdicts: _Verdicts, questions: dict[Shard, Any]) -> None:
        if not questions:
            self._say(verdicts.answer())
            return
        self._undecided[verdicts.request_id] = verdicts
        for shard, question in questions.items():
            shard.ask(question, functools.partial(self._heard, verdicts, shard), verdicts.patience_s(shard))

    def _ask_whole(self, verdicts: _Verdicts, shard: Shard, on_reserved: OnReply) -> int:
        """Have a shard complete, and reserve what it has now."""

        def heard(reply: m.Reply) -> None:
            if shard in verdicts.left:
                self._heard(verdicts, shard, reply)
                if isinstance(reply, m.Completed):
                    return
            on_reserved(reply)

        return shard.ask(replace(verdicts.request, wait_s=0.0), heard, verdicts.patience_s(shard))

    def _heard(self, verdicts: _Verdicts, shard: Shard, reply: m.Reply) -> None:
        verdicts.heard(shard, reply)
        if verdicts.left:
            return
        request_id = verdicts.request_id
        del self._undecided[request_id]
        answer = verdicts.answer()
        self._say(answer)
        if isinstance(answer, m.ErrorReply):  # with that the request has ended
            self.parking.abandon(request_id)
            if isinstance(verdicts.second, m.Reserved):
                self._take_back(verdicts.second)
        elif verdicts.second is not None:
            self._say(verdicts.second)

    def _take_back(self, reply: m.Reserved) -> None:
        """Give chunks back that the client was to have."""
        parts, _ = self._by_shard(reply.grants)
        for shard, grants in parts.items():
            shard.holdings.ended(m.HeldChunks.of_grant(reply.reservation_id, grant) for grant in grants)
            shard.give_back(replace(reply, grants=grants))

    # --- the client ---

    def _say_reserved(self, reply: Any) -> None:
        verdicts = self._undecided.get(reply.id)
        if verdicts is None:
            self._say(reply)
        else:
            verdicts.second = reply
            self._say_second(verdicts)

    def _say_second(self, verdicts: _Verdicts) -> None:
        """Give the client its chunks, though a shard that is away has not said that others are completed."""
        if isinstance(verdicts.second, m.Reserved) and all(shard.is_away for shard in verdicts.left):
            self._say(verdicts.second)
            verdicts.second = None

    def _tell_undecided(self, shard: Shard) -> None:
        """Tell the client that its verdicts wait for a shard that has not come back at once."""
        waiting = [request_id for request_id, verdicts in self._undecided.items() if shard in verdicts.left]
        if shard.is_away and waiting:
            self._say_missing(waiting[0], [shard])


class _Verdicts:
    """A request about chunks, and what the shards of the chunks have said."""

    def __init__(self, request: Any, parts: _Parts, unknown: Iterable[Any], *, is_consumer: bool) -> None:
        self.request = request
        self.request_id: int = request.id
        self.left = set(parts)
        """Who has not answered."""
        self.second: m.Reply | None = None
        """What was reserved, if that is known already: it waits for the answer."""
        self._held = {shard: list(map(_held, part)) for shard, part in parts.items()}
        # A consumer waits with its verdicts until the shard is back; who brings a handle wants to know.
        self._of_consumer = {
            shard for shard, held in self._held.items() if is_consumer or any(map(shard.holdings.holds, held))
        }
        self._failures: list[m.Reply] = []
        self._completed = m.Completed(
            request.id,
            [
                m.Refusal(held.submission_id, held.block, held.mask, "reservation_lost", "shard_not_known")
                for held in map(_held, unknown)
            ],
        )

    def patience_s(self, shard: Shard) -> float:
        """How long a shard may be away."""
        return math.inf if shard in self._of_consumer else WORK_S

    def heard(self, shard: Shard, reply: Any) -> None:
        """A shard says what becomes of its chunks."""
        self.left.discard(shard)
        held = self._held[shard]
        if isinstance(reply, m.Completed):
            self._completed.refusals.extend(reply.refusals)
            self._completed.failures.extend(reply.failures)
            self._completed.created.extend(reply.created)
            if isinstance(self.request, m.Reclaim) and self.request.lease_s is None:
                shard.holdings.reclaimed(held, reply.refusals)
            elif isinstance(self.request, m.Reclaim | m.Extend):
                shard.leased(self.request.lease_s or 0.0)
            else:
                shard.holdings.ended(held)
        elif is_gone(reply) and (len(self._held) > 1 or shard in self._of_consumer):  # what others have done is done
            shard.holdings.ended(held)
            self._completed.refusals.extend(
                m.Refusal(one.submission_id, one.block, one.mask, reply.code, reply.cause, reply.details)
                for one in held
            )
        else:
            self._failures.append(reply)

    def answer(self) -> m.Reply:
        """What the client hears, once all have answered."""
        return replace(self._failures[0], id=self.request_id) if self._failures else self._completed


def _held(one: Any) -> Any:
    """The chunks that a part of a request is about."""
    return one.held if isinstance(one, m.Completion | m.Failure) else one
