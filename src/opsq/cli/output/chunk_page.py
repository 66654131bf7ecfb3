"""Shows one chunk: its state, the reason for it, and its history.

It must not change anything.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.output import attempts
from opsq.cli.stopped_queue import asked
from opsq.documents.composing import chunk_document
from opsq.documents.submission_text import ended, pairs_text
from opsq.errors import NotFound
from opsq.ids import SubmissionId


def show_chunk(caller: Caller, submission_id: SubmissionId, index: int, *, must_be_dead: bool = False) -> None:
    """Print everything known about a chunk.

    Raises:
        NotFound: there is no such chunk, or, if it must be, it is not dead.
    """
    with asked(caller) as daemon:
        found = chunk_document(daemon, submission_id, index)
    document, letter = found.document, found.letter
    explained = caller.reworded(found.explained.reasons[0])
    if must_be_dead and letter is None:
        hint = f"`opsq show {submission_id}/{index}` shows what has happened to it."
        subject = f"Chunk {submission_id}/{index}"
        reason = caller.reworded(found.explained.reasons[0].replace(subject, "it", 1))
        raise NotFound(f"{subject} is not dead: {reason}", hint=hint)
    caller.document(document)
    rows: list[tuple[str, object]] = [
        ("chunk", f"{submission_id}/{index}"),
        ("state", document.state),
        ("" if caller.is_rich else "explained", explained),
        ("submission", document.submission_state),
        ("title", document.title),
        ("metadata", pairs_text(document.metadata)),
        ("input", None if found.input_range is None else found.input_range.text),
    ]
    if letter is not None:
        rows += [
            ("attempts", letter.attempts),
            ("lost", letter.lost),
            ("died", caller.named_instant(letter.dead_at)),
            ("ended", ended(letter.exit_status, letter.signal)),
            ("reason", letter.reason),
        ]
    caller.table(("", ""), [(name, value) for name, value in rows if value not in (None, "")])
    attempts.show(caller, found.events, title="What has happened to it")
    if document.has_more_events:
        caller.remark(f"There are more: `opsq history list {submission_id}/{index}`.")
