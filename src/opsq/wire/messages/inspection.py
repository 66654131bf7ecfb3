"""Messages that inspect the queue: status, history, and why a strategy or a submission behaves as it does.

This file must not define a request that writes, except `Prune`, which forgets history.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from opsq.wire.messages.fields import (
    Block,
    ChunksCount,
    Count,
    Detail,
    Duration,
    ExitStatus,
    Finding,
    Id,
    Instant,
    Int64,
    Key,
    Message,
    Metadata,
    Reason,
    Record,
    Signal,
    StrategyText,
    Unsigned,
)
from opsq.wire.messages.moves import ArrivingState


class Counts(Record):
    """Chunks by what they are doing, of one metadata value or of everything; the last six add up to all chunks."""

    value: int | str | None
    submissions_count: Count
    waiting_count: Count
    delayed_count: Count
    reserved_count: Count
    completed_count: Count
    dead_count: Count
    skipped_count: Count

    @property
    def backlog_count(self) -> int:
        """Chunks that are waiting, delayed or reserved."""
        return self.waiting_count + self.delayed_count + self.reserved_count


class ConsumerState(Record):
    """A connected consumer or the holder of a lease."""

    consumer: str
    is_connected: bool
    reserved_count: Count
    oldest_reservation_s: float
    waiting_strategy: str | None
    is_unmatched: bool = False
    """It has waited for some seconds, and nothing that waits is for it."""


class Status(Message):
    """Ask for the state of the daemon. → DaemonState. `by` groups the counts by that key.

    `strategy`: also tell what holds back the work that it takes; "": all work; None: tell nothing of that.
    `measures`: also tell what is measured for monitoring.
    """

    id: Id
    by: Key | None = None
    strategy: StrategyText | None = None
    measures: bool = False


class Durations(Record):
    """Durations by size: how many took as long as each bound or less, but longer than the one before.

    The last of `counts` has those beyond all bounds.
    """

    bounds_s: list[float]
    counts: list[Count]
    sum_s: float


class Measures(Record):
    """What is measured for monitoring; all counts are since the daemon started.

    `oldest_waiting_s`: how long ago the oldest submission with a waiting chunk could first be handed out; 0: none
    waits. `consumers_count`: connections that have asked for chunks. `events`: chunks by what became of them, with the
    names that the history has. `waits`: how long chunks waited for each attempt; `runs`: how long it took. `commits`:
    how long the COMMITs took. `overlooked_count`: how often the watchdog found somebody waiting for what was free.
    `reserves`: how long the daemon took over a reserve, until it answered or the call waits.
    """

    oldest_waiting_s: float
    consumers_count: Count
    events: dict[str, Count]
    waits: Durations
    runs: Durations
    commits: Durations | None = None
    overlooked_count: Count = 0
    reserves: Durations | None = None


UNREACHABLE = "unreachable"
"""The state of a shard that does not answer."""


class ShardState(Record):
    """One of the daemons that are one queue; without more than its address if it is `UNREACHABLE`.

    `shard`: its number; None: unknown, as it has never answered this client. `takes_new` is that of `DaemonState`.
    """

    shard: Count | None
    address: str
    state: str
    server: str = ""
    total: Counts | None = None
    uptime_s: float = 0.0
    takes_new: bool = True


class ReplicaState(Record):
    """The copy of the queue in an object store.

    `state`: `copying` (the first whole copy since the start is under way), `running` or `down`. `lag_s`: for how long
    the oldest change that is not in the copy has been waiting; 0: all are. `is_owner`: whether the daemon may
    acknowledge and hand out; else it waits until it can renew its lease. `restarts_count`: how often Litestream had to
    be started again. `error`: why the last attempt failed; empty: it did not.
    """

    url: str
    state: Literal["copying", "running", "down"]
    lag_s: float
    is_owner: bool
    owner_epoch: Count
    restarts_count: Count
    error: str = ""


class DaemonState(Message):
    """Answer to Status.

    `unmatched_count`: waiting chunks that no strategy of a connected consumer takes; None: none is connected, or
    counters do not show it. `backlog_limit`: how many chunks may be waiting, delayed or reserved; None: any number.
    `room_waiting_count`: submissions that wait for room. `disk_free_bytes`: what is left on the disk; None: unknown.
    `removable`: while the disk is full, the details of the refusals: what would make room. `held_back`: what holds
    waiting work back; empty: nothing is known to. `measures`: None unless asked for. `replica`: None if there is none.
    `shards`: the daemons whose states a client over shards has put together here; with several, `pid` is 0.
    """

    id: Id
    server: str
    pid: int
    state: str
    uptime_s: float
    total: Counts
    by: list[Counts]
    states: dict[str, int]
    consumers: list[ConsumerState]
    parked_count: Count
    connections_count: Count
    oldest_reservation_s: float
    unfolded_count: Count
    file_bytes: Count
    free_bytes: Count
    wal_bytes: Count
    settings: dict[str, str]
    unmatched_count: Count | None = None
    backlog_limit: Count | None = None
    room_waiting_count: Count = 0
    disk_free_bytes: Count | None = None
    wal_kept_s: float = 0.0
    removable: dict[str, Detail] = {}
    held_back: list[Finding] = []
    measures: Measures | None = None
    shards: list[ShardState] = []
    takes_new: bool = True
    """False: it is being drained, and submissions are refused."""
    replica: ReplicaState | None = None
    departed_count: Count = 0
    """Submissions that were given away to other daemons, and are not known to be handed out there."""
    arriving_count: Count = 0
    """Submissions that are moving here, and not handed out yet."""
    arriving_from: list[ArrivingState] = []
    """The same by the file that they come from."""


class Running(Message):
    """Ask which chunks are being worked on, the longest first. → RunningChunks. Chunks of leases count as begun.

    `metadata`: of submissions that have every pair. `after` is the `next_after` of the page before.
    """

    id: Id
    submission_id: Id | None = None
    metadata: Metadata = {}
    after: tuple[Int64, Id, Id, Block, Unsigned] | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class RunningChunk(Record):
    """Chunks of a block that a consumer began at once, `run_s` ago; for at least as long, if `is_at_least`.

    `host` and `pid` say where the consumer runs, as far as it is connected and has said so; "" and 0: unknown.
    `since_ns`, on a clock of the daemon, and `reservation_id` are what pages are sorted by.
    """

    submission_id: Id
    block: Block
    mask: Unsigned
    attempt: Count
    consumer: str
    host: str
    pid: Count
    run_s: float
    is_at_least: bool = False
    since_ns: Int64 = 0
    reservation_id: Id = 0


class RunningChunks(Message):
    """Answer to Running; `next_after` goes into the next call, None at the end.

    `metadata` is that of submissions, and so are `titles`.
    """

    id: Id
    rows: list[RunningChunk]
    next_after: tuple[int, int, int, int, int] | None
    metadata: dict[Id, dict[str, int | str]]
    titles: dict[Id, str] = {}


class HistoryFilter(Record):
    """Which events: all conditions must hold; exit statuses and signals are alternatives; empty ones always hold.

    `index` is a chunk of `submission_id`; `consumer` a prefix of its name; `from_at` ≤ instant < `to_at`; `reason` a
    part of it.
    """

    submission_id: Id | None = None
    index: ChunksCount | None = None
    events: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=16)] = []
    consumer: Annotated[str, Meta(max_length=1024)] = ""
    metadata: Metadata = {}
    from_at: Instant | None = None
    to_at: Instant | None = None
    reason: Reason = ""
    exit_statuses: Annotated[list[ExitStatus], Meta(max_length=256)] = []
    signals: Annotated[list[Signal], Meta(max_length=256)] = []


class HistoryEvent(Record):
    """What happened at `at` to the chunks `mask` of a block, or (0) to the whole submission; for an attempt, by whom.

    `wait_s`: from when the chunks could be handed out (submitted, due, free again, requeued) until they were; the
    longest of several; 0: unknown. `run_s` is the sum and `run_max_s` the longest of the run times; if they were not
    measured, how long the chunks were reserved.
    """

    seq: Id
    at: Count
    event: str
    submission_id: Id
    block: Block
    mask: Unsigned
    attempt: Count
    consumer: str
    run_s: float
    run_max_s: float
    wait_s: float
    exit_status: int | None
    signal: int | None
    reason: str

    @property
    def started_at(self) -> int | None:
        """When the attempt began, by its run time; of several chunks the one that ran longest."""
        return self.at - round(self.run_max_s * 1000) if self.run_max_s else None


class History(Message):
    """Ask for events after the seq `after`, or, `newest_first`, before it (None: from that end). → HistoryRows."""

    id: Id
    where: HistoryFilter = HistoryFilter()
    after: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    newest_first: bool = False


class HistoryRows(Message):
    """Answer to History; `next_after` goes into the next call, None at the end. A page may be short, even empty.

    `metadata` is that of the submissions that are still there, and so are `titles`. `reached_at`: what follows the page
    happened no earlier, or, newest first, no later, unless a clock was set back; None: unknown, or nothing follows.
    `shard`: who counts these seqs, 0 without a number; None: several shards do.
    """

    id: Id
    rows: list[HistoryEvent]
    next_after: Id | None
    metadata: dict[Id, dict[str, int | str]]
    titles: dict[Id, str] = {}
    reached_at: Count | None = None
    shard: int | None = None


class Prune(Message):
    """Forget rows older than `older_than_s` and all but the newest `keep_count`. → Changed (rows). Operators only."""

    id: Id
    older_than_s: Duration | None = None
    keep_count: Count | None = None


class PlanStep(Record):
    """One step of a query plan: its depth, what SQLite says, and what that means (empty: nothing to add)."""

    depth: int
    detail: str
    verdict: str


class Statement(Record):
    """A statement that an arm runs: what for, its text, its plan."""

    purpose: str
    sql: str
    plan: list[PlanStep]


class Arm(Record):
    """One arm of a strategy as `explain` tells it. `front` says where it stands; empty: it has not been used yet.

    `analysis` is there only when asked for: rows visited, set aside by gate, waiting for a retry, dry, chunks offered,
    microseconds.
    """

    order: str
    why: str
    filters: list[str]
    gates: list[str]
    statements: list[Statement]
    front: dict[str, int | float | str | bool | None]
    inner: list[Arm] = []
    analysis: dict[str, int | float | str | bool | dict[str, int]] = {}


class Offer(Record):
    """A chunk that a strategy would hand out now; arms are counted from 1."""

    submission_id: Id
    index: Count
    attempt: Count
    metadata: dict[str, int | str]
    arm: int


class Explain(Message):
    """Ask how a strategy is served; `analyze` tries it out without reserving anything. → Explained."""

    id: Id
    strategy: StrategyText
    analyze: bool = False


class Explained(Message):
    """Answer to Explain; `strategy` is the canonical text, `offers` what it would hand out first."""

    id: Id
    strategy: str
    arms: list[Arm]
    notes: list[str]
    offers: list[Offer] = []


class ExplainWork(Message):
    """Ask why a submission, or (with `index`) a chunk, is not running. → WorkExplained."""

    id: Id
    submission_id: Id
    index: ChunksCount | None = None


class WorkExplained(Message):
    """Answer to ExplainWork: `verdict` is one word (next, behind, reserved, delayed, paused, limited, …)."""

    id: Id
    submission_id: Id
    index: Count | None
    verdict: str
    findings: list[Finding]
    found_at: Count

    @property
    def reasons(self) -> list[str]:
        """The findings as sentences, the main one first."""
        from opsq.findings import explanation

        subject = f"Submission {self.submission_id}"
        if self.index is not None:
            subject = f"Chunk {self.submission_id}/{self.index}"
        return explanation(subject, [(found.code, found.details) for found in self.findings], self.found_at)


Requests = Status | Running | History | Prune | Explain | ExplainWork
Replies = DaemonState | RunningChunks | HistoryRows | Explained | WorkExplained
