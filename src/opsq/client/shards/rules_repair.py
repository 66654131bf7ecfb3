"""Brings the pauses, limits and weights of a shard up to date that was away when they were changed.

Each change of rules raises their revision on the shards that can be reached; a shard that returns with a lower one
than another has is given all the rules of that one. Only operators may, so only their clients do it.
"""

from __future__ import annotations

from opsq.client.shards.shard import QUESTION_S, Shard
from opsq.client.shards.shard_set import ShardSet
from opsq.wire.messages import PutRules, Reply, RulesState, ShowRules


class RulesRepair:
    """Compares the revisions of rules.

    Args:
        shards: whose.
    """

    def __init__(self, shards: ShardSet) -> None:
        self._shards = shards

    def returned(self, shard: Shard) -> None:
        """A shard can be reached again, or another one for the first time: whoever is behind is given the rules."""
        present = [one for one in self._shards.present if one.welcome is not None and one.welcome.is_operator]
        if len({one.rules_revision for one in present}) < 2:
            return
        newest = max(present, key=lambda one: (one.rules_revision, -(one.number or 0)))
        newest.ask(ShowRules(0), lambda reply: self._give(newest, present, reply), QUESTION_S)

    def _give(self, newest: Shard, present: list[Shard], reply: Reply) -> None:
        if not isinstance(reply, RulesState):
            return
        newest.rules_revision = reply.revision
        for shard in present:
            if shard.rules_revision < reply.revision:
                shard.rules_revision = reply.revision
                rules = PutRules(0, reply.revision, reply.pauses, reply.limits, reply.weights)
                shard.ask(rules, lambda _: None, QUESTION_S)
