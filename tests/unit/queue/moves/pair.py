"""Two engines on two files, and a mover between them, that may be killed at any of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from opsq.client.core.mover import Mover
from opsq.errors import Unreachable
from opsq.ids import SubmissionIds
from opsq.queue.policy import Policy
from opsq.store import shard
from opsq.store.database import Database
from opsq.wire import messages as m
from unit.model.rig import Rig

R = TypeVar("R")
WAIT_S = 5.0
SHARD = 7


class Killed(Unreachable):
    """The mover, or one of the two daemons, is gone."""


class RigCaller:
    """A connection to the engine of a rig."""

    def __init__(self, pair: Pair, rig: Rig) -> None:
        self._pair = pair
        self._rig = rig
        self.peer = rig.connect("mover")
        self.peer.uid = 0

    def next_id(self) -> int:
        return next(self._rig.ids)

    def call(self, request: Any, kind: type[R]) -> R:
        rig = self._rig
        self._pair.before_call(request)
        rig.pass_time(0.05)
        rig.tick()
        rig.settle()
        self._pair.before_send(request)
        rig.send(self.peer, request)
        for _ in range(2000):
            rig.settle()
            replies = rig.replies(self.peer, request.id)
            if replies:
                [reply] = replies
                assert isinstance(reply, kind)
                if request.id in self.peer.awaiting_copy:
                    self._pair.awaited.append(type(request).__name__)
                self._pair.after_call(request)
                return reply
            rig.pass_time(0.05)
            rig.tick()
        raise AssertionError(f"{request} was not answered")

    def call_all(self, requests: Sequence[Any], kind: type[R]) -> list[R]:
        return [self.call(request, kind) for request in requests]


class StepMover(Mover):
    """A mover that takes its steps one by one."""

    @property
    def identity(self) -> bytes:
        """Of the file of the source."""
        return self._identity

    def hold(self, limit: int = 100, wait_s: float = WAIT_S) -> m.HeldForMove:
        request = m.HoldForMove(self._source.next_id(), 0, limit, wait_s, self._with_final)
        return self._source.call(request, m.HeldForMove)

    def export(self, held: m.HeldForMove, after: tuple[int, int, int] | None = None) -> m.ExportedSlice:
        request = m.ExportSlice(self._source.next_id(), held.submission_ids[0], after)
        return self._source.call(request, m.ExportedSlice)

    def stage_request(self, held: m.HeldForMove, part: m.ExportedSlice, number: int = 0) -> m.StageSlice:
        target, [first, *_] = self._target, held.submission_ids
        is_last = part.after is None
        return m.StageSlice(
            target.next_id(), self._identity, held.move, first, number, part.content, is_last, self._driver
        )

    def stage(self, held: m.HeldForMove, part: m.ExportedSlice, number: int = 0) -> None:
        self._target.call(self.stage_request(held, part, number), m.Changed)

    def copy(self, held: m.HeldForMove) -> None:
        self._copy(held, held.submission_ids)

    def commit(self, held: m.HeldForMove) -> None:
        source = self._source
        source.call(m.CommitMove(source.next_id(), held.move, self._target_identity, SHARD, "there:7400"), m.Changed)

    def activate(self, held: m.HeldForMove) -> int:
        return self._activate(held.submission_ids)

    def drop(self, held: m.HeldForMove) -> None:
        self._drop(held)

    def give_up(self, held: m.HeldForMove) -> None:
        self._give_up(held.submission_ids)

    def reconnect_target(self) -> None:
        """Go on after a crash of the target, as one that has not noticed anything would."""
        caller = self._target
        assert isinstance(caller, RigCaller)
        self._target = RigCaller(caller._pair, caller._rig)


class Pair:
    """A source and a target."""

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        for name in ("source", "target"):
            (folder / name).mkdir()
        (folder / "target" / "0").mkdir()
        database = Database.open(folder / "target" / "0" / "opsq.sqlite", is_durable=False)
        shard.claim(database, SHARD)
        database.close()
        self.source, self.target = Rig(folder / "source", policy), Rig(folder / "target", policy)
        self.calls: list[str] = []
        self.awaited: list[str] = []
        """Those of them whose answers a replica holds back until it has what they say."""
        self.kill_at: tuple[int, str] | None = None
        """At which call who is killed: the mover, the source or the target; before it, or after (" late")."""
        self.beside: tuple[type, Callable[[], object]] | None = None
        """Before which kind of request what is done, once."""

    def mover(self, *, with_final: bool = False, wait_s: float = WAIT_S) -> StepMover:
        """A new mover, with connections of its own."""
        source, target = RigCaller(self, self.source), RigCaller(self, self.target)
        return StepMover(
            source, target, SHARD, "there:7400", source_address="here:7400", with_final=with_final, wait_s=wait_s
        )

    def holding(self) -> tuple[StepMover, m.HeldForMove]:
        """A mover that has submissions of the source held."""
        mover = self.mover()
        list(mover.recover())
        return mover, mover.hold()

    def staged(self) -> tuple[StepMover, m.HeldForMove]:
        """A mover, and what it has copied and not yet moved."""
        mover, held = self.holding()
        mover.copy(held)
        return mover, held

    def move(self, *, with_final: bool = False, wait_s: float = WAIT_S) -> StepMover:
        """Move all there is."""
        mover = self.mover(with_final=with_final, wait_s=wait_s)
        for _ in mover.run():
            pass
        return mover

    def before_call(self, request: object) -> None:
        self.calls.append(type(request).__name__)
        self._kill("")

    def before_send(self, request: object) -> None:
        """Do what was to be done right before the next request of this kind, in one batch with it."""
        if self.beside is not None and isinstance(request, self.beside[0]):
            (_, act), self.beside = self.beside, None
            act()

    def after_call(self, request: object) -> None:
        self._kill(" late")

    def _kill(self, when: str) -> None:
        if self.kill_at is None or self.kill_at[0] != len(self.calls):
            return
        who, _, late = self.kill_at[1].partition(" ")
        if f" {late}".rstrip() != when:
            return
        if who == "source":
            self.source.crash()
        elif who == "target":
            self.target.crash()
        raise Killed

    def disconnect_mover(self, mover: Mover) -> None:
        """The connections of a mover end; those to what has crashed have ended with that."""
        for caller in (mover._source, mover._target):
            assert isinstance(caller, RigCaller)
            caller._rig.disconnect(caller.peer)
            caller._rig.settle()

    def settle(self) -> None:
        """Have both do all that is left to do."""
        for rig in (self.source, self.target):
            for _ in range(40):
                rig.advance(1)
            rig.fold()

    def check(self) -> None:
        """Both files are sound, and no submission is in both of them."""
        for rig in (self.source, self.target):
            assert rig.broken_rules() == []
        there = [
            {row[0] for row in rig.rows("SELECT id FROM submission WHERE state != 'removed'")}
            for rig in (self.source, self.target)
        ]
        assert not there[0] & there[1]

    def close(self) -> None:
        self.source.close()
        self.target.close()


def new_id(rig: Rig, number: int) -> int:
    """An id of the shard."""
    return SubmissionIds(shard=number).next(rig.now.wall)


def states(rig: Rig) -> dict[int, m.SubmissionState]:
    """All submissions that are seen."""
    found = rig.only(rig.connect(), m.List(next(rig.ids), limit=10_000), m.Listed).submissions
    return {one.submission_id: one for one in found}
