"""The running daemon: sockets, sessions, engine and committer on one event loop, until the drain has ended.

This file must not deal with processes, signals or log files (`daemon_process` does), nor decide anything about chunks
(the engine does). One *pulse* per iteration of the event loop runs the engine, starts the next commit and writes the
replies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opsq.clock import Now
from opsq.clock import now as read_clocks
from opsq.content.content_store import Store
from opsq.daemon.access_tokens import AccessTokens
from opsq.daemon.audit import Audit
from opsq.daemon.committer import Committer
from opsq.daemon.connections import Connections
from opsq.daemon.delivery import Delivery
from opsq.daemon.departures import Departures
from opsq.daemon.heartbeats import Heartbeats
from opsq.daemon.housekeeping import Housekeeping
from opsq.daemon.listeners import Listeners
from opsq.daemon.maintenance import perform
from opsq.daemon.no_replica import NoReplica
from opsq.daemon.patience import Patience
from opsq.daemon.refusal_log import RefusalLog
from opsq.daemon.request_backlog import RequestBacklog
from opsq.daemon.session import Session
from opsq.daemon.sockets import ListeningSocket
from opsq.daemon.stopping import Stopping
from opsq.daemon.temporary_daemon import UNUSED_S
from opsq.daemon.tick_alarm import TickAlarm
from opsq.daemon.tokens_file import TokenEntry
from opsq.daemon.unread import Unread
from opsq.errors import Bug, OpsqError
from opsq.queue.chunk_counters import Histogram
from opsq.queue.engine import Engine, Fatal, Peer
from opsq.settings import Settings
from opsq.store.database import Database, Deposed
from opsq.version import __version__
from opsq.wire.messages import Backup, Check, DaemonState, Draining, Hello, Request, Stop, Vacuum

if TYPE_CHECKING:
    from opsq.daemon.replication import Replication
    from opsq.daemon.server_tls import ServerTls, TlsDoor
    from opsq.replica.ownership import Ownership

_RESERVES_S = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

_log = logging.getLogger("opsq.daemon")


class Daemon:
    """One daemon on a running event loop.

    Args:
        connection_limit: the maximum number of connections, given the descriptors that the system allows.
        on_fatal: ends the process without sending another reply.
        ownership: of the replica; None: there is none.
        may_end: called when there has been no connection for a while; whether to exit. None: never.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        engine: Engine,
        store: Store,
        tokens: AccessTokens | None,
        *,
        connection_limit: int,
        on_fatal: Callable[[BaseException], None],
        ownership: Ownership | None = None,
        may_end: Callable[[], bool] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine
        engine.report_bugs(self.report)
        self.loop = asyncio.get_running_loop()
        self.store_marker = store.mark()
        self._requests_count = 0
        """Requests received since the last batch started."""
        self._database = database
        self._store = store
        self._tokens = tokens
        self._connections = Connections(connection_limit, self._watch_use)
        self._departures = Departures(self._leave, self.loop.call_soon)
        self.admit = self._connections.admit
        self.may_linger = self._connections.may_linger
        self.forget = self._connections.forget
        self._refusals = RefusalLog()
        self.note_refusal = self._refusals.note
        self._audit = Audit(settings.audit_path)
        self._on_fatal = on_fatal
        self._may_end = may_end
        self._unused_timer: asyncio.TimerHandle | None = None
        self._committed = asyncio.Event()
        self._committer = Committer(database, engine, self.loop, self._on_committed, on_fatal)
        self._replication = NoReplica() if ownership is None else self._replicate(ownership)
        self._delivery = Delivery(
            engine,
            self._connections.greeted,
            self._audit,
            self._replication,
            complete=self._completed,
            pulse_soon=self.pulse_soon,
        )
        self.flush_soon = self._delivery.flush_soon
        self._housekeeping = Housekeeping(database, store, self.loop, engine.expects)
        self._tls = tls
        self._listeners = Listeners(
            lambda is_tcp: Session(self, is_tcp=is_tcp),
            None if tls is None else self._open_tls_door,
            self._check_place,
        )
        self._has_pulse = False
        self._alarm = TickAlarm(self.loop, engine.next_tick_s, self._tick, self._guarded)
        self._patience = Patience(engine, time.monotonic_ns())
        self.reserves = Histogram(_RESERVES_S)
        self.unread = Unread()
        self.backlog = RequestBacklog(self.loop.call_soon, engine.committing_count)
        self._heartbeats = Heartbeats(settings, time.monotonic_ns())
        self._worked_at = time.monotonic()
        self._commits_seen = 0
        self._has_finished = False
        """Everything is committed, and no request is handled any more; replies are still delivered."""
        self._is_closed = False
        self._stopping = Stopping()
        self._background: set[asyncio.Task[None]] = set()

    # --- life ---------------------------------------------------------------------------------------------

    async def serve(self, bound: list[ListeningSocket]) -> None:
        """Accept connections on these sockets, which are closed when the daemon exits."""
        await self._listeners.open(bound)
        self._replication.start()
        self._watch_use()
        self.pulse_soon()

    def _replicate(self, ownership: Ownership) -> Replication:
        from opsq.daemon.replication import Replication

        return Replication(
            self.settings,
            ownership,
            self._database.log,
            commits_count=lambda: self._committer.commits_count,
            is_full=lambda: self.engine.is_full,
            pulse_soon=self.pulse_soon,
            on_fatal=self._on_fatal,
        )

    def _check_place(self) -> None:
        try:
            self._database.check_place()
        except Deposed as error:
            self._on_fatal(error)

    def _open_tls_door(self, listener: socket.socket) -> TlsDoor:
        from opsq.daemon.server_tls import TlsDoor

        assert self._tls is not None  # noqa: S101  # only then there is a door
        return TlsDoor(
            listener,
            self._tls,
            lambda on_open: Session(self, is_tcp=True, on_open=on_open),
            self._connections.quota,
            self._refusals,
        )

    async def wait_for_stop(self) -> None:
        """Return when a stop has been requested."""
        await self._stopping.wait_for_request()

    async def end(self) -> None:
        """Drain, commit what is left, and close sockets and connections; the caller closes the database."""
        _log.info("draining for up to %g s", self.drain_left_s)
        await self._stopping.wait_for_quiet()
        self._departures.finish()
        self.engine.save_reservations(read_clocks())
        await self._finish_commits()
        self._has_finished = True
        await self._housekeeping.stop()
        self._listeners.close()
        await self._delivery.catch_up()
        self._delivery.deliver()
        await self._replication.finish()
        await self._delivery.catch_up()
        self._stopping.answer()
        self._is_closed = True
        self._delivery.deliver()
        await self._connections.close()
        self._alarm.cancel()
        if self._unused_timer is not None:
            self._unused_timer.cancel()
        self._committer.stop()

    def stop(self, drain_s: float) -> None:
        """Hand out nothing more, and exit once reserved chunks have come back, after at most `drain_s` seconds.

        A second call can only shorten the wait.
        """
        if not self._stopping.ask(drain_s):
            return
        self.engine.stop_handing_out()
        for session in self._connections.greeted.values():
            session.answer(Draining(drain_s))
        self.pulse_soon()

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stopping.is_asked

    @property
    def drain_left_s(self) -> float:
        """How long the daemon still waits for reserved chunks."""
        return self._stopping.left_s

    # --- connections --------------------------------------------------------------------------------------

    def _watch_use(self) -> None:
        """Check after a while whether there still is no connection."""
        if self._unused_timer is None and not self.is_stopping:
            self._unused_timer = self.loop.call_later(UNUSED_S, self._end_if_unused)

    def _end_if_unused(self) -> None:
        self._unused_timer = None
        if not self._connections.all and not self.is_stopping and self._may_end is not None and self._may_end():
            _log.info("this temporary daemon is no longer in use")
            self.stop(0.0)

    def connect(self, session: Session, hello: Hello, now: Now) -> Peer:
        """Register a greeted connection, under the name that it claims."""
        self._connections.greet(session, hello.claim)
        peer = self.engine.connect(hello.name, now, session.uid, hello.host, hello.pid)
        peer.user, peer.place = session.user_and_host
        self._connections.greeted[peer] = session
        _log.debug("%s connected", peer.consumer)
        return peer

    def note_act(self, session: Session, request: Request) -> None:
        """Write down what an operator did."""
        connection = session.peer.consumer if session.peer is not None else ""
        self._audit.note(session.who, session.origin, connection, request)

    def disconnect(self, session: Session, peer: Peer) -> None:
        """Free what the peer of a lost connection held, and its name, unless the daemon itself is ending."""
        self._connections.leave(session, peer)
        if not self._is_closed:
            _log.debug("%s disconnected", peer.consumer)
            self._departures.add(peer)

    def _leave(self, peer: Peer) -> None:
        if not self._is_closed:
            self._guarded(lambda: self.engine.disconnect(peer, read_clocks()))
            self.pulse_soon()

    def access_of(self, token: str) -> TokenEntry:
        """What a token permits; raises `NotPermitted` if nothing."""
        if self._tokens is None:
            self._tokens = AccessTokens(self.settings)
        return self._tokens.find(token)

    # --- requests that the engine does not handle -----------------------------------------------------------

    def operate(self, session: Session, request: Stop | Backup | Vacuum | Check) -> None:
        """Start an operator's request; the reply is sent when it is done."""
        if isinstance(request, Stop):
            _log.info("stop requested by %s", session.name)
            self._stopping.remember(session, request.id)
            self.stop(request.drain_s)
            return
        session.operations_count += 1
        task = self.loop.create_task(self._operate(session, request))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _operate(self, session: Session, request: Backup | Vacuum | Check) -> None:
        reply = await perform(request, self._database, self.report)
        await self._audit.catch_up()
        session.operations_count -= 1
        session.answer(reply)
        self.pulse_soon()

    def report(self, error: Exception) -> OpsqError:
        """Log an internal error with its traceback; the error to send. After a fatal one, no reply is sent at all."""
        if isinstance(error, Fatal):
            self._on_fatal(error)
        _log.error("internal error (bug):", exc_info=error)
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
        return Bug(
            f"Internal error (bug): {type(error).__name__} at {place}.",
            hint=f"The traceback is in {self.settings.log_path}.",
        )

    # --- the pulse ----------------------------------------------------------------------------------------

    def received(self, requests_count: int) -> None:
        """Count requests that were handed to the engine, and have it run soon."""
        self._requests_count += requests_count
        self.pulse_soon()

    def pulse_soon(self) -> None:
        """Have `_pulse` run once, after the current callback of the loop."""
        if not self._has_pulse:
            self._has_pulse = True
            self.loop.call_soon(self._pulse)

    def _on_committed(self) -> None:
        self._committed.set()
        self.pulse_soon()

    def _pulse(self) -> None:
        self._has_pulse = False
        if self._is_closed:
            return
        self._guarded(self._step)

    def _step(self) -> None:
        engine = self.engine
        now = read_clocks()
        if engine.has_turn() and not self._has_finished:
            engine.turn(now)
        if not self._committer.is_busy and not self._has_finished:
            is_lone, self._requests_count = self._requests_count == 1, 0
            self._committer.kick(now, is_lone=is_lone)
        self._delivery.deliver()
        self.backlog.note_written()
        if engine.removed_content:
            self._delete_content(list(engine.removed_content))
            engine.removed_content.clear()
        if engine.has_turn() and not self._has_finished:
            self.pulse_soon()
        if self._stopping.is_asked and engine.is_quiet():
            self._stopping.note_quiet()
        self._alarm.set(now)

    def _delete_content(self, folders: list[str]) -> None:
        """Delete content; a copy that still knows the submissions must find it."""
        self._replication.when_copied(lambda: self._housekeeping.delete_content(folders))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run engine work that no request waits for: any exception is a bug, and the process must not continue."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # whatever it is, the state in memory can no longer be trusted
            self._on_fatal(error)

    def _completed(self, state: DaemonState) -> DaemonState:
        bound = self._listeners.tcp_names
        measures = state.measures
        if measures is not None:
            measures = msgspec.structs.replace(
                measures,
                commits=self._committer.durations.durations(),
                reserves=self.reserves.durations(),
                overlooked_count=self._patience.overlooked_count,
            )
        return msgspec.structs.replace(
            state,
            measures=measures,
            replica=self._replication.state(),
            server=__version__,
            pid=os.getpid(),
            state="draining" if self.is_stopping else state.state,
            connections_count=self._connections.quota.count,
            settings=self.settings.texts() | ({"listen": bound[0]} if bound else {}),
        )

    # --- time ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._is_closed:
            return
        now = read_clocks()
        self._heartbeats.note_delay(self.loop.time() - self._alarm.at_s, now.mono)
        self._guarded(lambda: self.engine.tick(now))
        self._guarded(lambda: self._patience.look(now))
        if self._tokens is not None and self._tokens.refresh():
            self._connections.end_revoked(self._tokens)
        self._heartbeats.check(self._connections.all, now.mono)
        self._refusals.tick()
        if self._committer.commits_count != self._commits_seen:
            self._commits_seen, self._worked_at = self._committer.commits_count, time.monotonic()
        if self._replication.is_owner:
            self._housekeeping.tick(time.monotonic() - self._worked_at)
        self.pulse_soon()

    # --- the end ------------------------------------------------------------------------------------------

    async def _finish_commits(self) -> None:
        """Commit and fold all that is left; if there is no room, the database keeps the state of the last commit."""
        self.engine.fold_all()
        while self._committer.is_busy or self.engine.has_batch(read_clocks()):
            self._committed.clear()
            self._committer.kick(read_clocks())
            if self._committer.is_busy:
                await self._committed.wait()
        if self.engine.is_full:
            _log.error("no room to save the reservations: they end with this process")
