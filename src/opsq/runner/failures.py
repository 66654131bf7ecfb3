"""Failures that the daemon has not answered yet: each is counted and told once it is known that it counts.

This file sends nothing; whoever fails a chunk enters it here. A failure that the daemon refuses (its submission has ended,
by an earlier failure or otherwise) is none, so nobody is told of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opsq.client.chunk import Chunk
    from opsq.runner.driven import DrivenConsumer
    from opsq.runner.tally import Tally


class _Failed(NamedTuple):
    chunk: Chunk
    text: str
    reconnects_count: int


class Failures:
    """What failed, until it is answered.

    Args:
        consumer: holds the chunks, and hears what is refused.
        tally: where failures are counted.
        say: tells a person.
    """

    def __init__(self, consumer: DrivenConsumer, tally: Tally, say: Callable[[str], None]) -> None:
        self._consumer = consumer
        self._tally = tally
        self._say = say
        self._unanswered: list[_Failed] = []
        self._unreadable: set[int] = set()

    def enter(self, chunk: Chunk, text: str) -> None:
        """Enter a failure that is about to be sent; `text` is told if it is no refused one."""
        self._unanswered.append(_Failed(chunk, text, self._consumer.reconnects_count))

    def enter_final(self, chunk: Chunk, text: str) -> None:
        """Enter a failure that others of the submission are going to share: only the first is told."""
        self.enter(chunk, "" if chunk.submission_id in self._unreadable else text)
        self._unreadable.add(chunk.submission_id)

    def settle(self, *, is_last: bool = False) -> None:
        """Count and tell what has been answered since.

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
                    self._say(failed.text)
        if not self._unanswered:
            self._consumer.refused.clear()

    def _is_refused(self, failed: _Failed) -> bool:
        # What was sent again may be refused because it was taken the first time.
        is_sent_once = failed.reconnects_count == self._consumer.reconnects_count
        return is_sent_once and (failed.chunk.submission_id, failed.chunk.index) in self._consumer.refused
