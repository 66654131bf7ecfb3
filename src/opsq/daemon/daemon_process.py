"""The daemon as a process: the resources it opens and closes, its signals, its service manager, and how it exits.

This file must not know what the daemon does in between (`server`). There is one way to stop it, by SIGTERM, SIGINT or a
`Stop`; only an error after which no reply may be sent ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from opsq.daemon.lifecycle import Ready
from opsq.daemon.process_setup import collect_rarely, feed_watchdog, notify, raise_descriptors, switch_often
from opsq.errors import InvalidStrategy, OpsqError, StorageFull
from opsq.settings import Settings
from opsq.store.state_folder import make_state_dir

if TYPE_CHECKING:
    from opsq.content.content_store import Store
    from opsq.daemon.access_tokens import AccessTokens
    from opsq.daemon.server_tls import ServerTls
    from opsq.daemon.sockets import ListeningSocket
    from opsq.replica.ownership import Ownership
    from opsq.store.database import Database

EXIT_BUG = 70
_log = logging.getLogger("opsq.daemon")


class _Resources(NamedTuple):
    """What is open while the daemon runs."""

    database: Database
    store: Store
    tokens: AccessTokens | None
    tls: ServerTls | None
    bound: list[ListeningSocket]
    ownership: Ownership | None


def run(settings: Settings, on_ready: Callable[[Ready], None] | None = None, *, is_temporary: bool = False) -> int:
    """Run the daemon in this process; returns the exit status once it has stopped.

    Args:
        on_ready: called once, when connections are accepted. Without it the log goes to stderr as well.
        is_temporary: exit when no longer in use; see `temporary_daemon`.

    Effects: umask 077; SIGHUP is ignored; the service manager is notified through NOTIFY_SOCKET; descriptors up to the
    hard limit.

    Raises:
        OpsqError: it could not start; a running daemon was not affected.
    """
    import uvloop

    from opsq.daemon.connection_quota import DESCRIPTORS_RESERVED
    from opsq.daemon.daemon_log import DaemonLog
    from opsq.daemon.start_options import note_start
    from opsq.daemon.temporary_daemon import write_marker

    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    make_state_dir(settings.state_dir, is_shared=settings.is_shared)
    connection_limit = raise_descriptors(settings.connection_limit, DESCRIPTORS_RESERVED, "daemon")
    with _resources(settings) as resources:
        write_marker(settings, is_temporary=is_temporary)
        note_start(settings, next((one.name for one in resources.bound if one.is_tcp), ""))
        log = DaemonLog(settings, has_stderr=on_ready is None)
        try:
            uvloop.run(_serve(settings, resources, connection_limit, on_ready or _ignore, _fatal_handler(log.stop)))
        except InvalidStrategy:
            raise  # a mistake in the settings, which is told where the daemon is started
        except BaseException:
            _log.critical("internal error (bug), the daemon exits:", exc_info=True)
            raise
        finally:
            log.stop()
    return 0


async def _serve(
    settings: Settings,
    resources: _Resources,
    connection_limit: int,
    on_ready: Callable[[Ready], None],
    on_fatal: Callable[[BaseException], NoReturn],
) -> None:
    from opsq.clock import boot, now
    from opsq.content.content_store import MARKER
    from opsq.daemon.server import Daemon
    from opsq.daemon.temporary_daemon import may_exit
    from opsq.queue.engine import Engine
    from opsq.version import __version__

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_exception)
    try:
        marker = resources.store.path(MARKER)
        folders = [] if marker is None else [Path(marker).parent]
        engine = Engine(resources.database, policy_of(settings), now(), folders=folders, boot=boot())
    except InvalidStrategy as error:
        error.hint = (
            error.hint or "It is defined under [strategies] in the settings; `opsq config` shows in which file."
        )
        raise
    daemon = Daemon(
        settings,
        resources.database,
        engine,
        resources.store,
        resources.tokens,
        connection_limit=connection_limit,
        on_fatal=on_fatal,
        ownership=resources.ownership,
        may_end=lambda: may_exit(settings),
        tls=resources.tls,
    )
    signals = _Signals(daemon.stop, settings.drain_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.caught, number)
    await daemon.serve(resources.bound)
    names = ", ".join(one.name for one in resources.bound)
    _log.info("opsq %s serves %s as process %d at %s", __version__, settings.state_dir, os.getpid(), names)
    if engine.is_full:
        _log.warning("there is no room on its disk: nothing comes in and nothing is handed out until there is")
    collect_rarely()
    switch_often()
    notify("READY=1")
    watchdog = loop.create_task(feed_watchdog())
    on_ready(Ready(os.getpid(), settings.socket))
    await daemon.wait_for_stop()
    notify("STOPPING=1")
    await daemon.end()
    watchdog.cancel()
    _log.info("stopped")


class _Signals:
    """The first SIGTERM or SIGINT drains, the second stops at once."""

    def __init__(self, stop: Callable[[float], None], drain_s: float) -> None:
        self._stop = stop
        self._drain_s = drain_s

    def caught(self, number: signal.Signals) -> None:
        _log.info("received %s", number.name)
        self._stop(self._drain_s)
        self._drain_s = 0.0


# --- opening and closing ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _resources(settings: Settings) -> Iterator[_Resources]:
    """Open the resources of the daemon, the lock first, and close them again, the lock last."""
    from opsq.content.store_kinds import open_store
    from opsq.daemon import sockets
    from opsq.daemon.access_tokens import AccessTokens
    from opsq.daemon.replica_access import check_replica, release, take_ownership
    from opsq.store import moved, shard
    from opsq.store.database import Database

    check_replica(settings)
    with contextlib.ExitStack() as stack:
        database = Database.open(
            Path(settings.database_path),
            is_durable=settings.is_durable,
            allow_network_fs=settings.allow_network_fs,
            on_statement=_log.info if settings.trace_sql else None,
        )
        stack.callback(database.close)
        shard.claim(database, settings.shard)
        ownership = None
        if settings.replicate_to:
            ownership = take_ownership(settings)
            stack.callback(release, ownership)
        store = open_store(settings.store)
        stack.callback(store.close)
        store.mark()
        if shard.number(database.reader) is not None:
            store.share()
        with contextlib.suppress(StorageFull):  # it is done again before anything is swept
            store.claim(moved.identity(database.reader).hex())
        store.set_group(os.stat(settings.state_dir).st_gid if settings.is_shared else None)
        bound = sockets.open_all(settings)
        for one in bound:
            stack.callback(one.close)
        has_tcp = any(one.socket.family != socket.AF_UNIX for one in bound)
        tls = None
        if has_tcp and settings.tls_cert_file:
            from opsq.daemon.server_tls import ServerTls

            tls = ServerTls(settings)
        yield _Resources(database, store, AccessTokens(settings) if has_tcp else None, tls, bound, ownership)


def policy_of(settings: Settings) -> Any:
    """The limits and defaults for the engine."""
    from opsq.queue.policy import Policy
    from opsq.wire.messages import Backoff

    return Policy(
        strategies=settings.strategies,
        backoff=Backoff(settings.backoff_base_s, settings.backoff_factor, settings.backoff_max_s),
        min_free_bytes=None if settings.source("min_free_bytes") == "default" else settings.min_free_bytes,
        **{
            name: getattr(settings, name)
            for name in Policy.__struct_fields__
            if name not in {"backoff", "strategies", "min_free_bytes"}
        },
    )


# --- internal errors ---------------------------------------------------------------------------------


def _fatal_handler(stop_log: Callable[[], None]) -> Callable[[BaseException], NoReturn]:
    def die(error: BaseException) -> NoReturn:
        """Exit at once: no reply, no commit, no clean-up that could touch what may now belong to another process."""
        if isinstance(error, OpsqError):
            _log.critical("the daemon exits at once: %s", error)
        else:
            _log.critical("fatal error, the daemon exits at once:", exc_info=error)
        stop_log()
        os._exit(error.exit_status if isinstance(error, OpsqError) else EXIT_BUG)

    return die


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.error("%s", context.get("message"), exc_info=context.get("exception"))


def _ignore(ready: Ready) -> None:
    """Do nothing."""
