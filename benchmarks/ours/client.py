"""opsq's own connection and what loads need beside it: wait for a daemon to start, for a kind of reply, submit many.

It decides nothing: the loads say what is sent when.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

from opsq.client.core.transport import expect
from opsq.client.shards.dialling import dial
from opsq.client.sync.connection import Connection
from opsq.errors import Unreachable
from opsq.wire.messages import ErrorReply, NewSubmission, Reply, Submit, Submitted
from ours.daemon import Daemon

_DEADLINE_S = 60.0
_LOOK_EVERY_S = 0.002
_SUBMIT_BATCH = 1000

R = TypeVar("R", bound=Reply)


class Client(Connection):
    """A connection that raises on any error reply."""

    def __enter__(self) -> Self:
        return self

    def replies(self) -> list[Reply]:
        """What arrives next, at least one reply."""
        while True:
            arrived = self.receive(None)
            for reply in arrived:
                if isinstance(reply, ErrorReply):
                    expect(reply, Submitted)
            if arrived:
                return arrived

    def await_one(self, kind: type[R]) -> R:
        """Wait for the next reply of this kind; others that come before or with it are dropped."""
        while True:
            for reply in self.replies():
                if isinstance(reply, kind):
                    return reply

    def submit(
        self, submissions_count: int, chunks_count: int, metadata: Sequence[dict[str, int | str]] | None = None
    ) -> list[int]:
        """Submit submissions without content, 1000 a frame, and return their ids; `metadata` has an entry for each."""
        ids: list[int] = []
        for batch in _batches(submissions_count, _SUBMIT_BATCH):
            of_batch = metadata[len(ids) : len(ids) + batch] if metadata else [{}] * batch
            new = [NewSubmission(os.urandom(16), chunks_count, metadata=pairs) for pairs in of_batch]
            ids += [made.submission_id for made in self.call(Submit(self.next_id(), new), Submitted).created]
        return ids


def connect(daemon: Daemon) -> Client:
    """Connect to a daemon that may still be starting: looks every 2 ms, for up to a minute.

    Raises:
        RuntimeError: the daemon has ended.
        Unreachable: it does not answer within the minute.
    """
    address = str(daemon.socket_path)
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        daemon.check_runs()
        try:
            return Client(dial(address), address, name="benchmark")
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_EVERY_S)


def _batches(total: int, most: int) -> Iterator[int]:
    while total > 0:
        yield min(total, most)
        total -= most
