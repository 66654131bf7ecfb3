"""The request that replaces all rules at once, by which a client over shards repairs one that missed a change.

This file must not change single rules (`rule_changes` does).
"""

from __future__ import annotations

from opsq.clock import Now
from opsq.queue.batch import Batch
from opsq.queue.peer import Peer
from opsq.queue.rule_changes import RuleChanges, check_limit, check_weight
from opsq.queue.state import EngineState
from opsq.store import events, rules
from opsq.store.database import Database
from opsq.store.rules import LimitRow, Pairs, PauseRow, Value
from opsq.wire.messages import Changed, LimitState, PauseState, PutRules


class RuleReplacement:
    """Replaces all rules."""

    def __init__(self, state: EngineState, changes: RuleChanges) -> None:
        self._state = state
        self._changes = changes

    def put(self, peer: Peer, request: PutRules, now: Now) -> None:
        """Put exactly these pauses, limits and weights of operators in force, unless what is in force is as new.

        Raises:
            UsageError: one of them cannot be; nothing is changed.
        """
        for limit in request.limits:
            check_limit(limit)
        for weight in request.weights:
            check_weight(weight.weight)
        is_newer = request.revision > self._state.rules.revision
        if is_newer:
            self._put_weights({(one.key, one.value): one.weight for one in request.weights if not one.by_submission})
            self._put_pauses_and_limits(request.pauses, request.limits, now)
            self._changes.revise(request.revision, now)
        self._state.batch.replies.append((peer, Changed(request.id, int(is_newer))))

    def _put_weights(self, weights: dict[tuple[str, Value], float]) -> None:
        in_force = self._state.rules
        gone = in_force.weights.keys() - in_force.weights_of_submissions - weights.keys()
        for (key, value), weight in (dict.fromkeys(gone, 1.0) | weights).items():
            self._changes.put_weight(key, value, weight, by_submission=False)

    def _put_pauses_and_limits(self, pauses: list[PauseState], limits: list[LimitState], now: Now) -> None:
        """What is in force already keeps its id, by which gates know what waits for it, and a rate its tokens."""
        in_force, batch = self._state.rules, self._state.batch
        gone_pauses, gone_limits = in_force.pauses, in_force.limits
        known_pauses = {row.pairs: row.id for row in gone_pauses}
        known_limits = {(row.key, row.value): row.id for row in gone_limits}
        new_pauses: dict[Pairs, PauseRow] = {}
        for pause in pauses:
            pairs = tuple(sorted(pause.metadata.items()))
            pause_id = known_pauses.get(pairs) or self._changes.new_id()
            new_pauses[pairs] = PauseRow(pause_id, pairs, pause.by_operator, pause.by_name, pause.paused_at)
        new_limits: dict[tuple[str, Value | None], LimitRow] = {}
        for limit in limits:
            new_limits[limit.key, limit.value] = LimitRow(
                known_limits.get((limit.key, limit.value)) or self._changes.new_id(),
                limit.key,
                limit.value,
                limit.concurrency,
                limit.rate_per_s,
                limit.burst,
                limit.by_name,
                limit.limited_at,
                limit.rate_span_s,
            )
        batch.events += [
            events.new(now.wall, "paused", metadata=dict(row.pairs), by_name=row.by_name)
            for row in new_pauses.values()
            if row.pairs not in known_pauses
        ]
        batch.events += [
            events.new(now.wall, "resumed", metadata=dict(row.pairs))
            for row in gone_pauses
            if row.pairs not in new_pauses
        ]

        def write(database: Database, _: Batch) -> None:
            for gone_pause in gone_pauses:
                rules.delete_pause(database.writer, gone_pause.id)
            for gone_limit in gone_limits:
                rules.delete_limit(database.writer, gone_limit.id)
            for new_pause in new_pauses.values():
                rules.put_pause(database.writer, new_pause)
            for new_limit in new_limits.values():
                rules.put_limit(database.writer, new_limit)

        batch.statements.append(write)
        self._changes.change([*new_pauses.values()], [*new_limits.values()])
