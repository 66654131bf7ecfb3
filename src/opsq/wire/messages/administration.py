"""Messages of administration: pauses, limits and weights; stop, back up, vacuum and check the daemon.

This file must not define what a producer or consumer needs for its own work.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from opsq.wire.messages.fields import (
    Count,
    Duration,
    Id,
    Key,
    Message,
    Metadata,
    Name,
    PositiveDuration,
    Record,
    Value,
    WeightNumber,
)

RATE_MIN_PER_S, RATE_MAX_PER_S = 1 / (30 * 86400), 1e9
"""One chunk in 30 days; a billion a second."""


class PauseState(Record):
    """A pause of all submissions that have every pair; no pairs: of everything."""

    metadata: dict[str, int | str]
    by_operator: bool
    by_name: str
    paused_at: Count


class LimitState(Record):
    """A limit for one pair, or (value None) for each value of the key.

    `reserved_count` is how many chunks are reserved under the busiest value, `busiest`; None: they are not counted, as
    for a rate alone.
    """

    key: str
    value: int | str | None
    concurrency: int | None
    rate_per_s: float | None
    burst: int | None
    by_name: str
    limited_at: Count
    reserved_count: Count | None = None
    busiest: int | str | None = None
    rate_span_s: float = 1.0


class WeightState(Record):
    """The weight of a value in `Fair`."""

    key: str
    value: int | str
    weight: float


class Pause(Message):
    """Hold back all submissions that have every pair (none: all of them). → Changed (0: they were already)."""

    id: Id
    metadata: Metadata = {}
    by_operator: bool = False
    by_name: Name = ""


class Resume(Message):
    """End the pause with exactly these pairs; an operator's needs `by_operator`. → Changed (0: there was none)."""

    id: Id
    metadata: Metadata = {}
    by_operator: bool = False


class Limit(Message):
    """Limit a pair, or (`value` None) each value of a key; replaces that limit. → Changed. Operators only."""

    id: Id
    key: Key
    value: Value | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    rate_per_s: Annotated[float, Meta(ge=RATE_MIN_PER_S, le=RATE_MAX_PER_S)] | None = None
    burst: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    by_name: Name = ""
    rate_span_s: PositiveDuration = 1.0
    """The unit of time for which the rate was given: it only affects how the rate is shown."""


class Unlimit(Message):
    """Lift the limit for a pair or a key. → Changed. Operators only."""

    id: Id
    key: Key
    value: Value | None = None


class Weight(Message):
    """Give a value of a key a weight in `Fair` (0.001 … 1000; 1 is what each has). → Changed. Operators only."""

    id: Id
    key: Key
    value: Value
    weight: WeightNumber


class ShowRules(Message):
    """Ask for all pauses, limits and weights. → RulesState."""

    id: Id


class RulesState(Message):
    """Answer to ShowRules."""

    id: Id
    pauses: list[PauseState]
    limits: list[LimitState]
    weights: list[WeightState]


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


Requests = Pause | Resume | Limit | Unlimit | Weight | ShowRules | Stop | Backup | Vacuum | Check
Replies = RulesState | Checked | Changed
