"""Private daemons that are one queue: each with its number, all with one content store, on this machine.

Also clients over all of them that wait for chunks, and how many messages that takes. It judges no number.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from opsq.client.core.address import ShardedAddress
from opsq.client.shards.dialling import dial
from opsq.client.shards.shard import Shard
from opsq.wire.messages import CompleteAndReserve, Completed, Completion, DaemonState, Reserve, Reserved, Status
from ours.client import Client, connect
from ours.daemon import Daemon
from ours.loads import held

_PARKED_S = 120.0


class Shards:
    """Running daemons with the numbers from 0. Started by `running`."""

    def __init__(self, daemons: list[Daemon]) -> None:
        self.daemons = daemons

    def address(self, shard_by: str = "") -> ShardedAddress:
        """What a client over all of them connects to."""
        return address_of([daemon.socket_path for daemon in self.daemons], shard_by)

    def connect(self, shard_by: str = "") -> Client:
        """A client over all of them, through a router in this process."""
        return open_client(self.address(shard_by))

    def connect_each(self, opened: contextlib.ExitStack) -> list[Client]:
        """A direct connection to each."""
        return [opened.enter_context(connect(daemon)) for daemon in self.daemons]


def address_of(paths: list[Path], shard_by: str = "") -> ShardedAddress:
    """The address of the shards with these sockets."""
    return ShardedAddress(tuple(map(str, paths)), shard_by=shard_by)


def open_client(address: ShardedAddress) -> Client:
    """A client over shards, through a router in this process."""
    return Client(dial(address), str(address.parts), name="benchmark")


@contextlib.contextmanager
def running(folder: Path, count: int, **settings: str) -> Iterator[Shards]:
    """`count` daemons in `folder`, which answer; `settings` as of `Daemon`.

    Raises:
        RuntimeError: one has ended.
    """
    store = folder / "store"
    with contextlib.ExitStack() as opened:
        daemons = []
        for number in range(count):
            state_dir = folder / str(number)
            state_dir.mkdir(mode=0o700)
            daemons.append(opened.enter_context(Daemon(state_dir, shard=str(number), store=str(store), **settings)))
        for daemon in daemons:
            connect(daemon).close()
        yield Shards(daemons)


# --- messages --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_messages() -> Iterator[Callable[[], int]]:
    """Counts what routers of this process say to shards and hear from them, but heartbeats; gives the count so far."""
    count = 0

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            return method(*arguments)

        return wrapped

    with contextlib.ExitStack() as undone:
        for name in ("ask", "cancel", "_answered"):
            undone.enter_context(mock.patch.object(Shard, name, counting(getattr(Shard, name))))
        yield lambda: count


def wait_parked(producers: Sequence[Client], calls_count: int) -> None:
    """Wait until so many calls are parked at each shard, of which `producers` are direct connections.

    Raises:
        RuntimeError: they are not within two minutes.
    """
    deadline = time.monotonic() + _PARKED_S
    for producer in producers:
        while producer.call(Status(producer.next_id()), DaemonState).parked_count != calls_count:
            if time.monotonic() > deadline:
                raise RuntimeError("consumers do not park at all shards")
            time.sleep(0.001)


class Parked:
    """Clients over shards with one call each, which take what comes, one chunk a call, complete it and park again.

    Args:
        producers: a direct connection to each shard.
        clients: one for each consumer.
    """

    def __init__(self, producers: Sequence[Client], clients: Sequence[Client]) -> None:
        self._producers = producers
        self._clients = clients
        for client in clients:
            client.send([Reserve(client.next_id(), 1, "OldestFirst", None)])
        self.wait_parked()

    def wait_parked(self) -> None:
        """Wait until all are parked at all shards; raises as `wait_parked`."""
        wait_parked(self._producers, len(self._clients))

    def take(self, chunks_count: int) -> None:
        """Work until so many chunks are completed."""
        done = 0
        with selectors.DefaultSelector() as selector:
            for client in self._clients:
                selector.register(client, selectors.EVENT_READ, client)
            while done < chunks_count:
                for key, _ in selector.select():
                    done += self._heard(key.data)

    def _heard(self, client: Client) -> int:
        done = 0
        for reply in client.receive(0.0):
            if isinstance(reply, Reserved):
                [grant] = reply.grants
                completions = [Completion(held(reply.reservation_id, grant))]
                client.send([CompleteAndReserve(client.next_id(), completions, 1, "OldestFirst", None)])
            done += isinstance(reply, Completed)
        return done
