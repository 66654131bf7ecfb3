"""Words and rows for the shards of a queue, if it has several: each alone, beside what they are together.

It must not ask for anything, nor print.
"""

from __future__ import annotations

from opsq.units import counted, format_span
from opsq.wire.messages import UNREACHABLE, DaemonState

SHARD_COLUMNS = ("shard", "address", "state", "waiting", "reserved", "dead", "up")
SHARD_NUMBERS = frozenset({"shard", "waiting", "reserved", "dead", "up"})


def shard_rows(state: DaemonState) -> list[tuple[str, ...]]:
    """A row for each shard; of one that did not answer, no more than where it is."""
    rows: list[tuple[str, ...]] = []
    for shard in state.shards:
        state_text = shard.state if shard.takes_new else f"{shard.state}, drained"
        row = ("-" if shard.shard is None else str(shard.shard), shard.address, state_text)
        if shard.total is None:
            rows.append((*row, "", "", "", ""))
            continue
        counts = (shard.total.waiting_count, shard.total.reserved_count, shard.total.dead_count)
        rows.append((*row, *map(str, counts), format_span(shard.uptime_s)))
    return rows


def process_text(state: DaemonState) -> str:
    """Which process it is, or of how many shards the state is."""
    if len(state.shards) < 2:
        return f"pid {state.pid}"
    missing_count = sum(shard.state == UNREACHABLE for shard in state.shards)
    return counted(len(state.shards), "shard") + (f", {missing_count} of them unreachable" if missing_count else "")
