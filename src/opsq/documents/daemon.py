"""The JSON documents about the daemon and all that it holds.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import UNSET, UnsetType

from opsq.documents.shape import CauseShape, Shape
from opsq.documents.submissions import EventShape, RunningShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opsq.metrics import Family
    from opsq.wire.messages import ArrivingState, DaemonState, ReplicaState, ShardState


class CountsShape(Shape):
    """Chunks by what they are doing; the six add up to all."""

    submissions: int
    waiting: int
    delayed: int
    reserved: int
    completed: int
    dead: int
    skipped: int


class ValueCounts(CountsShape):
    """`value` null: the submissions without the key."""

    value: int | str | None


class ConsumerShape(Shape):
    """A connected consumer, or the holder of a lease."""

    consumer: str
    is_connected: bool
    reserved: int
    oldest_reservation_s: float
    waiting_strategy: str | None
    is_unmatched: bool


class ShardShape(Shape):
    """One of the daemons that are one queue. Of one that is unreachable, the rest is null.

    `shard`: its number; null: it has never answered. `takes_new`: as of the whole queue.
    """

    shard: int | None
    address: str
    state: str
    server: str | None
    uptime_s: float | None
    total: CountsShape | None
    takes_new: bool | None

    @classmethod
    def of(cls, state: ShardState) -> Self:
        """A shard as the client over all of them describes it."""
        if state.total is None:
            return cls(state.shard, state.address, state.state, None, None, None, None)
        return cls.from_message(state, total=CountsShape.from_message(state.total))


class ReplicaShape(Shape):
    """The copy of the queue in an object store. `state`: copying (everything, for the first time), running or down.

    `lag_s`: for how long the oldest change that is not in the copy has been waiting. `is_owner` false: the daemon
    acknowledges and hands out nothing until it can renew its lease. `owner`: how many owners the queue has had.
    `restarts`: how often Litestream was started again. `error`: why the last copy failed; empty: it did not.
    """

    url: str
    state: str
    lag_s: float
    is_owner: bool
    owner: int
    restarts: int
    error: str

    @classmethod
    def from_state(cls, state: ReplicaState) -> Self:
        """The replica as the daemon describes it."""
        return cls.from_message(state, owner=state.owner_epoch, restarts=state.restarts_count)


class ArrivingShape(Shape):
    """Submissions that are moving here from one source.

    `source`: names its file, in 32 hexadecimal digits. `complete`: of how many everything is here. `address`: where its
    daemon was when the move began.
    """

    source: str
    submissions: int
    complete: int
    address: str

    @classmethod
    def of(cls, state: ArrivingState) -> Self:
        """What the daemon says of a source."""
        return cls.from_message(state, source=state.source.hex())


class StatusDocument(Shape):
    """`opsq status`. `by` is empty without --by; `socket` is what was connected to, `socket_source` what chose it.

    `unmatched`: waiting chunks that no strategy of a connected consumer takes; null: no consumer is
    connected, or it is unknown.
    `backlog`: chunks that are waiting, delayed or reserved, and `backlog_limit` how many may be; null: any number.
    `wal_kept_s`: for how long a program that reads the database has kept its long write-ahead log; 0: none does.
    `held_back`: what holds waiting work back; empty: nothing is known to.
    `shards`: the daemons that are this queue together; empty if it is one alone. With several, `pid` is 0.
    `takes_new`: whether submissions come in; false: it is being drained.
    `replica`: null: there is none.
    `departed`: submissions given away to other daemons, and not known to be handed out there; `arriving`: those that
    are moving here, and `arriving_from` those by source. With one of them above 0, `opsq drain --to` was interrupted:
    run it again.
    """

    state: str
    server: str
    pid: int
    uptime_s: float
    socket: str
    socket_source: str
    total: CountsShape
    by: list[ValueCounts]
    states: dict[str, int]
    consumers: list[ConsumerShape]
    parked: int
    connections: int
    oldest_reservation_s: float
    unfolded: int
    file_bytes: int
    free_bytes: int
    wal_bytes: int
    settings: dict[str, str]
    unmatched: int | None
    backlog: int
    backlog_limit: int | None
    room_waiting: int
    disk_free_bytes: int | None
    wal_kept_s: float
    held_back: list[CauseShape]
    shards: list[ShardShape]
    takes_new: bool
    replica: ReplicaShape | None
    departed: int
    arriving: int
    arriving_from: list[ArrivingShape]
    rate_per_s: float | UnsetType = UNSET
    left_s: float | UnsetType = UNSET

    @classmethod
    def from_state(cls, state: DaemonState, socket: str, socket_source: str) -> Self:
        """The state of the daemon as it describes itself."""
        return cls.from_message(
            state,
            socket=socket,
            socket_source=socket_source,
            total=CountsShape.from_message(state.total),
            by=[ValueCounts.from_message(counts) for counts in state.by],
            consumers=[ConsumerShape.from_message(consumer) for consumer in state.consumers],
            held_back=CauseShape.of(state.held_back),
            shards=[ShardShape.of(shard) for shard in state.shards],
            replica=None if state.replica is None else ReplicaShape.from_state(state.replica),
            arriving_from=[ArrivingShape.of(each) for each in state.arriving_from],
            backlog=state.total.backlog_count,
        )


class TopDocument(Shape):
    """`opsq top`. `running` are the chunks that have run longest, `failures` the newest first."""

    status: StatusDocument
    running: list[RunningShape]
    has_more_running: bool
    failures: list[EventShape]


class SampleShape(Shape):
    """A number, with the name and labels under which Prometheus stores it."""

    name: str
    labels: dict[str, str]
    value: float


class MetricShape(Shape):
    """A metric. `type`: gauge, counter, info or histogram; `unit`: seconds, bytes or empty."""

    name: str
    type: str
    unit: str
    help: str
    samples: list[SampleShape]


class MetricsDocument(Shape):
    """`opsq metrics`."""

    metrics: list[MetricShape]

    @classmethod
    def from_families(cls, families: Iterable[Family]) -> Self:
        """The metrics of a daemon."""
        return cls(
            [
                MetricShape(
                    each.name,
                    each.kind,
                    each.unit,
                    each.meaning,
                    [SampleShape(name, dict(labels), value) for name, labels, value in each.samples],
                )
                for each in families
            ]
        )
