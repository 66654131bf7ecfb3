"""Stands for the replication in a daemon whose queue has no replica, so that nobody else has to ask whether it has one.

It must not do anything: everything may be said at once, and nothing waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from opsq.queue.engine import Peer
from opsq.store.write_ahead_log import WriteAheadLog
from opsq.wire.messages import Reply

if TYPE_CHECKING:
    from opsq.daemon.replication import Replication
    from opsq.replica.ownership import Ownership
    from opsq.settings import Settings


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


def replication_of(
    ownership: Ownership | None,
    settings: Settings,
    log: WriteAheadLog,
    *,
    commits_count: Callable[[], int],
    is_full: Callable[[], bool],
    pulse_soon: Callable[[], None],
    on_fatal: Callable[[BaseException], None],
) -> Replication | NoReplica:
    """The replication of a queue; the arguments are those of `Replication`.

    Args:
        ownership: None: it has no replica, and what copies one is not imported.
    """
    if ownership is None:
        return NoReplica()
    from opsq.daemon.replication import Replication

    return Replication(
        settings,
        ownership,
        log,
        commits_count=commits_count,
        is_full=is_full,
        pulse_soon=pulse_soon,
        on_fatal=on_fatal,
    )
