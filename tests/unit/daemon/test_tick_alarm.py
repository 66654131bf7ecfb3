"""The alarm of the engine's clock: it rings for what is due first, and is not set at each pulse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from opsq.clock import MonoNs, Now, WallMs
from opsq.daemon.tick_alarm import TickAlarm

START = Now(MonoNs(10**12), WallMs(0))


class Asked:
    """Says what is due, and how often it was asked."""

    def __init__(self, *due_s: float) -> None:
        self.due_s = list(due_s)
        self.count = 0
        self.has_rung = asyncio.Event()

    def next_tick_s(self, _: Now) -> float:
        self.count += 1
        return self.due_s.pop(0) if self.due_s else 60.0

    def alarm(self) -> TickAlarm:
        def guarded(work: Callable[[], None]) -> None:
            work()

        return TickAlarm(asyncio.get_running_loop(), self.next_tick_s, self.has_rung.set, guarded)


def test_what_is_due_earlier_is_rung_for_although_the_alarm_was_set_for_later() -> None:
    async def main() -> None:
        asked = Asked(60.0, 0.0)
        alarm = asked.alarm()
        alarm.set(START)
        later_s = alarm.at_s
        alarm.set(START._replace(mono=MonoNs(START.mono + 10**9)))
        assert alarm.at_s < later_s
        await asyncio.wait_for(asked.has_rung.wait(), 60)
        alarm.cancel()

    asyncio.run(main())


def test_alarm_that_was_set_within_the_millisecond_is_set_once_more_for_all_that_came_since() -> None:
    async def main() -> None:
        asked = Asked(60.0, 0.0)
        alarm = asked.alarm()
        for _ in range(100):
            alarm.set(START)
        assert asked.count == 1
        await asyncio.wait_for(asked.has_rung.wait(), 60)
        assert asked.count == 2
        alarm.cancel()

    asyncio.run(main())
