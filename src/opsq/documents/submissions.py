"""The JSON documents about submissions, chunks, results and their history.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, UnsetType

from opsq.documents.shape import CauseShape, ErrorShape, Shape, instant, path_text

if TYPE_CHECKING:
    from opsq.content.manifest import InputRange
    from opsq.wire.messages import HistoryEvent, SubmissionState


class ReservedChunk(Shape):
    """A chunk that was reserved, after `attempt` failures and losses."""

    handle: str
    submission_id: str
    index: int
    attempt: int
    input: str | None = None
    offset: int | None = None
    length: int | None = None


class ReserveDocument(Shape):
    """`opsq reserve`. `deadline_s`: the rest of the shortest lease."""

    chunks: list[ReservedChunk]
    deadline_s: float


class ReadDocument(Shape):
    """`opsq read`: `text` if the chunk is UTF-8, else `base64`; with --output neither."""

    submission_id: str
    index: int
    bytes: int
    text: str | None = None
    base64: str | None = None
    path: str | None = None
    input: str | None = None
    offset: int | None = None
    length: int | None = None


class ChangedDocument(Shape):
    """Verbs that change something, as `complete`, `cancel`: how many chunks, submissions or rows changed.

    `error` is there when `cancel` or `rm` could not change some, `created` when `complete` made follow-ups: their ids.
    """

    count: int
    error: ErrorShape | UnsetType = UNSET
    created: list[str] | UnsetType = UNSET


class BackoffShape(Shape):
    """Pauses between attempts: `base_s * factor ** (attempts - 1)`, at most `max_s`."""

    base_s: float
    factor: float
    max_s: float


class DependencyShape(Shape):
    """A submission, and another one, or a pair `key` and `value`, that it waits for, or has waited for.

    `outcome`: how that ended for it; null: it waits. `void`: it has ended by itself. `on_state`: null if that is gone.
    """

    submission_id: str
    state: str
    on_submission_id: str | None
    on_state: str | None
    key: str | None
    value: int | str | None
    needs: str
    on_failed_dependency: str
    outcome: str | None


class SubmissionShape(Shape):
    """`opsq show`, which adds recent failures, the rate, dependencies and what holds it back; a part of `list`, `wait`.

    `opsq submit --from-json` takes it.
    """

    submission_id: str
    state: str
    chunks: int
    completed: int
    dead: int
    skipped: int
    reserved: int
    delayed: int
    waiting: int
    metadata: dict[str, int | str]
    priority: int
    max_attempts: int
    max_lost: int
    backoff: BackoffShape
    on_dead: str
    reservation_s: float
    submitted_at: str
    not_before_at: str | None
    expires_at: str | None
    finished_at: str | None
    unique: str | None
    has_attachment: bool
    reason: str
    unique_until: str | None
    unique_held: bool
    title: str | None
    submitted_by: str | None
    submitted_from: str | None
    inputs_count: int | UnsetType = UNSET
    inputs: list[str] | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    attempts: list[EventShape] | UnsetType = UNSET
    has_more_attempts: bool | UnsetType = UNSET
    rate_per_s: float | UnsetType = UNSET
    left_s: float | UnsetType = UNSET
    held_back: list[CauseShape] | UnsetType = UNSET
    dependencies: list[DependencyShape] | UnsetType = UNSET

    @classmethod
    def from_state(cls, state: SubmissionState) -> Self:
        """A submission as the daemon describes it."""
        ended_count = state.completed_count + state.dead_count + state.skipped_count
        return cls.from_message(
            state,
            waiting=max(state.chunks_count - ended_count - state.reserved_count - state.delayed_count, 0),
            backoff=BackoffShape.from_message(state.backoff),
            on_dead="keep" if state.keep_on_dead else "fail",
            unique=state.unique_key,
            unique_until=None if state.unique_key is None else "start" if state.unique_until_start else "done",
            unique_held=state.holds_unique_key,
        )


class RunningShape(Shape):
    """A chunk that is being worked on, after `attempt` failures and losses.

    `host` and `pid` are those of its consumer, as it says itself; "" and null: unknown. `is_at_least`: it may have run
    for longer than `run_s`, since before a restart of the daemon.
    """

    submission_id: str
    index: int
    attempt: int
    consumer: str
    host: str
    pid: int | None
    since_at: str
    run_s: float
    is_at_least: bool
    metadata: dict[str, int | str]
    title: str | None


class RunningDocument(Shape):
    """`opsq show --running`, the longest first. `reserved`: with those that their consumers have yet to start."""

    submission_id: str
    reserved: int
    running: list[RunningShape]


class ListDocument(Shape):
    """`opsq list`. `next` goes into --before for the next page; null at the end."""

    submissions: list[SubmissionShape]
    next: str | None


class WaitDocument(Shape):
    """`opsq wait`. `error` is there when not all were completed."""

    submissions: list[SubmissionShape]
    error: ErrorShape | UnsetType = UNSET


class SubmitDocument(Shape):
    """`opsq submit`. `created`: not found by --unique or --idempotency-key.

    `state`, `output` and `error` need --wait.
    """

    submission_id: str
    created: bool
    chunks: int
    bytes: int
    state: str | UnsetType = UNSET
    output: str | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET


class RunDocument(Shape, kw_only=True):
    """`opsq run`: `results` are there without --output, and first: they come while work continues.

    `error` is there when `state` is failed; `submissions` are those kept. `finished_at` is there if an
    earlier run with the same idempotency key had written all results.
    """

    results: list[ResultShape] | UnsetType = UNSET
    state: str
    submissions: list[str]
    completed: int
    failed: int
    released: int
    dead: int
    bytes: int
    output: str | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET
    finished_at: str | UnsetType = UNSET


class PlannedChunk(Shape):
    """A chunk as it would be: its input, first byte and length."""

    index: int
    input: str
    offset: int
    bytes: int


class DryRunDocument(Shape):
    """`opsq submit --dry-run`."""

    chunks: int
    bytes: int
    smallest_bytes: int
    largest_bytes: int
    first: list[PlannedChunk]


class ResultsDocument(Shape):
    """`opsq results --output`."""

    submission_id: str
    state: str
    bytes: int
    path: str


class ResultShape(Shape):
    """One result of `opsq results`, in chunk order: `text` if it is UTF-8, else `base64`."""

    text: str | None = None
    base64: str | None = None


class DeadShape(Shape):
    """A chunk whose attempts are used up."""

    submission_id: str
    index: int
    attempts: int
    lost: int
    dead_at: str
    reason: str
    exit_status: int | None
    signal: int | None
    input: str | None = None
    offset: int | None = None
    length: int | None = None


class DeadDocument(Shape):
    """`opsq dead list`; with --dry-run also `dead requeue` and `dead drop`.

    `next`, over HTTP alone, goes into `after` for the next page; null at the end.
    """

    chunks: list[DeadShape]
    next: str | UnsetType | None = UNSET


class EventShape(Shape):
    """One row of history, of `chunks` chunks of one block (0: all).

    A line of `opsq history export`, and its columns.
    """

    seq: int
    at: str
    event: str
    submission_id: str
    first_index: int | None
    chunks: int
    indexes: str
    attempt: int
    consumer: str
    started_at: str | None
    wait_s: float
    run_s: float
    run_max_s: float
    exit_status: int | None
    signal: int | None
    reason: str
    metadata: dict[str, int | str]
    input: str | None = None
    offset: int | None = None
    title: str | None = None

    @classmethod
    def from_event(
        cls,
        event: HistoryEvent,
        metadata: dict[str, int | str],
        found: InputRange | None = None,
        title: str | None = None,
    ) -> Self:
        """An event of the history; field by field, for exports have millions."""
        mask, first = event.mask, event.block * 64
        low = (mask & -mask).bit_length() - 1
        return cls(
            seq=event.seq,
            at=instant(event.at) or "",
            event=event.event,
            submission_id=str(event.submission_id),
            first_index=first + low if mask else None,
            chunks=mask.bit_count(),
            indexes=ranges(first, mask),
            attempt=event.attempt,
            consumer=event.consumer,
            started_at=instant(event.started_at),
            wait_s=event.wait_s,
            run_s=event.run_s,
            run_max_s=event.run_max_s,
            exit_status=event.exit_status,
            signal=event.signal,
            reason=event.reason,
            metadata=metadata,
            input=None if found is None else path_text(found.name),
            offset=None if found is None else found.offset_bytes,
            title=title,
        )


class HistoryDocument(Shape):
    """`opsq history list`. `next` goes into --after for the next page; null at the end."""

    events: list[EventShape]
    next: str | None


class ExportDocument(Shape):
    """`opsq history export` into files. `last_seq`: where the next export goes on; null when there was nothing."""

    rows: int
    files: list[str]
    last_seq: int | None


class ChunkDocument(Shape):
    """`opsq show SUBMISSION/INDEX`, `opsq dead show`; `state` is that of `opsq explain`, `events` are oldest first."""

    submission_id: str
    index: int
    state: str
    submission_state: str
    metadata: dict[str, int | str]
    dead: DeadShape | None
    events: list[EventShape]
    has_more_events: bool
    title: str | None
    input: str | None = None
    offset: int | None = None
    length: int | None = None


class ChunkEndShape(Shape):
    """A line of `opsq consume` per ended program, after `attempt` failures and losses.

    `outcome`: completed or failed.
    """

    submission_id: str
    index: int
    attempt: int
    outcome: str
    exit_status: int | None
    signal: str | None
    run_s: float
    reason: str
    input: str | None = None
    offset: int | None = None
    length: int | None = None


class CommandShape(Shape):
    """A line of `opsq consume --dry-run` per program that would be run."""

    submission_id: str
    index: int
    argv: list[str]


class ConsumeDocument(Shape):
    """The last line of `opsq consume`: what became of the chunks that it reserved.

    There is an `error` when some died, and `taken` when another consumer had the name of --single.
    """

    completed: int
    failed: int
    dead: int
    released: int
    taken: bool | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET


def input_fields(found: InputRange | None) -> dict[str, Any]:
    """The fields `input`, `offset` and `length` of a chunk that was cut from there."""
    if found is None:
        return {}
    return {"input": path_text(found.name), "offset": found.offset_bytes, "length": found.size_bytes}


def ranges(first: int, mask: int) -> str:
    """The chunks of a mask whose lowest bit is chunk `first`, as people write them: `5-12,14`."""
    parts = []
    while mask:
        low = (mask & -mask).bit_length() - 1
        mask >>= low
        first += low
        length = (~mask & mask + 1).bit_length() - 1
        parts.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
        mask >>= length
        first += length
    return ",".join(parts)
