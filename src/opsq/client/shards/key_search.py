"""Who has a key of a new submission: asks the shards that may, and those to which these say that it has moved.

A key belongs to the submission that it has made, wherever that is. The shard that made it knows it, or where it went;
once that shard is not among the addresses any more, the one that has its submissions does.
It must not decide where a submission goes that nobody has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from opsq.client.shards.poll import Replies, is_gone, poll
from opsq.client.shards.shard import QUESTION_S, Shard
from opsq.client.shards.shard_order import rendezvous
from opsq.client.shards.shard_set import ShardSet
from opsq.errors import Moved, Unreachable
from opsq.wire.messages import Capacity, CheckCapacity, ErrorReply, NewSubmission, Reply

FIRST = 3
"""How many shards are asked for a key: those that had the submission if up to two were added since."""
_MOVING = frozenset({"moving_here", "clearing"})
"""Why a shard refuses a key that it will have in a moment, or will not have after all."""


def has_key(new: NewSubmission) -> bool:
    """Whether there may be only one such submission."""
    return new.unique_key is not None or new.idempotency_key is not None


class Found(NamedTuple):
    """What the shards say of a key.

    Args:
        holder: the shard that has it.
        refusal: why nobody can say who has it; None: they have said.
        left: shards that refuse it for ever, since its submission was there.
        replies: of all that were asked.
    """

    holder: Shard | None
    refusal: Reply | None
    left: list[Shard]
    replies: Replies


class KeySearch:
    """Searches of one client."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards

    def chosen_anew(self) -> None:
        """Shards were added, or removed: any other may have the submissions of those, so each is asked once more."""
        for shard in self._shards:
            shard.makers = None
            shard.ask(CheckCapacity(0, 0), functools.partial(_note_makers, shard), QUESTION_S)

    def find(
        self,
        new: NewSubmission,
        value: int | str | bytes,
        order: list[Shard],
        done: Callable[[Found], None],
        content_bytes: int = 0,
    ) -> None:
        """Ask for a submission.

        Args:
            value: which decides the order.
            order: the shards in the order in which they are asked to take it.
            done: is told what they say.
            content_bytes: for which there should be room, too.
        """
        asked = order[: FIRST if has_key(new) else 1]
        if has_key(new) and not new.after:
            asked += self._heirs(value, order)
        question = CheckCapacity(0, new.chunks_count, content_bytes, submission=replace(new, content=b""))
        self._ask(question, {one.submission_id for one in new.after}, asked, {}, done)

    def _heirs(self, value: int | str | bytes, order: list[Shard]) -> list[Shard]:
        """Those that have, or may have, submissions of a shard that was among the first and is not there any more."""
        numbers = [shard.number for shard in order if shard.number is not None]
        gone = {number for shard in self._shards for number in shard.makers or ()}.difference(numbers)
        if gone and len(numbers) >= FIRST:
            ranked = rendezvous(value, {*numbers, *gone})
            gone.intersection_update(ranked[: ranked.index(numbers[FIRST - 1])])
        return [shard for shard in self._shards if shard.makers is None or gone & shard.makers]

    def _ask(
        self,
        question: CheckCapacity,
        after: set[int | None],
        asked: Iterable[Shard],
        known: Replies,
        done: Callable[[Found], None],
    ) -> None:
        def heard(replies: Replies) -> None:
            for shard, reply in replies.items():
                _note_makers(shard, reply)
            replies = known | replies
            moved = {shard: number for shard, one in replies.items() if (number := _moved_to(one, after)) is not None}
            holder = next((shard for shard, reply in replies.items() if _has_it(reply)), None)
            named = list(map(self._shards.numbered, moved.values()))
            following = [shard for shard in named if shard is not None and shard not in replies]
            if holder is None and following:
                self._ask(question, after, following, replies, done)
                return
            left = [shard for shard in moved if isinstance(replies[shard], ErrorReply)]
            lost = [shard for shard in left if self._shards.numbered(moved[shard]) is None]
            done(Found(holder, _refusal(replies, lost) if holder is None else None, left, replies))

        poll(dict.fromkeys(asked, question), heard)


def _note_makers(shard: Shard, reply: Reply) -> None:
    if isinstance(reply, Capacity):
        shard.makers = frozenset(reply.makers)


def _refusal(replies: Replies, lost: list[Shard]) -> Reply | None:
    """Why it is not known who has a key; None: nobody has it."""
    for shard, reply in replies.items():
        if is_gone(reply):
            return ErrorReply.of(0, Unreachable(cause="key_not_known", shard=shard.name))
        if shard in lost or (isinstance(reply, ErrorReply) and reply.cause in _MOVING):
            return reply
    return None


def _has_it(reply: Reply) -> bool:
    return isinstance(reply, Capacity) and reply.submission_id is not None


def _moved_to(reply: Reply, after: set[int | None]) -> int | None:
    """The shard to which the submission with the key has moved; not one of those that this one waits for."""
    if isinstance(reply, Capacity):
        return reply.moved_to
    if not isinstance(reply, ErrorReply) or reply.code != Moved.code or int(reply.details["submission_id"]) in after:
        return None
    return int(reply.details["shard"])
