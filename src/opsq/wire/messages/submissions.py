"""Messages about submissions: submit, find, show, list, wait, read results, cancel and remove.

This file must not define how chunks are handed out (`chunks` does).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from opsq.wire.messages.fields import (
    Block,
    Bytes,
    ChunksCount,
    Count,
    Duration,
    Finding,
    Id,
    Instant,
    Int64,
    Key,
    Mask,
    Message,
    Metadata,
    Reason,
    Record,
    RequestKey,
    Title,
    UserKey,
    Value,
    WeightNumber,
)
from opsq.wire.messages.inspection import Counts

RESERVATION_MIN_S = 0.1
"""The shortest reservation: three heartbeats of a busy consumer fit into it."""


DEPENDENCIES_LIMIT = 1_000
"""A submission waits for no more than this; for more, they have a pair."""


class Backoff(Record):
    """How long a failed chunk waits: `base_s * factor ** (attempts - 1)`, at most `max_s`, with jitter of ± 20 %."""

    base_s: Duration = 1.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_s: Duration = 300.0


class Dependency(Record):
    """What a submission waits for: the end of another one, or of all that have the pair of `key` and `value`."""

    submission_id: Id | None = None
    needs: Literal["completed", "ended"] = "completed"
    """How a submission must end; `ended`: in any way, as those of a pair may."""
    key: Key | None = None
    value: Value | None = None


class NewSubmission(Record):
    """What a producer submits. `None` means the daemon's default. `delay_s` and `not_before_at` cannot be combined."""

    request_key: RequestKey
    chunks_count: ChunksCount
    content: Bytes = b""
    metadata: Metadata = {}
    attachment: Bytes | None = None
    priority: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    max_lost: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    backoff: Backoff | None = None
    keep_on_dead: bool = False
    delay_s: Duration | None = None
    not_before_at: Instant | None = None
    expires_s: Duration | None = None
    expires_at: Instant | None = None
    unique_key: UserKey | None = None
    reservation_s: Annotated[float, Meta(ge=RESERVATION_MIN_S, le=1e9)] | None = None
    weights: Annotated[dict[Key, WeightNumber], Meta(max_length=1024)] = {}
    idempotency_key: UserKey | None = None
    """Makes one submission for as long as that is known, even after its end; a repeated submit returns that one."""
    unique_until_start: bool = False
    """The unique key is free as soon as a chunk is handed out; else when the submission is final."""
    idempotency_keep_s: Duration | None = None
    """A submission with the idempotency key that ended longer ago than this no longer has it; None: it always does."""
    title: Title | None = None
    """For people only: no key depends on it."""
    after: Annotated[list[Dependency], Meta(max_length=DEPENDENCIES_LIMIT)] = []
    """Nothing is handed out before all of this has come about."""
    on_failed_dependency: Literal["cancel", "run", "keep"] = "cancel"
    """If one that must be completed ends otherwise: be cancelled, run nevertheless, or wait until it is requeued."""
    ack: Literal["committed", "replicated"] | None = None
    """When a Submit of it is answered: after its commit, or once the replica has it."""


class Created(Record):
    """The answer for one `NewSubmission`: its id, and whether this call made it (else one of its keys had)."""

    submission_id: Id
    is_new: bool


class Submit(Message):
    """Store submissions, all in one transaction. → Submitted.

    If there is no room for them, they wait `wait_s` (None: without limit) and are then refused.
    """

    id: Id
    submissions: Annotated[list[NewSubmission], Meta(max_length=10_000)]
    wait_s: Duration | None = 0.0


class Submitted(Message):
    """In the order of `Submit.submissions`."""

    id: Id
    created: list[Created]


class CheckCapacity(Message):
    """Ask whether there is room for a submission, before its content is written. → Capacity; nothing is set aside.

    `content_bytes` will be written into the store. `wait_s` is that of `Submit`. No room is needed while a submission
    has the `unique_key`. With `submission` the daemon also says what it would say to a Submit of it; its content may be
    missing.
    """

    id: Id
    chunks_count: ChunksCount
    content_bytes: Count = 0
    wait_s: Duration | None = 0.0
    unique_key: UserKey | None = None
    submission: NewSubmission | None = None


class Capacity(Message):
    """Answer to CheckCapacity: for how many chunks there is room now; None: for any number."""

    id: Id
    left_count: Count | None
    submission_id: Id | None = None
    """The submission that has a key of the one asked about, so that nothing would be stored."""
    moved_to: int | None = None
    """The shard to which a submission has moved that held the unique key of the one asked about, and may hold it."""
    makers: list[int] = []
    """As Welcome has it."""


class Find(Message):
    """Ask which submission a request key, or an idempotency key, has made. → Found."""

    id: Id
    request_key: RequestKey | None = None
    idempotency_key: UserKey | None = None


class Withdraw(Message):
    """Take back a Submit that may have arrived: unless it has made a submission, it never will. → Found."""

    id: Id
    request_key: RequestKey


class Found(Message):
    """Answer to Find and Withdraw; `submission_id` None: the key has made none, and (`is_withdrawn`) never will."""

    id: Id
    submission_id: Id | None
    is_withdrawn: bool


class SubmissionState(Record):
    """A submission as `show`, `list` and `wait` show it; delayed and reserved chunks are counted apart."""

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
    title: str | None = None
    submitted_by: str | None = None
    """The user, or `token NAME`; None: unknown."""
    submitted_from: str | None = None
    """The host, or its address; None: unknown."""

    @property
    def counts(self) -> Counts:
        """Its chunks by state, as the daemon counts those of all."""
        finished_count = self.completed_count + self.dead_count + self.skipped_count
        return Counts(
            self.submission_id,
            1,
            self.chunks_count - finished_count - self.reserved_count - self.delayed_count,
            self.delayed_count,
            self.reserved_count,
            self.completed_count,
            self.dead_count,
            self.skipped_count,
        )


class DependencyEdge(Record):
    """A submission, and another one or a pair that it waits for, or has waited for; `on_state` None: that is gone."""

    submission_id: Id
    state: str
    on_submission_id: Id | None
    key: str | None
    value: int | str | None
    on_state: str | None
    needs: str
    on_failed_dependency: str
    outcome: str | None
    """How that ended for this one; None: it is waited for; `void`: it is not, as the submission has ended."""


class Show(Message):
    """Ask for the state of a submission. → Shown."""

    id: Id
    submission_id: Id


class Shown(Message):
    """Answer to Show and Wait. `held_back`, to Show: what holds its waiting chunks back; empty: nothing is known to.

    `dependencies`, to Show: what it waits for, and what that waits for, as far as that is shown; then who waits for it.
    """

    id: Id
    submission: SubmissionState
    held_back: list[Finding] = []
    dependencies: list[DependencyEdge] = []


class List(Message):
    """List submissions before `before`, newest first; all conditions must hold; no `states`: any. → Listed."""

    id: Id
    states: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] = []
    metadata: Metadata = {}
    before: Id | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100


class Listed(Message):
    """Answer to List; `next_before` goes into the next call, None at the end."""

    id: Id
    submissions: list[SubmissionState]
    next_before: Id | None


class Wait(Message):
    """Ask for the state of a submission once it is final. → Shown, at once or by push."""

    id: Id
    submission_id: Id


class GetAttachment(Message):
    """Ask for the attachment of a submission. → Attachment."""

    id: Id
    submission_id: Id


class Attachment(Message):
    """Answer to GetAttachment; None: the submission has none."""

    id: Id
    attachment: bytes | None


class ResultRow(Record):
    """Results of the completed chunks `mask` of a block, as `Completion.results` brought them (nil: all empty)."""

    block: Block
    mask: Mask
    results: msgspec.Raw


class Results(Message):
    """Ask for result rows from the block of chunk `from_index` on, in block order. → ResultRows.

    `wait_s` parks the call until chunk `from_index` is completed or the submission is final (None: without limit).
    `without_rows`: only tell which chunks are completed.
    """

    id: Id
    submission_id: Id
    from_index: ChunksCount = 0
    limit_blocks: Annotated[int, Meta(ge=1, le=4096)] = 256
    wait_s: Duration | None = 0.0
    without_rows: bool = False


class ResultRows(Message):
    """Rows of whole blocks `[from_index // 64, next_block)`.

    Several rows of one block come in no particular order; a completed chunk without a row has an empty result.
    `completed` has one mask per block of the range. `is_final`: the submission has ended, so nothing more comes.
    `content` is sent with `from_index` 0 only, and not `without_rows`.
    """

    id: Id
    next_block: Block
    rows: list[ResultRow]
    completed: list[int]
    chunks_count: Count
    is_final: bool
    state: str
    content: bytes


class Cancel(Message):
    """Cancel a submission; what runs loses its reservation. → Changed (0 when it was final already)."""

    id: Id
    submission_id: Id
    reason: Reason = ""


class Remove(Message):
    """Forget a final submission, its results and content. → Changed."""

    id: Id
    submission_id: Id


Requests = Submit | CheckCapacity | Find | Withdraw | Show | List | Wait | GetAttachment | Results | Cancel | Remove
Replies = Submitted | Capacity | Found | Shown | Listed | Attachment | ResultRows
