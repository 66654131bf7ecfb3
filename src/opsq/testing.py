"""A queue for tests of programs: the real engine on a real file, and a clock that moves only when it is told to.

    with opsq.testing.queue(at="2026-01-01T00:00Z") as q:
        q.add_schedule("nightly", "30 2 * * *")
        q.clock.advance(hours=3)
        [chunk] = q.consume()

This file owns the clock and what moves it. It must not decide anything that the engine decides.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opsq.client.core.new_submission import to_ms
from opsq.client.core.transport import DIAL_S
from opsq.client.embedded import EmbeddedEngine, EmbeddedWire
from opsq.client.sync.queue import Queue
from opsq.clock import MonoNs, Now, WallMs
from opsq.errors import Unreachable, UsageError
from opsq.queue.faults import Fatal
from opsq.queue.policy import Policy
from opsq.wire.messages import Heartbeat, Request

if TYPE_CHECKING:
    from opsq.client.core.new_submission import Moment

__all__ = ["Clock", "Policy", "TemporaryQueue", "queue"]

LOOK_S = 3600.0
"""The longest step of the clock: retention looks by itself for what is old."""
STANDSTILL_S = 5.0
"""Who waits for so long for a clock that stands still, while nothing else happens, would wait for ever."""
MONO_START_NS = 1_000_000_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class _MovedEngine(EmbeddedEngine):
    """The engine of this process, by a clock that is moved."""

    def __init__(self, path: Path, policy: Policy, wall_ms: int) -> None:
        self._started_at = self.wall_ms = wall_ms
        self._heard_at = time.monotonic()
        super().__init__(path, policy, is_durable=False, clocks=self._read_clock, rng=random.Random(0))

    def _read_clock(self) -> Now:
        passed_ns = (self.wall_ms - self._started_at) * 1_000_000
        return Now(MonoNs(MONO_START_NS + passed_ns), WallMs(self.wall_ms))

    def pass_time(self, duration_ms: int, *, is_watched: bool) -> None:
        """Move the clock on; see `Clock.advance`, and `Clock.skip` for what is not watched.

        Raises:
            Conflict: the queue was closed.
            Unreachable: the engine has ended.
        """
        with self.entered():
            self._check_usable()
            end = self.wall_ms + duration_ms
            self._do_what_is_due(is_moved=is_watched)
            while self.wall_ms < end:
                next_ms = math.ceil(self._engine.next_tick_s(self._read_clock(), LOOK_S) * 1000)
                self.wall_ms = min(self.wall_ms + max(next_ms, 1), end) if is_watched else end
                self._do_what_is_due(is_moved=is_watched)
            self.changed.notify_all()

    def _do_what_is_due(self, *, is_moved: bool) -> None:
        self._heard_at = time.monotonic()
        try:
            while self.step(is_moved=is_moved) == 0 or self.is_under_way:
                pass
        except Fatal as error:
            raise Unreachable(f"The engine has ended: {error}") from error

    def handle(self, wire: EmbeddedWire, requests: Sequence[Request]) -> None:
        """See `EmbeddedEngine.handle`."""
        if not all(isinstance(request, Heartbeat) for request in requests):
            self._heard_at = time.monotonic()
        super().handle(wire, requests)

    def check_waiting(self) -> None:
        """Refuse to wait for nothing but the clock.

        Raises:
            UsageError: nobody has asked for anything for a while, and nobody has a chunk.
        """
        if time.monotonic() - self._heard_at > STANDSTILL_S and self._engine.is_quiet():
            raise UsageError(
                "This call waits for a clock that stands still.",
                hint="Advance the clock first. A consumer does not wait with until_idle=True.",
            )


class Clock:
    """The time of a queue; it stands still until it is moved, and never goes back."""

    def __init__(self, engine: _MovedEngine) -> None:
        self._engine = engine

    @property
    def now(self) -> dt.datetime:
        """The time, in UTC."""
        return _EPOCH + dt.timedelta(milliseconds=self._engine.wall_ms)

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass, and have the queue do what falls due on the way, each at its instant.

        All of that is done on return: schedules have made their submissions, delays and back-offs are over,
        reservations without a heartbeat have expired. Consumers in other threads get no time in between.

        Raises:
            UsageError: time does not go back.
        """
        self._pass(dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds), is_watched=True)

    def advance_to(self, at: Moment | str) -> None:
        """Advance to an instant: a datetime with its zone, a text such as 2026-01-01T00:00Z, or milliseconds.

        Raises:
            UsageError: it is none, or has passed.
        """
        self._pass(_datetime(at) - self.now, is_watched=True)

    def skip(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass while the queue does nothing, as while no daemon runs or the machine is suspended.

        What fell due is done at the end, late; `catch_up` decides which instants of schedules still come.

        Raises:
            UsageError: time does not go back.
        """
        self._pass(dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds), is_watched=False)

    def _pass(self, duration: dt.timedelta, *, is_watched: bool) -> None:
        duration_ms = duration // dt.timedelta(milliseconds=1)
        if duration_ms < 0:
            message = f"The clock is at {self.now.isoformat()} and does not go back."
            raise UsageError(message, hint="Open another queue with an earlier at=.")
        self._engine.pass_time(duration_ms, is_watched=is_watched)


class TemporaryQueue(Queue):
    """A queue in a temporary folder, which ends with it; see `queue`."""

    clock: Clock

    def __init__(self, wall_ms: int, policy: Policy) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="opsq-testing-", ignore_cleanup_errors=True)
        engine = _MovedEngine(Path(self._folder.name), policy, wall_ms)
        self.clock = Clock(engine)
        super().__init__(engine.open_wire, reconnect_s=DIAL_S, on_close=engine.close)

    def close(self) -> None:
        """End the queue, and remove its folder."""
        super().close()
        self._folder.cleanup()


def queue(*, at: Moment | str = "2026-01-01T00:00Z", policy: Policy | None = None) -> TemporaryQueue:
    """A queue for a test: `with opsq.testing.queue() as q`; it has all that `Queue` has, and `q.clock`.

    Each is its own, in a temporary folder, and nothing is synced to the disk. Time stands still until the clock is
    moved, and what is random is the same each time. A call that only the clock could end raises UsageError after a few
    seconds.

    Args:
        at: the time at the beginning: a datetime with its zone, a text such as 2026-01-01T00:00Z, or milliseconds
            since 1970 UTC.
        policy: other defaults than a daemon's: `opsq.testing.Policy(max_attempts=2)`.

    Raises:
        UsageError: there is no such instant.
    """
    return TemporaryQueue(to_ms(_datetime(at)), policy or Policy())


def _datetime(at: Moment | str) -> dt.datetime:
    if isinstance(at, str):
        try:
            at = dt.datetime.fromisoformat(at)
        except ValueError as error:
            raise UsageError(f"{at!r} is no instant.", hint="Write 2026-01-01T00:00Z.") from error
    return _EPOCH + dt.timedelta(milliseconds=to_ms(at))
