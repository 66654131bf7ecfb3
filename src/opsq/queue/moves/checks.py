"""What must hold of a submission that comes from another file, of which nothing is believed.

A `ValueError` names the field that cannot be. Must not store anything, nor know whether the submission is wanted here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from opsq.errors import UsageError
from opsq.ids import block_mask, blocks_of, made_at
from opsq.queue.submissions.submit import check_new
from opsq.store import submissions, transfer
from opsq.store.submissions import SubmissionRow
from opsq.store.transfer import Header, Slice, Sums
from opsq.units import counted
from opsq.wire.messages import RESULT_INLINE_BYTES, Dependency, NewSubmission, ResultEntries
from opsq.wire.messages import fields as f
from opsq.wire.messages.submissions import DEPENDENCIES_LIMIT

_Number = Annotated[int, Meta(ge=0, le=1 << 40)]
_Ms = Annotated[int, Meta(ge=0, le=10**12)]
"""A duration of at most 10⁹ s."""
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]
"""Also the sum of a block."""
_Text = Annotated[str, Meta(max_length=1 << 16)]
"""A reason, or one that was made of another."""
_Bool = Annotated[int, Meta(ge=0, le=1)]


class _Row(msgspec.Struct):
    """The fields of a `SubmissionRow` that are stored as they come."""

    state: f.StateName
    chunks_total: f.ChunksCount
    chunks_completed: f.ChunksCount
    chunks_dead: f.ChunksCount
    chunks_skipped: f.ChunksCount
    chunks_dropped: f.ChunksCount
    frontier: f.ChunksCount
    priority: Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
    reservation_s: f.PositiveDuration
    max_attempts: _Number
    max_lost: _Number
    backoff_base_s: f.Duration
    backoff_factor: Annotated[float, Meta(ge=1, le=100)]
    backoff_max_s: f.Duration
    keep_on_dead: _Bool
    submitted_at: f.Instant
    not_before_at: f.Instant | None
    delay_ms: _Ms | None
    expires_at: f.Instant | None
    expires_ms: _Ms | None
    finished_at: f.Instant | None
    revived_at: f.Instant | None
    request_key: f.RequestKey
    unique_key: f.UserKey | None
    unique_until: Literal["done", "start", "started"]
    reason: _Text
    submitter: f.Id | None


class _Wait(msgspec.Struct):
    target: f.Id | None
    key: Annotated[str, Meta(max_length=64)]
    value: f.Value
    needs: Literal["completed", "ended"]
    on_failed: Literal["cancel", "run", "keep"]
    outcome: Annotated[str, Meta(max_length=64)] | None


class _About(msgspec.Struct):
    submitted_by: f.UserKey | None
    submitted_from: f.UserKey | None


class _Header(msgspec.Struct):
    """The fields of a `Header` of which `check_new` does not say enough."""

    exported_at: f.Instant
    row: _Row
    about: _About
    metadata: f.Metadata
    idempotency_key: f.UserKey | None
    weights: dict[f.Key, f.WeightNumber]
    waits: Annotated[list[_Wait], Meta(max_length=DEPENDENCIES_LIMIT)]


class _Attempt(msgspec.Struct):
    attempts: _Number
    lost: _Number
    due_at: f.Instant
    delay_ms: _Ms


class _Dead(msgspec.Struct):
    attempts: _Number
    lost: _Number
    dead_at: f.Instant
    reason: _Text
    exit_status: f.ExitStatus | None
    signal: f.Signal | None


class _Event(msgspec.Struct):
    at: f.Instant
    event: f.EventName
    attempt: _Number
    reservation_id: f.Id
    consumer: f.Name
    run_s: _Seconds
    run_max_s: _Seconds
    wait_s: _Seconds
    exit_status: f.ExitStatus | None
    signal: f.Signal | None
    reason: _Text


def check_header(header: Header, submission_id: int, latest_at: int) -> None:
    """`ValueError` unless there can be a submission with this header.

    Args:
        submission_id: which it should be.
        latest_at: when its id may have been made at the latest: later ones are still to be given.
    """
    row = header.row
    if row.id != submission_id:
        raise ValueError(f"it is of submission {row.id}")
    if made_at(row.id) > latest_at:
        raise ValueError("its id is of the future")
    _convert(
        msgspec.structs.asdict(header)
        | {
            "row": row._asdict(),
            "about": header.about._asdict(),
            "waits": [wait._asdict() for wait in header.waits],
        },
        _Header,
        "header",
    )
    _check_counters(row)
    _check_state(header)
    _check_waits(header)
    _check_submittable(header)


def _check_counters(row: SubmissionRow) -> None:
    total, skipped, dropped = row.chunks_total, row.chunks_skipped, row.chunks_dropped
    left = total - row.chunks_completed - row.chunks_dead - skipped
    if left < 0:
        raise ValueError(f"chunks_total is {total}, and more are completed, dead or skipped")
    if dropped > skipped:
        raise ValueError(f"chunks_dropped is {dropped}, and chunks_skipped {skipped}")
    if row.frontier > blocks_of(total):
        raise ValueError(f"frontier is {row.frontier}, and chunks_total {total}")
    if left and row.state in submissions.FINAL_STATES:
        raise ValueError(f"state is {row.state}, and {left} of chunks_total are left")
    if skipped > dropped and (row.state not in submissions.FINAL_STATES or row.state == "completed"):
        raise ValueError(f"state is {row.state}, and chunks_skipped {skipped}, but chunks_dropped {dropped}")


def _check_state(header: Header) -> None:
    row = header.row
    is_final = row.state in submissions.FINAL_STATES
    if is_final != (row.finished_at is not None):
        raise ValueError(f"state is {row.state}, and finished_at {row.finished_at}")
    if row.state == "scheduled" and row.not_before_at is None:
        raise ValueError("state is scheduled, and not_before_at is missing")
    if row.state == "blocked" and (row.frontier or row.chunks_completed or row.chunks_dead or row.chunks_skipped):
        raise ValueError("state is blocked, and work on it has begun")
    is_waiting = any(wait.outcome is None for wait in header.waits)
    if is_waiting != (row.state == "blocked"):
        raise ValueError(f"state is {row.state}, and of what it waits for {'some' if is_waiting else 'none'} is open")


def _check_waits(header: Header) -> None:
    targets = {(wait.target, wait.key, wait.value) if wait.target is None else wait.target for wait in header.waits}
    if len(targets) < len(header.waits):
        raise ValueError("waits names something twice")
    if header.row.id in targets:
        raise ValueError("waits names the submission itself")


def _check_submittable(header: Header) -> None:
    """What else would be refused if it were submitted here."""
    row, about = header.row, header.about
    pairs = [(wait.key, wait.value) for wait in header.waits if wait.target is None]
    new = NewSubmission(
        row.request_key,
        row.chunks_total,
        header.content,
        header.metadata,
        header.attachment,
        weights=header.weights,
        unique_key=row.unique_key,
        unique_until_start=row.unique_until == submissions.UNTIL_START,
        title=about.title,
        after=[Dependency(key=key, value=value) for key, value in pairs],
    )
    try:
        check_new(new)
    except UsageError as error:
        raise ValueError(error.message.partition("\n")[0].rstrip(".")) from error  # without advice to who submits
    for name in ("submitted_by", "submitted_from"):
        text = getattr(about, name)
        if text is not None and not text.isprintable():
            raise ValueError(f"{name} is not printable")


def check_slice(found: Slice, row: SubmissionRow) -> None:
    """`ValueError` unless the submission of this row can have the rows of this slice."""
    rows_count = len(found.blocks) + len(found.attempts) + len(found.dead)
    rows_count += len(found.dropped) + len(found.results) + len(found.history)
    if rows_count > transfer.SLICE_ROWS:
        raise ValueError(f"it has more than {transfer.SLICE_ROWS} rows")
    _convert(found.exported_at, f.Instant, "exported_at")
    touched = min(row.chunks_total, row.frontier * 64)
    for block, mask in found.blocks:
        _check_chunks("blocks", block, mask, touched)
    for block, attempt in found.attempts:
        _check_chunks("attempts", block, attempt.mask, touched)
        _convert(attempt._asdict(), _Attempt, "attempts")
    for dead in found.dead:
        _convert(dead._asdict(), _Dead, "dead")
        _check_chunks("dead", dead.chunk // 64, 1 << dead.chunk % 64, touched)
    for block, mask in found.dropped:
        _check_chunks("dropped", block, mask, touched)
    for block, mask, results in found.results:
        _check_chunks("results", block, mask, touched)
        _check_results(results, mask.bit_count())
    for event in found.history:
        if event.block or event.mask:  # else it is of the whole submission
            _check_chunks("history", event.block, event.mask, row.chunks_total)
        _convert(event, _Event, "history")


def check_whole(row: SubmissionRow, sums: Sums) -> None:
    """`ValueError` unless the rows of a submission are as many as its counters say."""
    if sums.dead != row.chunks_dead:
        raise ValueError(f"chunks_dead is {row.chunks_dead}, and the dead letters are {sums.dead}")
    if sums.dropped != row.chunks_dropped:
        raise ValueError(f"chunks_dropped is {row.chunks_dropped}, and the dropped ones are {sums.dropped}")
    pending = sums.pending + max(row.chunks_total - row.frontier * 64, 0)
    known = pending + row.chunks_completed + row.chunks_dead + row.chunks_dropped
    if known != row.chunks_total:
        raise ValueError(f"chunks_total is {row.chunks_total}, and {known} are pending, completed, dead or dropped")


def _check_chunks(table: str, block: int, mask: int, total: int) -> None:
    if not 0 <= block < blocks_of(total) or mask <= 0 or mask & ~block_mask(total, block):
        raise ValueError(f"{table} has chunks {mask:#x} of block {block}, which cannot be")


def _check_results(results: bytes, count: int) -> None:
    entries: list[Any] = msgspec.msgpack.decode(results, type=ResultEntries)
    if len(entries) != count:
        raise ValueError(f"results has {counted(len(entries), 'entry')} for {counted(count, 'chunk')}")
    if any(type(entry) is bytes and len(entry) > RESULT_INLINE_BYTES for entry in entries):
        raise ValueError(f"results has an entry of more than {RESULT_INLINE_BYTES} bytes")


def _convert(value: object, kind: type[Any], name: str) -> None:
    """`ValueError` unless a value is of a type, within all its bounds."""
    try:
        msgspec.convert(value, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        text = str(error)
        raise ValueError(text.replace("`$", f"`{name}") if "`$" in text else f"{text} - at `{name}`") from error
