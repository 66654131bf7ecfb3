"""The defaults and bounds that govern the engine; values, and nothing that changes."""

from __future__ import annotations

import msgspec

from opsq.wire.messages import Backoff

FLOOR_BYTES = 64 << 20
"""The write-ahead log may grow by so much while what is there is completed."""
FLOOR_SHARE = 20
"""A twentieth: a disk of 100 MB is not to be useless."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that a user may set and the engine obeys."""

    reservation_s: float = 600.0
    """How long a reservation lasts without a heartbeat: longer than most chunks run, short enough to wait for."""
    heartbeat_s: float = 5.0
    heartbeat_misses: int = 3
    max_attempts: int = 5
    max_lost: int = 5
    backoff: Backoff = Backoff()
    history_days: float = 30.0
    history_rows: int = 10_000_000
    finished_days: float = 7.0
    event_days: float = 30.0
    event_rows: int = 1_000_000
    strategies: dict[str, str] = {}
    """Named strategies of the configuration: name → text."""
    max_backlog_chunks: int = 0
    """How many chunks may be unfinished before submissions must wait; 0: any number."""
    min_free_bytes: int | None = None
    """What must be left on the disk; less holds submissions back.

    None: `FLOOR_BYTES`, or `FLOOR_SHARE` of a small disk.
    """
    replicate_to: str = ""
    """Where the daemon copies the queue to; empty: nowhere."""
    ack: str = "committed"
    """When a Submit is answered that does not say so: after its commit, or once it is `replicated`."""
    restart_lease_s: float = 30.0
    """How long the daemon keeps, over its own restart, what connected consumers hold."""

    def floor_bytes(self, total_bytes: int) -> int:
        """How many bytes must be left on a disk of `total_bytes` bytes."""
        if self.min_free_bytes is not None:
            return self.min_free_bytes
        return min(FLOOR_BYTES, total_bytes // FLOOR_SHARE)
