"""What one answer is made of, when a request concerns all shards: pure functions, without connections and clocks.

found = gathering(request, members, cursors)       # None: it concerns one shard
asked = found.ask(shards)                          # shard → request; the router gives each an id
reply = found.merged(replies)                      # of the shards that answered
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opsq.client.shards.merging import changes, lists, states
from opsq.client.shards.merging.cursors import Cursors
from opsq.client.shards.merging.gathering import Gathering, Members
from opsq.wire import messages as m

__all__ = ["Cursors", "Gathering", "Members", "gathering"]

_KINDS: dict[type[m.Message], Callable[[Any, Members], Gathering[Any, Any]]] = {
    m.List: lists.Submissions,
    m.Dead: lists.DeadChunks,
    m.ShowSchedules: lists.Schedules,
    m.Status: states.State,
    m.ShowRules: states.Rules,
    **dict.fromkeys((m.Pause, m.Resume, m.Limit, m.Unlimit, m.Weight), changes.Rule),
    **dict.fromkeys((m.ReleaseConsumer, m.Prune, m.Vacuum), changes.Sum),
    **dict.fromkeys((m.Requeue, m.Drop), changes.DeadSelection),
    m.Find: changes.Found,
    m.Describe: changes.Described,
    m.Check: changes.Checked,
    m.Explain: changes.Explained,
}
_PAGED: dict[type[m.Message], Callable[[Any, Members, Cursors], Gathering[Any, Any]]] = {
    m.History: lists.Events,
    m.Running: lists.RunningChunks,
}


def gathering(request: m.Request, members: Members, cursors: Cursors) -> Gathering[Any, Any] | None:
    """How a request that concerns all shards is put together; None: it is for one, or of no such kind.

    Dead, History, Running, Requeue and Drop that name a submission are for the shard of that one.

    Args:
        members: the shards that there are.
        cursors: those of the client's earlier lists.

    Raises:
        UsageError: a list is to go on where none has ended.
    """
    where = getattr(request, "where", None)
    if getattr(request, "submission_id", None) is not None or getattr(where, "submission_id", None) is not None:
        return None
    if (kind := _KINDS.get(type(request))) is not None:
        return kind(request, members)
    paged = _PAGED.get(type(request))
    return None if paged is None else paged(request, members, cursors)
