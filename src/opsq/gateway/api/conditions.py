"""What the paths and queries of endpoints may say: which submissions, chunks and events, with bounds.

It must not ask the daemon.
"""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta, Struct

from opsq.errors import UsageError
from opsq.strategy.tree import parse_pairs
from opsq.wire import messages as m

WAIT_LIMIT_S = 3600

IdText = Annotated[str, Meta(pattern="^[0-9]{1,19}$", description="Of a submission.")]
Limit = Annotated[int, Meta(ge=1, le=1000, description="Maximum per page; a page may be shorter, even empty.")]
Pair = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}=", max_length=4096)]
Pairs = Annotated[
    list[Pair], Meta(max_length=64, description="Only of submissions with this metadata, `KEY=VALUE`; repeatable.")
]
ReasonPart = Annotated[str, Meta(max_length=16384, description="Only with this text in the reason, ignoring case.")]
Statuses = Annotated[list[m.ExitStatus], Meta(max_length=256, description="Only after one of these exit statuses.")]
Signals = Annotated[list[m.Signal], Meta(max_length=256, description="Only after one of these signals, by number.")]
OlderS = Annotated[float, Meta(ge=0, le=1e9, description="Only those that are at least this old, in seconds.")]
NewerS = Annotated[float, Meta(ge=0, le=1e9, description="Only those that are at most this old, in seconds.")]


class OfSubmission(Struct):
    """Which submission."""

    submission_id: IdText


class OfChunk(OfSubmission):
    """Which chunk."""

    index: m.ChunksCount


class StatusQuery(Struct, forbid_unknown_fields=True):
    """How `status` counts."""

    by: Annotated[m.Key, Meta(description="Also count per value of this metadata key.")] | None = None


class ListQuery(Struct, forbid_unknown_fields=True):
    """Which submissions."""

    state: Annotated[
        list[m.StateName], Meta(max_length=len(m.STATES), description="Only in these states; repeatable.")
    ] = []
    metadata: Pairs = []
    older_than_s: OlderS | None = None
    newer_than_s: NewerS | None = None
    limit: Limit = 100
    before: (
        Annotated[IdText, Meta(description="Only submissions older than this: `next` of the page before.")] | None
    ) = None


class WaitQuery(Struct, forbid_unknown_fields=True):
    """Whether to wait."""

    wait: Annotated[
        float, Meta(ge=0, le=WAIT_LIMIT_S, description="Answer when it has ended, or after this many seconds.")
    ] = 0.0


class LimitQuery(Struct, forbid_unknown_fields=True):
    """How many."""

    limit: Limit = 100


class DeadConditions(Struct):
    """Which dead chunks, beside their submissions."""

    older_than_s: OlderS | None = None
    newer_than_s: NewerS | None = None
    reason: ReasonPart = ""
    exit_status: Statuses = []
    signal: Signals = []

    def as_filter(self, metadata: dict[str, int | str]) -> m.DeadFilter:
        """The conditions as the daemon takes them, of submissions with this metadata."""
        from_at, to_at = span(self.newer_than_s, self.older_than_s)
        return m.DeadFilter(
            metadata=metadata,
            from_at=from_at,
            to_at=to_at,
            reason=self.reason,
            exit_statuses=self.exit_status,
            signals=self.signal,
        )


class DeadQuery(DeadConditions, forbid_unknown_fields=True, kw_only=True):
    """Which dead chunks."""

    submission_id: IdText | None = None
    metadata: Pairs = []
    limit: Limit = 100
    after: (
        Annotated[
            str,
            Meta(pattern="^[0-9]{1,19}/[0-9]{1,13}$", description="Only behind this chunk: `next` of the page before."),
        ]
        | None
    ) = None


class HistoryQuery(Struct, forbid_unknown_fields=True):
    """Which events."""

    submission_id: IdText | None = None
    index: Annotated[m.ChunksCount, Meta(description="Only of this chunk of the submission.")] | None = None
    event: Annotated[list[m.EventName], Meta(max_length=16, description="Only these; repeatable.")] = []
    consumer: Annotated[str, Meta(max_length=1024, description="Only of consumers whose name starts so.")] = ""
    metadata: Pairs = []
    older_than_s: OlderS | None = None
    newer_than_s: NewerS | None = None
    reason: ReasonPart = ""
    exit_status: Statuses = []
    signal: Signals = []
    limit: Limit = 100
    oldest_first: Annotated[bool, Meta(description="Start with the oldest instead of the newest.")] = False
    after: Annotated[m.Id, Meta(description="Continue behind this `seq`: `next` of the page before.")] | None = None


class ExplainQuery(Struct, forbid_unknown_fields=True):
    """Which strategy."""

    strategy: Annotated[m.StrategyText, Meta(description="A strategy, also by its name in the settings.")] = "Random"
    analyze: Annotated[bool, Meta(description="Try it out on the queue as it is; nothing is reserved.")] = False


def metadata_of(pairs: list[str]) -> dict[str, int | str]:
    """Metadata from `KEY=VALUE` words, as the verbs take it.

    Raises:
        UsageError: a key is given twice, or a value begins with a quote and is no JSON string.
    """
    try:
        return parse_pairs(pairs)
    except ValueError as error:
        raise UsageError(f"The metadata cannot be read: {error}.", hint="Write KEY=VALUE.") from error


def span(newer_than_s: float | None, older_than_s: float | None) -> tuple[int | None, int | None]:
    """The instants in `[from, to)` that lie within the one and at least the other time before now."""
    now = time.time_ns() // 1_000_000
    return (
        None if newer_than_s is None else max(now - int(newer_than_s * 1000), 0),
        None if older_than_s is None else max(now - int(older_than_s * 1000) + 1, 0),
    )
