"""Every message of the protocol, as msgspec structs; the vocabulary that client, daemon and engine share.

This file decides nothing and does no I/O. A message travels as a MessagePack array whose first element is its class name. Requests carry
an `id` chosen by the client, unique among its unanswered requests; every reply repeats it. Messages without an `id` are one-way.
Units are in the names: `_s` seconds, `_at` milliseconds since 1970 UTC, `_bytes`, `_count`. Masks are unsigned.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

VERSION = 1
"""Protocol version. A daemon refuses any other with `version_mismatch`."""

RESULT_INLINE_BYTES = 4096
"""Results up to this size travel in the message; of a larger one only the place in the store does."""

Key = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
Value = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | Annotated[str, Meta(max_length=1024)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Id = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Block = Annotated[int, Meta(ge=0, lt=1 << 57)]
Mask = Annotated[int, Meta(gt=0)]
"""1 … 2**64 - 1; MessagePack has no larger integers."""
Count = Annotated[int, Meta(ge=0)]
Duration = Annotated[float, Meta(ge=0, le=1e9)]


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a message."""


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    """A whole message."""


# --- parts ------------------------------------------------------------------------------------------------------------------------


class Backoff(Record):
    """How long a failed chunk waits: `base_s * factor ** (attempts - 1)`, at most `max_s`, with jitter of ± 20 %."""

    base_s: Duration = 1.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_s: Duration = 300.0


class Claim(Record):
    """A name that only one connection may have at a time, until it ends.

    Under the same `key` another connection takes it over: a consumer that reconnects is not shut out by what is left of itself.
    """

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    key: Annotated[bytes, Meta(min_length=16, max_length=16)]


class NewSubmission(Record):
    """What a producer hands over. `None` means the daemon's default. `delay_s` and `not_before_at` exclude each other."""

    request_key: Annotated[bytes, Meta(min_length=16, max_length=16)]
    chunks_count: Annotated[int, Meta(ge=0, le=1 << 40)]
    content: bytes = b""
    metadata: dict[Key, Value] = {}
    attachment: bytes | None = None
    priority: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    max_lost: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    backoff: Backoff | None = None
    keep_on_dead: bool = False
    delay_s: Duration | None = None
    not_before_at: Count | None = None
    expires_s: Duration | None = None
    expires_at: Count | None = None
    unique_key: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    reservation_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    weights: dict[Key, Annotated[float, Meta(gt=0)]] = {}
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    """Makes one submission for as long as that is known, also after its end; whoever asks again is given that one."""
    unique_until_start: bool = False
    """The unique key is free as soon as a chunk is handed out; else when the submission is final."""


class Created(Record):
    """The answer for one `NewSubmission`: its id, and whether this call made it (else it existed by one of its keys)."""

    submission_id: Id
    is_new: bool


class Grant(Record):
    """Chunks of one block that are now reserved, after `attempt` failures and losses.

    With the id of the reservation, `mask`, `attempt` and `mac` are the token.
    """

    submission_id: Id
    block: Block
    mask: Mask
    attempt: Count
    mac: Count


class SubmissionContent(Record):
    """What a consumer needs to know of a submission to read its chunks."""

    submission_id: Id
    chunks_count: Count
    content: bytes
    metadata: dict[str, int | str]
    has_attachment: bool


class Held(Record):
    """Chunks of one block that the sender holds or held: `mask` of them are meant, `reservation_id`…`mac` are the token."""

    submission_id: Id
    block: Block
    mask: Mask
    reservation_id: Id
    attempt: Count
    granted: Mask
    mac: Annotated[int, Meta(ge=0)]


class Completion(Record):
    """Chunks that are done.

    `results` is MessagePack nil (all results empty) or an array with one entry per bit of `held.mask`, ascending: bytes, or
    `[object, offset, length]`. `run_s` is the sum and `run_max_s` the longest of the run times.
    """

    held: Held
    results: msgspec.Raw = msgspec.Raw(b"\xc0")
    run_s: Duration = 0.0
    run_max_s: Duration = 0.0
    exit_status: Annotated[int, Meta(ge=0, le=255)] | None = None


class Failure(Record):
    """Chunks that failed. `delay_s` replaces the back-off; `is_final` buries the chunks at once."""

    held: Held
    reason: Annotated[str, Meta(max_length=16384)] = ""
    exit_status: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=255)] | None = None
    run_s: Duration = 0.0
    delay_s: Duration | None = None
    is_final: bool = False


class ChunkMask(Record):
    """Some chunks of a block."""

    submission_id: Id
    block: Block
    mask: Mask


class Refusal(Record):
    """Chunks for which a request was refused, and why (`code` is that of an exception in errors.py)."""

    submission_id: Id
    block: Block
    mask: Mask
    code: str
    message: str


class SubmissionState(Record):
    """A submission as `show`, `list` and `wait` tell it; delayed and reserved chunks are neither completed, dead nor skipped."""

    submission_id: Id
    state: str
    chunks_count: Count
    completed_count: Count
    dead_count: Count
    skipped_count: Count
    reserved_count: Count
    delayed_count: Count
    metadata: dict[str, int | str]
    priority: Int64
    max_attempts: int
    max_lost: int
    backoff: Backoff
    keep_on_dead: bool
    reservation_s: float
    submitted_at: Count
    not_before_at: Count | None
    expires_at: Count | None
    finished_at: Count | None
    unique_key: str | None
    has_attachment: bool
    reason: str
    unique_until_start: bool = False
    holds_unique_key: bool = False


class HistoryFilter(Record):
    """Which events are meant: all conditions must hold, but an exit status and a signal are alternatives; empty ones always hold.

    `index` is a chunk of `submission_id`; `consumer` how its name begins; `from_at` ≤ instant < `to_at`; `reason` a part of it.
    """

    submission_id: Id | None = None
    index: Count | None = None
    events: Annotated[list[str], Meta(max_length=16)] = []
    consumer: Annotated[str, Meta(max_length=1024)] = ""
    metadata: dict[Key, Value] = {}
    from_at: Count | None = None
    to_at: Count | None = None
    reason: Annotated[str, Meta(max_length=16384)] = ""
    exit_statuses: Annotated[list[int], Meta(max_length=256)] = []
    signals: Annotated[list[int], Meta(max_length=256)] = []


class HistoryEvent(Record):
    """What happened at `at` to the chunks `mask` of a block, or (0) to all of the submission; of an attempt also who made it.

    `wait_s`: from when the chunks might be handed out (submitted, due, free again, requeued) until they were; of several the longest.
    0: not known. `run_s` is the sum and `run_max_s` the longest of the run times; where nobody has measured, how long they were held.
    """

    seq: Id
    at: Count
    event: str
    submission_id: Id
    block: Block
    mask: Count
    attempt: Count
    consumer: str
    run_s: float
    run_max_s: float
    wait_s: float
    exit_status: int | None
    signal: int | None
    reason: str


class DeadFilter(Record):
    """Which dead letters are meant: all conditions must hold, but an exit status and a signal are alternatives; empty ones always hold.

    `from_at` ≤ instant of death < `to_at`; `reason` is a part of the reason, in upper or lower case.
    """

    submission_ids: Annotated[list[Id], Meta(max_length=10_000)] = []
    metadata: dict[Key, Value] = {}
    from_at: Count | None = None
    to_at: Count | None = None
    reason: Annotated[str, Meta(max_length=16384)] = ""
    exit_statuses: Annotated[list[int], Meta(max_length=256)] = []
    signals: Annotated[list[int], Meta(max_length=256)] = []


class ResultRow(Record):
    """Results of the completed chunks `mask` of a block, as `Completion.results` brought them (nil: all empty)."""

    block: Block
    mask: Mask
    results: msgspec.Raw


class DeadChunk(Record):
    """A chunk whose attempts are used up."""

    submission_id: Id
    index: Count
    attempts: int
    lost: int
    dead_at: Count
    reason: str
    exit_status: int | None
    signal: int | None


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


class ConsumerState(Record):
    """A connected consumer or the holder of a lease."""

    consumer: str
    is_connected: bool
    reserved_count: Count
    oldest_reservation_s: float
    waiting_strategy: str | None


class PlanStep(Record):
    """One step of a query plan: how deep it is nested, what SQLite says, and what that means (empty: nothing to add)."""

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

    `analysis` is there only when asked for: rows visited, set aside by gate, waiting for a retry, dry, chunks offered, microseconds.
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
    """A chunk that a strategy would hand out now."""

    submission_id: Id
    index: Count
    attempt: Count
    metadata: dict[str, int | str]
    arm: int


class PauseState(Record):
    """A pause of all submissions that have every pair; no pairs: of everything."""

    metadata: dict[str, int | str]
    by_operator: bool
    by_name: str
    paused_at: Count


class LimitState(Record):
    """A limit for one pair, or (value None) for each value of the key.

    `reserved_count` is how many chunks are reserved under the busiest value, `busiest`; None: they are not counted, as for a rate alone.
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


# --- client → daemon --------------------------------------------------------------------------------------------------------------


class Hello(Message):
    """First message of a connection. → Welcome. `token` is needed over TCP only."""

    id: Id
    version: int
    name: Annotated[str, Meta(max_length=255)] = ""
    token: str = ""
    claim: Claim | None = None


class Submit(Message):
    """Store submissions, all in one transaction. → Submitted.

    When there is no room for them, `wait_s` 0 has them refused at once; else they wait so long for it (None: without limit).
    """

    id: Id
    submissions: Annotated[list[NewSubmission], Meta(max_length=10_000)]
    wait_s: Duration | None = 0.0


class CheckCapacity(Message):
    """Ask whether there is room for a submission, before its content is written. → Capacity, when there is; nothing is set aside.

    `content_bytes` are what will be written into the store. `wait_s` is that of `Submit`. No room is needed while a submission has the
    `unique_key`.
    """

    id: Id
    chunks_count: Count
    content_bytes: Count = 0
    wait_s: Duration | None = 0.0
    unique_key: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


class Find(Message):
    """Ask which submission a request key, or an idempotency key, has made. → Found."""

    id: Id
    request_key: Annotated[bytes, Meta(min_length=16, max_length=16)] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None


class Withdraw(Message):
    """Take back a Submit that may or may not have arrived: unless it has made a submission, it never will. → Found."""

    id: Id
    request_key: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Reserve(Message):
    """Reserve up to `count` chunks. → Reserved.

    `wait_s` 0 answers at once, None parks without limit. `lease_s` makes it a lease of that length (0: the shortest that its submissions
    ask for). `until_empty` answers with no grants as soon as the strategy can serve nothing any more, now or later, without a new
    submission.
    """

    id: Id
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    strategy: Annotated[str, Meta(max_length=65536)] = "Random"
    wait_s: Duration | None = 0.0
    lease_s: Duration | None = None
    until_empty: bool = False


class Complete(Message):
    """Complete chunks. → Completed, after the commit."""

    id: Id
    completions: list[Completion]


class CompleteAndReserve(Message):
    """Complete chunks, then reserve as `Reserve` does. → Completed and later Reserved, both with this id."""

    id: Id
    completions: list[Completion]
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    strategy: Annotated[str, Meta(max_length=65536)] = "Random"
    wait_s: Duration | None = 0.0
    lease_s: Duration | None = None
    until_empty: bool = False


class Fail(Message):
    """Report failed attempts. → Completed, after the commit."""

    id: Id
    failures: list[Failure]


class Release(Message):
    """Give chunks back without counting an attempt. → Completed."""

    id: Id
    held: list[Held]


class ReleaseConsumer(Message):
    """Give back all that a consumer holds, by its id. → Changed with the count of chunks. Operators only."""

    id: Id
    consumer: str


class Extend(Message):
    """Move the deadline of the reservations that `held` names to `lease_s` from now (None: their own length). → Completed."""

    id: Id
    held: list[Held]
    lease_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None


class Reclaim(Message):
    """Take up again, after a reconnect, chunks that the client still works on. → Completed; what is refused is lost."""

    id: Id
    held: list[Held]


class Started(Message):
    """One-way: work on these chunks has begun, so losing the consumer counts against them."""

    chunks: list[ChunkMask]


class Heartbeat(Message):
    """The consumer lives; extends its reservations. → Alive."""

    id: Id


class CancelWait(Message):
    """One-way: end the parked request `request_id` (Reserve, Wait, Results) now; it gets a last reply all the same."""

    request_id: Id


class Describe(Message):
    """Ask for the content of submissions. → Described; unknown ids are left out, and the last ones if a reply cannot hold them."""

    id: Id
    submission_ids: Annotated[list[Id], Meta(max_length=10_000)]


class GetAttachment(Message):
    """Ask for the attachment of a submission. → Attachment."""

    id: Id
    submission_id: Id


class Show(Message):
    """Ask for the state of a submission. → Shown."""

    id: Id
    submission_id: Id


class List(Message):
    """List submissions, newest first, below `before` (None: from the top). → Listed. All conditions must hold; `states` empty: any."""

    id: Id
    states: list[str] = []
    metadata: dict[Key, Value] = {}
    before: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100


class Wait(Message):
    """Ask to be told when a submission is final. → Shown, at once or by push."""

    id: Id
    submission_id: Id


class Results(Message):
    """Ask for result rows from the block of chunk `from_index` on, in block order. → ResultRows.

    `wait_s` parks the call until chunk `from_index` is completed or the submission is final (None: without limit).
    """

    id: Id
    submission_id: Id
    from_index: Count = 0
    limit_blocks: Annotated[int, Meta(ge=1, le=4096)] = 256
    wait_s: Duration | None = 0.0


class Cancel(Message):
    """Cancel a submission; what runs loses its reservation. → Changed (0 when it was final already)."""

    id: Id
    submission_id: Id
    reason: str = ""


class Remove(Message):
    """Forget a final submission, its results and content. → Changed."""

    id: Id
    submission_id: Id


class Dead(Message):
    """List dead chunks behind the one whose submission and index are `after`, of one submission or of all (None). → DeadChunks.

    A page may be short, or empty, and yet have others behind it.
    """

    id: Id
    submission_id: Id | None = None
    after: tuple[Id, Int64] = (0, -1)
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    where: DeadFilter = DeadFilter()


class Requeue(Message):
    """Give dead chunks new attempts; revives the submissions that failed, were cancelled or expired, with their skipped chunks. → Changed.

    All that fulfil `where`, of one submission or of any (None), or just `indexes` of one. Many chunks come in several commits.
    """

    id: Id
    submission_id: Id | None
    indexes: Annotated[list[Count], Meta(max_length=10_000)] | None = None
    where: DeadFilter = DeadFilter()


class Drop(Message):
    """Give dead chunks up: they count as skipped from then on, and are not requeued any more. → Changed. Operators only.

    Which ones is told as in `Requeue`.
    """

    id: Id
    submission_id: Id | None
    indexes: Annotated[list[Count], Meta(max_length=10_000)] | None = None
    where: DeadFilter = DeadFilter()


class History(Message):
    """Ask for events after the seq `after` (None: from the first), or, `newest_first`, before it (None: from the last). → HistoryRows."""

    id: Id
    where: HistoryFilter = HistoryFilter()
    after: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    newest_first: bool = False


class Prune(Message):
    """Forget history older than `older_than_s`, and all but the newest `keep_count` rows. → Changed with the rows. Operators only."""

    id: Id
    older_than_s: Duration | None = None
    keep_count: Count | None = None


class Status(Message):
    """Ask for the state of the daemon. → DaemonState. `by` groups the counts by that key."""

    id: Id
    by: Key | None = None


class Explain(Message):
    """Ask how a strategy is served; `analyze` tries it out without reserving anything. → Explained."""

    id: Id
    strategy: Annotated[str, Meta(max_length=65536)]
    analyze: bool = False


class ExplainWork(Message):
    """Ask why a submission, or (with `index`) a chunk, is not running. → WorkExplained."""

    id: Id
    submission_id: Id
    index: Count | None = None


class Pause(Message):
    """Hold back all submissions that have every pair (none: all of them). → Changed (0: they were already)."""

    id: Id
    metadata: dict[Key, Value] = {}
    by_operator: bool = False
    by_name: Annotated[str, Meta(max_length=255)] = ""


class Resume(Message):
    """End the pause with exactly these pairs. → Changed (0: there was none). Ending an operator's pause needs `by_operator`."""

    id: Id
    metadata: dict[Key, Value] = {}
    by_operator: bool = False


class Limit(Message):
    """Bound a pair, or (`value` None) each value of a key; replaces the limit for the same. → Changed. Operators only."""

    id: Id
    key: Key
    value: Value | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    rate_per_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    burst: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    by_name: Annotated[str, Meta(max_length=255)] = ""
    rate_span_s: Annotated[float, Meta(gt=0, le=1e9)] = 1.0
    """The time for which the rate was given: it changes nothing but how people are told of it."""


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
    weight: Annotated[float, Meta(gt=0)]


class ShowRules(Message):
    """Ask for all pauses, limits and weights. → RulesState."""

    id: Id


class Stop(Message):
    """Drain for up to `drain_s`, then end the daemon. → Changed, before it ends. Operators only."""

    id: Id
    drain_s: Duration = 30.0


class Backup(Message):
    """Copy the database to `path` (absolute; must not exist) while work goes on. → Changed with the bytes. Operators only."""

    id: Id
    path: str


class Vacuum(Message):
    """Give free pages back to the file system. → Changed with the bytes. Operators only."""

    id: Id


class Check(Message):
    """Check the database and the invariants. → Checked. Operators only."""

    id: Id


Request = (
    Hello
    | Submit
    | Find
    | Withdraw
    | CheckCapacity
    | Reserve
    | Complete
    | CompleteAndReserve
    | Fail
    | Release
    | ReleaseConsumer
    | Extend
    | Reclaim
    | Started
    | Heartbeat
    | CancelWait
    | Describe
    | GetAttachment
    | Show
    | List
    | Wait
    | Results
    | Cancel
    | Remove
    | Dead
    | Requeue
    | Drop
    | History
    | Prune
    | Status
    | Explain
    | ExplainWork
    | Pause
    | Resume
    | Limit
    | Unlimit
    | Weight
    | ShowRules
    | Stop
    | Backup
    | Vacuum
    | Check
)

OPERATOR_REQUESTS: tuple[type[Message], ...] = (
    ReleaseConsumer,
    Remove,
    Drop,
    Prune,
    Limit,
    Unlimit,
    Weight,
    Stop,
    Backup,
    Vacuum,
    Check,
)
"""What a client token does not permit."""


# --- daemon → client --------------------------------------------------------------------------------------------------------------


class Welcome(Message):
    """The connection may be used. `store` is the URL of the content store, `store_marker` what its marker must say."""

    id: Id
    version: int
    server: str
    consumer: str
    heartbeat_s: float
    frame_limit_bytes: int
    chunk_limit_bytes: int
    is_operator: bool
    is_durable: bool
    store: str
    store_marker: str


class Submitted(Message):
    """In the order of `Submit.submissions`."""

    id: Id
    created: list[Created]


class Capacity(Message):
    """Answer to CheckCapacity: for how many chunks there is room now; None: for any number."""

    id: Id
    left_count: Count | None


class Found(Message):
    """Answer to Find and Withdraw; `submission_id` None: the key has made none, and (`is_withdrawn`) never will."""

    id: Id
    submission_id: Id | None
    is_withdrawn: bool


class Reserved(Message):
    """What was reserved; no grants: nothing was free in time, or (`is_empty`) nothing can come without a new submission.

    `submissions` describes the submissions of the grants that this connection has not been told of lately.
    """

    id: Id
    reservation_id: Id = 0
    deadline_s: float = 0.0
    grants: list[Grant] = []
    submissions: list[SubmissionContent] = []
    is_empty: bool = False


class Completed(Message):
    """The request took effect, except for what is refused."""

    id: Id
    refusals: list[Refusal] = []


class Alive(Message):
    """Answer to a heartbeat."""

    id: Id


class Described(Message):
    """Answer to Describe."""

    id: Id
    submissions: list[SubmissionContent]


class Attachment(Message):
    """Answer to GetAttachment; None: the submission has none."""

    id: Id
    attachment: bytes | None


class Shown(Message):
    """Answer to Show and Wait."""

    id: Id
    submission: SubmissionState


class Listed(Message):
    """Answer to List; `next_before` goes into the next call, None at the end."""

    id: Id
    submissions: list[SubmissionState]
    next_before: Id | None


class ResultRows(Message):
    """Rows of whole blocks `[from_index // 64, next_block)`.

    Several rows of one block come in no special order; a completed chunk without a row has an empty result. `completed` has one mask per
    block of the range. `is_final`: the submission has ended, so nothing more comes. `content` is sent with `from_index` 0 only.
    """

    id: Id
    next_block: Block
    rows: list[ResultRow]
    completed: list[int]
    chunks_count: Count
    is_final: bool
    state: str
    content: bytes


class Changed(Message):
    """The request took effect on `count` things (named by the request)."""

    id: Id
    count: Count = 1


class DeadChunks(Message):
    """Answer to Dead; `next_after` goes into the next call, None at the end."""

    id: Id
    chunks: list[DeadChunk]
    next_after: tuple[Id, Int64] | None


class HistoryRows(Message):
    """Answer to History; `next_after` goes into the next call, None at the end. A page may be short, or empty, and have others behind it.

    `metadata` is that of the submissions that are still there.
    """

    id: Id
    rows: list[HistoryEvent]
    next_after: Id | None
    metadata: dict[Id, dict[str, int | str]]


class DaemonState(Message):
    """Answer to Status.

    `unmatched_count`: waiting chunks that no strategy of a connected consumer takes; None: nobody is connected, or counters cannot tell.
    `backlog_limit`: how many chunks may be waiting, delayed or reserved; None: any number. `room_waiting_count`: submissions that wait for
    room. `disk_free_bytes`: what is left on the disk, None: it cannot be told.
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


class Explained(Message):
    """Answer to Explain; `strategy` is the canonical text, `offers` what it would hand out first."""

    id: Id
    strategy: str
    arms: list[Arm]
    notes: list[str]
    offers: list[Offer] = []


class WorkExplained(Message):
    """Answer to ExplainWork: `verdict` is one word (next, behind, reserved, delayed, paused, limited, …), `reasons` are sentences."""

    id: Id
    submission_id: Id
    index: Count | None
    verdict: str
    reasons: list[str]


class RulesState(Message):
    """Answer to ShowRules."""

    id: Id
    pauses: list[PauseState]
    limits: list[LimitState]
    weights: list[WeightState]


class Checked(Message):
    """Answer to Check: no problems, no damage."""

    id: Id
    problems: list[str]


class ErrorReply(Message):
    """The request with this id failed (0: the connection as a whole; it closes)."""

    id: Id
    code: str
    message: str
    hint: str = ""


class Revoked(Message):
    """Push: the client does not hold these chunks any more. `code`: reservation_lost, already_finished, cancelled."""

    chunks: list[ChunkMask]
    code: str


class Draining(Message):
    """Push: the daemon is about to end; no reserve is answered any more."""

    drain_s: float


Reply = (
    Welcome
    | Submitted
    | Found
    | Capacity
    | Reserved
    | Completed
    | Alive
    | Described
    | Attachment
    | Shown
    | Listed
    | ResultRows
    | Changed
    | DeadChunks
    | HistoryRows
    | DaemonState
    | Explained
    | WorkExplained
    | RulesState
    | Checked
    | ErrorReply
    | Revoked
    | Draining
)
