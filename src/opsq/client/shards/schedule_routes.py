"""Which shard keeps a schedule: the one that has it; a new one, the first in the order of its name.

It must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opsq.client.shards.poll import Replies, code_of, is_gone, poll
from opsq.client.shards.shard import ERRAND_S
from opsq.client.shards.shard_order import rendezvous
from opsq.client.shards.shard_set import ShardSet
from opsq.errors import NotFound, Unreachable
from opsq.wire.messages import ErrorReply, PutSchedule, Reply, Schedules, ShowSchedules


class ScheduleRoutes:
    """What is asked of one schedule.

    Args:
        shards: that may have it.
    """

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards

    def take(self, request: Any, answer: Callable[[Reply], None]) -> None:
        """Find the shard that has the schedule, and have it do what is asked."""
        name = request.schedule.name if isinstance(request, PutSchedule) else request.name
        question = ShowSchedules(0, name, upcoming=0)
        poll(dict.fromkeys(self._shards, question), lambda replies: self._found(request, name, replies, answer))

    def _found(self, request: Any, name: str, replies: Replies, answer: Callable[[Reply], None]) -> None:
        keepers = [shard for shard, reply in replies.items() if isinstance(reply, Schedules) and reply.schedules]
        away = [shard for shard, reply in replies.items() if is_gone(reply)]
        refusals = [reply for reply in replies.values() if code_of(reply) not in ("", NotFound.code, Unreachable.code)]
        if keepers:
            keepers[0].ask(request, answer, ERRAND_S)
        elif away:
            answer(ErrorReply.of(0, Unreachable(cause="schedule_not_known", name=name, shard=away[0].name)))
        elif refusals:
            answer(refusals[0])
        elif isinstance(request, PutSchedule) and not request.replaces:
            by_number = {shard.number: shard for shard in self._shards}
            first = rendezvous(name, [number for number in by_number if number is not None])[0]
            by_number[first].ask(request, answer, ERRAND_S)
        else:
            answer(ErrorReply.of(0, NotFound(cause="unknown_schedule", name=name)))
