"""How Spark's processes reach the daemon and its store: resolved where options are read, then sent to executors.

This file must not import PySpark. Executors have neither the settings nor the environment of the driver, so they get an
address, a token and the URL of the store; nothing here ever shows the token. A daemon that was met once is waited for.
"""

from __future__ import annotations

import logging
import os
import socket
import time

import msgspec

from opsq.client.core.address import Address, ShardedAddress, Target, TlsAddress, find_daemon, is_local, show_address
from opsq.client.core.transport import Dial, Wire
from opsq.client.sync.queue import Queue, dial_to
from opsq.content.content_store import Store
from opsq.content.store_kinds import open_store
from opsq.errors import InputUnreadable, OpsqError, StoreNotVisible, Unreachable
from opsq.spark.source.source_options import DaemonOptions
from opsq.wire.messages import Describe, Described, SubmissionContent

PATIENCE_S = 30.0
"""How long a task on another host tries to reach a daemon that it has not met: the address may be no good there."""
PLAN_PATIENCE_S = 5.0
"""The same before a job is refused: long enough for a restart, short enough to report soon that there is no daemon."""
AWAY_S = 30.0
"""How long no daemon answers before that is said."""
_PAUSE_S = 0.25
_met: set[Target] = set()
"""Where this process has met a daemon."""
_log = logging.getLogger("opsq")


class Absence:
    """Says once that no daemon has answered for 30 seconds, and once that it is back, as long as somebody asks."""

    def __init__(self, address: Target) -> None:
        self._place = show_address(address)
        self._since: float | None = None
        self._is_said = False

    def note(self, *, is_away: bool) -> None:
        """Take note of whether a daemon answered just now."""
        if not is_away:
            if self._is_said:
                _log.warning("The daemon at %s answers again; the work goes on.", self._place)
            self._since, self._is_said = None, False
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not self._is_said and now - self._since >= AWAY_S:
            self._is_said = True
            _log.warning(
                "No daemon has answered at %s for %.0f s. The work waits, and goes on when it is back.",
                self._place,
                now - self._since,
            )


class Daemon(msgspec.Struct, frozen=True):
    """Where a daemon is, for any process.

    Attributes:
        address: a socket path, or host and port.
        token: for TCP, else empty.
        host: of the process that found it.
    """

    address: Target
    token: str
    host: str = ""

    def __repr__(self) -> str:
        return f"Daemon({show_address(self.address)!r})"

    def open(self, *, patience_s: float | None = None, is_planned: bool = False, name: str = "") -> Queue:
        """Connect, and wait for a daemon that is away: for as long as it takes if it is known to have been there.

        Args:
            patience_s: wait for so long, now and whenever the connection breaks, whatever is known; None: the rest.
            is_planned: whoever sent this here had met the daemon, so on its host it is away, not elsewhere.
            name: shown by `status`.

        Raises:
            Unreachable: nothing answers; the hint says what executors need.
            InputUnreadable: a file of the address is not here.
        """
        here = socket.gethostname()
        is_known = patience_s is None and (self.address in _met or (is_planned and self.host == here))
        first_s = (PATIENCE_S if is_planned else PLAN_PATIENCE_S) if patience_s is None else patience_s
        deadline = time.monotonic() + first_s
        try:
            dial = self.dial(name or f"spark-{here}")
            while True:
                try:
                    queue = Queue(dial, reconnect_s=None if patience_s is None else PATIENCE_S)
                except Unreachable as error:
                    left_s = _PAUSE_S if is_known else deadline - time.monotonic()
                    if left_s <= 0:
                        raise self._unreachable(error) from error
                    time.sleep(min(_PAUSE_S, left_s))
                else:
                    _met.add(self.address)
                    return queue
        except InputUnreadable as error:
            raise InputUnreadable(
                f"From {here}: {error.message}",
                hint="Each executor reads the files of a tls:// address itself: put them at the same path on all.",
            ) from error

    def dial(self, name: str) -> Dial:
        """What opens connections, each time that one is lost; it says when the daemon has long been away."""
        open_wire = dial_to(self.address, token=self.token, name=name)
        absence = Absence(self.address)

        def dial() -> Wire:
            try:
                wire = open_wire()
            except Unreachable:
                absence.note(is_away=True)
                raise
            absence.note(is_away=False)
            return wire

        return dial

    def _unreachable(self, error: OpsqError) -> Unreachable:
        here = socket.gethostname()
        if is_local(self.address):
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
    if isinstance(address, ShardedAddress):
        address = address._replace(parts=tuple(map(_anywhere, address.parts)), file="")
    elif isinstance(address, TlsAddress):
        address = _anywhere(address)
    return Daemon(address, token, socket.gethostname())


def _anywhere(address: Address) -> Address:
    """An address that means the same in other folders, in which executors run."""
    if not isinstance(address, TlsAddress):
        return address
    return TlsAddress(address.host, address.port, *[path and os.path.abspath(path) for path in address[2:]])


def store_of(queue: Queue) -> StoreAccess:
    """The store of a connected daemon."""
    welcome = queue.link.welcome
    return StoreAccess(welcome.store, welcome.store_marker, welcome.chunk_limit_bytes, welcome.is_durable)


def content_of(queue: Queue, submission_id: int) -> SubmissionContent | None:
    """The description of a submission's content; None: there is no such submission (any more)."""
    found = queue.link.call(Describe(queue.link.next_id(), [submission_id]), Described).submissions
    return found[0] if found else None
