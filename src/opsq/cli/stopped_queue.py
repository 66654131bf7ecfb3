"""The queue of a daemon that does not run: its file, opened for reading, answers the same requests.

It must not write; what was not folded when the daemon ended is added in memory, as at its start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import is_addressed
from opsq.cli.lasting_connection import LastingConnection
from opsq.client.core.transport import expect
from opsq.errors import Unreachable
from opsq.wire.messages import Request

if TYPE_CHECKING:
    from opsq.store.database import Database

R = TypeVar("R")


@contextlib.contextmanager
def stopped_database(caller: Caller, error: Unreachable) -> Iterator[Database]:
    """The database of the state folder.

    Raises:
        Unreachable: `error`, if the file is not on this machine, or another process has it open.
        DatabaseDamaged, VersionMismatch: it cannot be read.
    """
    from opsq.daemon.lifecycle import is_locked
    from opsq.store.database import Database

    settings = caller.settings
    if is_addressed(settings) or not os.path.exists(settings.database_path) or is_locked(settings.lock_path):
        raise error
    database = Database.open_read_only(Path(settings.database_path))
    try:
        yield database
    finally:
        database.close()


class StoppedQueue:
    """A file that answers requests as a daemon does; what a request would change is not written."""

    def __init__(self, database: Database, caller: Caller) -> None:
        from opsq.clock import now
        from opsq.daemon.daemon_process import policy_of
        from opsq.queue.engine import Engine

        self.store_url = caller.settings.store
        instant = now()
        self._engine = Engine(database, policy_of(caller.settings), instant)
        self._peer = self._engine.connect("stopped", instant)
        self._ids = itertools.count(1)

    def next_id(self) -> int:
        """An id for the next request."""
        return next(self._ids)

    def call(self, request: Request, kind: type[R]) -> R:
        """The answer; raises what the request raises."""
        from opsq.clock import now

        self._engine.outbox.clear()
        self._engine.handle(self._peer, request, now())
        return expect(self._engine.outbox[-1][1], kind)


@contextlib.contextmanager
def asked(caller: Caller) -> Iterator[LastingConnection | StoppedQueue]:
    """What answers requests: the daemon, or its file if it does not run.

    Raises:
        Unreachable, DatabaseDamaged, VersionMismatch: as `stopped_database`.
    """
    try:
        daemon = LastingConnection(caller)
    except Unreachable as error:
        with stopped_database(caller, error) as database:
            yield StoppedQueue(database, caller)
        return
    with daemon:
        yield daemon
