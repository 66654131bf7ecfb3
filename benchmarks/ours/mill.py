"""A consumer in its steady state on an engine alone: reserves chunks one by one, completes most, releases some.

One in a hundred is given back. Only reserves are timed. It must not know what strategy it is measured with, or what the
backlog looks like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

from harness import Must, Row, median, paired_row, quantile
from harness.pairs import pairwise
from opsq.wire.messages import Complete, Completed, Completion, Grant, HeldChunks, Release, Reserve, Reserved
from ours import loads
from ours.engine import EngineAlone, Timed

BACK_EVERY = 100
"""One chunk in this many is given back instead of completed."""

Metadata = dict[str, int | str]
Share = Literal["p50", "p99"]
SHARES: tuple[Share, ...] = ("p50", "p99")


class Quantiles(NamedTuple):
    """Of one turn's calls: by the processor time of the thread, and by the wall."""

    p50_cpu_s: float
    p99_cpu_s: float
    p50_wall_s: float
    p99_wall_s: float


def compared(
    what: str,
    share: Share,
    ours: list[Quantiles],
    rival: list[Quantiles],
    must: Must,
    *,
    rival_name: str,
    note: str = "",
) -> Row:
    """The row of paired turns, by processor time: a reserve never waits, and other load disturbs its wall time."""
    by_cpu = SHARES.index(share)
    by_wall = by_cpu + len(SHARES)
    wall = [taken[by_wall] for taken in ours]
    rival_wall = [taken[by_wall] for taken in rival]
    told = f"by the wall {median(wall) * 1e6:.1f} µs, {median(pairwise(wall, rival_wall)):.2f}×"
    row = paired_row(
        f"{what}: {share}",
        "s",
        [taken[by_cpu] for taken in ours],
        [taken[by_cpu] for taken in rival],
        must,
        rival_name=rival_name,
        note=f"{told}; {note}" if note else told,
    )
    return replace(row, samples={**row.samples, "ours by the wall": wall, f"{rival_name} by the wall": rival_wall})


class Mill:
    """Reserves and completes.

    Args:
        strategies: used in turn, one a call.
        count: chunks a call.
        held: the chunks of at least this many calls are held; what is more is completed, `batch` calls' at once.
        on_completed: called with the metadata of each submission of which a chunk was completed.
        before: called before each reserve.
    """

    def __init__(
        self,
        engine: EngineAlone,
        *strategies: str,
        count: int = 1,
        held: int = 8,
        batch: int = 32,
        on_completed: Callable[[Metadata], None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._peer = engine.connect("mill")
        self._strategies = strategies
        self._count = count
        self._least = held
        self._batch = batch
        self._on_completed = on_completed
        self._before = before
        self._held: deque[HeldChunks] = deque()
        self._metadata: dict[int, Metadata] = {}
        self._calls = 0
        self._given = 0

    def reserve(self) -> Timed:
        """One call, which must get all that it asks for."""
        strategy = self._strategies[self._calls % len(self._strategies)]
        self._calls += 1
        if self._before is not None:
            self._before()
        timed = self._engine.timed(Reserve(self._calls, self._count, strategy), self._peer)
        (reserved,) = timed.replies
        if not isinstance(reserved, Reserved) or loads.chunks_of(reserved) != self._count:
            raise RuntimeError(f"{strategy} asked for {self._count} free chunks; the engine gave {reserved}")
        for described in reserved.submissions:
            self._metadata[described.submission_id] = described.metadata
        self._held += [loads.held(reserved.reservation_id, grant) for grant in reserved.grants]
        return timed

    def turn(self, calls: int) -> Quantiles:
        """Some calls in the steady state."""
        wall, cpu = [], []
        for _ in range(calls):
            timed = self.reserve()
            wall.append(timed.wall_s)
            cpu.append(timed.cpu_s)
            if len(self._held) >= (self._least + self._batch) * self._count:
                self._complete(len(self._held) - self._least * self._count)
        return Quantiles(quantile(cpu, 0.5), quantile(cpu, 0.99), quantile(wall, 0.5), quantile(wall, 0.99))

    def end(self) -> None:
        """Complete what is held."""
        self._complete(len(self._held))

    def _complete(self, grants_count: int) -> None:
        done: list[HeldChunks] = []
        for _ in range(grants_count):
            held = self._held.popleft()
            self._given += 1
            if self._given % BACK_EVERY == 0:
                self._engine.ask(Release(self._calls, [held]), self._peer)
            else:
                done.append(held)
        (reply,) = self._engine.ask(Complete(self._calls, [Completion(held) for held in done]), self._peer)
        if not isinstance(reply, Completed) or reply.refusals:
            raise RuntimeError(f"a completion was refused: {reply}")
        if self._on_completed is not None:
            for held in done:
                self._on_completed(self._metadata[held.submission_id])


def hold(engine: EngineAlone, strategy: str, chunks_count: int) -> list[tuple[int, Grant]]:
    """Reserve chunks that are never completed, for as long as the engine lives: (reservation, grant) of each block."""
    peer = engine.connect("holder")
    held: list[tuple[int, Grant]] = []
    left = chunks_count
    while left:
        replies = engine.ask(Reserve(1, min(left, 1000), strategy), peer)
        (reserved,) = [reply for reply in replies if isinstance(reply, Reserved)]
        got = loads.chunks_of(reserved)
        if not got:
            raise RuntimeError(f"{chunks_count} chunks were to be held by {strategy}; {left} of them are not free")
        left -= got
        held += [(reserved.reservation_id, grant) for grant in reserved.grants]
    return held
