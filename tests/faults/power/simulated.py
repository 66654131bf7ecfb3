"""The state machine of the engine on a disk that loses power, fills up and fails: the same rules and the same model.

What is on the disk after a loss is what a cut may leave of the writes that were not synced. Nothing here says what is
right; the model does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import apsw
import msgspec
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from faults.power.disk import Disk, Luck
from faults.power.recording import recorded
from opsq.queue import full_disk
from opsq.queue.faults import Fatal
from opsq.store import ballast, database
from opsq.wire import messages as m
from unit.model.driver import POLICY
from unit.model.rig import Rig
from unit.queue.test_state_machine import Machine

LUCK = st.builds(Luck, st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.sampled_from([0, 512, 4096]), st.integers(0, 1 << 16))
PLACES = st.integers(0, 1000)
"""Where among the writes of something the power goes, in thousandths."""
STEPS_S = st.sampled_from([0.0, 0.0, 3.0, 60.0])
LIFE_STEPS = 8
"""A life ends at once or not before: most lives are to come to something, and each costs as much as many steps."""
MARK = "simulation"
"""A row of `meta` that tells whether a COMMIT which was cut is there."""


def lengthen(descriptor: int, start: int, size_bytes: int) -> None:
    """What the ballast does to take room; without taking it, for nothing here fills a real disk."""
    os.ftruncate(descriptor, max(start + size_bytes, os.fstat(descriptor).st_size))


class PowerRig(Rig):
    """An engine whose files are on a recorded disk, synced as in a daemon."""

    IS_DURABLE = True
    digest: ClassVar[Any] = None
    """If it is wanted: of every reply and of every disk that a loss has left. Two runs of one seed have the same."""

    def __init__(self, *args: Any, tree: dict[str, bytes | None]) -> None:
        self._disk = contextlib.ExitStack()
        self._tree = tree
        super().__init__(*args)

    def _open(self, place: Path) -> None:
        if not place.exists():
            place.mkdir()
            for name, content in self._tree.items():
                (place / name).write_bytes(content or b"")
            self.recording = self._disk.enter_context(recorded(place))
            self._disk.enter_context(patch.object(ballast, "_allocate", lengthen))
            self._disk.enter_context(patch.object(database, "network_filesystem", lambda _: None))
            for name, content in self._tree.items():
                self.recording.written(self.recording.created(place / name), 0, content or b"")
            self.recording.sync_all()
            self.first_write = self.writes_count
        super()._open(place)

    def run_turns(self) -> None:
        """Go on, and note what is said, but for what the real disk is like."""
        said_before = len(self.told)
        super().run_turns()
        if self.digest is None:
            return
        for _, reply in self.told[said_before:]:
            if isinstance(reply, m.DaemonState):
                reply = msgspec.structs.replace(reply, disk_free_bytes=0, removable={})  # noqa: PLW2901
            elif isinstance(reply, m.ErrorReply):
                reply = msgspec.structs.replace(reply, details={})  # noqa: PLW2901
            self.digest.update(msgspec.msgpack.encode(reply))

    @property
    def writes_count(self) -> int:
        """How many changes and syncs there were in this life."""
        return len(self.recording.operations)

    def crash(self) -> None:
        """Kill the process: all that it has written is there."""
        found = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        self._reopen({path.name: path.read_bytes() for path in found if path.exists()})

    def lose_power(self, luck: Luck, at: int | None = None) -> None:
        """Cut the power, now or when only so many of the writes were done."""
        disk = Disk()
        for operation in self.recording.operations[:at]:
            disk.apply(operation)
        tree = disk.after_crash(luck)
        self._reopen({name: tree[name] for name in sorted(tree) if name.startswith(self.path.name)})

    def begin_anew(self) -> None:
        """Without a file."""
        self._reopen({})

    def _reopen(self, tree: dict[str, bytes | None]) -> None:
        self._tree = tree
        if self.digest is not None:
            for content in tree.values():
                self.digest.update(content or b"")
        self._close_killed()
        self._disk.close()
        shutil.rmtree(self.path.parent)
        self._lives += 1
        self._open(self.folder / str(self._lives))

    def close(self) -> None:
        """End the rig."""
        super().close()
        self._disk.close()

    # --- a commit whose outcome only the file tells ---

    def mark(self) -> None:
        """Have the open transaction write its number, too."""
        sql = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
        self.database.writer.execute(sql, (MARK, self._lives))

    def is_marked(self) -> bool:
        """Whether the transaction of the life before this one is there."""
        return self.rows("SELECT value FROM meta WHERE key = ? AND value = ?", MARK, self._lives - 1) != []


class Simulation(Machine):
    """Besides all that the machine does: losses of power, disks that fill up or fail, and all connections lost."""

    rig: PowerRig
    VIEWS_EVERY = 4
    left_in_order: ClassVar[dict[str, bytes | None]] = {}
    """The file of a daemon that was started and stopped: most runs begin with it, as to make one takes long."""
    tally: ClassVar[Counter[str]] = Counter()
    """How often each kind of end came, over all runs of this process."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._bytes_count = 0
        self.age = 0
        """Steps since the daemon was started."""
        self._patch.setattr(secrets, "token_bytes", self._token_bytes)
        self._patch.setattr(secrets, "token_hex", lambda size: self._token_bytes(size).hex())
        # The model knows no weights; so small, they never come to what a full disk refuses to cancel.
        self._patch.setattr(full_disk, "_REMOVAL_BYTES", 4096)
        super().__init__()

    def make_rig(self) -> Rig:
        """See `Driver`."""
        if not self.left_in_order:
            apsw.randomness(0)
            rig = Rig(self.folder, POLICY)
            rig.stop()
            self.left_in_order[rig.path.name] = rig.path.read_bytes()
            shutil.rmtree(rig.path.parent)
        self._bytes_count = 1000  # other tokens than that file has
        apsw.randomness(0)  # SQLite begins anew, too: the log has random numbers in it
        return PowerRig(self.folder, POLICY, tree=self.left_in_order)

    def _token_bytes(self, size: int | None = None) -> bytes:
        self._bytes_count += 1
        return self._bytes_count.to_bytes(size or 32, "big")

    def teardown(self) -> None:
        """Remove the disk."""
        self._patch.undo()
        super().teardown()

    @initialize(number=st.integers(0, 1 << 16))
    def is_not_the_simplest_run(self, number: int) -> None:
        """With which Hypothesis would begin: the same step, again and again."""
        assume(number)

    @initialize(is_new=st.booleans())
    def file_is_new(self, is_new: bool) -> None:
        """Then all that there is of it is in a long log; else it was left in order, and has none."""
        if is_new and not (self.model.submissions or self.model.coming or self.coming):
            self.rig.begin_anew()
            self._after_restart()

    @invariant()
    def count(self) -> None:
        """Count the step."""
        self.tally["steps"] += 1
        self.age += 1

    def _after_restart(self) -> None:
        super()._after_restart()
        self.age = -1  # this step is counted, too

    def may_end(self) -> bool:
        """See `Machine`."""
        return self.age == 0 or self.age >= LIFE_STEPS

    # --- the power goes ---

    @precondition(lambda self: self.may_end())
    @rule(luck=LUCK, step_s=STEPS_S, steps_back=st.booleans())
    def lose_power(self, luck: Luck, step_s: float, steps_back: bool) -> None:
        """At any moment at which nothing is being written; a batch may be applied, or committed and not settled."""
        if self.is_committed:
            self.model.succeed(self.now, had_rows=True)
        self._pass_time_away(step_s, steps_back)
        self.rig.lose_power(luck)
        self._start_again("at rest")

    @precondition(lambda self: self.may_end() and not self.is_committed)
    @rule(place=PLACES, luck=LUCK, step_s=STEPS_S, steps_back=st.booleans())
    def lose_power_in_a_commit(self, place: int, luck: Luck, step_s: float, steps_back: bool) -> None:
        """Whether the batch is there the file tells; nobody was answered."""
        if not self._is_flying():
            return
        before = self.rig.writes_count
        self.rig.mark()
        self.rig.database.commit()
        self._lose_power_since(before, place, luck, step_s, steps_back)
        self._start_again("in a commit")

    @precondition(lambda self: self.may_end() and self.model.flying is None)
    @rule(place=PLACES, luck=LUCK, restarts=st.booleans(), step_s=STEPS_S, steps_back=st.booleans())
    def lose_power_in_a_copy(self, place: int, luck: Luck, restarts: bool, step_s: float, steps_back: bool) -> None:
        """Of the log, between two commits."""
        before = self.rig.writes_count
        self.checkpoint(restarts)
        self._lose_power_since(before, place, luck, step_s, steps_back)
        self._start_again("in a copy of the log")

    @precondition(lambda self: self.may_end())
    @rule(place=PLACES, luck=LUCK)
    def lose_power_in_a_start(self, place: int, luck: Luck) -> None:
        """The process is killed, and while the next one opens the file the power goes."""
        if self.is_committed:
            self.model.succeed(self.now, had_rows=True)
        self.rig.crash()
        self._lose_power_since(self.rig.first_write, place, luck, 0.0, False)
        self._start_again("in a start")

    @precondition(lambda self: self.may_end() and not self.is_committed)
    @rule(luck=LUCK, is_killed=st.booleans())
    def sync_of_a_commit_fails(self, luck: Luck, is_killed: bool) -> None:
        """Nobody knows what is on the disk, so the daemon ends without a word."""
        if not self._is_flying():
            return
        self.rig.mark()
        with self._failing(apsw.IOError("the disk fails")), pytest.raises(apsw.IOError) as failure:
            self.rig.database.commit()
        with pytest.raises(Fatal):
            self.rig.end(failure.value)
        then = self.now
        if is_killed:
            self.rig.crash()
        else:
            self.rig.lose_power(luck)
        self._learn_outcome(then)
        self._start_again("after a failed sync")

    def _is_flying(self) -> bool:
        """Begin a batch, unless one was begun; False: there is nothing to write."""
        if self.model.flying is None:
            self.begin()
        return self.model.flying is not None

    def _lose_power_since(self, before: int, place: int, luck: Luck, step_s: float, steps_back: bool) -> None:
        then, writes_count = self.now, self.rig.writes_count - before
        self._pass_time_away(step_s, steps_back)
        self.rig.lose_power(luck, before + place * writes_count // 1000)
        self._learn_outcome(then)

    def _learn_outcome(self, then: Any) -> None:
        if self.model.flying is not None and not self.is_committed and self.rig.is_marked():
            self.model.become_visible()
            self.model.succeed(then, had_rows=True)

    def _pass_time_away(self, step_s: float, steps_back: bool) -> None:
        self.rig.pass_time(step_s, wall_s=-step_s if steps_back else step_s)

    def _start_again(self, how: str) -> None:
        self.tally[how] += 1
        self._after_restart()

    # --- the disk is full, or fails, and work goes on ---

    @precondition(lambda self: not self.is_committed)
    @rule(room=st.integers(0, 12))
    def disk_fills_up_in_a_commit(self, room: int) -> None:
        """After so many writes of the COMMIT; if it needs no more, it succeeds."""
        if not self._is_flying():
            return
        left = iter(range(room))

        def write(path: str) -> None:
            if next(left, None) is None:
                raise apsw.FullError("the disk is full")

        database = self.rig.database
        commit = database.commit

        def commit_in_what_is_left() -> None:
            self.rig.recording.on_write = write
            try:
                commit()
            finally:  # what follows a commit has room again
                self.rig.recording.on_write = lambda _: None
                del database.commit

        database.commit = commit_in_what_is_left
        try:
            self.sql_commit()
        except apsw.FullError as error:
            self.tally["refused for a full disk"] += 1
            self._refuse_all(error)

    @precondition(lambda self: self.model.flying is None)
    @rule()
    def copy_of_the_log_fails(self) -> None:
        """The next one does all of it."""
        with self._failing(apsw.IOError("the disk fails")), contextlib.suppress(apsw.IOError):
            self.rig.database.log.copy()

    @contextlib.contextmanager
    def _failing(self, error: Exception) -> Any:
        def fail(path: str) -> None:
            raise error

        self.rig.recording.on_sync = fail
        try:
            yield
        finally:
            self.rig.recording.on_sync = lambda _: None

    # --- clients ---

    @precondition(lambda self: len(self.peers) > 2)
    @rule()
    def all_connections_are_lost(self) -> None:
        while len(self.peers) > 1:
            self.disconnect(0)
        self.tally["all connections"] += 1
