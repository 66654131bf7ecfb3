"""Writes the results of a round in input order, segment after segment as they come, in a thread of its own.

It must not decide when a round is over; its owner is called for each segment that is delivered.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from opsq.cli.output.result_writer import Given, Sink
from opsq.cli.run.feed import Stopped
from opsq.client.core.result_pages import ResultCursor
from opsq.content.manifest import decode
from opsq.errors import WorkFailed
from opsq.wire.messages import ResultRows

if TYPE_CHECKING:
    from opsq.client.sync.producer import Producer


class Delivery:
    """The results of a round on their way out.

    Args:
        producer: asked for results; when it is closed, `deliver` ends.
        on_delivered: called with each segment whose results are all written.
        is_skipping: leave out chunks that will never be completed.
    """

    def __init__(self, producer: Producer, on_delivered: Callable[[int], None], *, is_skipping: bool) -> None:
        self._producer = producer
        self._on_delivered = on_delivered
        self._is_skipping = is_skipping
        self._legs: deque[int] = deque()
        self._is_whole = False
        self._is_stopping = False
        self._change = threading.Condition()

    def add(self, submission_id: int) -> None:
        """A segment, whose results come behind those of the ones before."""
        with self._change:
            self._legs.append(submission_id)
            self._change.notify()

    def end(self) -> None:
        """No more segments come."""
        with self._change:
            self._is_whole = True
            self._change.notify()

    def stop(self) -> None:
        """Have `deliver` end, if it waits for a segment."""
        with self._change:
            self._is_stopping = True
            self._change.notify()

    def deliver(self, sink: Sink) -> None:
        """Write everything.

        Raises:
            WorkFailed: a chunk will never be completed; what came before it has been written.
            Stopped: `stop` was called.
            OSError: the results cannot be written.
            OpsqError: the daemon refused, or the producer was closed.
        """
        while (submission_id := self._next()) is not None:
            self._deliver(submission_id, sink)
            self._on_delivered(submission_id)

    def pass_over(self) -> None:
        """Wait until the segments that are left have ended, and write nothing."""
        while (submission_id := self._next()) is not None:
            self._producer.submission(submission_id).wait()
            self._on_delivered(submission_id)

    def _next(self) -> int | None:
        with self._change:
            self._change.wait_for(lambda: self._legs or self._is_whole or self._is_stopping)
            if self._is_stopping:
                raise Stopped
            return self._legs.popleft() if self._legs else None

    def _deliver(self, submission_id: int, sink: Sink) -> None:
        link, cursor = self._producer.link, ResultCursor(submission_id, is_following=True, skip_dead=self._is_skipping)
        folder = ""
        while not cursor.is_done:
            page = link.call(cursor.request(link.next_id()), ResultRows)
            if page.content:  # only the first page has it
                folder = decode(page.content).folder
            given = Given(cursor.take(page))
            sink.write(given, self._producer.contents.store, folder)
            if isinstance(given.failure, WorkFailed):
                raise cursor.lacking(self._producer.contents.known_input(cursor.content, cursor.index))
            if given.failure is not None:
                raise given.failure
