"""Shards that fill up, under the real `Placing`: each takes what it is asked to, or refuses what it has no room for.

It counts messages and where submissions went; nothing is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from opsq.client.core.address import ShardedAddress
from opsq.client.shards.placing import Placing
from opsq.client.shards.shard_order import rendezvous
from opsq.errors import NoRoom
from opsq.wire.messages import Created, ErrorReply, NewSubmission, Reply, Submit, Submitted

_KEY = "tenant"


class FilledShard:
    """A shard with room for so many submissions."""

    is_away = False

    def __init__(self, number: int, room: int, answers: deque[Callable[[], None]]) -> None:
        self.number = number
        self.name = str(number)
        self.count = 0
        self.messages_count = 0
        self._room = room
        self._answers = answers

    def ask(self, request: Any, on_reply: Callable[[Reply], None], patience_s: float = 0.0) -> int:
        """Take the submission, or refuse it."""
        self.messages_count += 2
        if self.count >= self._room:
            self._answers.append(lambda: on_reply(ErrorReply(0, NoRoom.code, "")))
        else:
            self.count += 1
            self._answers.append(lambda: on_reply(Submitted(0, [Created(1, is_new=True)])))
        return 0


class FilledShards:
    """Shards with equal room, and submissions that go where the value of a key says."""

    def __init__(self, count: int, room: int) -> None:
        self._answers: deque[Callable[[], None]] = deque()
        self.all = [FilledShard(number, room, self._answers) for number in range(count)]
        self.address = ShardedAddress((), shard_by=_KEY)
        self._placing = Placing(self)  # type: ignore[arg-type]  # as much of a ShardSet as it uses
        self._submitted = 0

    def __iter__(self) -> Iterator[FilledShard]:
        return iter(self.all)

    def owner(self, submission_id: int) -> int:
        """Nothing waits for another submission here."""
        raise AssertionError(submission_id)

    def submit(self, value: int) -> bool:
        """Submit one with this value; whether it was put elsewhere than on the first shard of the value."""
        self._submitted += 1
        new = NewSubmission(self._submitted.to_bytes(16, "big"), 1, metadata={_KEY: value})
        first = self.all[rendezvous(value, range(len(self.all)))[0]]
        before = first.count
        replies: list[Reply] = []
        self._placing.submit(Submit(1, [new], 0.0), replies.append)
        while self._answers:
            self._answers.popleft()()
        [reply] = replies
        if not isinstance(reply, Submitted):
            raise RuntimeError(f"there was room for all, and one was refused: {reply}")
        return first.count == before

    @property
    def messages_count(self) -> int:
        """Of all shards."""
        return sum(shard.messages_count for shard in self.all)
