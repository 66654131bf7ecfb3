"""On which shard a submission may be: the order in which they are asked to take it, and whether they have room.

A Submit whose submissions go to one shard is passed on as it is and stays one transaction; another is divided, and
each part is a transaction of its own. It must not know connections.

- Without a key, a shard that is full, drains or cannot be reached is passed over to the next in order.
- With a unique or idempotency key, that could make two of one. So it is asked who has it (`key_search`), one that
  cannot be reached is a refusal, and only a shard that drains is passed over: it does not take another a moment later.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from opsq.client.shards.key_search import Found, KeySearch, has_key
from opsq.client.shards.placement import Placement, room
from opsq.client.shards.poll import Replies, code_of, poll
from opsq.client.shards.shard import WORK_S, Shard
from opsq.client.shards.shard_order import rendezvous
from opsq.client.shards.shard_set import ShardSet
from opsq.errors import NoRoom, OpsqError, Unreachable, UsageError
from opsq.wire.messages import Capacity, CheckCapacity, ErrorReply, NewSubmission, Reply, Submit

ROOM_ASKED = 8
"""How many shards are asked for room, so that a submission costs as much however many there are."""

Answer = Callable[[Reply], None]


class Placing:
    """Submits of one client."""

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._keys = KeySearch(shards)

    def chosen_anew(self) -> None:
        """Shards were added, or removed."""
        self._keys.chosen_anew()

    def order(self, new: NewSubmission) -> list[Shard]:
        """The shards in the order in which they are asked to take a submission.

        Raises:
            OpsqError: it cannot be known, or no shard could keep what the submission asks for.
        """
        owners = {self._shards.owner(one.submission_id) for one in new.after if one.submission_id is not None}
        if any(one.key is not None for one in new.after):
            raise UsageError(cause="pair_over_shards")
        if len(owners) > 1:
            raise UsageError(cause="dependencies_apart", shards=", ".join(map(str, sorted(owners))))
        if owners:
            owner = self._shards.numbered(number := owners.pop())
            if owner is None:
                raise UsageError(cause="dependency_elsewhere", shard=number)
            return [owner]
        found = {shard.number: shard for shard in self._shards}
        if has_key(new) and None in found:
            raise Unreachable(cause="key_not_known", shard=found[None].name)
        numbers = [number for number in found if number is not None]
        return [found[number] for number in rendezvous(self._value(new), numbers)]

    def _follow(self, moved: ErrorReply, submissions: list[NewSubmission]) -> list[list[Shard]]:
        """The orders of submissions, now that it is known that what one of them waits for has moved."""
        self._shards.moved(int(moved.details["submission_id"]), int(moved.details["shard"]))
        return [self.order(new) for new in submissions]

    def _find(self, new: NewSubmission, order: list[Shard], done: Callable[[Found], None]) -> None:
        """Ask which shard has a key of a submission that may go to these."""
        self._keys.find(new, self._value(new), order, done)

    def _value(self, new: NewSubmission) -> int | str | bytes:
        """What decides: the value of the chosen key, else a key of the submission, else chance."""
        values = (self._named(new), new.idempotency_key, new.unique_key)
        return next((value for value in values if value is not None), new.request_key)

    def _named(self, new: NewSubmission) -> int | str | None:
        """The value of the chosen key, if the submission has one."""
        return new.metadata.get(self._shards.address.shard_by)

    def _is_free(self, new: NewSubmission) -> bool:
        """Whether it may go wherever there is room."""
        return not has_key(new) and not new.after and self._named(new) is None

    def check_capacity(self, request: CheckCapacity, answer: Answer, on_wait: Callable[[Shard, int], None]) -> None:
        """Say whether there is room at any shard that might get the submission.

        Args:
            on_wait: told at which shard, and under which id, the question waits for room if none has any.
        """
        new = request.submission
        try:
            shards = list(self._shards) if new is None or self._is_free(new) else self.order(new)
        except OpsqError as error:
            answer(ErrorReply.of(0, error))
            return

        def known(replies: Replies) -> None:
            full = next((shard for shard, reply in replies.items() if code_of(reply) == NoRoom.code), None)
            best = _best(list(replies.values()))
            if full is None or request.wait_s == 0 or not isinstance(best, ErrorReply):
                answer(best)
            else:
                on_wait(full, full.ask(request, answer, WORK_S))

        if new is not None and has_key(new):
            self._keys.find(new, self._value(new), shards, lambda found: known(found.replies), request.content_bytes)
        else:
            poll(dict.fromkeys(shards, replace(request, wait_s=0.0)), known)

    def submit(self, request: Submit, answer: Answer) -> Placement | None:
        """Place the submissions, each where it belongs: by room if it may go anywhere, else by its value.

        Returns:
            What can be cancelled; None: it has been answered.
        """
        try:
            orders = [self.order(new) for new in request.submissions]
        except OpsqError as error:
            answer(ErrorReply.of(0, error))
            return None
        free = [index for index, new in enumerate(request.submissions) if self._is_free(new)]
        if not request.submissions:
            orders, free = [self._shards.present or list(self._shards)], [0]
        placement = Placement(request, orders, answer, self._follow, self._find)
        if not free:
            placement.begin()
            return placement

        first = sorted(orders[free[0]], key=lambda shard: shard.is_away)
        asked, others = first[:ROOM_ASKED], first[ROOM_ASKED:]

        def known(replies: dict[Shard, Reply]) -> None:
            roomiest = sorted(replies, key=lambda shard: -room(replies[shard]))
            for index in free:
                orders[index] = [*roomiest, *others]
            placement.begin()

        count = sum(new.chunks_count for new in request.submissions)
        poll(dict.fromkeys(asked, CheckCapacity(0, count)), known)
        return placement


def _best(replies: list[Reply]) -> Reply:
    """The answer for all: a submission that is known, else the most room; an error only if all have one."""
    found = [reply for reply in replies if isinstance(reply, Capacity)]
    known = [reply for reply in found if reply.submission_id is not None]
    return (known or sorted(found, key=room, reverse=True) or replies)[0]
