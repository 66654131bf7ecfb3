"""Messages about chunks: reserve, complete, fail, release, extend; read content; list, requeue and drop dead ones.

These are the hot ones: a field more costs on every chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from opsq.ids import Handle, SubmissionId, Token, mask_indexes
from opsq.wire.messages.fields import (
    RESULT_INLINE_BYTES,
    Block,
    ChunksCount,
    Count,
    Detail,
    Duration,
    ExitStatus,
    Id,
    Instant,
    Int64,
    Mask,
    Message,
    Metadata,
    PositiveDuration,
    Reason,
    Record,
    Signal,
    StrategyText,
    Unsigned,
)
from opsq.wire.messages.submissions import Created, NewSubmission

ResultPlace = tuple[Annotated[str, Meta(min_length=1, max_length=1024)], Count, Count]
"""Where a large result is: an object in the folder of the content, offset and length."""

ResultEntries = Annotated[list[bytes | ResultPlace], Meta(max_length=64)]
"""What `Completion.results` holds; it travels undecoded. Bytes are at most `RESULT_INLINE_BYTES` long.

That is not in the type: msgspec 0.22 crashes on a union of bounded bytes and a tuple.
"""

InlineEntries = Annotated[list[Annotated[bytes, Meta(max_length=RESULT_INLINE_BYTES)]], Meta(max_length=64)]
"""`ResultEntries` without large ones, which are most."""

NO_RESULTS = msgspec.Raw(b"\xc0")
"""MessagePack nil in place of `ResultEntries`: all are empty."""

FOLLOW_UPS_LIMIT = 10_000
"""Follow-ups that one completion may have."""

HELD_LIMIT = 1 << 20
"""Parts of blocks that one request may name; a frame has no room for more."""


class Grant(Record):
    """Chunks of one block that are now reserved, after `attempt` failures and losses.

    With the id of the reservation, `mask`, `attempt` and `mac` are the token.
    """

    submission_id: Id
    block: Block
    mask: Mask
    attempt: Count
    mac: Unsigned


class SubmissionContent(Record):
    """What a consumer needs to know of a submission to read its chunks.

    `submitter` is the user whose process on the daemon's machine submitted it; none if it came over the network.
    """

    submission_id: Id
    chunks_count: Count
    content: bytes
    metadata: dict[str, int | str]
    has_attachment: bool
    submitter: int | None = None


class HeldChunks(Record):
    """Chunks of one block that the sender holds or held: those in `mask`; `reservation_id` … `mac` are the token."""

    submission_id: Id
    block: Block
    mask: Mask
    reservation_id: Id
    attempt: Count
    granted: Mask
    mac: Unsigned

    @classmethod
    def of(cls, handle: Handle, mask: int = 0) -> Self:
        """The chunk of a handle, or the chunks `mask` of its block."""
        token = handle.token
        return cls(
            handle.submission_id,
            handle.block,
            mask or handle.mask,
            token.reservation_id,
            token.attempt,
            token.granted,
            token.mac,
        )

    @classmethod
    def of_grant(cls, reservation_id: int, grant: Grant) -> Self:
        """All chunks of a grant."""
        return cls(grant.submission_id, grant.block, grant.mask, reservation_id, grant.attempt, grant.mask, grant.mac)

    @classmethod
    def merged(cls, handles: Iterable[Handle]) -> list[Self]:
        """The chunks of several handles; those of one block under one token become one."""
        found: dict[tuple[int, int, Token], tuple[Handle, int]] = {}
        for handle in handles:
            key = (handle.submission_id, handle.block, handle.token)
            found[key] = (handle, found.get(key, (handle, 0))[1] | handle.mask)
        return [cls.of(handle, mask) for handle, mask in found.values()]


class Completion(Record):
    """Chunks that are done.

    `results` is MessagePack nil (all results empty) or an array with one entry per bit of `held.mask`, ascending:
    bytes, or `[object, offset, length]`. `run_s` is the sum and `run_max_s` the longest of the run times. `then` are
    the follow-ups of a single chunk: submissions made in the commit of the completion, if that is accepted.
    """

    held: HeldChunks
    results: msgspec.Raw = NO_RESULTS
    run_s: Duration = 0.0
    run_max_s: Duration = 0.0
    exit_status: ExitStatus | None = None
    then: Annotated[list[NewSubmission], Meta(max_length=FOLLOW_UPS_LIMIT)] = []


class Failure(Record):
    """Chunks that failed. `delay_s` replaces the back-off; `is_final` buries the chunks at once."""

    held: HeldChunks
    reason: Reason = ""
    exit_status: ExitStatus | None = None
    signal: Signal | None = None
    run_s: Duration = 0.0
    delay_s: Duration | None = None
    is_final: bool = False


class ChunkMask(Record):
    """Some chunks of a block."""

    submission_id: Id
    block: Block
    mask: Mask


class Refusal(Record):
    """Chunks for which a request was refused: `code` is that of an exception; `cause` and `details` give the state."""

    submission_id: Id
    block: Block
    mask: Mask
    code: str
    cause: str
    details: dict[str, Detail] = {}

    @property
    def message(self) -> str:
        """The present state, as that of the first of the chunks."""
        return self.message_of(next(mask_indexes(self.block, self.mask)))

    def message_of(self, index: int) -> str:
        """The present state, as that of one of the chunks."""
        from opsq.wording import refusal

        return refusal(self.cause, {**self.details, "submission_id": self.submission_id, "index": index})[0]


class Reserve(Message):
    """Reserve up to `count` chunks. → Reserved.

    `wait_s` 0 answers at once, None waits without limit. `lease_s` makes it a lease of that length (0: the shortest
    that its submissions ask for). `until_empty` answers with no grants as soon as the strategy can serve nothing more,
    now or later, without a new submission. Of waiting calls with the same strategy those of the lowest `rank` are
    served first, and of the same rank the one that has waited longest.
    """

    id: Id
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    strategy: StrategyText = "Random"
    wait_s: Duration | None = 0.0
    lease_s: Duration | None = None
    until_empty: bool = False
    rank: Annotated[int, Meta(ge=0, le=1023)] = 0


class Reserved(Message):
    """What was reserved.

    No grants: nothing was free in time, or (`is_empty`) nothing can come without a new submission.

    `submissions` describes submissions of the grants that were not described on this connection recently.
    `waiting_count`, without grants: how many calls with the same strategy wait here.
    """

    id: Id
    reservation_id: Id = 0
    deadline_s: float = 0.0
    grants: list[Grant] = []
    submissions: list[SubmissionContent] = []
    is_empty: bool = False
    waiting_count: Count = 0

    def handles(self) -> list[tuple[Grant, Handle]]:
        """Each chunk, in the order of the strategy, with the grant that it is of."""
        return [
            (grant, Handle(SubmissionId(grant.submission_id), index, token))
            for grant in self.grants
            for token in (Token(self.reservation_id, grant.attempt, grant.mask, grant.mac),)
            for index in mask_indexes(grant.block, grant.mask)
        ]


class Complete(Message):
    """Complete chunks. → Completed, after the commit."""

    id: Id
    completions: Annotated[list[Completion], Meta(max_length=HELD_LIMIT)]


class CompleteAndReserve(Message):
    """Complete chunks, then reserve as `Reserve` does. → Completed and later Reserved, both with this id."""

    id: Id
    completions: Annotated[list[Completion], Meta(max_length=HELD_LIMIT)]
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    strategy: StrategyText = "Random"
    wait_s: Duration | None = 0.0
    lease_s: Duration | None = None
    until_empty: bool = False

    def second_half(self) -> Reserve:
        """What is left of it when the chunks are completed."""
        return Reserve(self.id, self.count, self.strategy, self.wait_s, self.lease_s, self.until_empty)


class Fail(Message):
    """Report failed attempts. → Completed, after the commit, or the last of several if there are very many."""

    id: Id
    failures: Annotated[list[Failure], Meta(max_length=HELD_LIMIT)]


class Release(Message):
    """Give chunks back without counting an attempt. → Completed."""

    id: Id
    held: Annotated[list[HeldChunks], Meta(max_length=HELD_LIMIT)]


class ReleaseConsumer(Message):
    """Give back all that a consumer holds, by its id. → Changed with the count of chunks. Operators only."""

    id: Id
    consumer: Annotated[str, Meta(max_length=1024)]


class Extend(Message):
    """Move the deadline of reservations to `lease_s` from now, and make that their length. → Completed.

    None: to a full reservation or lease from now, as long as it is by then.
    """

    id: Id
    held: Annotated[list[HeldChunks], Meta(max_length=HELD_LIMIT)]
    lease_s: PositiveDuration | None = None


class Reclaim(Message):
    """Reclaim chunks that the client still works on after a reconnect. → Completed; what is refused is lost.

    `lease_s`: those whose reservation has ended are leased again for so long, 0: as long as their submission says.
    None: they are held by the connection. A reservation that is still there stays what it is.
    """

    id: Id
    held: Annotated[list[HeldChunks], Meta(max_length=HELD_LIMIT)]
    lease_s: Duration | None = None


class AfterFailure(Record):
    """What becomes of chunks whose `attempts`th attempt has failed: offered again in `delay_s`, or dead (None)."""

    submission_id: Id
    block: Block
    mask: Mask
    attempts: Count
    max_attempts: Count
    delay_s: Duration | None


class Completed(Message):
    """The request took effect, except for what is refused. `failures`: what becomes of those that Fail has named.

    `created`: the follow-ups, in order, of completions that this request made, not one that was repeated.
    """

    id: Id
    refusals: list[Refusal] = []
    failures: list[AfterFailure] = []
    created: list[Created] = []


class Started(Message):
    """One-way: work on these chunks has started, so losing the consumer counts against them."""

    chunks: Annotated[list[ChunkMask], Meta(max_length=HELD_LIMIT)]


class Revoked(Message):
    """Push: the client does not hold these chunks any more. `code`: reservation_lost, already_finished, cancelled."""

    chunks: list[ChunkMask]
    code: str


class Describe(Message):
    """Ask for the content of submissions. → Described, without unknown ids, and without those that do not fit."""

    id: Id
    submission_ids: Annotated[list[Id], Meta(max_length=10_000)]


class Described(Message):
    """Answer to Describe."""

    id: Id
    submissions: list[SubmissionContent]


class DeadFilter(Record):
    """Which dead chunks: all conditions must hold; exit statuses and signals are alternatives; empty ones always hold.

    `from_at` ≤ instant of death < `to_at`; `reason` is a part of the reason, in upper or lower case.
    """

    submission_ids: Annotated[list[Id], Meta(max_length=10_000)] = []
    metadata: Metadata = {}
    from_at: Instant | None = None
    to_at: Instant | None = None
    reason: Reason = ""
    exit_statuses: Annotated[list[ExitStatus], Meta(max_length=256)] = []
    signals: Annotated[list[Signal], Meta(max_length=256)] = []


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


class Dead(Message):
    """List dead chunks after submission and index `after`, of one submission or of all (None). → DeadChunks.

    A page may be short, or empty, and yet have others behind it.
    """

    id: Id
    submission_id: Id | None = None
    after: tuple[Id, Int64] = (0, -1)
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    where: DeadFilter = DeadFilter()


class DeadChunks(Message):
    """Answer to Dead; `next_after` goes into the next call, None at the end."""

    id: Id
    chunks: list[DeadChunk]
    next_after: tuple[Id, Int64] | None


class DeadSelection(Message):
    """Which dead chunks: all that match `where`, of one submission or of any (None), or just `indexes` of one."""

    id: Id
    submission_id: Id | None
    indexes: Annotated[list[ChunksCount], Meta(max_length=10_000)] | None = None
    where: DeadFilter = DeadFilter()


class Requeue(DeadSelection):
    """Give dead chunks new attempts; revives submissions that failed, were cancelled or expired. → Changed.

    Large selections take several commits.
    """


class Drop(DeadSelection):
    """Give dead chunks up: they count as skipped and can no longer be requeued. → Changed. Operators only."""


Requests = (
    Reserve
    | Complete
    | CompleteAndReserve
    | Fail
    | Release
    | ReleaseConsumer
    | Extend
    | Reclaim
    | Started
    | Describe
    | Dead
    | Requeue
    | Drop
)
Replies = Reserved | Completed | Revoked | Described | DeadChunks
