"""The endpoints that only look: status, submissions, chunks, dead chunks, history, rules, and why work does not run.

It must not change anything.
"""

from __future__ import annotations

from itertools import islice

from opsq.client.core.address import show_address
from opsq.documents import asking, composing
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.daemon import StatusDocument
from opsq.documents.strategies import ExplainDocument, RulesDocument, WorkDocument
from opsq.documents.submissions import (
    ChunkDocument,
    DeadDocument,
    DeadShape,
    EventShape,
    HistoryDocument,
    ListDocument,
    RunningDocument,
    SubmissionShape,
    input_fields,
)
from opsq.errors import InvalidStrategy, NotFound
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import (
    DeadQuery,
    ExplainQuery,
    HistoryQuery,
    LimitQuery,
    ListQuery,
    OfChunk,
    OfSubmission,
    StatusQuery,
    WaitQuery,
    metadata_of,
    span,
)
from opsq.gateway.api.endpoint import Endpoint
from opsq.gateway.blocking_queue import BlockingQueue
from opsq.ids import SubmissionId, made_at, parse_submission_id
from opsq.wire import messages as m


async def status(call: Call, query: StatusQuery) -> StatusDocument:
    """What the daemon is doing: chunks by state, consumers, sizes."""
    state = await call.ask(m.Status(call.next_id(), query.by, ""), m.DaemonState)
    return StatusDocument.from_state(state, show_address(call.context.connections.address), "opsq gateway")


async def list_submissions(call: Call, query: ListQuery) -> ListDocument:
    """Submissions, newest first."""
    from_at, to_at = span(query.newer_than_s, query.older_than_s)
    before = None if query.before is None else parse_submission_id(query.before)
    listed = await call.ask(
        m.List(call.next_id(), list(query.state), metadata_of(query.metadata), before, query.limit), m.Listed
    )
    shapes = [
        SubmissionShape.from_state(state)
        for state in listed.submissions
        if (from_at is None or state.submitted_at >= from_at) and (to_at is None or state.submitted_at < to_at)
    ]
    following = listed.next_before
    if following is not None and from_at is not None and made_at(following) < from_at:
        following = None  # no older one was made later
    return ListDocument(shapes, None if following is None else str(following))


async def show_submission(call: Call, path: OfSubmission, query: WaitQuery) -> SubmissionShape:
    """One submission: its state, counts, metadata, recent failures, and what holds it back.

    With `wait`, the answer comes once it has ended, or when the time is over, or the gateway ends: see `state`.
    """
    submission_id = parse_submission_id(path.submission_id)
    if query.wait:
        await call.ask_for(m.Wait(call.next_id(), submission_id), m.Shown, query.wait)
    return (await call.compose(composing.submission_document, submission_id)).document


async def list_running(call: Call, path: OfSubmission, query: LimitQuery) -> RunningDocument:
    """The chunks of a submission that are being worked on, the longest first."""

    def compose(daemon: BlockingQueue, submission_id: SubmissionId) -> RunningDocument:
        state = daemon.call(m.Show(daemon.next_id(), submission_id), m.Shown).submission
        chunks = list(islice(asking.running(daemon, submission_id, None, query.limit), query.limit))
        return RunningDocument(str(submission_id), state.reserved_count, chunks)

    return await call.compose(compose, parse_submission_id(path.submission_id))


async def explain_submission(call: Call, path: OfSubmission) -> WorkDocument:
    """Why a submission is not running."""
    return await _explain_work(call, path.submission_id, None)


async def show_chunk(call: Call, path: OfChunk) -> ChunkDocument:
    """One chunk: its state, and what has happened to it."""
    submission_id = parse_submission_id(path.submission_id)
    return (await call.compose(composing.chunk_document, submission_id, path.index)).document


async def explain_chunk(call: Call, path: OfChunk) -> WorkDocument:
    """Why a chunk is not running."""
    return await _explain_work(call, path.submission_id, path.index)


async def _explain_work(call: Call, submission_id: str, index: int | None) -> WorkDocument:
    request = m.ExplainWork(call.next_id(), parse_submission_id(submission_id), index)
    return WorkDocument.from_message(await call.ask(request, m.WorkExplained), is_running=True)


async def list_dead(call: Call, query: DeadQuery) -> DeadDocument:
    """Dead chunks, by submission and index, with the reason of the last failure."""
    submission_id = None if query.submission_id is None else parse_submission_id(query.submission_id)
    behind, _, index = (query.after or "0/-1").partition("/")
    after = (parse_submission_id(behind), int(index))

    where = query.as_filter(metadata_of(query.metadata))

    def compose(daemon: BlockingQueue) -> DeadDocument:
        request = m.Dead(daemon.next_id(), submission_id, after, query.limit, where)
        page = daemon.call(request, m.DeadChunks)
        inputs = ChunkInputs(daemon)
        inputs.look_up(chunk.submission_id for chunk in page.chunks)
        shapes = [
            DeadShape.from_message(chunk, **input_fields(inputs.of(chunk.submission_id, chunk.index)))
            for chunk in page.chunks
        ]
        following = page.next_after
        return DeadDocument(shapes, None if following is None else f"{following[0]}/{following[1]}")

    return await call.compose(compose)


async def list_history(call: Call, query: HistoryQuery) -> HistoryDocument:
    """What has happened to chunks, newest first: who worked on them, for how long, and how it ended."""
    from_at, to_at = span(query.newer_than_s, query.older_than_s)
    where = m.HistoryFilter(
        submission_id=None if query.submission_id is None else parse_submission_id(query.submission_id),
        index=query.index,
        events=list(query.event),
        consumer=query.consumer,
        metadata=metadata_of(query.metadata),
        from_at=from_at,
        to_at=to_at,
        reason=query.reason,
        exit_statuses=query.exit_status,
        signals=query.signal,
    )

    def compose(daemon: BlockingQueue) -> HistoryDocument:
        request = m.History(daemon.next_id(), where, query.after, query.limit, not query.oldest_first)
        page = daemon.call(request, m.HistoryRows)
        found = ChunkInputs(daemon).of_events(page.rows)
        shapes = [
            EventShape.from_event(
                event,
                page.metadata.get(event.submission_id, {}),
                found.get(event.seq),
                page.titles.get(event.submission_id),
            )
            for event in page.rows
        ]
        return HistoryDocument(shapes, None if page.next_after is None else str(page.next_after))

    return await call.compose(compose)


async def list_rules(call: Call) -> RulesDocument:
    """Pauses, limits and weights, which every strategy and consumer obeys."""
    return RulesDocument.from_state(await call.ask(m.ShowRules(call.next_id()), m.RulesState))


async def explain_strategy(call: Call, query: ExplainQuery) -> ExplainDocument:
    """How a strategy is served: its arms, their SQL and plans."""
    reply = await call.ask(m.Explain(call.next_id(), query.strategy, query.analyze), m.Explained)
    return ExplainDocument.from_reply(reply, is_running=True)


_SUBMISSION = "/submissions/{submission_id}"
_CHUNK = f"{_SUBMISSION}/chunks/{{index}}"

ENDPOINTS = (
    Endpoint("GET", "/status", status, (m.Status,)),
    Endpoint("GET", "/submissions", list_submissions, (m.List,), (NotFound,)),
    Endpoint("GET", _SUBMISSION, show_submission, (m.Show, m.Wait, m.History, m.Describe), (NotFound,)),
    Endpoint("GET", f"{_SUBMISSION}/running", list_running, (m.Show, m.Running), (NotFound,)),
    Endpoint("GET", f"{_SUBMISSION}/explain", explain_submission, (m.ExplainWork,), (NotFound,)),
    Endpoint("GET", _CHUNK, show_chunk, (m.Show, m.ExplainWork, m.Dead, m.History, m.Describe), (NotFound,)),
    Endpoint("GET", f"{_CHUNK}/explain", explain_chunk, (m.ExplainWork,), (NotFound,)),
    Endpoint("GET", "/dead", list_dead, (m.Dead, m.Describe), (NotFound,)),
    Endpoint("GET", "/history", list_history, (m.History, m.Describe), (NotFound,)),
    Endpoint("GET", "/rules", list_rules, (m.ShowRules,)),
    Endpoint("GET", "/explain", explain_strategy, (m.Explain,), (InvalidStrategy,)),
)
