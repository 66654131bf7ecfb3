"""Failures that the daemon has not answered yet: each is counted and reported once it is known to count.

This file sends nothing; a failure is entered here when it is given. A failure that the daemon refuses (its submission
has ended, by an earlier failure or otherwise) is none, so it is not reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opsq.units import format_span

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk
    from opsq.runner.polled_consumer import PolledConsumer
    from opsq.runner.progress import ChunkEnd, ProgressViewer
    from opsq.runner.tally import Tally


_AT_ONCE_S = 0.05
"""What is shorter would be told as 0 seconds."""


class _Failed(NamedTuple):
    chunk: Chunk
    end: ChunkEnd
    text: str
    reason: str
    reconnects_count: int


class PendingFailures:
    """What failed, until it is answered.

    Args:
        consumer: holds the chunks, and hears what is refused.
        tally: where failures are counted.
        viewer: is given each.
    """

    def __init__(self, consumer: PolledConsumer, tally: Tally, viewer: ProgressViewer) -> None:
        self._consumer = consumer
        self._tally = tally
        self._viewer = viewer
        self._unanswered: list[_Failed] = []
        self._unreadable: set[int] = set()

    def enter(self, chunk: Chunk, end: ChunkEnd, text: str, reason: str, *, is_shared: bool = False) -> None:
        """Enter a failure that is about to be sent; it is reported, as `text: reason`, unless it is refused.

        Args:
            is_shared: others of the submission are going to fail alike: only the `text` of the first is reported.
        """
        if is_shared:
            text = "" if chunk.submission_id in self._unreadable else text
            self._unreadable.add(chunk.submission_id)
        self._unanswered.append(_Failed(chunk, end, text, reason, self._consumer.reconnects_count))

    def settle(self, *, is_last: bool = False) -> None:
        """Count and report what has been answered since.

        Args:
            is_last: nothing will be answered any more; what is open counts.
        """
        unanswered, self._unanswered = self._unanswered, []
        for failed in unanswered:
            chunk = failed.chunk
            # What is answered is not held any more.
            if not (chunk.is_revoked or is_last):
                self._unanswered.append(failed)
            elif not self._is_refused(failed):
                self._tally.failed(chunk)
                if failed.text:
                    self._viewer.say(f"{failed.text}{self._what_follows(failed)}: {failed.reason}")
                self._viewer.ended(failed.end)
        if not self._unanswered:
            self._consumer.refused.clear()
            self._consumer.failures.clear()

    def _what_follows(self, failed: _Failed) -> str:
        """Which attempt it was, and what becomes of the chunk, as far as the daemon has said so."""
        found = self._consumer.failures.get((failed.chunk.submission_id, failed.chunk.index))
        if found is None or (found.delay_s is None and found.attempts < found.max_attempts):
            return ""  # it failed for good, which the text says
        if found.delay_s is None:
            follows = "dead"
        else:
            follows = f"again in {format_span(found.delay_s)}" if found.delay_s >= _AT_ONCE_S else "again at once"
        number = failed.chunk.attempt + 1
        if number == found.attempts:
            return f" (attempt {number} of {found.max_attempts}, {follows})"
        # Losses are attempts that do not count against the limit.
        return f" (attempt {number}, failure {found.attempts} of {found.max_attempts}, {follows})"

    def _is_refused(self, failed: _Failed) -> bool:
        # What was sent again may be refused because it was taken the first time.
        is_sent_once = failed.reconnects_count == self._consumer.reconnects_count
        return is_sent_once and (failed.chunk.submission_id, failed.chunk.index) in self._consumer.refused
