"""Who waits for what of a submission: its end (`Wait`), or its next result (`Results`). Answers are pushed.

Must not decide when a submission ends; it is notified.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import msgspec

from opsq.clock import MonoNs, Now, after
from opsq.ids import block_mask
from opsq.queue.live_submission import BlockWork, LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.timers import Timers
from opsq.queue.views.reports import submission_state
from opsq.store import backlog, dead, submissions
from opsq.wire.messages import ResultRow, ResultRows, Results, Shown, SubmissionState, Wait

PAGE_BYTES = 4 << 20
"""A page of results ends with the block in which it becomes longer; a block has at most 64 results of 4 KiB."""


class Subscriptions:
    """Waiting calls by submission."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._ends: dict[int, dict[tuple[Peer, int], None]] = {}
        self._readers: dict[int, dict[tuple[Peer, int], tuple[Results, MonoNs | None]]] = {}
        self._deadlines: Timers[tuple[int, Peer, int]] = Timers()

    def wait(self, peer: Peer, request: Wait) -> None:
        """Tell `peer` when the submission is final; at once if it is."""
        submission = self._state.find(request.submission_id)
        if submission.state in submissions.FINAL_STATES:
            self._state.reply(peer, Shown(request.id, self._shown(submission)))
        else:
            peer.check_parked(request.id)
            peer.parked_ids.add(request.id)
            self._ends.setdefault(request.submission_id, {})[peer, request.id] = None
            peer.watches[request.id] = request.submission_id

    def results(self, peer: Peer, request: Results, now: Now) -> None:
        """Send result rows, as soon as the chunk asked for is completed or nothing more will come."""
        rows = self._rows(request)
        if rows.is_final or request.wait_s == 0 or self._is_completed(request, rows):
            self._state.reply(peer, rows)
            return
        peer.check_parked(request.id)
        peer.parked_ids.add(request.id)
        due = after(now.mono, request.wait_s) if request.wait_s is not None else None
        self._readers.setdefault(request.submission_id, {})[peer, request.id] = (request, due)
        peer.watches[request.id] = request.submission_id
        if due is not None:
            self._deadlines.add(due, (request.submission_id, peer, request.id))

    def cancel_wait(self, peer: Peer, request_id: int) -> None:
        """Stop waiting; the call gets what there is now."""
        submission_id = peer.watches.get(request_id)
        if submission_id is None:
            return
        request = self._remove(submission_id, peer, request_id)
        if request is None:
            self._state.reply(peer, Shown(request_id, self._shown(self._state.find(submission_id))))
        else:
            self._state.reply(peer, self._rows(request))

    def disconnect(self, peer: Peer) -> None:
        """Forget all that a connection waited for."""
        for request_id, submission_id in list(peer.watches.items()):
            self._remove(submission_id, peer, request_id)

    def note_completed(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """Chunks were completed: answer those who wait for one of them."""
        for (peer, _), (request, _) in list(self._readers.get(submission.id, {}).items()):
            block, bit = divmod(request.from_index, 64)
            if block == work.index and mask >> bit & 1:
                self._answer(peer, request)

    def note_moved(self, submission_id: int) -> None:
        """A submission is another daemon's: everyone who waits is told where."""
        for peer, request_id in [*self._ends.get(submission_id, {}), *self._readers.get(submission_id, {})]:
            self._remove(submission_id, peer, request_id)
            self._state.refuse(peer, request_id, self._state.missing(submission_id))

    def note_ended(self, submission: LiveSubmission) -> None:
        """A submission has become final: answer everyone."""
        shown = cache(partial(self._shown, submission))  # read once, and only if somebody waits
        for peer, request_id in self._ends.pop(submission.id, ()):
            peer.watches.pop(request_id, None)
            peer.parked_ids.remove(request_id)
            self._state.attempt(peer, request_id, partial(self._show, peer, request_id, shown))
        for (peer, _), (request, _) in list(self._readers.get(submission.id, {}).items()):
            self._answer(peer, request)

    def tick(self, now: Now) -> None:
        """Answer those whose time is over."""
        for submission_id, peer, request_id in self._deadlines.take(now.mono):
            waiting = self._readers.get(submission_id, {}).get((peer, request_id))
            if waiting is not None:
                self._answer(peer, waiting[0])

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to do."""
        return self._deadlines.next_due()

    def _show(self, peer: Peer, request_id: int, shown: Callable[[], SubmissionState]) -> None:
        self._state.reply(peer, Shown(request_id, shown()))

    def _shown(self, submission: LiveSubmission) -> SubmissionState:
        return submission_state(submission, submissions.about(self._state.reader, submission.id))

    def _answer(self, peer: Peer, request: Results) -> None:
        self._remove(request.submission_id, peer, request.id)
        self._state.attempt(peer, request.id, lambda: self._state.reply(peer, self._rows(request)))

    def _remove(self, submission_id: int, peer: Peer, request_id: int) -> Results | None:
        """Take a waiting call out; the request, if it waited for results."""
        peer.watches.pop(request_id, None)
        peer.parked_ids.remove(request_id)
        ends = self._ends.get(submission_id, {})
        if (peer, request_id) in ends:
            del ends[peer, request_id]
            if not ends:
                del self._ends[submission_id]
            return None
        readers = self._readers[submission_id]
        request, due = readers.pop((peer, request_id))
        if due is not None:
            self._deadlines.discard(due, (submission_id, peer, request_id))
        if not readers:
            del self._readers[submission_id]
        return request

    def _is_completed(self, request: Results, rows: ResultRows) -> bool:
        first = rows.completed[0] if rows.completed else 0
        return bool(first >> request.from_index % 64 & 1)

    def _rows(self, request: Results) -> ResultRows:
        state = self._state
        submission = state.find(request.submission_id)
        start = request.from_index // 64
        end = min(start + request.limit_blocks, submission.blocks_count)
        rows: list[ResultRow] = []
        if not request.without_rows:
            rows, end = self._results(submission, start, end)
        pending = (
            dict(
                backlog.pending_blocks(
                    state.reader, submission.id, start, min(end, submission.frontier), end - start + 1
                )
            )
            if start < end
            else {}
        )
        completed = []
        for index in range(start, end):
            whole = block_mask(submission.total, index)
            work = submission.blocks.get(index)
            if work is not None:
                completed.append(whole & ~work.unfinished)
            else:
                completed.append(whole & ~(pending.get(index, 0) if index < submission.frontier else whole))
        for chunk in backlog.dead_chunks(state.reader, submission.id, start * 64, end * 64) if submission.dead else ():
            completed[chunk // 64 - start] &= ~(1 << chunk % 64)
        for block, mask in (
            dead.dropped(state.reader, submission.id, start, end) if submission.row.chunks_dropped else ()
        ):
            completed[block - start] &= ~mask
        has_content = request.from_index == 0 and not request.without_rows
        content = submissions.content(state.reader, submission.id) if has_content else b""
        is_final = submission.state in submissions.FINAL_STATES
        return ResultRows(request.id, end, rows, completed, submission.total, is_final, submission.state, content)

    def _results(self, submission: LiveSubmission, start: int, end: int) -> tuple[list[ResultRow], int]:
        """The result rows of blocks from `start` on, before `end` and before there are too many bytes of them.

        And the block after them.
        """
        rows: list[ResultRow] = []
        size_bytes = 0
        for block, mask, results in backlog.results(self._state.reader, submission.id, start, end):
            if size_bytes > PAGE_BYTES and block != rows[-1].block:
                return rows, block
            rows.append(ResultRow(block, mask, msgspec.Raw(results)))
            size_bytes += len(results)
        return rows, end
