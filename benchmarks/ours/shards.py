"""Private daemons that are one queue: each with its number, all with one content store, on this machine.

It must not talk to them but to connect; `client.py` and `loads.py` do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from opsq.client.core.address import ShardedAddress
from opsq.client.shards.dialling import dial
from ours.client import Client, connect
from ours.daemon import Daemon


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
