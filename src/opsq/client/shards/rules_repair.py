"""Brings the pauses, limits and weights of a shard up to date that was away when they were changed.

Each change of rules raises their revision on the shards that can be reached; a shard that returns with a lower one
than another has is given all the rules of that one. Only operators may, so only their clients do it.
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.client.shards.poll import Replies, poll
from opsq.client.shards.shard import QUESTION_S, Shard
from opsq.client.shards.shard_set import ShardSet
from opsq.wire.messages import PutRules, RulesState, ShowRules


class RulesRepair:
    """Compares the revisions of rules.

    Args:
        shards: whose.
    """

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards
        self._running_count = 0
        self._held: list[Callable[[], None]] = []

    def then(self, change: Callable[[], None]) -> None:
        """Change rules once no shard is being brought up to date: it would have the newest revision before that."""
        if self._running_count:
            self._held.append(change)
        else:
            change()

    def compare(self) -> None:
        """All have just said which revision they have: if they differ, whoever is behind is given the rules."""
        present = self._present()
        if len({one.rules_revision for one in present}) > 1:
            self._repair([max(present, key=_revision)])

    def returned(self, shard: Shard) -> None:
        """A shard has just been reached: rules may have changed meanwhile, by whomever."""
        others = [one for one in self._present() if one is not shard]
        if others and shard in self._present():
            self._repair([max(others, key=_revision), shard])

    def _present(self) -> list[Shard]:
        return [one for one in self._shards.present if one.welcome is not None and one.welcome.is_operator]

    def _repair(self, sources: list[Shard]) -> None:
        """Have all the rules of that one of the sources that has the newest."""
        self._running_count += 1
        poll(dict.fromkeys(sources, ShowRules(0)), self._compare, QUESTION_S)

    def _compare(self, replies: Replies) -> None:
        found = {shard: reply for shard, reply in replies.items() if isinstance(reply, RulesState)}
        for shard, reply in found.items():
            shard.rules_revision = reply.revision
        if not found:
            self._ended({})
            return
        newest = max(found.values(), key=lambda reply: reply.revision)
        rules = PutRules(0, newest.revision, newest.pauses, newest.limits, newest.weights)
        behind = [shard for shard in self._present() if shard.rules_revision < newest.revision]
        for shard in behind:
            shard.rules_revision = newest.revision
        poll(dict.fromkeys(behind, rules), self._ended, QUESTION_S)

    def _ended(self, _: Replies) -> None:
        self._running_count -= 1
        if not self._running_count:
            held, self._held = self._held, []
            for change in held:
                change()


def _revision(shard: Shard) -> tuple[int, int]:
    return shard.rules_revision, -(shard.number or 0)
