"""The real engine and store in the caller's process, behind the same messages as a daemon.

This file owns what drives the engine here: one lock, commits inline, a thread for the timers. It must not know more of
the engine than the daemon does. A bounded run that stopped half-way is gone on with by those who wait for replies, one
turn each time they have the lock; others come between.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import msgspec

from opsq.client.core.own_process import own_pid
from opsq.client.core.transport import here
from opsq.clock import Now, boot
from opsq.clock import now as read_clocks
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES
from opsq.content.store_kinds import open_store
from opsq.errors import Conflict, OpsqError, Unreachable, UsageError
from opsq.queue.engine import Engine, Fatal, Peer
from opsq.queue.faults import describe_bug
from opsq.queue.policy import Policy
from opsq.replica.owner_record import check_no_record
from opsq.store.database import Database, Deposed
from opsq.store.integrity import problems
from opsq.store.state_folder import make_state_dir
from opsq.users import user_name
from opsq.version import __version__
from opsq.wire.frames import FRAME_LIMIT_BYTES, ImpossibleRequest, received
from opsq.wire.messages import (
    VERSION,
    Backup,
    Changed,
    Check,
    Checked,
    DaemonState,
    ErrorReply,
    Reply,
    Request,
    Stop,
    Vacuum,
    Welcome,
)

TICK_LIMIT_S = 0.25
"""Timers are checked this often while no caller waits."""


def report_bug(error: Exception) -> OpsqError:
    """Log an internal error with its traceback; the answer to the request that has met it."""
    logging.getLogger("opsq").error("internal error (bug):", exc_info=error)
    return describe_bug(error)


class EmbeddedEngine:
    """Drives one engine for the connections of this process. In one that was forked from it there is no engine.

    Args:
        path: the state folder.
        policy: of the engine; None: the defaults of a daemon.
        is_durable: whether commits are synced.
        clocks: in place of those of the machine.
        rng: in place of a random one.
    """

    def __init__(
        self,
        path: Path,
        policy: Policy | None,
        *,
        is_durable: bool,
        clocks: Callable[[], Now] = read_clocks,
        rng: random.Random | None = None,
    ) -> None:
        policy = policy or Policy()
        path = path.absolute()
        make_state_dir(str(path))
        check_no_record(str(path))
        self._pid = own_pid()
        self._path = path
        self._is_durable = is_durable
        self._read_clocks = clocks
        self._heartbeat_s = policy.heartbeat_s
        self._database = Database.open(path / "opsq.sqlite", is_durable=is_durable)
        try:
            self._store = open_store(path / "content")
            self._marker = self._store.mark()
            folders = [path / "content"]
            self._engine = Engine(self._database, policy, clocks(), rng=rng, folders=folders, boot=boot())
        except BaseException:
            self._database.close()
            raise
        self._engine.report_bugs(report_bug)
        self.changed = threading.Condition()
        self._entrance = threading.Lock()
        """Held by the next thread, so that one which gives way does not overtake those that wait."""
        self._wires: dict[str, EmbeddedWire] = {}
        self._failure = ""
        self._is_deposed = False
        threading.Thread(target=self._tick, name="opsq-engine", daemon=True).start()

    def open_wire(self) -> EmbeddedWire:
        """A new connection.

        Raises:
            Conflict: the queue was closed, or cannot be used any more.
            UsageError: it was opened in another process.
        """
        with self.entered():
            self._check_usable()
            now = self._read_clocks()
            host, pid = here()
            peer = self._engine.connect(f"embedded-{pid}", now, os.geteuid(), host, pid)
            peer.user, peer.place = user_name(os.geteuid()), host
            welcome = Welcome(
                0,
                VERSION,
                __version__,
                peer.consumer,
                self._heartbeat_s,
                FRAME_LIMIT_BYTES,
                DEFAULT_CHUNK_LIMIT_BYTES,
                is_operator=True,
                is_durable=self._is_durable,
                store=self._store.url,
                store_marker=self._marker,
                is_own=True,
                shard=self._engine.shard,
                rules_revision=self._engine.rules_revision,
                makers=self._engine.makers,
            )
            wire = EmbeddedWire(self, peer, welcome)
            self._wires[peer.consumer] = wire
            return wire

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Hold `changed`; a thread that already holds it must not enter again.

        Raises:
            UsageError: the engine was opened in another process, which goes on with it.
        """
        if own_pid() != self._pid:
            raise UsageError(
                "An embedded queue cannot be used after a fork.",
                hint="Start a daemon, and call opsq.connect in each process.",
            )
        with self._entrance:
            self.changed.acquire()
        try:
            yield
        finally:
            self.changed.release()

    def give_way(self) -> None:
        """Let those who wait to enter do so first; `changed` is held."""
        self.changed.release()
        with self._entrance:
            self.changed.acquire()

    def check_waiting(self) -> None:
        """A call waits, now or still; `changed` is held. What is raised here is its answer."""

    @property
    def is_under_way(self) -> bool:
        """Whether a bounded run stopped half-way; `changed` is held."""
        return self._engine.has_turn()

    def pass_on(self) -> None:
        """Have somebody else go on with what is under way; `changed` is held."""
        if self._engine.has_turn():
            self.changed.notify()

    def handle(self, wire: EmbeddedWire, requests: Sequence[Request]) -> None:
        """Have the engine handle requests as a daemon would, and commit what they change; `changed` is held.

        Raises:
            UsageError: one has a value that no message can carry.
        """
        for request in received(requests):
            try:
                if isinstance(request, ImpossibleRequest):
                    raise request.error
                reply = self._answer(request)
                if reply is not None:
                    wire.inbox.append(reply)
                else:
                    self._engine.handle(wire.peer, request, self._read_clocks())
            except OpsqError as error:
                self._refuse(wire, request, error)
            except Fatal:
                raise
            except Exception as error:  # noqa: BLE001  # as in a daemon: a bug in one request ends nothing else
                self._refuse(wire, request, report_bug(error))
        self.step(goes_on=False)

    @staticmethod
    def _refuse(wire: EmbeddedWire, request: Request | ImpossibleRequest, error: OpsqError) -> None:
        if (request_id := getattr(request, "id", None)) is not None:  # what has no id wants no answer
            wire.inbox.append(ErrorReply.of(request_id, error))

    def step(self, *, goes_on: bool = True, is_moved: bool = False) -> float:
        """Do what is due, and hand out replies; returns in how many seconds something is due. `changed` is held.

        Args:
            goes_on: with what is under way, by one turn of a few milliseconds.
            is_moved: see `Engine.tick`.
        """
        engine = self._engine
        now = self._read_clocks()
        try:
            engine.tick(now, is_moved=is_moved)
            if goes_on and engine.has_turn():
                engine.turn(now)
            while engine.has_batch(now):
                self._commit(now)
        except Exception as error:
            self._is_deposed = isinstance(error.__cause__, Deposed)
            self._fail(f"The database in {self._path} cannot be used any more: {error}")
            if isinstance(error, Fatal):
                raise
            raise Fatal(str(report_bug(error))) from error  # as a daemon would end
        self._deliver()
        folders, engine.removed_content[:] = list(engine.removed_content), []
        for folder in folders:
            self._delete_content(folder)
        return engine.next_tick_s(now)

    def disconnect(self, wire: EmbeddedWire) -> None:
        """Note that a connection was closed."""
        with self.entered():
            self._disconnect(wire)

    def _disconnect(self, wire: EmbeddedWire) -> None:
        if self._wires.pop(wire.peer.consumer, None) is not None and not self._failure:
            self._engine.disconnect(wire.peer, self._read_clocks())
            with contextlib.suppress(Fatal):
                self.step(goes_on=False)
        self.changed.notify_all()

    def close(self) -> None:
        """Commit what is left and give the folder back, unless it is another's by now, or another process's."""
        if own_pid() != self._pid:
            return
        with self.entered():
            if not self._failure:
                self._end()
        if not self._is_deposed:
            self._database.close()

    def _end(self) -> None:
        self._engine.stop_handing_out()  # what one connection gives back is not for another that is about to end
        for wire in list(self._wires.values()):
            wire.is_closed = True
            self._disconnect(wire)
        self._engine.fold_all()
        with contextlib.suppress(Fatal):
            self.step()
            while self._engine.has_turn() or self._engine.is_losing:
                self.step()
        self._fail("The queue was closed.")

    def is_usable(self) -> bool:
        """Whether the engine still runs."""
        return not self._failure

    def _tick(self) -> None:
        """Do what is due while no caller waits; ends with the engine."""
        with self.entered():
            while not self._failure:
                try:
                    next_s = self.step()
                except Fatal:
                    return
                if self.is_under_way:
                    self.give_way()
                else:
                    self.changed.wait(min(max(next_s, 0.001), TICK_LIMIT_S))

    def _commit(self, now: Now) -> None:
        engine = self._engine
        try:
            if engine.begin_batch(now):
                self._database.commit()
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001  # the engine knows what each error means
            engine.end_batch(error, self._read_clocks())
            return
        engine.end_batch(None, self._read_clocks())
        if self._database.log.bytes >= self._database.log.step_bytes:
            try:
                self._database.log.restart()
            except apsw.FullError:
                engine.note_full(self._read_clocks())

    def _deliver(self) -> None:
        """Put the replies of the engine into the inboxes of those who wait for them."""
        outbox, self._engine.outbox[:] = list(self._engine.outbox), []
        for peer, reply in outbox:
            wire = self._wires.get(peer.consumer)
            if wire is not None:
                wire.inbox.append(self._completed(reply) if isinstance(reply, DaemonState) else reply)
        if outbox:
            self.changed.notify_all()

    def _completed(self, state: DaemonState) -> DaemonState:
        """The state with what the engine does not know."""
        return msgspec.structs.replace(state, server=__version__, pid=os.getpid(), connections_count=len(self._wires))

    def _answer(self, request: Request) -> Reply | None:
        """The answer to what is no business of the engine; None for all else."""
        if isinstance(request, Stop):
            raise UsageError("An embedded queue has no daemon to stop.", hint="Close it.")
        if isinstance(request, Backup):
            return Changed(request.id, self._database.backup(Path(request.path)))
        if isinstance(request, Vacuum):
            return Changed(request.id, self._database.vacuum())
        if isinstance(request, Check):
            return Checked(request.id, problems(self._database))
        return None

    def _delete_content(self, folder: str) -> None:
        try:
            self._store.delete_folder(folder)
        except (OpsqError, OSError) as error:
            logging.getLogger("opsq").warning("The content in %s could not be deleted: %s", folder, error)

    def _check_usable(self) -> None:
        if self._failure:
            raise Conflict(self._failure, hint="Open it again.")

    def _fail(self, failure: str) -> None:
        self._failure = failure
        self.changed.notify_all()


class EmbeddedWire:
    """A connection to the engine of this process; the same interface as a socket's."""

    def __init__(self, engine: EmbeddedEngine, peer: Peer, welcome: Welcome) -> None:
        self.welcome = welcome
        self.peer = peer
        self.inbox: deque[Reply] = deque()
        """Appended to with `changed` held; what is in it may be taken at any time."""
        self._owner = engine
        self.is_closed = False

    def send(self, requests: Sequence[Request]) -> None:
        """Handle requests now; what they change is committed on return, but for what is done in slices.

        Raises:
            Unreachable: the connection or the queue was closed, or the database cannot be used any more.
        """
        owner = self._owner
        with owner.entered():
            self._check_usable()
            try:
                owner.handle(self, requests)
            except Fatal as error:
                raise Unreachable(f"The engine has ended: {error}") from error
            if self.inbox:
                owner.changed.notify_all()
            owner.pass_on()

    def receive(self, timeout_s: float | None) -> list[Reply]:
        """See `Wire.receive`; drives the engine while it waits."""
        if replies := self._taken():
            return replies
        owner = self._owner
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with owner.entered():
            while True:
                if not self.inbox:
                    self._check_usable()
                    try:
                        next_s = owner.step()
                    except Fatal as error:
                        raise Unreachable(f"The engine has ended: {error}") from error
                if replies := self._taken():
                    owner.pass_on()
                    return replies
                left_s = 1.0 if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    owner.pass_on()
                    return []
                owner.check_waiting()
                if owner.is_under_way:
                    owner.give_way()
                else:
                    owner.changed.wait(min(left_s, max(next_s, 0.001)))

    def _taken(self) -> list[Reply]:
        return [self.inbox.popleft() for _ in range(len(self.inbox))]

    def fileno(self) -> int:
        """There is no descriptor to watch for replies."""
        return -1

    def close(self) -> None:
        """End the connection: what it holds counts as for a consumer that is gone."""
        if not self.is_closed:
            self.is_closed = True
            self._owner.disconnect(self)

    def _check_usable(self) -> None:
        if self.is_closed or not self._owner.is_usable():
            raise Unreachable("The embedded queue was closed, or cannot be used any more.")
