"""The real engine on a real file, with two simulated clocks.

And every way in which its process can end or a commit can fail.

It decides nothing about what is right; it only makes things happen, repeatably.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec

from opsq.clock import MonoNs, Now, WallMs
from opsq.ids import Handle, SubmissionId, Token, mask_indexes
from opsq.queue.engine import Engine, Peer
from opsq.queue.policy import Policy
from opsq.store.database import Database
from opsq.store.integrity import broken_rules
from opsq.wire import messages as m

Wanted = TypeVar("Wanted", bound=msgspec.Struct)

START = Now(MonoNs(1_000_000_000_000), WallMs(1_800_000_000_000))
NO_RESULTS = msgspec.Raw(b"\xc0")


class SteadyRandom(random.Random):
    """Repeatable, and without jitter, so that a model can say when a back-off ends."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Ticket(NamedTuple):
    """Chunks of one block as one grant gave them: what a consumer needs to speak of them later."""

    submission_id: int
    block: int
    granted: int
    reservation_id: int
    attempt: int
    mac: int

    def held(self, indexes: Iterable[int] | None = None, **changes: int) -> m.HeldChunks:
        """The part of a request that names these chunks (default: all), with some fields forged."""
        mask = self.granted if indexes is None else sum(1 << index % 64 for index in indexes)
        held = m.HeldChunks(
            self.submission_id, self.block, mask, self.reservation_id, self.attempt, self.granted, self.mac
        )
        return msgspec.structs.replace(held, **changes)

    @property
    def indexes(self) -> list[int]:
        return list(mask_indexes(self.block, self.granted))

    def handle(self, index: int) -> str:
        token = Token(self.reservation_id, self.attempt, self.granted, self.mac)
        return str(Handle(SubmissionId(self.submission_id), index, token))


def tickets_of(reply: m.Reserved) -> list[Ticket]:
    """What a reply to a reserve gave."""
    return [Ticket(g.submission_id, g.block, g.mask, reply.reservation_id, g.attempt, g.mac) for g in reply.grants]


class Rig:
    """Drives one engine after another on the files of one folder.

    Args:
        folder: empty; each crash makes a folder of its own in it.
        policy: of every engine.
    """

    IS_DURABLE = False
    turns_limit = 1_000_000
    """More turns than anything takes that a test has going."""

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        self.folder = folder
        self.policy = policy or Policy()
        self.boot = ""
        """The boot of the machine; monotonic instants of the processes of one can be compared."""
        self.now = START
        self.ids = itertools.count(1)
        self.keys = itertools.count(1)
        self.told: list[tuple[Peer, m.Reply]] = []
        self._lives = self._starts = 0
        self.uses_count = 0
        """How often anybody has come near the engine or the file."""
        self._rows_read: tuple[object, int] = (None, 0)
        self._open(folder / "0")

    def _open(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.path = place / "opsq.sqlite"
        self._database = Database.open(self.path, is_durable=self.IS_DURABLE)
        self._starts += 1
        rng = SteadyRandom(self._starts)  # another one each time, as the system gives: keys are drawn from it
        self._engine = Engine(self._database, self.policy, self.now, rng=rng, boot=self.boot)
        self.told.clear()
        self.answered: list[int] = []
        self._given: list[tuple[int, m.Reserved]] = []
        descriptions = self.engine._reserve_calls.descriptions
        answer = descriptions.reserved

        def note(peer: Peer, request_id: int, *rest: Any) -> m.Reserved:
            reply = answer(peer, request_id, *rest)
            self.answered.append(request_id)
            self._given.append((request_id, reply))
            return reply

        # Only so is the order known in which leases and others are granted.
        descriptions.reserved = note  # type: ignore[method-assign]
        self.followed: list[tuple[m.NewSubmission, m.Created]] = []
        completions = self.engine._rooms.completions
        follow = completions.follow

        def note_follow_ups(peer: Peer, completion: m.Completion, now: Now) -> list[m.Created]:
            created = follow(peer, completion, now)
            self.followed += zip(completion.then, created, strict=True)
            return created

        # Of a request that has to wait for a commit, the answer comes long after the first of them were made.
        completions.follow = note_follow_ups

    @property
    def engine(self) -> Engine:
        """The engine that runs."""
        self.uses_count += 1
        return self._engine

    @property
    def idle_engine(self) -> Engine:
        """The same, for who only looks whether there is anything to do."""
        return self._engine

    @property
    def database(self) -> Database:
        """The file that it has open."""
        self.uses_count += 1
        return self._database

    # --- time ---

    def pass_time(self, seconds: float, *, wall_s: float | None = None) -> None:
        """Let both clocks run (the wall clock `wall_s`, if it steps meanwhile), without a tick."""
        wall_s = seconds if wall_s is None else wall_s
        self.now = Now(MonoNs(self.now.mono + round(seconds * 1e9)), WallMs(self.now.wall + round(wall_s * 1000)))

    def tick(self) -> None:
        """Have the engine do what is due."""
        self.engine.tick(self.now)
        self.run_turns()

    def advance(self, seconds: float) -> None:
        """Let time pass as in a daemon that is not late: a tick each half second; then commit what came of it."""
        steps = max(1, round(seconds * 2))
        for _ in range(steps):
            self.pass_time(seconds / steps)
            self.tick()
            self.settle()

    # --- requests ---

    def connect(self, name: str = "consumer") -> Peer:
        """A new connection."""
        return self.engine.connect(name, self.now)

    def disconnect(self, peer: Peer) -> None:
        """The connection is gone."""
        self.engine.disconnect(peer, self.now)
        self.run_turns()

    def send(self, peer: Peer, request: m.Request) -> None:
        """Have a request handled; nothing is committed."""
        self.engine.handle(peer, request, self.now)
        self.run_turns()

    def ask(self, peer: Peer, request: m.Request) -> list[m.Reply]:
        """Have a request handled and committed; the replies to it.

        Raises:
            OpsqError: the request was refused as a whole.
        """
        self.send(peer, request)
        self.settle()
        return self.replies(peer, getattr(request, "id", 0))

    def run_turns(self) -> None:
        """Go on with bounded runs, and gather what the engine says."""
        turns_left = self.turns_limit
        while self.engine.has_turn():
            assert turns_left, "a bounded run never ends"
            turns_left -= 1
            self.engine.turn(self.now)
        self.told += self.engine.outbox
        self.engine.outbox.clear()

    def replies(self, peer: Peer, request_id: int) -> list[m.Reply]:
        """Take the replies to a request; an error reply is raised."""
        mine = [reply for other, reply in self.told if other is peer and getattr(reply, "id", None) == request_id]
        self.told = [
            (other, reply)
            for other, reply in self.told
            if not (other is peer and getattr(reply, "id", None) == request_id)
        ]
        for reply in mine:
            if isinstance(reply, m.ErrorReply):
                raise reply.error()
        return mine

    def take_given(self) -> list[tuple[int, m.Reserved]]:
        """What reserves were given, with their request ids, in that order; leases before their commit."""
        given, self._given = self._given, []
        return given

    def pushes(self, peer: Peer, kind: type[Wanted]) -> list[Wanted]:
        """Take the pushes of a kind to a connection."""
        found = [reply for other, reply in self.told if other is peer and isinstance(reply, kind)]
        self.told = [(other, reply) for other, reply in self.told if not (other is peer and isinstance(reply, kind))]
        return found

    def only(self, peer: Peer, request: m.Request, kind: type[Wanted]) -> Wanted:
        """The one reply to a request, which must be of this kind."""
        replies = self.ask(peer, request)
        assert len(replies) == 1, replies
        assert isinstance(replies[0], kind), replies
        return replies[0]

    # --- requests in short ---

    def request_key(self) -> bytes:
        """A key that no submission has had."""
        return next(self.keys).to_bytes(16, "big")

    def submit(self, chunks_count: int, peer: Peer | None = None, **options: object) -> int:
        """Submit and commit; the id."""
        new = m.NewSubmission(self.request_key(), chunks_count)
        new = msgspec.structs.replace(new, **options)
        reply = self.only(peer or self.connect("producer"), m.Submit(next(self.ids), [new]), m.Submitted)
        return reply.created[0].submission_id

    def reserve(
        self, peer: Peer, count: int = 1, strategy: str = "OldestFirst", *, lease_s: float | None = None
    ) -> list[Ticket]:
        """Reserve what is free now."""
        return tickets_of(self.only(peer, m.Reserve(next(self.ids), count, strategy, 0.0, lease_s), m.Reserved))

    def reserve_now(self, peer: Peer, count: int = 1, strategy: str = "OldestFirst") -> list[Ticket]:
        """Reserve what is free now, committing nothing."""
        request = m.Reserve(next(self.ids), count, strategy)
        self.send(peer, request)
        [reply] = self.replies(peer, request.id)
        assert isinstance(reply, m.Reserved)
        return tickets_of(reply)

    def park(self, peer: Peer, count: int = 1, strategy: str = "OldestFirst", **options: object) -> int:
        """Send a reserve that may wait; its request id."""
        request = msgspec.structs.replace(m.Reserve(next(self.ids), count, strategy, None), **options)
        self.send(peer, request)
        return request.id

    def follow(self, peer: Peer, held: m.HeldChunks, *then: m.NewSubmission) -> m.Completed:
        """Complete a chunk with follow-ups, and commit; the answer."""
        request = m.Complete(next(self.ids), [m.Completion(held, then=list(then))])
        return self.only(peer, request, m.Completed)

    def complete(self, peer: Peer, *held: m.HeldChunks, results: msgspec.Raw = NO_RESULTS) -> list[m.Refusal]:
        """Complete and commit; what was refused."""
        return self.only(
            peer, m.Complete(next(self.ids), [m.Completion(one, results) for one in held]), m.Completed
        ).refusals

    def fail(self, peer: Peer, *held: m.HeldChunks, **options: object) -> list[m.Refusal]:
        """Fail and commit; what was refused."""
        failures = [msgspec.structs.replace(m.Failure(one), **options) for one in held]
        return self.only(peer, m.Fail(next(self.ids), failures), m.Completed).refusals

    def release(self, peer: Peer, *held: m.HeldChunks) -> list[m.Refusal]:
        """Release and commit; what was refused."""
        return self.only(peer, m.Release(next(self.ids), list(held)), m.Completed).refusals

    def reclaim(self, peer: Peer, *held: m.HeldChunks, lease_s: float | None = None) -> list[m.Refusal]:
        """Take up again and commit; what was refused."""
        return self.only(peer, m.Reclaim(next(self.ids), list(held), lease_s), m.Completed).refusals

    def start(self, peer: Peer, ticket: Ticket, indexes: Iterable[int] | None = None) -> None:
        """Say that work on chunks has begun."""
        self.send(peer, m.Started([m.ChunkMask(ticket.submission_id, ticket.block, ticket.held(indexes).mask)]))

    def show(self, submission_id: int) -> m.SubmissionState:
        """The state of a submission."""
        return self.only(self.connect(), m.Show(next(self.ids), submission_id), m.Shown).submission

    def status(self, by: str | None = None) -> m.DaemonState:
        """The state of the engine."""
        return self.only(self.connect(), m.Status(next(self.ids), by), m.DaemonState)

    # --- commits ---

    def begin(self) -> bool:
        """Begin the next batch: its rows are applied and not committed.

        False: it has no rows, and has ended already.
        """
        if self.engine.begin_batch(self.now):
            return True
        self.end(None)
        return False

    def end(self, error: Exception | None) -> None:
        """Tell the engine how the COMMIT ended."""
        self.engine.end_batch(error, self.now)
        self.run_turns()

    def commit(self) -> None:
        """Commit one batch."""
        if self.begin():
            self.database.commit()
            self.end(None)

    def settle(self) -> None:
        """Commit all there is."""
        self.run_turns()
        while self.engine.has_batch(self.now):
            self.commit()

    def fail_commit(self) -> None:
        """Apply one batch, and have its COMMIT fail for want of room."""
        if self.begin():
            self.end(apsw.FullError("database or disk is full"))

    def fold(self) -> None:
        """Fold everything."""
        self.pass_time(11)
        self.tick()
        self.settle()

    # --- ends of the process ---

    def crash(self) -> None:
        """Kill the process: what it had written is all there is, in a new place, and a new engine opens that."""
        self._lives += 1
        place = self.folder / str(self._lives)
        place.mkdir()
        for name in (self.path.name, f"{self.path.name}-wal"):
            if (self.path.parent / name).exists():
                shutil.copy(self.path.parent / name, place / name)
        self._close_killed()
        shutil.rmtree(self.path.parent)
        self._open(place)

    def _close_killed(self) -> None:
        """Nothing is copied out of the log: what closes is in a folder that is removed."""
        if self.database.writer.in_transaction:
            self.database.writer.execute("ROLLBACK")
        for connection in (self.database.reader, self.database.writer, self.database._checkpointer):
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
        self.database.close()

    def stop(self) -> None:
        """End as `opsq stop` does: nothing more is handed out, what is held becomes leases, everything is folded.

        The file is closed.
        """
        self.engine.stop_handing_out()
        self.engine.save_reservations(self.now)
        self.settle()
        self.engine.fold_all()
        self.settle()
        self.database.close()

    def restart(self, *, away_s: float = 0.0, wall_s: float | None = None) -> None:
        """Stop, let time pass, start again."""
        self.stop()
        self.pass_time(away_s, wall_s=wall_s)
        self._lives += 1
        self._open(self.path.parent)

    def close(self) -> None:
        """End the rig."""
        self.database.close()

    # --- looking into the file ---

    def has_new_rows(self) -> bool:
        """Whether the file may say anything else than when this was asked last: a commit has come, or a restart."""
        reader = self.database.reader
        before, self._rows_read = self._rows_read, (reader, int(reader.execute("PRAGMA data_version").get))
        return self._rows_read != before

    def broken_rules(self) -> list[str]:
        """What does not hold between the rows of the file, as any other program would see them."""
        return broken_rules(self.database.reader)

    def rows(self, sql: str, *bindings: int | str) -> list[tuple[object, ...]]:
        """Rows of the file."""
        return list(self.database.reader.execute(sql, bindings))

    def dump(self) -> Iterator[str]:
        """The state of everything as people see it, one line each."""
        submissions = self.only(self.connect(), m.List(next(self.ids), limit=10_000), m.Listed).submissions
        yield from (str(state) for state in submissions)
        yield from (
            str(chunk) for chunk in self.only(self.connect(), m.Dead(next(self.ids), limit=10_000), m.DeadChunks).chunks
        )
