"""The engine alone in this process, without socket or daemon, driven and set up as those do it.

It must not look inside the engine: requests go in, replies come out.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from opsq.clock import Now, WallMs, after
from opsq.clock import now as read_clocks
from opsq.daemon.process_setup import GC_THRESHOLDS
from opsq.ids import SubmissionId
from opsq.queue.engine import Engine, Peer
from opsq.queue.policy import Policy
from opsq.store.database import Database
from opsq.wire.messages import NewSubmission, Reply, Request, Reserve, Submit, Submitted

_SUBMIT_BATCH = 1000


class Timed(NamedTuple):
    """A request until its reply: wall time, processor time of this thread, and the longest turn of the event loop."""

    wall_s: float
    cpu_s: float
    longest_turn_s: float
    turns_count: int
    replies: list[Reply]


class EngineAlone:
    """An engine on a database file, with one connection or more.

    Args:
        is_durable: False spares the fsync of commits, where they are not what is measured.
    """

    def __init__(self, path: Path, *, is_durable: bool = True) -> None:
        self._database = Database.open(path, is_durable=is_durable)
        self._later_s = 0.0
        self.renew()

    def renew(self) -> None:
        """Begin with a new engine on the same file, as after a restart: all that was reserved by the old one is free.

        As in a daemon that has started: the log is copied, and what lives as long as the engine is hidden from the
            collector.
        """
        gc.unfreeze()
        self._database.log.restart()
        self._engine = Engine(self._database, Policy(), self._now(), rng=random.Random(1))
        self._peer = self.connect("benchmark")
        self.settle()

    def settle(self) -> None:
        """After loading: checkpoint, freeze existing objects, and set the collector's thresholds as in a daemon."""
        self._database.log.restart()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    def connect(self, name: str) -> Peer:
        """One more connection."""
        return self._engine.connect(name, self._now())

    def ask(self, request: Request, peer: Peer | None = None) -> list[Reply]:
        """Have a request handled, commit what it changed, and return the replies."""
        self._engine.handle(peer or self._peer, request, self._now())
        self._finish()
        return self._taken()

    def timed(self, request: Request, peer: Peer | None = None) -> Timed:
        """Have a request handled that changes nothing in the file, in as many turns as it takes, and time it."""
        engine, control, at = self._engine, peer or self._peer, self._now()
        turns_count, longest_s = 1, 0.0
        cpu_before, started = time.thread_time(), time.perf_counter()
        engine.handle(control, request, at)
        while engine.has_turn():
            turn_at = time.perf_counter()
            engine.turn(at)
            longest_s = max(longest_s, time.perf_counter() - turn_at)
            turns_count += 1
        wall_s = time.perf_counter() - started
        cpu_s = time.thread_time() - cpu_before
        return Timed(wall_s, cpu_s, longest_s if turns_count > 1 else wall_s, turns_count, self._taken())

    def timed_reserve(self, request: Reserve) -> tuple[float, list[Reply]]:
        """The seconds from a reserve to its reply, and the reply.

        A reserve writes nothing, so there is nothing to commit.
        """
        timed = self.timed(request)
        return timed.wall_s, timed.replies

    def submit(
        self,
        submissions_count: int,
        chunks_count: int,
        metadata: Sequence[dict[str, int | str]] | None = None,
        **fields: Any,
    ) -> list[SubmissionId]:
        """Submit submissions without content.

        `metadata` has an entry for each, other fields of `NewSubmission` are the same for all.
        """
        ids: list[SubmissionId] = []
        while len(ids) < submissions_count:
            batch = range(len(ids), min(len(ids) + _SUBMIT_BATCH, submissions_count))
            of_batch = [metadata[number] if metadata else {} for number in batch]
            new = [NewSubmission(os.urandom(16), chunks_count, metadata=pairs, **fields) for pairs in of_batch]
            (reply,) = self.ask(Submit(1, new))
            if not isinstance(reply, Submitted):
                raise RuntimeError(f"the engine answered a submit with {reply}")
            ids += [SubmissionId(made.submission_id) for made in reply.created]
        return ids

    def pass_time(self, seconds: float) -> None:
        """Go on as if `seconds` had passed, and do all that became due."""
        self._later_s += seconds
        while True:
            self._engine.tick(self._now())
            if not self._engine.has_batch(self._now()):
                break
            self._finish()

    def tick(self) -> list[Reply]:
        """Look at the clocks, as a daemon does at least each second."""
        self._engine.tick(self._now())
        self._finish()
        return self._taken()

    @contextlib.contextmanager
    def traced(self) -> Iterator[list[str]]:
        """The statements that are run meanwhile, on both connections."""
        statements: list[str] = []

        def note(_: apsw.Cursor, sql: str, __: object) -> bool:
            statements.append(sql)
            return True

        connections = (self._database.reader, self._database.writer)
        for connection in connections:
            connection.exec_trace = note
        try:
            yield statements
        finally:
            for connection in connections:
                connection.exec_trace = None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _now(self) -> Now:
        here = read_clocks()
        if not self._later_s:
            return here
        return Now(after(here.mono, self._later_s), WallMs(here.wall + int(self._later_s * 1000)))

    def _finish(self) -> None:
        """Commit, and go on with what stopped half-way, until nothing is left."""
        engine = self._engine
        while True:
            if engine.has_batch(self._now()):
                if engine.begin_batch(self._now()):
                    self._database.commit()
                engine.end_batch(None, self._now())
                if self._database.log.bytes >= self._database.log.step_bytes:
                    self._database.log.restart()
            elif engine.has_turn():
                engine.turn(self._now())
            else:
                return

    def _taken(self) -> list[Reply]:
        replies = [reply for _, reply in self._engine.outbox]
        self._engine.outbox.clear()
        return replies
