"""Messages of administration: pauses, limits and weights; stop, back up, vacuum and check the daemon.

This file must not define what a producer or consumer needs for its own work.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from opsq.wire.messages.fields import (
    Burst,
    Concurrency,
    Count,
    Duration,
    Id,
    Instant,
    Key,
    Message,
    Metadata,
    Name,
    PositiveDuration,
    Rate,
    Record,
    Value,
    WeightNumber,
)


class PauseState(Record):
    """A pause of all submissions that have every pair; no pairs: of everything."""

    metadata: Metadata
    by_operator: bool
    by_name: Name
    paused_at: Instant


class LimitState(Record):
    """A limit for one pair, or (value None) for each value of the key.

    `reserved_count` is how many chunks are reserved under the busiest value, `busiest`; None: they are not counted, as
    for a rate alone.
    """

    key: Key
    value: Value | None
    concurrency: Concurrency | None
    rate_per_s: Rate | None
    burst: Burst | None
    by_name: Name
    limited_at: Instant
    reserved_count: Count | None = None
    busiest: Value | None = None
    rate_span_s: PositiveDuration = 1.0


class WeightState(Record):
    """The weight of a value in `Fair`; `by_submission`: it came with a submission, and goes with the last."""

    key: Key
    value: Value
    weight: WeightNumber
    by_submission: bool = False


class Pause(Message):
    """Hold back all submissions that have every pair (none: all of them). → Changed (0: they were already)."""

    id: Id
    metadata: Metadata = {}
    by_operator: bool = False
    by_name: Name = ""
    revision: Instant = 0
    """What the rules are to have as their revision at least; 0: the daemon chooses."""


class Resume(Message):
    """End the pause with exactly these pairs; an operator's needs `by_operator`. → Changed (0: there was none)."""

    id: Id
    metadata: Metadata = {}
    by_operator: bool = False
    revision: Instant = 0


class Limit(Message):
    """Limit a pair, or (`value` None) each value of a key; replaces that limit. → Changed. Operators only."""

    id: Id
    key: Key
    value: Value | None = None
    concurrency: Concurrency | None = None
    rate_per_s: Rate | None = None
    burst: Burst | None = None
    by_name: Name = ""
    rate_span_s: PositiveDuration = 1.0
    """The unit of time for which the rate was given: it only affects how the rate is shown."""
    revision: Instant = 0


class Unlimit(Message):
    """Lift the limit for a pair or a key. → Changed. Operators only."""

    id: Id
    key: Key
    value: Value | None = None
    revision: Instant = 0


class Weight(Message):
    """Give a value of a key a weight in `Fair` (0.001 … 1000; 1 is what each has). → Changed. Operators only."""

    id: Id
    key: Key
    value: Value
    weight: WeightNumber
    revision: Instant = 0


class PutRules(Message):
    """Replace all rules by these if their revision is larger. → Changed (0: it was not). Operators only.

    So a client over shards repairs one that was away when rules changed. Weights that came with submissions stay.
    """

    id: Id
    revision: Instant
    pauses: Annotated[list[PauseState], Meta(max_length=10_000)]
    limits: Annotated[list[LimitState], Meta(max_length=100_000)]
    weights: Annotated[list[WeightState], Meta(max_length=100_000)]


class ShowRules(Message):
    """Ask for all pauses, limits and weights. → RulesState."""

    id: Id


class RulesState(Message):
    """Answer to ShowRules. Each change of the rules raises the revision."""

    id: Id
    pauses: list[PauseState]
    limits: list[LimitState]
    weights: list[WeightState]
    revision: Count = 0


class Drain(Message):
    """Take no new submissions, and work off what is there; `is_undo`: take them again. → Changed. Operators only.

    It holds until it is undone, over restarts. What is known already is answered, follow-ups still come with their
    completions, and schedules wait as if no daemon ran.
    """

    id: Id
    is_undo: bool = False


class Stop(Message):
    """Drain for up to `drain_s`, then end the daemon. → Changed, before it ends. Operators only."""

    id: Id
    drain_s: Duration = 30.0


class Backup(Message):
    """Copy the database to `path` (absolute; must not exist) while work continues.

    → Changed (bytes). Operators only.
    """

    id: Id
    path: Annotated[str, Meta(pattern=r"^/[^\x00]*\Z", max_length=4096)]


class Vacuum(Message):
    """Give free pages back to the file system. → Changed with the bytes. Operators only."""

    id: Id


class Check(Message):
    """Check the database and the invariants. → Checked. Operators only."""

    id: Id


class Checked(Message):
    """Answer to Check: no problems, no damage."""

    id: Id
    problems: list[str]


class Changed(Message):
    """The request took effect on `count` things (named by the request)."""

    id: Id
    count: Count = 1
    is_matched: bool | None = None
    """Of Limit: whether a submission has the pair, or the key, now."""


Requests = Pause | Resume | Limit | Unlimit | Weight | PutRules | ShowRules | Drain | Stop | Backup | Vacuum | Check
Replies = RulesState | Checked | Changed
