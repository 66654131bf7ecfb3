"""How Spark's processes reach the daemon and its store: resolved where options are read, then sent to executors.

This file must not import PySpark. Executors have neither the settings nor the environment of the driver, so they get an
address, a token and the URL of the store; nothing here ever shows the token.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec

from opsq.client.core.address import Address, TlsAddress, find_daemon, show_address
from opsq.client.sync.queue import Queue, connect
from opsq.content.content_store import Store
from opsq.content.store_kinds import open_store
from opsq.errors import InputUnreadable, OpsqError, StoreNotVisible, Unreachable
from opsq.spark.source.source_options import DaemonOptions
from opsq.wire.messages import Describe, Described, SubmissionContent

PATIENCE_S = 30.0
"""How long a daemon may be away (being restarted) before a task or a commit fails."""
PLAN_PATIENCE_S = 5.0
"""The same before a job is refused: long enough for a restart, short enough to report soon that there is no daemon."""


class Daemon(msgspec.Struct, frozen=True):
    """Where a daemon is, for any process.

    Attributes:
        address: a socket path, or host and port.
        token: for TCP, else empty.
    """

    address: Address
    token: str

    def __repr__(self) -> str:
        return f"Daemon({show_address(self.address)!r})"

    def open(self, *, patience_s: float | None = None, name: str = "") -> Queue:
        """Connect, retrying for up to `patience_s` seconds (by default as for a plan); `status` shows `name`.

        Raises:
            Unreachable: nothing answers; the hint says what executors need.
            InputUnreadable: a file of the address is not here.
        """
        deadline = time.monotonic() + (PLAN_PATIENCE_S if patience_s is None else patience_s)
        while True:
            try:
                named = name or f"spark-{socket.gethostname()}"
                return connect(self.address, token=self.token, name=named, reconnect_s=PATIENCE_S)
            except InputUnreadable as error:
                raise InputUnreadable(
                    f"From {socket.gethostname()}: {error.message}",
                    hint="Each executor reads the files of a tls:// address itself: put them at the same path on all.",
                ) from error
            except Unreachable as error:
                if time.monotonic() >= deadline:
                    raise self._unreachable(error) from error
                time.sleep(min(0.25, max(deadline - time.monotonic(), 0.0)))

    def _unreachable(self, error: OpsqError) -> Unreachable:
        here = socket.gethostname()
        if isinstance(self.address, str):
            hint = (
                f"Is it running on {here}? A socket is a file of one machine: for executors on others start it with "
                "`opsq start --listen HOST:PORT`, and give the options address=HOST:PORT and tokenFile."
            )
        else:
            hint = (
                f"Give an address that every executor can reach: {here} cannot reach this one. Is it started with "
                f"--listen?"
            )
        return Unreachable(f"From {here}: {error.message}", hint=hint)


class StoreAccess(msgspec.Struct, frozen=True):
    """The store of a daemon, as its welcome describes it."""

    url: str
    marker: str
    chunk_limit_bytes: int
    is_durable: bool

    def open(self) -> Store:
        """Open the store and check that it is the daemon's.

        Raises:
            StoreNotVisible: seen from here there is another store at that place, or none.
        """
        store = open_store(self.url)
        try:
            store.check_marker(self.marker)
        except StoreNotVisible as error:
            raise StoreNotVisible(
                f"From {socket.gethostname()}: {error.message}",
                hint="Executors write and read content themselves: make the store visible to all of them at the same "
                "path, by a shared mount, or set the daemon's store to an s3://, gs:// or az:// URL.",
            ) from error
        return store


def resolve(options: DaemonOptions) -> Daemon:
    """Find the daemon that options name, with the settings and token files of this process.

    Raises:
        UsageError: an address cannot be understood.
        InputUnreadable: a token is needed, and its file cannot be read.
    """
    address, token = find_daemon(options.address, state_dir=options.state_dir, token=options.token)
    if isinstance(address, TlsAddress):  # executors run in other folders
        files = [path and os.path.abspath(path) for path in address[2:]]
        address = TlsAddress(address.host, address.port, *files)
    return Daemon(address, token)


def store_of(queue: Queue) -> StoreAccess:
    """The store of a connected daemon."""
    welcome = queue.link.welcome
    return StoreAccess(welcome.store, welcome.store_marker, welcome.chunk_limit_bytes, welcome.is_durable)


def content_of(queue: Queue, submission_id: int) -> SubmissionContent | None:
    """The description of a submission's content; None: there is no such submission (any more)."""
    found = queue.link.call(Describe(queue.link.next_id(), [submission_id]), Described).submissions
    return found[0] if found else None
