"""What a connection needs of the daemon that serves it.

This file must not do anything: `server.Daemon` does.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from opsq.clock import Now
from opsq.daemon.request_backlog import RequestBacklog
from opsq.daemon.tokens_file import TokenEntry
from opsq.daemon.unread import Unread
from opsq.errors import OpsqError
from opsq.queue.chunk_counters import Histogram
from opsq.queue.engine import Engine, Peer
from opsq.settings import Settings
from opsq.wire.messages import Backup, Check, Hello, Request, Stop, Vacuum

Connection = TypeVar("Connection", contravariant=True)  # noqa: PLC0105


class Host(Protocol[Connection]):
    """What a connection needs of the daemon that serves it."""

    settings: Settings
    engine: Engine
    store_marker: str
    reserves: Histogram
    """How long frames took whose last request was a reserve."""
    unread: Unread
    backlog: RequestBacklog

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested."""

    @property
    def drain_left_s(self) -> float:
        """How long the daemon still waits for reserved chunks."""

    def admit(self, session: Connection) -> OpsqError | None:
        """Count a new connection; the error to send if there are too many."""

    def may_linger(self, session: Connection) -> bool:
        """Whether one more refused connection may stay open until its peer has read the reason."""

    def forget(self, session: Connection) -> None:
        """Drop a closed connection."""

    def note_refusal(self, kind: str, text: str) -> None:
        """Log that a connection was closed, unless too many are."""

    def access_of(self, token: str) -> TokenEntry:
        """What a token presented over TCP permits; raises `NotPermitted` if nothing."""

    def note_act(self, session: Connection, request: Request) -> None:
        """Write down what an operator did."""

    def connect(self, session: Connection, hello: Hello, now: Now) -> Peer:
        """Register a greeted connection, under the name that it claims; raises `NameTaken` if another one has it."""

    def disconnect(self, session: Connection, peer: Peer) -> None:
        """Free what the peer of a lost connection held, and its name."""

    def received(self, requests_count: int) -> None:
        """Count requests that were handed to the engine, and have it run soon."""

    def operate(self, session: Connection, request: Stop | Backup | Vacuum | Check) -> None:
        """Start an operator's request that the engine does not know; the reply follows when it is done."""

    def report(self, error: Exception) -> OpsqError:
        """Log an internal error; the error to send."""

    def flush_soon(self, session: Connection) -> None:
        """Have `Session.flush` called once the engine has run."""
