"""The real engine and store in the caller's process, behind the same messages as a daemon.

This file owns what drives the engine here: one lock, commits inline, a thread for the timers. It must not know more of
the engine than the daemon does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from opsq.clock import Now, boot
from opsq.clock import now as read_clocks
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES
from opsq.content.store_kinds import open_store
from opsq.errors import Conflict, OpsqError, Unreachable, UsageError
from opsq.queue.batch_writer import describe_bug
from opsq.queue.engine import Engine, Fatal, Peer
from opsq.queue.policy import Policy
from opsq.store.database import PASSIVE_BYTES, Database
from opsq.store.integrity import problems
from opsq.store.state_folder import make_state_dir
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
    """Drives one engine for the connections of this process.

    Args:
        path: the state folder.
        policy: of the engine; None: the defaults of a daemon.
        is_durable: whether commits are synced.
    """

    def __init__(self, path: Path, policy: Policy | None, *, is_durable: bool) -> None:
        policy = policy or Policy()
        path = path.absolute()
        make_state_dir(str(path))
        self._path = path
        self._is_durable = is_durable
        self._heartbeat_s = policy.heartbeat_s
        self._database = Database.open(path / "opsq.sqlite", is_durable=is_durable)
        try:
            self._store = open_store(path / "content")
            self._marker = self._store.mark()
            self._engine = Engine(self._database, policy, read_clocks(), folders=[path / "content"], boot=boot())
        except BaseException:
            self._database.close()
            raise
        self._engine.writer.report = report_bug
        self.changed = threading.Condition()
        self._wires: dict[str, EmbeddedWire] = {}
        self._failure = ""
        threading.Thread(target=self._tick, name="opsq-engine", daemon=True).start()

    def open_wire(self) -> EmbeddedWire:
        """A new connection.

        Raises:
            Conflict: the queue was closed, or cannot be used any more.
        """
        with self.changed:
            self._check_usable()
            now = read_clocks()
            peer = self._engine.connect(f"embedded-{os.getpid()}", now, os.geteuid())
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
            )
            wire = EmbeddedWire(self, peer, welcome)
            self._wires[peer.consumer] = wire
            return wire

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
                    self._engine.handle(wire.peer, request, read_clocks())
            except OpsqError as error:
                self._refuse(wire, request, error)
            except Fatal:
                raise
            except Exception as error:  # noqa: BLE001  # as in a daemon: a bug in one request ends nothing else
                self._refuse(wire, request, report_bug(error))
        self.step()

    @staticmethod
    def _refuse(wire: EmbeddedWire, request: Request | ImpossibleRequest, error: OpsqError) -> None:
        if (request_id := getattr(request, "id", None)) is not None:  # what has no id wants no answer
            wire.inbox.append(ErrorReply.of(request_id, error))

    def step(self) -> float:
        """Do what is due, and hand out replies; returns in how many seconds something is due. `changed` is held."""
        engine = self._engine
        now = read_clocks()
        try:
            engine.tick(now)
            while engine.has_turn():
                engine.turn(now)
            while engine.has_batch(now):
                self._commit(now)
                while engine.has_turn():
                    engine.turn(now)
        except Fatal as error:
            self._fail(f"The database in {self._path} cannot be used any more: {error}")
            raise
        self._deliver()
        folders, engine.removed_content[:] = list(engine.removed_content), []
        for folder in folders:
            self._delete_content(folder)
        return engine.next_tick_s(now)

    def disconnect(self, wire: EmbeddedWire) -> None:
        """Note that a connection was closed."""
        with self.changed:
            if self._wires.pop(wire.peer.consumer, None) is not None and not self._failure:
                self._engine.disconnect(wire.peer, read_clocks())
                with contextlib.suppress(Fatal):
                    self.step()
            self.changed.notify_all()

    def close(self) -> None:
        """Commit what is left and give the folder back."""
        with self.changed:
            if self._failure:
                return
            self._engine.stop_handing_out()  # what one connection gives back is not for another that is about to end
            for wire in list(self._wires.values()):
                wire.close()
            self._engine.fold_all()
            with contextlib.suppress(Fatal):
                self.step()
            self._fail("The queue was closed.")
        self._database.close()

    def is_usable(self) -> bool:
        """Whether the engine still runs."""
        return not self._failure

    def _tick(self) -> None:
        """Do what is due while no caller waits; ends with the engine."""
        with self.changed:
            while not self._failure:
                try:
                    next_s = self.step()
                except Fatal:
                    return
                self.changed.wait(min(max(next_s, 0.001), TICK_LIMIT_S))

    def _commit(self, now: Now) -> None:
        engine = self._engine
        try:
            if engine.begin_batch(now):
                self._database.commit()
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001  # the engine knows what each error means
            engine.end_batch(error, read_clocks())
            return
        engine.end_batch(None, read_clocks())
        if self._database.wal_bytes >= PASSIVE_BYTES:
            self._database.checkpoint_restart()

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
        self.inbox: list[Reply] = []
        self._owner = engine
        self._is_closed = False

    def send(self, requests: Sequence[Request]) -> None:
        """Handle requests now; what they change is committed on return.

        Raises:
            Unreachable: the connection or the queue was closed, or the database cannot be used any more.
        """
        owner = self._owner
        with owner.changed:
            self._check_usable()
            try:
                owner.handle(self, requests)
            except Fatal as error:
                raise Unreachable(f"The engine has ended: {error}") from error
            if self.inbox:
                owner.changed.notify_all()

    def receive(self, timeout_s: float | None) -> list[Reply]:
        """See `Wire.receive`; drives the engine while it waits."""
        owner = self._owner
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with owner.changed:
            while True:
                if not self.inbox:
                    self._check_usable()
                    try:
                        next_s = owner.step()
                    except Fatal as error:
                        raise Unreachable(f"The engine has ended: {error}") from error
                if self.inbox:
                    replies, self.inbox = self.inbox, []
                    return replies
                left_s = 1.0 if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    return []
                owner.changed.wait(min(left_s, max(next_s, 0.001)))

    def fileno(self) -> int:
        """There is no descriptor to watch for replies."""
        return -1

    def close(self) -> None:
        """End the connection: what it holds counts as for a consumer that is gone."""
        if not self._is_closed:
            self._is_closed = True
            self._owner.disconnect(self)

    def _check_usable(self) -> None:
        if self._is_closed or not self._owner.is_usable():
            raise Unreachable("The embedded queue was closed, or cannot be used any more.")
