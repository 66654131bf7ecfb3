"""Brings the pauses, limits and weights of a shard up to date that was away when they were changed.

Each change of rules raises their revision on the shards that can be reached; a shard that returns with a lower one
than another has is given all the rules of that one. Only operators may, so only their clients do it.
"""

from __future__ import annotations

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
        poll(dict.fromkeys(sources, ShowRules(0)), self._compare, QUESTION_S)

    def _compare(self, replies: Replies) -> None:
        found = {shard: reply for shard, reply in replies.items() if isinstance(reply, RulesState)}
        for shard, reply in found.items():
            shard.rules_revision = reply.revision
        if not found:
            return
        newest = max(found.values(), key=lambda reply: reply.revision)
        rules = PutRules(0, newest.revision, newest.pauses, newest.limits, newest.weights)
        for shard in self._present():
            if shard.rules_revision < newest.revision:
                shard.rules_revision = newest.revision
                shard.ask(rules, lambda _: None, QUESTION_S)


def _revision(shard: Shard) -> tuple[int, int]:
    return shard.rules_revision, -(shard.number or 0)
