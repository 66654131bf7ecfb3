"""Metrics of a daemon for monitoring: their names, units and meaning, made of its state, and their text.

It must not ask for the state, nor import anything that comes with `opsq[gateway]`: `opsq metrics` does without.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from opsq.printable import printable
from opsq.wire.messages import UNREACHABLE, Counts, DaemonState, Durations, RulesState, ShowRules, Status

VALUES_LIMIT = 100
"""Values of a key, and limits, that have samples of their own; those with the most work."""
OTHERS = "(others)"
"""Stands for all other values."""

STATES = ("waiting", "delayed", "reserved", "completed", "dead", "skipped")
_SUFFIXES = {"counter": "_total", "info": "_info"}


class Sample(NamedTuple):
    """A number, with the whole name and the labels under which it is collected."""

    name: str
    labels: Mapping[str, str]
    value: float


class Family:
    """A metric with all its samples.

    Args:
        name: without the suffix that its kind gives to samples.
        kind: gauge, counter, info, histogram, or unknown: a counter that is not named as one.
        unit: the end of the name, if it is a unit: seconds or bytes.
        prefix: of the name; "" where it is another program's.
    """

    def __init__(self, name: str, kind: str, meaning: str, unit: str = "", *, prefix: str = "opsq_") -> None:
        self.name = prefix + name
        self.kind = kind
        self.meaning = meaning
        self.unit = unit
        self.samples: list[Sample] = []

    @property
    def sample_name(self) -> str:
        """The name of its samples, but for those of a histogram."""
        return self.name + _SUFFIXES.get(self.kind, "")

    def add(self, number: float, /, **labels: str) -> Family:
        """Add a sample."""
        self.samples.append(Sample(self.sample_name, labels, number))
        return self

    def add_durations(self, durations: Durations) -> Family:
        """Add the samples of a histogram."""
        bounds = [*map(_number, durations.bounds_s), "+Inf"]
        counts = list(accumulate(durations.counts))
        for bound, count in zip(bounds, counts, strict=True):
            self.samples.append(Sample(f"{self.name}_bucket", {"le": bound}, count))
        self.samples += [Sample(f"{self.name}_count", {}, counts[-1]), Sample(f"{self.name}_sum", {}, durations.sum_s)]
        return self


def requests(first_id: int, second_id: int, by: str | None) -> tuple[Status, ShowRules]:
    """What to ask the daemon for `families`.

    Args:
        by: also count per value of this metadata key.
    """
    return Status(first_id, by, measures=True), ShowRules(second_id)


def families(state: DaemonState, rules: RulesState, by: str | None) -> Iterator[Family]:
    """All metrics of a daemon, from its answers to `requests`; what it does not know is left out."""
    yield from _work(state)
    yield from _consumers(state)
    yield from _rules(rules)
    yield from _installation(state)
    yield from _measures(state)
    if by is not None:
        yield from _values(by, state.by, state.total)


def _work(state: DaemonState) -> Iterator[Family]:
    total = state.total
    chunks = Family("chunks", "gauge", "Chunks by state.")
    for name, count in _chunks(total).items():
        chunks.add(count, state=name)
    yield chunks
    submissions = Family("submissions", "gauge", "Submissions by state.")
    for name, count in state.states.items():
        submissions.add(count, state=name)
    yield submissions
    yield Family("backlog_chunks", "gauge", "Chunks that are waiting, delayed or reserved.").add(total.backlog_count)
    if state.backlog_limit is not None:
        yield Family("backlog_limit_chunks", "gauge", "How many may be in the backlog.").add(state.backlog_limit)
    yield Family("room_waiting_submissions", "gauge", "Submissions that wait for room in the backlog.").add(
        state.room_waiting_count
    )
    if state.measures is not None:
        yield Family(
            "oldest_waiting_seconds",
            "gauge",
            "How long ago the oldest submission with a waiting chunk could first be handed out; 0 if no chunk waits.",
            "seconds",
        ).add(state.measures.oldest_waiting_s)
    yield Family("oldest_reservation_seconds", "gauge", "Age of the oldest reservation.", "seconds").add(
        state.oldest_reservation_s
    )
    if state.unmatched_count is not None:
        yield Family("unmatched_chunks", "gauge", "Waiting chunks that no strategy of a consumer takes.").add(
            state.unmatched_count
        )


def _consumers(state: DaemonState) -> Iterator[Family]:
    if state.measures is not None:
        yield Family("consumers", "gauge", "Connections that have asked for chunks.").add(
            state.measures.consumers_count
        )
    yield Family("unmatched_consumers", "gauge", "Consumers that wait although nothing that waits is for them.").add(
        sum(consumer.is_unmatched for consumer in state.consumers)
    )
    yield Family("connections", "gauge", "Connections to the daemon.").add(state.connections_count)
    yield Family("parked_calls", "gauge", "Calls that wait for chunks.").add(state.parked_count)


def _rules(rules: RulesState) -> Iterator[Family]:
    yield Family("pauses", "gauge", "Pauses that are set.").add(len(rules.pauses))
    yield Family("limits", "gauge", "Limits that are set.").add(len(rules.limits))
    bound = Family("limit_chunks", "gauge", "How many chunks of a value may be reserved; no value: of each value.")
    held = Family("limit_reserved_chunks", "gauge", "Chunks reserved under a limit; no value: of the busiest value.")
    for limit in heapq.nlargest(VALUES_LIMIT, rules.limits, key=lambda limit: limit.reserved_count or 0):
        value = "" if limit.value is None else _label(limit.value)
        if limit.concurrency is not None:
            bound.add(limit.concurrency, key=limit.key, value=value)
        if limit.reserved_count is not None:
            held.add(limit.reserved_count, key=limit.key, value=value)
    yield bound
    yield held


def _installation(state: DaemonState) -> Iterator[Family]:
    yield Family("build", "info", "Version of the daemon.").add(1, version=state.server)
    states = Family("daemon_state", "gauge", "1 for the state that the daemon is in.")
    for name in ("running", "draining", "full"):
        states.add(int(name == state.state), state=name)
    yield states
    if state.shards:
        shards = Family("shard_up", "gauge", "1 for a shard of the queue that answers, 0 for one that does not.")
        for shard in state.shards:
            number = "" if shard.shard is None else str(shard.shard)
            shards.add(int(shard.state != UNREACHABLE), shard=number, address=shard.address)
        yield shards
    yield Family("uptime_seconds", "gauge", "Since the daemon started.", "seconds").add(state.uptime_s)
    yield Family("unfolded_events", "gauge", "Events that are not folded into the tables yet.").add(
        state.unfolded_count
    )
    yield Family("database_bytes", "gauge", "Size of the database.", "bytes").add(state.file_bytes)
    yield Family("database_free_bytes", "gauge", "Of that, free for reuse.", "bytes").add(state.free_bytes)
    yield Family("log_bytes", "gauge", "Size of the write-ahead log.", "bytes").add(state.wal_bytes)
    yield Family(
        "log_kept_seconds",
        "gauge",
        "For how long a program that reads the database has kept a long log from starting over; 0 if none does.",
        "seconds",
    ).add(state.wal_kept_s)
    if state.replica is not None:
        yield Family(
            "replica_lag_seconds",
            "gauge",
            "For how long the oldest change that is not in the replica has been waiting; no sample: there is none.",
            "seconds",
        ).add(state.replica.lag_s)
    if state.disk_free_bytes is not None:
        yield Family("disk_free_bytes", "gauge", "Left on the disk of the database or of the store.", "bytes").add(
            state.disk_free_bytes
        )


def _measures(state: DaemonState) -> Iterator[Family]:
    measures = state.measures
    if measures is None:
        return
    events = Family("chunk_events", "counter", "Chunks by what became of them since the daemon started.")
    for name, count in measures.events.items():
        events.add(count, event=name)
    yield events
    yield Family(
        "chunk_wait_seconds", "histogram", "How long chunks waited for an attempt; of a block, the longest.", "seconds"
    ).add_durations(measures.waits)
    yield Family(
        "chunk_run_seconds", "histogram", "How long attempts took; of a block, the mean.", "seconds"
    ).add_durations(measures.runs)
    if measures.reserves is not None:
        yield Family(
            "reserve_duration_seconds",
            "histogram",
            "How long the daemon took over a reserve, until it answered or the call waits.",
            "seconds",
        ).add_durations(measures.reserves)
    if measures.commits is not None:
        yield Family("commit_duration_seconds", "histogram", "How long commits took.", "seconds").add_durations(
            measures.commits
        )
    yield Family(
        "overlooked_waits", "counter", "How often the watchdog found somebody waiting for what was free: a bug."
    ).add(measures.overlooked_count)


def _values(key: str, found: list[Counts], total: Counts) -> Iterator[Family]:
    """The work of each value of a key. Empty: of what lacks the key; the values with the least work are one."""
    known = [counts for counts in found if counts.value is not None]
    largest = heapq.nlargest(VALUES_LIMIT, known, key=lambda counts: (counts.backlog_count, counts.submissions_count))
    lacking = [counts for counts in found if counts.value is None]
    parts = [("" if counts.value is None else _label(counts.value), counts) for counts in (*largest, *lacking)]
    chunks = Family("value_chunks", "gauge", "Chunks by state, for values of a metadata key.")
    submissions = Family("value_submissions", "gauge", "Submissions, for values of a metadata key.")
    for value, counts in parts:
        for state, count in _chunks(counts).items():
            chunks.add(count, key=key, value=value, state=state)
        submissions.add(counts.submissions_count, key=key, value=value)
    if len(known) > len(largest):
        for state, count in _chunks(total).items():
            rest = count - sum(_chunks(counts)[state] for _, counts in parts)
            chunks.add(rest, key=key, value=OTHERS, state=state)
        rest = total.submissions_count - sum(counts.submissions_count for _, counts in parts)
        submissions.add(rest, key=key, value=OTHERS)
    yield chunks
    yield submissions
    yield Family("values", "gauge", "How many values of a metadata key there are.").add(len(known), key=key)


def _chunks(counts: Counts) -> dict[str, int]:
    return {state: getattr(counts, f"{state}_count") for state in STATES}


def _label(value: int | str) -> str:
    """A metadata value as a label: no two have the same, none is empty or stands for others, all can be shown."""
    if isinstance(value, int):
        return str(value)
    is_number = value.removeprefix("-").isdecimal()
    is_plain = value not in {"", OTHERS} and not value.startswith('"') and not is_number and printable(value) == value
    return value if is_plain else json.dumps(value)


# --- text -------------------------------------------------------------------------------------------------------------


def text_lines(metrics: Iterable[Family]) -> list[str]:
    """The lines of the text format of Prometheus, which node_exporter reads from files."""
    lines = []
    for family in metrics:
        kind = "gauge" if family.kind == "info" else family.kind
        lines += [f"# HELP {family.sample_name} {family.meaning}", f"# TYPE {family.sample_name} {kind}"]
        for name, labels, value in family.samples:
            pairs = ",".join(f'{label}="{_escaped(given)}"' for label, given in sorted(labels.items()))
            lines.append(f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}")
    return lines


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(float(value))
