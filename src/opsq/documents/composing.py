"""Makes the documents that take several questions: about a submission, and about a chunk.

It must not print; whatever it asks only answers.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from msgspec import UNSET

from opsq.content.manifest import InputRange
from opsq.documents.asking import ATTEMPTS, AskedForContent, newest_events
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.progress_meter import ProgressMeter
from opsq.documents.shape import CauseShape, path_text
from opsq.documents.submissions import (
    ChunkDocument,
    DeadShape,
    DependencyShape,
    EventShape,
    SubmissionShape,
    input_fields,
)
from opsq.ids import SubmissionId
from opsq.wire.messages import (
    Dead,
    DeadChunk,
    DeadChunks,
    DependencyEdge,
    ExplainWork,
    Finding,
    HistoryEvent,
    HistoryFilter,
    Show,
    Shown,
    SubmissionState,
    WorkExplained,
)

ATTEMPTS_TOLD = 20
ATTEMPTS_PAGES = 50
"""Pages of the history that are searched for them; a submission with millions of events is not searched whole."""
RATE_EVENTS = 500
"""Ends of chunks by which the rate is estimated, at most."""
INPUTS_TOLD = 100
EVENTS_TOLD = 100
"""Of a chunk."""
_ALL_PAGES = 1 << 30


class ComposedSubmission(NamedTuple):
    """The document about a submission, and what it was made of."""

    document: SubmissionShape
    state: SubmissionState
    held_back: list[Finding]
    dependencies: list[DependencyEdge]
    failed: list[HistoryEvent]
    meter: ProgressMeter
    inputs: ChunkInputs


class ComposedChunk(NamedTuple):
    """The document about a chunk, and what it was made of."""

    document: ChunkDocument
    explained: WorkExplained
    letter: DeadChunk | None
    input_range: InputRange | None
    events: list[HistoryEvent]


def submission_document(
    daemon: AskedForContent, submission_id: SubmissionId, pages_count: int = ATTEMPTS_PAGES
) -> ComposedSubmission:
    """Everything about a submission.

    Args:
        pages_count: how many pages of the history are searched for failures.

    Raises:
        NotFound: there is none.
    """
    shown = daemon.call(Show(daemon.next_id(), submission_id), Shown)
    state = shown.submission
    where = HistoryFilter(submission_id, events=list(ATTEMPTS))
    failed, has_more = newest_events(daemon, where, ATTEMPTS_TOLD, pages_count)
    meter = ProgressMeter()
    if state.state == "open":
        ends = HistoryFilter(submission_id, events=["completed", "dead"])
        meter.recall(state, newest_events(daemon, ends, RATE_EVENTS, 1)[0], time.time())
    inputs = ChunkInputs(daemon)
    inputs_count, names = inputs.names(submission_id, INPUTS_TOLD)
    input_ranges = inputs.of_events(failed)
    document = SubmissionShape.from_state(state)
    document.rate_per_s, document.left_s = meter.rate_per_s or UNSET, meter.left_s or UNSET
    document.inputs_count, document.inputs = inputs_count, list(map(path_text, names))
    trace = inputs.trace(submission_id)
    document.traceparent = UNSET if trace is None else trace.traceparent
    document.attempts = [EventShape.from_event(event, {}, input_ranges.get(event.seq)) for event in failed]
    document.has_more_attempts = has_more
    document.held_back = CauseShape.of(shown.held_back)
    document.dependencies = [DependencyShape.from_message(edge) for edge in shown.dependencies]
    return ComposedSubmission(document, state, shown.held_back, shown.dependencies, failed, meter, inputs)


def chunk_document(
    daemon: AskedForContent, submission_id: SubmissionId, index: int, pages_count: int = _ALL_PAGES
) -> ComposedChunk:
    """Everything about a chunk.

    Args:
        pages_count: how many pages of the history are searched for its events.

    Raises:
        NotFound: there is none.
    """
    state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
    explained = daemon.call(ExplainWork(daemon.next_id(), submission_id, index), WorkExplained)
    page = daemon.call(Dead(daemon.next_id(), submission_id, (submission_id, index - 1), 1), DeadChunks)
    letter = next((chunk for chunk in page.chunks if chunk.index == index), None)
    events, has_more = newest_events(daemon, HistoryFilter(submission_id, index), EVENTS_TOLD, pages_count)
    inputs = ChunkInputs(daemon)
    input_range, input_ranges = inputs.of(submission_id, index), inputs.of_events(events)
    document = ChunkDocument(
        submission_id=str(submission_id),
        index=index,
        state=explained.verdict,
        submission_state=state.state,
        metadata=state.metadata,
        dead=None if letter is None else DeadShape.from_message(letter, **input_fields(input_range)),
        events=[EventShape.from_event(event, {}, input_ranges.get(event.seq)) for event in events],
        has_more_events=has_more,
        title=state.title,
        **input_fields(input_range),
    )
    return ComposedChunk(document, explained, letter, input_range, events)
