"""Shows one chunk: its state, the reason for it, and its history.

It must not change anything.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.chunk_inputs import ChunkInputs
from opsq.cli.output import attempts
from opsq.cli.output.submission_text import pairs_text
from opsq.cli.stopped_queue import asked
from opsq.documents.submissions import ChunkDocument, DeadShape, EventShape, input_fields
from opsq.errors import NotFound
from opsq.ids import SubmissionId
from opsq.wire.messages import Dead, DeadChunks, ExplainWork, HistoryFilter, Show, Shown, WorkExplained

EVENTS_SHOWN = 100
_ALL_PAGES = 1 << 30


def show_chunk(caller: Caller, submission_id: SubmissionId, index: int, *, must_be_dead: bool = False) -> None:
    """Print everything known about a chunk.

    Raises:
        NotFound: there is no such chunk, or, if it must be, it is not dead.
    """
    with asked(caller) as daemon:
        state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
        explained = daemon.call(ExplainWork(daemon.next_id(), submission_id, index), WorkExplained)
        page = daemon.call(Dead(daemon.next_id(), submission_id, (submission_id, index - 1), 1), DeadChunks)
        letter = next((chunk for chunk in page.chunks if chunk.index == index), None)
        if must_be_dead and letter is None:
            hint = f"`opsq show {submission_id}/{index}` shows what has happened to it."
            subject = f"Chunk {submission_id}/{index}"
            reason = caller.reworded(explained.reasons[0].replace(subject, "it", 1))
            raise NotFound(f"{subject} is not dead: {reason}", hint=hint)
        events, has_more = attempts.newest(daemon, HistoryFilter(submission_id, index), EVENTS_SHOWN, _ALL_PAGES)
        inputs = ChunkInputs(daemon)
        input_range, input_ranges = inputs.of(submission_id, index), inputs.of_events(events)
    caller.document(
        ChunkDocument(
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
    )
    rows: list[tuple[str, object]] = [
        ("chunk", f"{submission_id}/{index}"),
        ("state", explained.verdict),
        ("" if caller.is_rich else "explained", caller.reworded(explained.reasons[0])),
        ("submission", state.state),
        ("title", state.title),
        ("metadata", pairs_text(state.metadata)),
        ("input", None if input_range is None else input_range.text),
    ]
    if letter is not None:
        rows += [
            ("attempts", letter.attempts),
            ("lost", letter.lost),
            ("died", caller.named_instant(letter.dead_at)),
            ("ended", attempts.ended(letter.exit_status, letter.signal)),
            ("reason", letter.reason),
        ]
    caller.table(("", ""), [(name, value) for name, value in rows if value not in (None, "")])
    attempts.show(caller, events, title="What has happened to it")
    if has_more:
        caller.remark(f"There are more: `opsq history list {submission_id}/{index}`.")
