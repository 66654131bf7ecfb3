"""Stands for the replication in a daemon whose queue has no replica, so that nobody else has to ask whether it has one.

It must not do anything: everything may be said at once, and nothing waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.queue.engine import Peer
from opsq.wire.messages import Reply


class NoReplica:
    """What `Replication` offers, without a replica."""

    is_owner = True

    def start(self) -> None:
        """There is nothing to copy to."""

    async def finish(self) -> None:
        """Nothing was begun."""

    def sayable(self, replies: list[tuple[Peer, Reply]]) -> list[tuple[Peer, Reply]]:
        """All of them."""
        return replies

    def when_copied(self, action: Callable[[], None]) -> None:
        """Do this at once."""
        action()

    def state(self) -> None:
        """There is none."""
