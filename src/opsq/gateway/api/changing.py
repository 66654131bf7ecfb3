"""The endpoints that change something, each as the verb of its name does: what it is is decided by the daemon.

It must not hand out chunks or take them back: `taking` does.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from opsq.client.core.administration import caller_name
from opsq.documents.submissions import ChangedDocument
from opsq.errors import Conflict, NoRoom, NotFinished, NotFound, OpsqError, StorageFull, UsageError
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import DeadConditions, IdText, OfSubmission
from opsq.gateway.api.endpoint import Endpoint
from opsq.ids import parse_submission_id
from opsq.wire import messages as m

All = Annotated[bool, Meta(description="Everything: needed if nothing else is given.")]
Operator = Annotated[bool, Meta(description="As an operator: only an operator's `resume` ends such a pause.")]


class CancelBody(Struct, forbid_unknown_fields=True):
    """Why a submission is cancelled."""

    reason: m.Reason = ""


class DeadBody(DeadConditions, forbid_unknown_fields=True, kw_only=True):
    """Which dead chunks: of one submission or of any, some by index, or all that meet the conditions."""

    submission_id: IdText | None = None
    metadata: m.Metadata = field(default_factory=dict)
    indexes: Annotated[list[m.ChunksCount], Meta(min_length=1, max_length=10_000)] | None = None
    all: All = False


class PauseBody(Struct, forbid_unknown_fields=True):
    """Submissions that have every pair, now or later; `submission` is the id of one."""

    metadata: m.Metadata = {}
    all: All = False
    operator: Operator = False


class LimitBody(Struct, forbid_unknown_fields=True):
    """A limit on one value of a key, or (null) on each; it replaces the limit for the same key and value."""

    key: m.Key
    value: m.Value | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    rate_per_s: Annotated[float, Meta(ge=m.RATE_MIN_PER_S, le=m.RATE_MAX_PER_S)] | None = None
    burst: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    lift: Annotated[bool, Meta(description="Remove the limit.")] = False


class WeightBody(Struct, forbid_unknown_fields=True):
    """How often a value is served in `Fair`: 3 is served three times as often as 1."""

    key: m.Key
    value: m.Value
    weight: Annotated[float, Meta(ge=0.001, le=1000)]


class PruneBody(Struct, forbid_unknown_fields=True):
    """Which rows of the history: those older than this, and all but the newest."""

    older_than_s: m.Duration | None = None
    keep: m.Count | None = None


async def cancel_submission(call: Call, path: OfSubmission, body: CancelBody) -> ChangedDocument:
    """Cancel a submission: nothing more of it is handed out, and running chunks lose their reservations.

    `count` is 0 if it had already ended.
    """
    return await _change(call, m.Cancel(call.next_id(), parse_submission_id(path.submission_id), body.reason))


async def remove_submission(call: Call, path: OfSubmission) -> ChangedDocument:
    """Remove a finished submission, with its results and content."""
    return await _change(call, m.Remove(call.next_id(), parse_submission_id(path.submission_id)))


async def requeue_dead(call: Call, body: DeadBody) -> ChangedDocument:
    """Give dead chunks new attempts; a submission that had failed, or was cancelled or expired, is open again."""
    return await _change(call, m.Requeue(call.next_id(), *_chosen(body)))


async def drop_dead(call: Call, body: DeadBody) -> ChangedDocument:
    """Give up on dead chunks: they count as skipped from then on and can no longer be requeued."""
    return await _change(call, m.Drop(call.next_id(), *_chosen(body)))


def _chosen(body: DeadBody) -> tuple[int | None, list[int] | None, m.DeadFilter]:
    where = body.as_filter(body.metadata)
    has_conditions = where != m.DeadFilter()
    if body.all and (has_conditions or body.submission_id is not None or body.indexes is not None):
        raise UsageError("`all` means every dead chunk: give nothing else with it.")
    if not (body.all or has_conditions or body.submission_id is not None):
        raise UsageError("No dead chunks were selected.", hint="Give a submission, a condition, or `all`.")
    if body.indexes is not None and (has_conditions or body.submission_id is None):
        raise UsageError("`indexes` are chunks of one `submission_id`, and cannot be combined with conditions.")
    submission_id = None if body.submission_id is None else parse_submission_id(body.submission_id)
    return submission_id, body.indexes, where


async def pause(call: Call, body: PauseBody) -> ChangedDocument:
    """Stop handing out some submissions until they are resumed; reserved chunks continue.

    `count` is 0 if they were paused already.
    """
    return await _change(call, m.Pause(call.next_id(), _pairs(body), body.operator, caller_name()))


async def resume(call: Call, body: PauseBody) -> ChangedDocument:
    """End a pause, named by the same pairs."""
    changed = await _change(call, m.Resume(call.next_id(), _pairs(body), body.operator))
    if not changed.count:
        raise NotFound("There is no pause of exactly this.", hint="`GET /api/v1/rules` lists pauses.")
    return changed


def _pairs(body: PauseBody) -> dict[str, int | str]:
    if body.all == bool(body.metadata):
        raise UsageError("Give either `metadata`, or `all` for every submission.")
    return body.metadata


async def limit(call: Call, body: LimitBody) -> ChangedDocument:
    """Limit concurrent chunks per value, or how many start per second; for every strategy and consumer."""
    bounds = (body.concurrency, body.rate_per_s, body.burst)
    if body.lift:
        if any(bound is not None for bound in bounds):
            raise UsageError("`lift` removes a limit: give no bounds with it.")
        return await _change(call, m.Unlimit(call.next_id(), body.key, body.value))
    return await _change(call, m.Limit(call.next_id(), body.key, body.value, *bounds, caller_name()))


async def weight(call: Call, body: WeightBody) -> ChangedDocument:
    """Set the weight in `Fair` of a value of a key; it holds from its next turn on."""
    return await _change(call, m.Weight(call.next_id(), body.key, body.value, body.weight))


async def prune_history(call: Call, body: PruneBody) -> ChangedDocument:
    """Delete old history now, in small steps between other work."""
    if body.older_than_s is None and body.keep is None:
        raise UsageError("No events were selected.", hint="Give `older_than_s` or `keep`.")
    return await _change(call, m.Prune(call.next_id(), body.older_than_s, body.keep))


async def _change(call: Call, request: m.Request) -> ChangedDocument:
    return ChangedDocument((await call.ask(request, m.Changed)).count)


_SUBMISSION = "/submissions/{submission_id}"
_FAILS: tuple[type[OpsqError], ...] = (NotFound, Conflict, StorageFull)

ENDPOINTS = (
    Endpoint("POST", f"{_SUBMISSION}/cancel", cancel_submission, (m.Cancel,), _FAILS),
    Endpoint("DELETE", _SUBMISSION, remove_submission, (m.Remove,), (*_FAILS, NotFinished)),
    Endpoint("POST", "/dead/requeue", requeue_dead, (m.Requeue,), (*_FAILS, NoRoom)),
    Endpoint("POST", "/dead/drop", drop_dead, (m.Drop,), _FAILS),
    Endpoint("POST", "/pause", pause, (m.Pause,), _FAILS),
    Endpoint("POST", "/resume", resume, (m.Resume,), _FAILS),
    Endpoint("POST", "/limit", limit, (m.Limit, m.Unlimit), _FAILS),
    Endpoint("POST", "/weight", weight, (m.Weight,), _FAILS),
    Endpoint("POST", "/history/prune", prune_history, (m.Prune,), _FAILS),
)
