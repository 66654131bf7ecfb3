"""One Submit over shards, from the question who has its keys to the answer. Which shards it asks `placing` decides."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from msgspec.structs import replace

from opsq.client.shards.key_search import Found, has_key
from opsq.client.shards.poll import code_of
from opsq.client.shards.shard import WORK_S, Shard
from opsq.errors import Conflict, Moved, NoRoom, OpsqError, QueueDraining, StorageFull
from opsq.wire.messages import Capacity, Created, ErrorReply, NewSubmission, Reply, Submit, Submitted

Find = Callable[[NewSubmission, list[Shard], Callable[[Found], None]], None]

PASSED_OVER = frozenset({NoRoom.code, StorageFull.code, QueueDraining.code})
"""With these refusals nothing was stored."""


def room(reply: Reply) -> float:
    """For how many chunks a shard has room; less than none if it would take no submission."""
    if not isinstance(reply, Capacity):
        return -1.0
    return math.inf if reply.left_count is None else reply.left_count


MOVES_LIMIT = 100
"""How often what is waited for, or what has a key, may turn out to be elsewhere."""


class Placement:
    """The submissions of one Submit, and where each may still go.

    Args:
        request: the Submit.
        orders: the shards of each submission, in the order in which they are asked; of a Submit of nothing, one order.
        answer: is given the answer.
        follow: is told that what submissions wait for has moved, and gives their orders as `orders` does.
        find: asks who has the keys of a submission.
    """

    def __init__(
        self,
        request: Submit,
        orders: list[list[Shard]],
        answer: Callable[[Reply], None],
        follow: Callable[[ErrorReply, list[NewSubmission]], list[list[Shard]]],
        find: Find,
    ) -> None:
        self._request = request
        self._follow = follow
        self._find = find
        self._moves_left = MOVES_LIMIT
        self._orders = orders
        self._answer = answer
        self._created: dict[int, Created] = {}
        self._refusals: list[tuple[Shard, Reply]] = []
        self._failures: list[Reply] = []
        self._left = 0
        """Parts, or questions, without an answer."""
        self._asked: dict[Shard, int] = {}
        """Who was given submissions, and under which id."""

    def cancel(self) -> None:
        """Wait for room no more; what is stored by then is answered."""
        self._request = replace(self._request, wait_s=0.0)
        for shard, request_id in self._asked.items():
            shard.cancel(request_id)

    def begin(self) -> None:
        """Ask for each key; a submission that a shard has goes there. Then submit, unless it is not known of one."""
        keyed = [index for index, new in enumerate(self._request.submissions) if has_key(new)]
        self._look_up(keyed, list(range(len(self._orders))))

    def _look_up(self, indexes: list[int], part: list[int]) -> None:
        """Ask who has the keys of these; once that is known of all, submit the part."""
        waiting, refusals = set(indexes), list[Reply]()

        def known(index: int, found: Found) -> None:
            waiting.discard(index)
            self._left -= 1
            order = [found.holder] if found.holder is not None else self._orders[index]
            self._orders[index] = [shard for shard in order if shard not in found.left]
            if found.refusal is not None or not self._orders[index]:
                refusals.append(found.refusal or found.replies[found.left[0]])
            if not waiting and refusals:
                self._failures.append(refusals[0])
            elif not waiting:
                self._give(part)
            self._answer_if_over()

        self._left += len(indexes)
        for index in indexes:
            self._find(self._request.submissions[index], self._orders[index], functools.partial(known, index))
        if not indexes:
            self._give(part)

    def _give(self, indexes: list[int]) -> None:
        """Submit each to the first of its shards; those of one shard together."""
        parts: dict[Shard, list[int]] = {}
        for index in indexes:
            order = self._orders[index]
            if not self._is_keyed([index]):
                order[:] = [shard for shard in order if not shard.is_away] or order
            parts.setdefault(order[0], []).append(index)
        self._left += len(parts)
        for shard, part in parts.items():
            is_last = not self._refusals and all(len(self._orders[index]) == 1 for index in part)
            self._send(shard, part, self._request.wait_s if is_last or self._is_keyed(part) else 0.0)

    def _send(self, shard: Shard, part: list[int], wait_s: float | None) -> None:
        submissions = [self._request.submissions[index] for index in part] if self._request.submissions else []
        request = replace(self._request, submissions=submissions, wait_s=wait_s)
        self._asked[shard] = shard.ask(request, functools.partial(self._heard, shard, part), WORK_S)

    def _heard(self, shard: Shard, part: list[int], reply: Reply) -> None:
        self._left -= 1
        self._asked.pop(shard, None)
        if isinstance(reply, Submitted):
            self._created |= dict(zip(part, reply.created, strict=False))
        elif isinstance(reply, ErrorReply) and reply.code == Moved.code and self._moves_left:
            self._go_after(part, reply)
        elif self._is_passed_over(part, reply):
            self._refusals.append((shard, reply))
            for index in part:
                self._orders[index].remove(shard)
            self._give([index for index in part if self._orders[index]])
            self._end_those_without([index for index in part if not self._orders[index]])
        else:
            self._failures.append(reply)
        self._answer_if_over()

    def _answer_if_over(self) -> None:
        if not self._left:
            created = [created for _, created in sorted(self._created.items())]
            self._answer(self._failure() if self._failures else Submitted(0, created))

    def _go_after(self, part: list[int], moved: ErrorReply) -> None:
        """Submit these, of which none was stored, where that is now for which some of them wait, or that has a key."""
        self._moves_left -= 1
        submissions = [self._request.submissions[index] for index in part]
        if all(one.submission_id != moved.details["submission_id"] for new in submissions for one in new.after):
            self._look_up(part, part)
            return
        try:
            orders = self._follow(moved, submissions)
        except OpsqError as error:
            self._failures.append(ErrorReply.of(0, error))
            return
        for index, order in zip(part, orders, strict=True):
            if self._request.submissions[index].after:
                self._orders[index] = order
        self._give(part)

    def _failure(self) -> Reply:
        """The first; but if some are stored, that has to be known: their content is in use."""
        failure = self._failures[0]
        if not self._created or not isinstance(failure, ErrorReply):
            return failure
        why, stored_count = failure.error().message, len(self._created)
        count = len(self._request.submissions)
        return ErrorReply.of(0, Conflict(cause="partly_stored", stored=stored_count, count=count, why=why))

    def _end_those_without(self, indexes: list[int]) -> None:
        """All have refused these: they wait for room at the first that was only full, or are refused."""
        if not indexes:
            return
        full = [shard for shard, refusal in self._refusals if code_of(refusal) == NoRoom.code]
        if full and self._request.wait_s != 0 and len(self._refusals) > 1:
            self._left += 1
            self._send(full[0], indexes, self._request.wait_s)
        else:
            self._failures.append(self._refusals[0][1])

    def _is_passed_over(self, part: list[int], reply: Reply) -> bool:
        codes = {QueueDraining.code} if self._is_keyed(part) else PASSED_OVER
        return code_of(reply) in codes and all(self._orders[index] for index in part)

    def _is_keyed(self, indexes: list[int]) -> bool:
        return any(has_key(new) for index in indexes for new in self._request.submissions[index : index + 1])
