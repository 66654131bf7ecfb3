"""What is wrong with chunks that a request may not touch: the present state, as a code with details. Words nothing."""

from __future__ import annotations

from opsq.queue.state import EngineState, has_moved
from opsq.store import backlog, moved
from opsq.store.submissions import FINAL_STATES
from opsq.wire.messages import Detail, HeldChunks, Refusal

_NOT_OPEN = {"blocked": "submission_blocked", "scheduled": "submission_scheduled"}


def refusal(state: EngineState, held: HeldChunks, mask: int, code: str) -> Refusal:
    """Refuse something, with the present state."""
    cause, details = _present_state(state, held)
    return Refusal(held.submission_id, held.block, mask, code, cause, details)


def _present_state(state: EngineState, held: HeldChunks) -> tuple[str, dict[str, Detail]]:
    submission = state.submission(held.submission_id)
    if submission is None:
        row = moved.find(state.reader, held.submission_id) if state.has_moved else None
        return ("unknown_submission", {}) if row is None else ("moved", has_moved(row).details)
    if not submission.is_open:
        if submission.state in FINAL_STATES:
            return "submission_ended", {"state": submission.state}
        return _NOT_OPEN.get(submission.state, "submission_finalizing"), {}
    work = submission.blocks.get(held.block)
    if work is None:
        is_untouched = held.block >= submission.frontier
        pending = held.mask if is_untouched else backlog.pending(state.reader, submission.id, held.block)
        return "chunk_waiting" if pending & held.mask else "chunk_finished", {}
    if not work.unfinished & held.mask:
        return "chunk_finished", {}
    if work.delayed & held.mask:
        return "chunk_delayed", {}
    holders = sorted({part.reservation.consumer for part in work.parts if part.mask & held.mask})
    return ("chunk_reserved", {"holders": ", ".join(holders)}) if holders else ("chunk_waiting", {})
