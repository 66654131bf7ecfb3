"""The consumer of a loop that never waits: it orders chunks, hands them out, takes verdicts, and is polled.

This file adds to `Consumer` what only such a loop asks for; it must not know child processes.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal

from opsq.client.core.consume_options import OnLost
from opsq.client.core.consumer_base import RETRY_S
from opsq.client.core.transport import expect
from opsq.client.sync.chunk import Chunk
from opsq.client.sync.consumer import Consumer
from opsq.errors import OpsqError
from opsq.ids import mask_indexes
from opsq.wire.messages import (
    AfterFailure,
    Attachment,
    ChunkMask,
    Completed,
    Counts,
    DaemonState,
    Finding,
    GetAttachment,
    Heartbeat,
    HeldChunks,
    NewSubmission,
    Reply,
    Show,
    Shown,
    Status,
    SubmissionContent,
)

if TYPE_CHECKING:
    from opsq.client.core.transport import Dial

Until = Literal["", "empty", "idle"]
"""When to end: never; when nothing can come any more; at the first moment when nothing can be reserved."""

_AT_ONCE_S = 1.0
"""How long one who leaves at once waits for the answer to what he gives back."""


class StillAwaitedError(Exception):
    """What was asked for has not arrived yet."""


class PolledConsumer(Consumer):
    """A consumer without a thread of its own.

    Args:
        open_wire: makes a greeted transport; after a loss it is called again for ever, with growing pauses.
        strategy: the order in which chunks are wanted.
        until: when `is_ended` becomes true.
        on_lost: called with each chunk that was taken away, in the midst of any call.
    """

    def __init__(self, open_wire: Dial, strategy: str, until: Until, on_lost: OnLost) -> None:
        self.refused: set[tuple[int, int]] = set()
        """Submission and index of the chunks whose verdict was refused; who looks at it empties it."""
        self.failures: dict[tuple[int, int], AfterFailure] = {}
        """By submission and index, what becomes of chunks whose failure was counted; who looks at it empties it."""
        self.reconnects_count = 0
        """How often what is held was reclaimed, and what had no answer sent again."""
        self.counts: Counts | None = None
        """What the daemon said last about how things stand; see `ask_counts`."""
        self.is_counting = False
        """Whether the daemon was asked and has not answered."""
        self.held_back: list[Finding] = []
        """What the daemon said keeps work from this strategy; who reports it empties it."""
        self._counted_value: str | None = None
        self._in_place: dict[int, bool] = {}
        self._wanted_attachment: tuple[int, list[Reply]] = (0, [])
        """Which one was asked for last, and the answer once it is there."""
        super().__init__(open_wire, strategy, reconnect_s=None, on_lost=on_lost, is_polled=True)
        self._until = until

    @property
    def ready_count(self) -> int:
        """How many chunks `take` can hand out now."""
        return self._ledger.ready_count

    def upcoming(self, limit_count: int) -> list[tuple[int, int]]:
        """Submission and index of the chunks that `take` hands out next."""
        return self._ledger.upcoming(limit_count)

    def read_here(self, described: SubmissionContent, index: int) -> bytes:
        """The content of a chunk, read by the calling thread, which may be any. Raises as `ChunkReader.read`."""
        return self._contents.reader(described).read(index)

    @property
    def is_settled(self) -> bool:
        """Whether every verdict was sent and answered."""
        return self._verdicts.is_settled

    @property
    def store_folder(self) -> str | None:
        """The folder of the daemon's store, if that is made of files and can be seen from here."""
        path = self._contents.unchecked.path("x")
        folder = None if path is None else os.path.dirname(path)
        return folder if folder is not None and os.path.isdir(folder) else None

    def order(self, count: int) -> None:
        """Have up to `count` chunks reserved, unless a reserve is on its way or nothing can come any more."""
        if not self.is_ended:
            self.want(count, wait_s=0.0 if self._until == "idle" else None, until_empty=self._until == "empty")

    def send(self) -> None:
        """Report to the daemon now, instead of soon, what was started and what has a verdict."""
        self._flush()

    def ask_counts(self, submission_id: int | None, pair: tuple[str, str] | None = None) -> None:
        """Ask the daemon for the counts of a submission, of those with a metadata pair, or of all; see `counts`."""
        if not self.is_counting:
            self.is_counting = True
            self._counted_value = None if pair is None else pair[1]
            request_id = self._link.next_id()
            request = (
                Show(request_id, submission_id)
                if submission_id is not None
                else Status(request_id, None if pair is None else pair[0])
            )
            self._link.send([request], self._counted)

    def _counted(self, reply: Reply) -> None:
        self.is_counting = False
        if isinstance(reply, DaemonState) and self._counted_value is not None:
            self.counts = next((counts for counts in reply.by if counts.value == self._counted_value), self.counts)
        elif isinstance(reply, DaemonState):
            self.counts = reply.total
        elif isinstance(reply, Shown):
            self.counts = reply.submission.counts

    @property
    def is_waiting(self) -> bool:
        """Whether a reserve is on its way."""
        return self._ask is not None

    def ask_held(self, *, is_last: bool = False) -> None:
        """Ask the daemon what keeps work from this strategy; see `held_back`.

        Args:
            is_last: wait a moment for the answer.
        """
        heard: list[Reply] = []

        def hear(reply: Reply) -> None:
            heard.append(reply)
            if isinstance(reply, DaemonState):
                self.held_back = reply.held_back

        self._link.send([Status(self._link.next_id(), None, self.strategy)], hear)
        if is_last:
            self._link.wait_until(lambda: bool(heard) or not self._link.is_connected, _AT_ONCE_S)

    def due_s(self) -> float:
        """In how many seconds to `poll`, or to `order` after a refusal, even if nothing arrives."""
        due_s = self.next_poll_s()
        if self._ask is None and not self.is_ended and not self._is_stopping:
            again_s = self._ask_at - time.monotonic()
            if 0 < again_s <= RETRY_S:
                return min(due_s, again_s)
        return due_s

    def attachment(self, submission_id: int) -> bytes | None:
        """See `VerdictSender.attachment`; does not wait: what is not here is asked for.

        Raises:
            StillAwaitedError: it is on its way; call again when something has arrived.
            NotFound: the submission was removed.
        """
        if submission_id not in self._attachments and self.describe(submission_id).has_attachment:
            if self._wanted_attachment[0] != submission_id:
                self._wanted_attachment = (submission_id, [])
                request = GetAttachment(self._link.next_id(), submission_id)
                self._link.send([request], self._wanted_attachment[1].append)
            replies = self._wanted_attachment[1]
            if not replies:
                raise StillAwaitedError
            self._wanted_attachment = (0, [])
            self._attachments = {submission_id: expect(replies[0], Attachment).attachment}
        return self._attachments.get(submission_id)

    def is_in_place(self, submission_id: int) -> bool:
        """Whether the content of a submission is files that were submitted in place, as far as that can be read."""
        from opsq.content.manifest import PartTable

        found = self._in_place.get(submission_id)
        if found is None:
            try:
                content = self.reader(submission_id).content
                # A submission is submitted in place as a whole or not at all.
                found = (
                    bool(content.parts_count) and PartTable(self._contents.unchecked, content)[0].identity is not None
                )
            except OpsqError:
                return False
            self._in_place[submission_id] = found
        return found

    def complete_by_file(
        self, chunk: Chunk, descriptor: int, then: list[NewSubmission], *, run_s: float, exit_status: int | None
    ) -> None:
        """Complete a chunk whose result is all of an open file; it is copied to the store in constant memory.

        Raises:
            StorageFull: the store has no room. The chunk has no verdict then.
        """
        result = self._append_result(chunk._block, chunk._bit, lambda writer: writer.append_file(descriptor))
        chunk.complete(result, then=then, run_s=run_s, exit_status=exit_status)

    def give_back_ready(self) -> int:
        """Give back what `take` has not handed out.

        Returns:
            How many that were.
        """
        count = 0
        while (chunk := self.take()) is not None:
            chunk.release()
            count += 1
        return count

    def order_no_more(self) -> int:
        """Reserve nothing any more, and give back what `take` has not handed out, on its way included.

        Returns:
            How many were given back here.
        """
        count = self.give_back_ready()
        self._is_stopping = True
        self._cancel_reserves()
        self.send()
        return count

    def rest(self) -> None:
        """Give back what is not at work and renew the reservations of what is: this process stops for a while."""
        self.give_back_ready()
        if self._until != "idle":  # then it is answered at once, and an answer without chunks would be the end
            self._cancel_reserves()
        self.send()
        is_heard: list[Reply] = []
        self._link.send([Heartbeat(self._link.next_id())], is_heard.append)
        self._link.wait_until(
            lambda: bool(is_heard and self._ask is None) or not self._link.is_connected,
            _AT_ONCE_S,
        )
        self.give_back_ready()
        self.send()

    def leave_at_once(self) -> None:
        """Give back everything and end, without waiting for a daemon that is not there."""
        self._is_stopping = True
        with self._lock:
            self._verdicts.release_all()
        self._flush()
        if self._link.is_connected:
            self._link.wait_until(lambda: self._is_settled() or not self._link.is_connected, _AT_ONCE_S)
        self._link.close()
        self._contents.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _answered(self, reply: Reply) -> None:
        if isinstance(reply, Completed):
            for refusal in reply.refusals:
                self.refused.update(
                    (refusal.submission_id, index) for index in mask_indexes(refusal.block, refusal.mask)
                )
            for failure in reply.failures:
                for index in mask_indexes(failure.block, failure.mask):
                    self.failures[failure.submission_id, index] = failure
        super()._answered(reply)

    def _holdings(self) -> tuple[list[HeldChunks], list[ChunkMask]]:
        self.reconnects_count += 1
        return super()._holdings()
