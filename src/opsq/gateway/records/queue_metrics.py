"""Metrics of queues of records, under the names and with the meaning that SuperQueue gives them.

It must not know HTTP, nor how records are put in.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Iterator
from operator import attrgetter

from opsq.client.aio.queue import AsyncQueue
from opsq.gateway.records.queue_defaults import DEFAULT_NAME, KEY, QueueDefaults, is_name
from opsq.metrics import VALUES_LIMIT, Family
from opsq.wire.messages import Counts, DaemonState, Status

_KNOWN_LIMIT = 4096
"""Queues whose records are counted; one more forgets the first."""
_ANSWER_S = 30.0
_GAUGES = {
    "queued_messages": "Records that wait.",
    "delayed_messages": "Records that wait for their time.",
    "in_flight_messages": "Records that consumers have.",
    "queue_max_len": "How many records there may be at once.",
}
_PUT_IN = {
    "total_queued_messages": "Records that this gateway has put in since it started.",
    "queued_messages_size": "Bytes of the records that this gateway has put in since it started.",
}
_MEMORY = {"mem_bytes_heap": "RssAnon", "mem_bytes_sys": "VmRSS"}
"""What of `/proc/self/status`."""


class QueueMetrics:
    """Counts the records that are put in, and asks the daemon for all else.

    Args:
        defaults: of a queue, by its name.
    """

    def __init__(self, defaults: Callable[[str], QueueDefaults]) -> None:
        self._defaults = defaults
        self._put_in: dict[str, tuple[int, int]] = {}
        """Records and bytes, by queue."""

    def note(self, queue: str, size_bytes: int) -> None:
        """A record was put into a queue."""
        count, before_bytes = self._put_in.get(queue, (0, 0))
        self._put_in[queue] = count + 1, before_bytes + size_bytes
        if len(self._put_in) > _KNOWN_LIMIT:
            del self._put_in[next(iter(self._put_in))]

    async def of_queue(self, asked: AsyncQueue, name: str) -> list[Family]:
        """Those of one queue, as a SuperQueue that has only this one tells them."""
        state = await self._state(asked)
        found = next((counts for counts in state.by if counts.value == name), _nothing(name))
        return self._families(state, {name: found}, is_alone=True)

    async def of_all(self, asked: AsyncQueue) -> list[Family]:
        """Those of the default queue, without a label, as its paths have no name, and of the largest backlogs."""
        state = await self._state(asked)
        known = [counts for counts in state.by if isinstance(counts.value, str) and is_name(counts.value)]
        largest = {
            str(counts.value): counts for counts in heapq.nlargest(VALUES_LIMIT, known, key=attrgetter("backlog_count"))
        }
        default = next((counts for counts in known if counts.value == DEFAULT_NAME), _nothing(DEFAULT_NAME))
        return self._families(state, {DEFAULT_NAME: default} | largest, is_alone=False)

    async def _state(self, asked: AsyncQueue) -> DaemonState:
        return await asked.link.call(Status(asked.link.next_id(), KEY), DaemonState, _ANSWER_S)

    def _families(self, state: DaemonState, queues: dict[str, Counts], *, is_alone: bool) -> list[Family]:
        gauges = [Family(name, "gauge", meaning, prefix="") for name, meaning in _GAUGES.items()]
        put_in = [Family(name, "unknown", meaning, prefix="") for name, meaning in _PUT_IN.items()]
        for name, counts in queues.items():
            limit = self._defaults(name).limit or state.backlog_limit or math.inf
            numbers = (counts.waiting_count, counts.delayed_count, counts.reserved_count, limit)
            labels = {} if is_alone or name == DEFAULT_NAME else {"queue": name}
            for family, number in zip((*gauges, *put_in), (*numbers, *self._put_in.get(name, (0, 0))), strict=True):
                family.add(number, **labels)
        return [*gauges, *put_in, *_memory()]


def _nothing(name: str) -> Counts:
    return Counts(name, 0, 0, 0, 0, 0, 0, 0)


def _memory() -> Iterator[Family]:
    """What this process has of memory, where the system tells it as Linux does."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
        for name, field in _MEMORY.items():
            kilobytes = int(found[field].split()[0])
            yield Family(name, "gauge", "Bytes of memory that the gateway has.", prefix="").add(kilobytes * 1024)
