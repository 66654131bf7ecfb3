"""A queue as a program sees it: producer, consumers and questions behind one object; `connect` makes one over a socket.

This file only puts the others together, and finds out where the daemon is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from opsq.client.core import arguments
from opsq.client.core.address import ShardedAddress, TlsAddress, find_daemon
from opsq.client.core.administration import Rules
from opsq.client.core.consume_options import ConsumerOptions
from opsq.client.core.events import EventCalls
from opsq.client.core.maintenance import MaintenanceCalls
from opsq.client.core.schedules import ScheduleCalls
from opsq.client.core.transport import DIAL_S, Dial, default_name
from opsq.client.sync.chunk import Chunk
from opsq.client.sync.connection import Connection
from opsq.client.sync.consumer import Consumer
from opsq.client.sync.link import Link
from opsq.client.sync.producer import Producer
from opsq.wire.messages import DaemonState, Status

if TYPE_CHECKING:
    from opsq.queue.policy import Policy


class Queue(Producer, Rules, ScheduleCalls, EventCalls, MaintenanceCalls):
    """A queue, reached over a socket (`opsq.connect`) or opened in this process (`Queue.open`).

    Use it in a `with` block.

    Safe for use by many threads. Each consumer has a connection of its own. Besides what its docstring says, each call
    may raise `Unreachable` when no daemon answers within `reconnect_s`, `NotPermitted` when the token does not permit
    it, and `StorageFull` when it would change something and the disk is full.

    Args:
        open_wire: makes a greeted transport.
        reconnect_s: how long a call tries again when the connection breaks; None: for ever.
        on_close: called at the end of `close`.
    """

    link: Link

    def __init__(
        self, open_wire: Dial, *, reconnect_s: float | None = 30.0, on_close: Callable[[], None] | None = None
    ) -> None:
        self._open_wire = open_wire
        self._on_close = on_close
        super().__init__(open_wire, reconnect_s=reconnect_s)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, policy: Policy | None = None, is_durable: bool = True) -> Queue:
        """Open a state folder in this process: the real engine and store, under the lock that a daemon takes.

        Args:
            path: the folder, made if it is not there; a daemon may be started on it later, and the other way round.
            policy: other defaults than the daemon's; None: the same.
            is_durable: what is acknowledged survives a loss of power.

        Raises:
            AlreadyRunning: a daemon or another process owns the folder.
            DatabaseDamaged, VersionMismatch, StorageFull: it cannot be opened.
        """
        from opsq.client.embedded import EmbeddedEngine

        engine = EmbeddedEngine(Path(arguments.path("path", path)), policy, is_durable=is_durable)
        return cls(engine.open_wire, reconnect_s=DIAL_S, on_close=engine.close)

    def consume(
        self,
        strategy: object = "Random",
        *,
        until_empty: bool = True,
        until_idle: bool = False,
        overlapping: bool = False,
        **options: Unpack[ConsumerOptions],
    ) -> Iterator[Chunk]:
        """Work through chunks, one by one: `for chunk in queue.consume(): chunk.complete(...)`.

        The arguments are those of `Consumer` and `Consumer.chunks`. However the loop is left, verdicts given are sent,
        and what has none is given back.

        Raises:
            UsageError, OpsqError: see `Consumer.chunks`.
        """
        with self.consumer(strategy, **options) as consumer:
            yield from consumer.chunks(until_empty=until_empty, until_idle=until_idle, overlapping=overlapping)

    def consumer(self, strategy: object = "Random", **options: Unpack[ConsumerOptions]) -> Consumer:
        """A consumer with its own connection, for bulk work or finer control; the arguments are those of `Consumer`.

        Raises:
            UsageError: an argument makes no sense.
            Unreachable, NotPermitted, TooManyConnections: as `connect`.
        """
        return Consumer(self._open_wire, strategy, **options)

    def status(self, by: str | None = None) -> DaemonState:
        """The state of the daemon; `by` groups the counts by the values of that metadata key.

        Raises:
            UsageError: `by` cannot be a key.
        """
        return self.link.call(Status(self.link.next_id(), by, ""), DaemonState)

    def close(self) -> None:
        """End the connection. An embedded queue gives its folder back; consumers that are still open lose it."""
        super().close()
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect(
    address: str | os.PathLike[str] | tuple[str, int] | TlsAddress | None = None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    name: str = "",
    reconnect_s: float | None = 30.0,
    shard_by: str = "",
) -> Queue:
    """Connect to a daemon, or to several that are one queue.

    Args:
        address: a socket path, `host:port`, (host, port), or with TLS `tls://host:port?ca=FILE&cert=FILE&key=FILE`,
            where settings fill in what is left out; several with commas between them, or `@FILE` with one on each line;
            None: as the settings say (environment, files, defaults).
        state_dir: the daemon's state folder, in place of an address.
        token: for TCP; None: as the settings say.
        name: what consumers are called in `status`.
        reconnect_s: how many seconds calls try again when the connection breaks; None: for ever. (Consumers have their
            own.)
        shard_by: of several daemons, the metadata key whose value says where a submission goes; empty: as the settings
            say, by default where there is most room.

    Raises:
        Unreachable: no daemon answers.
        NotPermitted: the socket belongs to another user, or the token is wrong.
        VersionMismatch, TooManyConnections: the daemon says so.
    """
    open_wire = dial_to(address, state_dir=state_dir, token=token, name=name, shard_by=shard_by)
    return Queue(open_wire, reconnect_s=reconnect_s)


def dial_to(
    address: str | os.PathLike[str] | tuple[str, int] | TlsAddress | ShardedAddress | None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    name: str = "",
    shard_by: str = "",
) -> Dial:
    """What opens connections for the arguments of `connect`."""
    target, token = find_daemon(address, state_dir=state_dir, token=token, shard_by=shard_by)
    name = name or default_name()
    return lambda: Connection.open(target, name=name, token=token)
