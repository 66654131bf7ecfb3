"""The verb show: one submission, or one chunk of it."""

from __future__ import annotations

import time

from msgspec import UNSET

from opsq.cli.caller import Caller
from opsq.cli.options.conditions import chunk_name
from opsq.cli.options.option import argument
from opsq.cli.output import attempts
from opsq.cli.output.progress_meter import ProgressMeter
from opsq.cli.output.submission_documents import EventShape, SubmissionShape
from opsq.cli.output.submission_text import pairs_text
from opsq.wire.messages import HistoryFilter, Show, Shown

ATTEMPTS_SHOWN = 20
ATTEMPTS_PAGES = 50
"""Pages of the history that are searched for them; a submission with millions of events is not searched whole."""
RATE_EVENTS = 500
"""Ends of chunks by which the rate is estimated, at most."""


def show(
    caller: Caller,
    subject: str = argument("ID", "The submission, or a chunk of it as SUBMISSION/INDEX."),
) -> None:
    """Show one submission: its state, counts, metadata, rules and recent failures; or the history of a chunk."""
    submission_id, index = chunk_name(subject)
    if index is not None:
        from opsq.cli.output.chunk_page import show_chunk

        show_chunk(caller, submission_id, index)
        return
    where = HistoryFilter(submission_id, events=list(attempts.ATTEMPTS))
    with caller.connect() as daemon:
        state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
        failed, has_more = attempts.newest(daemon, where, ATTEMPTS_SHOWN, ATTEMPTS_PAGES)
        meter = ProgressMeter()
        if state.state == "open":
            ends = HistoryFilter(submission_id, events=["completed", "dead"])
            meter.recall(state, attempts.newest(daemon, ends, RATE_EVENTS, 1)[0], time.time())
    shape = SubmissionShape.from_state(state)
    shape.rate_per_s, shape.left_s = meter.rate_per_s or UNSET, meter.left_s or UNSET
    shape.attempts = [EventShape.from_event(event, {}) for event in failed]
    shape.has_more_attempts = has_more
    caller.document(shape)
    caller.table(("", ""), _details(shape, meter))
    attempts.show(caller, failed, title="Recent failures")
    if has_more:
        caller.remark(f"There may be more: `opsq history list {submission_id} --event failed`.")


def _unique_text(shape: SubmissionShape) -> str | None:
    """The unique key, how long it is held, and whether it still is."""
    if shape.unique is None:
        return None
    held = "" if shape.unique_held else ", free again"
    return f"{shape.unique} (until {'the start' if shape.unique_until == 'start' else 'the end'}{held})"


def _details(shape: SubmissionShape, meter: ProgressMeter) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), getattr(shape, name))
        for name in (
            "submission_id",
            "state",
            "reason",
            "chunks",
            "completed",
            "waiting",
            "delayed",
            "reserved",
            "dead",
            "skipped",
        )
    ]
    backoff = shape.backoff
    rows += [
        ("rate", meter.rate_text()),
        ("time left", meter.left_text().removesuffix(" left")),
        ("metadata", pairs_text(shape.metadata)),
        ("priority", shape.priority),
        ("max attempts", shape.max_attempts),
        ("max lost", shape.max_lost),
        ("back-off", f"{backoff.base_s:g}s × {backoff.factor:g} up to {backoff.max_s:g}s"),
        ("on dead", shape.on_dead),
        ("reservation", f"{shape.reservation_s:g}s"),
        ("submitted", shape.submitted_at),
        ("not before", shape.not_before_at),
        ("expires", shape.expires_at),
        ("finished", shape.finished_at),
        ("unique", _unique_text(shape)),
        ("attachment", "yes" if shape.has_attachment else "no"),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]
