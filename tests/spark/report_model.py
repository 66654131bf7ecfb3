"""The figures of the report by plain loops over rows, simple enough to be obviously right.

And random histories to try them on.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

ATTEMPTS = ("completed", "failed", "lost")
BEGIN = datetime(2026, 3, 1, 12, 0, 7, 250_000, tzinfo=UTC)


class Event(NamedTuple):
    """A row of the history, as far as figures need it; instants in microseconds since 1970."""

    seq: int
    at: int
    event: str
    submission_id: int
    chunks: int
    attempt: int
    consumer: str
    wait_s: float
    run_s: float
    run_max_s: float
    exit_status: int | None
    signal: int | None
    reason: str
    metadata: dict[str, str]

    @property
    def start(self) -> int:
        return self.at - int(self.run_max_s * 1e6)

    @property
    def ready(self) -> int:
        return self.start - int(self.wait_s * 1e6)

    @property
    def at_a_time(self) -> float:
        return self.run_s / self.run_max_s if self.run_max_s else 0.0

    def value(self, by: str | None) -> str | None:
        return "all" if by is None else str(self.submission_id) if by == "submission" else self.metadata.get(by)

    def as_row(self) -> dict[str, Any]:
        """As the export writes it."""
        began = None if not self.run_max_s else self.start
        return {
            **self._asdict(),
            "at": instant(self.at),
            "started_at": None if began is None else instant(began),
            "first_index": 0 if self.chunks else None,
            "indexes": "",
            "metadata": list(self.metadata.items()),
        }


def instant(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def random_history(seed: int, rows_count: int = 400) -> list[Event]:
    """A history of all kinds of events, over some minutes, by several consumers for several tenants.

    One of which has no name.
    """
    die = random.Random(seed)
    begin = int(BEGIN.timestamp() * 1_000_000)
    tenants: list[dict[str, str]] = [{"tenant": "acme", "kind": "a"}, {"tenant": "zeta"}, {"tenant": "größe"}, {}]
    found = []
    for seq in range(1, rows_count + 1):
        event = die.choices((*ATTEMPTS, "dead", "requeued", "dropped", "cancelled"), (60, 15, 5, 5, 2, 2, 1))[0]
        submission_id = die.randrange(1, 9)
        chunks = 0 if event == "cancelled" else die.choice((1, 1, 1, 3, 64))
        is_attempt = event in (*ATTEMPTS, "dead")
        run_max_s = die.choice((0.0, 0.004, 1.5, 7.25, die.expovariate(0.5), die.uniform(0, 90))) if is_attempt else 0.0
        found.append(
            Event(
                seq,
                begin + die.randrange(300_000) * 1000,
                event,
                submission_id,
                chunks,
                die.choice((0, 0, 0, 1, 2)),
                die.choice(("one", "two", "three")) if is_attempt else "",
                die.choice((0.0, 0.001, die.expovariate(0.1), die.uniform(0, 400))) if is_attempt else 0.0,
                run_max_s * die.uniform(1, chunks) if chunks > 1 else run_max_s,
                run_max_s,
                die.choice((0, 1, 3)) if event == "failed" and die.random() < 0.6 else None,
                9 if event == "failed" and die.random() < 0.2 else None,
                f"reason {seq}",
                tenants[submission_id % 4],
            )
        )
    return found


def by_value(events: Iterable[Event], by: str | None) -> dict[str | None, list[Event]]:
    found: dict[str | None, list[Event]] = defaultdict(list)
    for event in events:
        found[event.value(by)].append(event)
    return found


def attempts(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.event in ATTEMPTS and event.chunks]


def quotient(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def percentile(weighed: list[tuple[float, int]], percent: int) -> float | None:
    """By the nearest rank."""
    one_by_one = sorted(length for length, count in weighed for _ in range(count))
    return one_by_one[math.ceil(len(one_by_one) * percent / 100) - 1] if one_by_one else None


def summary(events: list[Event]) -> dict[str, Any]:
    """The summary of one value."""
    tried, ended = attempts(events), [event for event in events if event.event in ("completed", "dead")]
    ended_count = sum(event.chunks for event in ended)
    found: dict[str, Any] = {
        name: sum(event.chunks for event in events if event.event == name)
        for name in (*ATTEMPTS, "dead", "requeued", "dropped")
    }
    first, last = min((event.start for event in tried), default=0), max((event.at for event in tried), default=0)
    found |= {
        "retry_rate": quotient(sum(event.chunks for event in ended if event.attempt), ended_count),
        "attempts_per_chunk": quotient(sum(event.chunks * (event.attempt + 1) for event in ended), ended_count),
        "dead_rate": quotient(found["dead"], ended_count),
        "busy_s": sum(event.run_s for event in tried),
        "per_s": quotient(found["completed"], (last - first) / 1e6),
    }
    waits = [(event.wait_s, event.chunks) for event in tried]
    runs = [(event.run_s / event.chunks, event.chunks) for event in tried if event.event == "completed"]
    for percent in (50, 90, 99):
        found[f"wait_p{percent}_s"] = percentile(waits, percent)
        found[f"run_p{percent}_s"] = percentile(runs, percent)
    return found


def level(demands: list[int], capacity: int) -> float:
    """Max-min fair: serve the least first, give each the same part of what is left."""
    left: float = capacity
    for position, demand in enumerate(sorted(demands)):
        part = left / (len(demands) - position)
        if demand > part:
            return part
        left -= demand
    return float(max(demands, default=0))


def shares(events: list[Event], by: str | None, step_s: int) -> dict[tuple[str | None, int], tuple[int, int, float]]:
    """(value, window) → microseconds of service, demand, entitlement."""
    step, tried = step_s * 1_000_000, attempts(events)
    if not tried:
        return {}
    first, last = min(event.start for event in tried) // step, max(event.at for event in tried) // step
    found: dict[tuple[str | None, int], tuple[int, int, float]] = {}
    for window in range(first, last + 1):
        low, high = window * step, (window + 1) * step
        served: dict[str | None, int] = defaultdict(int)
        wanted: dict[str | None, int] = defaultdict(int)
        for event in tried:
            ran = min(event.at, high) - max(event.start, low)
            waited = min(event.start, high) - max(event.ready, low)
            if ran > 0:
                served[event.value(by)] += int(ran * event.at_a_time)
                wanted[event.value(by)] += int(ran * event.at_a_time)
            if waited > 0:
                wanted[event.value(by)] += int(min(waited, event.at - event.start) * event.at_a_time)
        top = level([demand for demand in wanted.values() if demand], sum(served.values()))
        for value, demand in wanted.items():
            if demand:
                found[value, window] = (served[value], demand, min(demand, top))
    return found


def jain(values: list[float]) -> float | None:
    return quotient(sum(values) ** 2, len(values) * sum(value * value for value in values))
