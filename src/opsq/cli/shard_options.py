"""What verbs say of several shards: whether there are any, and what a limit is at each of them.

The settings take the options themselves; see `cli.daemon_address`.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.client.core.address import ShardedAddress, address_of
from opsq.client.sync.connection import Connection
from opsq.errors import UsageError
from opsq.wire.messages import DaemonState, Limit, Status


def are_sharded(caller: Caller) -> bool:
    """Whether the verb talks to several daemons."""
    return isinstance(address_of(caller.settings), ShardedAddress)


def need_shards(caller: Caller, flag: str) -> None:
    """Refuse an option that concerns several daemons where there is one.

    Raises:
        UsageError: there is one.
    """
    if not are_sharded(caller):
        raise UsageError(
            f"{flag} concerns several shards, and there is one daemon.",
            hint="Name all of them: --address HOST:PORT,HOST:PORT, or OPSQ_ADDRESS.",
        )


def divided(limit: Limit, shards_count: int) -> Limit:
    """A limit of which each of so many shards gets its part: at least one chunk."""

    def part(count: int | None) -> int | None:
        return None if count is None else max(count // shards_count, 1)

    rate_per_s = None if limit.rate_per_s is None else limit.rate_per_s / shards_count
    return Limit(
        limit.id,
        limit.key,
        limit.value,
        part(limit.concurrency),
        rate_per_s,
        part(limit.burst),
        limit.by_name,
        limit.rate_span_s,
    )


def count_shards(daemon: Connection) -> int:
    """How many shards there are, also those that cannot be reached now."""
    return max(len(daemon.call(Status(daemon.next_id()), DaemonState).shards), 1)
