"""Makes the documents that `--json` prints from what the daemon says, and prints them; the shapes stand in `json_shapes`.

It must not import anything slow: the hot verbs print JSON too.
"""

from __future__ import annotations

import binascii
import sys
import time
from typing import Any

import msgspec

from opsq.cli.output.json_shapes import (
    BackoffShape,
    ConsumerShape,
    CountsShape,
    DeadShape,
    StatusDocument,
    SubmissionShape,
    ValueCounts,
)
from opsq.units import format_instant
from opsq.wire.messages import Backoff, ConsumerState, Counts, DaemonState, DeadChunk, SubmissionState


def print_json(document: Any) -> None:
    """Print one document on stdout, on one line."""
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.buffer.flush()


def instant(wall_ms: int | None) -> str | None:
    """A wall-clock instant in RFC 3339, UTC, to the millisecond; None stays None."""
    return None if wall_ms is None else format_instant(wall_ms)


def minute(wall_ms: int) -> str:
    """A wall-clock instant for people with little room: month, day and time, local."""
    return time.strftime("%m-%d %H:%M", time.localtime(wall_ms / 1000))


def text_or_base64(content: bytes) -> dict[str, str]:
    """The field that carries bytes in JSON: `text` if they are UTF-8, else `base64`."""
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(content, newline=False).decode("ascii")}


def submission_shape(state: SubmissionState) -> SubmissionShape:
    """A submission as JSON."""
    ended_count = state.completed_count + state.dead_count + state.skipped_count
    return SubmissionShape(
        submission_id=str(state.submission_id),
        state=state.state,
        chunks=state.chunks_count,
        completed=state.completed_count,
        dead=state.dead_count,
        skipped=state.skipped_count,
        reserved=state.reserved_count,
        delayed=state.delayed_count,
        waiting=max(state.chunks_count - ended_count - state.reserved_count - state.delayed_count, 0),
        metadata=state.metadata,
        priority=state.priority,
        max_attempts=state.max_attempts,
        max_lost=state.max_lost,
        backoff=backoff_shape(state.backoff),
        on_dead="keep" if state.keep_on_dead else "fail",
        reservation_s=state.reservation_s,
        submitted_at=instant(state.submitted_at) or "",
        not_before_at=instant(state.not_before_at),
        expires_at=instant(state.expires_at),
        finished_at=instant(state.finished_at),
        unique=state.unique_key,
        has_attachment=state.has_attachment,
        reason=state.reason,
        unique_until=None if state.unique_key is None else "start" if state.unique_until_start else "done",
        unique_held=state.holds_unique_key,
    )


def backoff_shape(backoff: Backoff) -> BackoffShape:
    """A back-off as JSON."""
    return BackoffShape(backoff.base_s, backoff.factor, backoff.max_s)


def dead_shape(chunk: DeadChunk) -> DeadShape:
    """A dead chunk as JSON."""
    return DeadShape(
        str(chunk.submission_id),
        chunk.index,
        chunk.attempts,
        chunk.lost,
        instant(chunk.dead_at) or "",
        chunk.reason,
        chunk.exit_status,
        chunk.signal,
    )


def _counts(counts: Counts) -> dict[str, int]:
    return {
        "submissions": counts.submissions_count,
        "waiting": counts.waiting_count,
        "delayed": counts.delayed_count,
        "reserved": counts.reserved_count,
        "completed": counts.completed_count,
        "dead": counts.dead_count,
        "skipped": counts.skipped_count,
    }


def _consumer(state: ConsumerState) -> ConsumerShape:
    return ConsumerShape(
        state.consumer, state.is_connected, state.reserved_count, state.oldest_reservation_s, state.waiting_strategy
    )


def status_document(state: DaemonState, socket: str, socket_source: str) -> StatusDocument:
    """The state of the daemon as JSON."""
    return StatusDocument(
        state=state.state,
        server=state.server,
        pid=state.pid,
        uptime_s=state.uptime_s,
        socket=socket,
        socket_source=socket_source,
        total=CountsShape(**_counts(state.total)),
        by=[ValueCounts(**_counts(counts), value=counts.value) for counts in state.by],
        states=state.states,
        consumers=[_consumer(consumer) for consumer in state.consumers],
        parked=state.parked_count,
        connections=state.connections_count,
        oldest_reservation_s=state.oldest_reservation_s,
        unfolded=state.unfolded_count,
        file_bytes=state.file_bytes,
        free_bytes=state.free_bytes,
        wal_bytes=state.wal_bytes,
        settings=state.settings,
        unmatched=state.unmatched_count,
        backlog=state.total.waiting_count + state.total.delayed_count + state.total.reserved_count,
        backlog_limit=state.backlog_limit,
        room_waiting=state.room_waiting_count,
        disk_free_bytes=state.disk_free_bytes,
    )
