"""The engine alone in this process, without socket or daemon, driven as those drive it.

It must not look inside the engine: requests go in, replies come out.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from opsq.clock import now
from opsq.queue.engine import Engine
from opsq.queue.policy import Policy
from opsq.store.database import PASSIVE_BYTES, Database
from opsq.wire.messages import NewSubmission, Reply, Request, Reserve, Submit, Submitted

_SUBMIT_BATCH = 1000


class EngineAlone:
    """An engine on a database file, with one connection."""

    def __init__(self, path: Path) -> None:
        self._database = Database.open(path)
        self.renew()

    def renew(self) -> None:
        """Begin with a new engine on the same file, as after a restart: all that was reserved by the old one is free."""
        self._engine = Engine(self._database, Policy(), now(), rng=random.Random(1))
        self._peer = self._engine.connect("benchmark", now())

    def ask(self, request: Request) -> list[Reply]:
        """Have a request handled, commit what it changed, and return the replies."""
        self._engine.handle(self._peer, request, now())
        self._commit()
        return self._taken()

    def timed_reserve(self, request: Reserve) -> tuple[float, list[Reply]]:
        """The seconds from a reserve to its reply, and the reply. A reserve writes nothing, so there is nothing to commit."""
        at = now()
        started = time.perf_counter()
        self._engine.handle(self._peer, request, at)
        taken = time.perf_counter() - started
        return taken, self._taken()

    def submit(self, submissions_count: int, chunks_count: int) -> None:
        """Submit submissions without content, durable when it returns."""
        left = submissions_count
        while left:
            batch = min(left, _SUBMIT_BATCH)
            new = [NewSubmission(os.urandom(16), chunks_count) for _ in range(batch)]
            (reply,) = self.ask(Submit(1, new))
            if not isinstance(reply, Submitted):
                raise RuntimeError(f"the engine answered a submit with {reply}")
            left -= batch

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _commit(self) -> None:
        while self._engine.has_batch(now()):
            if self._engine.begin_batch(now()):
                self._database.commit()
            self._engine.end_batch(None, now())
            if self._database.wal_bytes >= PASSIVE_BYTES:
                self._database.checkpoint_restart()

    def _taken(self) -> list[Reply]:
        replies = [reply for _, reply in self._engine.outbox]
        self._engine.outbox.clear()
        return replies
