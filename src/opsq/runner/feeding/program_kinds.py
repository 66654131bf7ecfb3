"""Chooses what runs a command for chunks: once per chunk, per record, or as a server in each slot.

This file must not start anything; each kind is loaded only when it is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsq.runner.feeding.programs import Feeding, Programs, Setup


def make_programs(command: Sequence[str], feeding: Feeding, setup: Setup) -> Programs:
    """Make what runs `command` for chunks in the way that `feeding` says.

    Raises:
        UsageError: the command has placeholders that do not go with that way, or ways cannot be combined.
    """
    feeding.check()
    if feeding.by_records:
        from opsq.runner.feeding.per_record import PerRecord

        return PerRecord(command, feeding, setup)
    if feeding.server:
        from opsq.runner.feeding.server_pool import ServerPool

        return ServerPool(command, feeding, setup)
    from opsq.runner.feeding.per_chunk import PerChunk

    return PerChunk(command, feeding, setup)
