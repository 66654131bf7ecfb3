"""The submissions that one waits for and those that wait for it, some steps up and down. Reads only; bounded."""

from __future__ import annotations

from collections import deque

import apsw

from opsq.store import dependencies
from opsq.store.dependencies import Edge
from opsq.wire.messages import DependencyEdge

EDGES_SHOWN = 100
"""Each way."""
EDGES_OF_ONE = 20


def edges_around(connection: apsw.Connection, submission_id: int, lane_ids: frozenset[int]) -> list[DependencyEdge]:
    """What a submission waits for or waited for, nearest first; then who does so for it, or for one of its pairs.

    Cost: two look-ups and one for each pair if nothing waits; at most some for each edge shown.
    """
    up = _walk(connection, submission_id, is_up=True)
    down = _walk(connection, submission_id, is_up=False)
    for lane_id in sorted(lane_ids):
        down += dependencies.waiting_for(connection, ~lane_id, EDGES_OF_ONE)
    return [_shown(connection, edge) for edge in (*up, *down[:EDGES_SHOWN])]


def _walk(connection: apsw.Connection, submission_id: int, *, is_up: bool) -> list[Edge]:
    found: list[Edge] = []
    seen, left = {submission_id}, deque([submission_id])
    while left and len(found) < EDGES_SHOWN:
        one = left.popleft()
        read = dependencies.waits_of if is_up else dependencies.waiting_for
        for edge in read(connection, one, min(EDGES_OF_ONE, EDGES_SHOWN - len(found))):
            found.append(edge)
            following = edge.target if is_up else edge.submission_id
            if following >= 0 and following not in seen:
                seen.add(following)
                left.append(following)
    return found


def _shown(connection: apsw.Connection, edge: Edge) -> DependencyEdge:
    state = dependencies.state_of(connection, edge.submission_id) or ""
    if edge.target >= 0:
        on_state = dependencies.state_of(connection, edge.target)
        return DependencyEdge(
            edge.submission_id, state, edge.target, None, None, on_state, edge.needs, edge.on_failed, edge.outcome
        )
    key, value = dependencies.pair_of(connection, edge.target)
    return DependencyEdge(edge.submission_id, state, None, key, value, None, edge.needs, edge.on_failed, edge.outcome)
