"""Shows the chunks that are being worked on as a table or as fields.

It must not fetch them, nor decide which are meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsq.cli.caller import Caller
from opsq.documents.submission_text import host_of, named, nth, span_of
from opsq.documents.submissions import RunningShape
from opsq.ids import SubmissionId
from opsq.options.values import now_ms


def draw(caller: Caller, submission_id: SubmissionId, chunks: Sequence[RunningShape]) -> None:
    """Print chunks of one submission, at least one, as a table, by index."""
    caller.table(
        ("chunk", "attempt", "consumer", "where", caller.heading("since"), "for"),
        [_drawn(caller, each) for each in chunks],
        title=f"Submission {named(submission_id, chunks[0].title)}",
        right=frozenset({"chunk", "attempt", "for"}),
    )


def _drawn(caller: Caller, chunk: RunningShape) -> list[object]:
    since = caller.instant(now_ms() - round(chunk.run_s * 1000))
    return [chunk.index, nth(chunk.attempt), chunk.consumer, host_of(chunk), since, span_of(chunk)]


def plain(chunk: RunningShape) -> list[object]:
    """A chunk as a line of fields: chunk, attempt, consumer, host, process, since, seconds."""
    name = f"{chunk.submission_id}/{chunk.index}"
    place = [chunk.host or "-", chunk.pid or "-"]
    return [name, nth(chunk.attempt), chunk.consumer, *place, chunk.since_at, f"{chunk.run_s:.3f}"]
