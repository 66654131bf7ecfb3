"""The verb show: one submission, or one chunk of it."""

from __future__ import annotations

from functools import partial
from itertools import islice

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output import attempts, running_chunks
from opsq.content.input_file import STDIN
from opsq.documents.asking import running as chunks_running
from opsq.documents.composing import ComposedSubmission, submission_document
from opsq.documents.dependency_text import dependency_rows
from opsq.documents.submission_text import backoff_text, pairs_text, reason_text, span_text
from opsq.documents.submissions import RunningDocument, SubmissionShape
from opsq.errors import UsageError
from opsq.ids import SubmissionId
from opsq.options.conditions import chunk_name
from opsq.options.option import argument, option
from opsq.wire.messages import Show, Shown

ATTEMPTS_DRAWN = 5
"""On a terminal, where the state of the submission must stay in sight above them."""
RUNNING_SHOWN = 100
"""On a terminal; a pipe gets all."""
_INPUTS_NAMED = 3


def show(
    caller: Caller,
    subject: str = argument("ID", "The submission, or a chunk of it as SUBMISSION/INDEX."),
    running: bool = option("--running", "Instead list its chunks that run now, the longest first."),
) -> None:
    """Show one submission: its state, counts, metadata, rules and recent failures; or the history of a chunk.

    With --running, a pipe gets one line per chunk: chunk, attempt, consumer, host, process, since, seconds.
    """
    submission_id, index = chunk_name(subject)
    if running:
        if index is not None:
            hint = f"`opsq show {subject}` says who has this chunk."
            raise UsageError("--running lists chunks of a submission.", hint=hint)
        _show_running(caller, submission_id)
        return
    if index is not None:
        from opsq.cli.output.chunk_page import show_chunk

        show_chunk(caller, submission_id, index)
        return
    with caller.connect() as daemon:
        found = submission_document(daemon, submission_id)
        reason = reason_text(found.state, partial(found.inputs.of, submission_id))
    failed, has_more = found.failed, bool(found.document.has_more_attempts)
    caller.document(found.document)
    held = caller.held_back("It", found.held_back)
    caller.table(("", ""), _details(caller, found, reason, held))
    if caller.is_rich and len(failed) > ATTEMPTS_DRAWN:
        failed, has_more = failed[-ATTEMPTS_DRAWN:], True
    attempts.show(caller, failed, title="Recent failures")
    if has_more:
        caller.remark(f"There may be more: `opsq history list {submission_id} --event failed`.")


def _show_running(caller: Caller, submission_id: SubmissionId) -> None:
    limit = RUNNING_SHOWN if caller.is_rich else None
    with LastingConnection(caller) as daemon:
        state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
        chunks = list(islice(chunks_running(daemon, submission_id), limit))
    caller.document(RunningDocument(str(submission_id), state.reserved_count, chunks))
    if caller.is_rich:
        if chunks:
            running_chunks.draw(caller, submission_id, chunks)
    else:
        caller.lines(["\t".join(map(str, running_chunks.plain(each))) for each in chunks])
    if not chunks:
        caller.remark(f"No chunk of submission {submission_id} runs now. `opsq explain {submission_id}` says why.")
    elif len(chunks) == limit:
        caller.remark(f"These have run longest; `opsq show {submission_id} --running | cat` lists all.")


def _unique_text(shape: SubmissionShape) -> str | None:
    """The unique key, how long it is held, and whether it still is."""
    if shape.unique is None:
        return None
    held = "" if shape.unique_held else ", free again"
    return f"{shape.unique} (until {'the start' if shape.unique_until == 'start' else 'the end'}{held})"


def _inputs_text(shape: SubmissionShape) -> str:
    """The first inputs, and how many more there are."""
    more_count = (shape.inputs_count or 0) - _INPUTS_NAMED
    names = ["stdin" if name == STDIN else name for name in shape.inputs or []]
    return ", ".join(names[:_INPUTS_NAMED]) + (f" and {more_count} more" if more_count > 0 else "")


def _details(caller: Caller, found: ComposedSubmission, reason: str, held: list[str]) -> list[tuple[str, object]]:
    shape, state, meter = found.document, found.state, found.meter
    rows: list[tuple[str, object]] = [
        ("submission id", shape.submission_id),
        ("title", shape.title),
        ("state", shape.state),
        ("reason", reason),
    ]
    counts = ("chunks", "completed", "waiting", "delayed", "reserved", "dead", "skipped")
    rows += [(name, getattr(shape, name)) for name in counts]
    rows += [("blocked", sentence) for sentence in held]
    rows += dependency_rows(state.submission_id, found.dependencies)
    rows += [
        ("rate", meter.rate_text()),
        ("time left", meter.left_text().removesuffix(" left")),
        ("inputs", _inputs_text(shape)),
        ("metadata", pairs_text(shape.metadata)),
        ("priority", shape.priority),
        ("max attempts", shape.max_attempts),
        ("max lost", shape.max_lost),
        ("back-off", backoff_text(shape.backoff)),
        ("on dead", shape.on_dead),
        ("reservation", span_text(shape.reservation_s)),
        ("submitted", caller.named_instant(state.submitted_at)),
        ("submitted by", "@".join(filter(None, (state.submitted_by, state.submitted_from))) or "-"),
        ("not before", caller.named_instant(state.not_before_at)),
        ("expires", caller.named_instant(state.expires_at)),
        ("finished", caller.named_instant(state.finished_at)),
        ("unique", _unique_text(shape)),
        ("attachment", "yes" if shape.has_attachment else "no"),
        ("trace", shape.traceparent or None),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]
