"""What a client may do, by the roles of its token: one table of all requests.

This file must not know tokens or connections. Over the Unix socket every client is an operator.
"""

from __future__ import annotations

from collections.abc import Iterable

from opsq.wire import messages as m

OPERATOR, PRODUCER, CONSUMER, READ_ONLY = "operator", "producer", "consumer", "read-only"
ROLES = (OPERATOR, PRODUCER, CONSUMER, READ_ONLY)
"""The operator may do everything; each other role may read, and do its own work."""

_ALL = frozenset(ROLES)
_OPERATORS = frozenset((OPERATOR,))
_PRODUCERS = _OPERATORS | {PRODUCER}
_CONSUMERS = _OPERATORS | {CONSUMER}

PERMITTED: dict[type[m.Message], frozenset[str]] = {
    **dict.fromkeys((m.Hello, m.Heartbeat, m.CancelWait), _ALL),
    **dict.fromkeys((m.Describe, m.GetAttachment, m.Show, m.List, m.Wait, m.Results), _ALL),
    **dict.fromkeys(
        (m.Dead, m.History, m.Events, m.Status, m.Running, m.Explain, m.ExplainWork, m.ShowRules, m.ShowSchedules), _ALL
    ),
    **dict.fromkeys((m.Submit, m.Find, m.Withdraw, m.CheckCapacity, m.Cancel, m.Requeue), _PRODUCERS),
    **dict.fromkeys((m.PutSchedule, m.RemoveSchedule, m.PauseSchedule, m.ResumeSchedule), _PRODUCERS),
    **dict.fromkeys((m.TriggerSchedule, m.BackfillSchedule), _PRODUCERS),
    **dict.fromkeys((m.Reserve, m.Started, m.Complete, m.CompleteAndReserve, m.Fail), _CONSUMERS),
    **dict.fromkeys((m.Release, m.Extend, m.Reclaim), _CONSUMERS),
    **dict.fromkeys((m.Pause, m.Resume), _PRODUCERS | _CONSUMERS),
    **dict.fromkeys((m.Remove, m.ReleaseConsumer, m.Drop, m.Prune), _OPERATORS),
    **dict.fromkeys((m.Limit, m.Unlimit, m.Weight, m.PutRules), _OPERATORS),
    **dict.fromkeys(
        (m.DriveMoves, m.AdmitMover, m.HoldForMove, m.ExportSlice, m.StageSlice, m.CommitMove, m.CancelMove), _OPERATORS
    ),
    **dict.fromkeys((m.ActivateMoved, m.GiveUpMoved, m.GiveUpSource, m.ConfirmMoved, m.ShowMoves), _OPERATORS),
    **dict.fromkeys((m.Drain, m.Stop, m.Backup, m.Vacuum, m.Check), _OPERATORS),
}
"""Each request with the roles of which one is needed."""


FOLLOWED = (m.Complete, m.CompleteAndReserve)
"""Requests whose completions may have follow-ups, which only a producer may make."""


def permitting(request: m.Request) -> tuple[frozenset[str], ...]:
    """Sets of roles, of each of which one is needed for a request; some depend on what is in it."""
    if isinstance(request, m.Pause | m.Resume) and request.by_operator:
        return (_OPERATORS,)
    if isinstance(request, FOLLOWED) and any(completion.then for completion in request.completions):
        return (PERMITTED[type(request)], PERMITTED[m.Submit])
    return (PERMITTED[type(request)],)


def role_names(roles: Iterable[str]) -> str:
    """Roles in the order of `ROLES`, as people write them."""
    return ",".join(role for role in ROLES if role in roles)


def parse_roles(text: str) -> frozenset[str]:
    """Read roles as people write them: one, or several with commas between.

    Raises:
        ValueError: there is none, or one is unknown.
    """
    roles = frozenset(text.split(","))
    if unknown := sorted(roles - _ALL):
        raise ValueError(f"{unknown[0]!r} is not a role; roles are {', '.join(ROLES)}")
    return roles
