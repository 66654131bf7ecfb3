"""Ten years of instants in five zones: the engine, by a clock that jumps to each, makes those that cronsim names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from opsq.wire import messages as m
from unit.model.rig import Rig
from unit.queue.schedules.test_desk import planned as planned_of
from unit.queue.schedules.test_plan import ZONES

YEARS = 10


@pytest.mark.parametrize("when", ["30 2 * * SUN", "15 1,3 * 3,4,9,10,11 SUN"])
def test_ten_years_of_submissions_are_those_of_cronsim_in_every_zone(rig: Rig, when: str) -> None:
    """Clocks change in the night to a Sunday, in these months, so each change is met; no night has two, or none."""
    peer = rig.connect()
    for zone in ZONES:
        template = m.NewSubmission(bytes(16), 0)
        schedule = m.Schedule(zone.replace("/", "."), when, template, zone, overlap="allow")
        rig.only(peer, m.PutSchedule(next(rig.ids), schedule), m.Changed)
    start = datetime.fromtimestamp(rig.now.wall / 1000, UTC)
    end = start + timedelta(days=365.25 * YEARS)
    expected = {
        zone.replace("/", "."): [
            int(found.timestamp()) * 1000
            for found in takewhile(lambda found: found <= end, CronSim(when, start.astimezone(ZoneInfo(zone))))
        ]
        for zone in ZONES
    }
    for instant in sorted({instant for instants in expected.values() for instant in instants}):
        rig.pass_time((instant - rig.now.wall) / 1000)
        rig.tick()
        rig.settle()
    for name, instants in expected.items():
        assert [instant_of(planned) for planned in planned_of(rig, name)] == instants
        counts = rig.only(peer, m.ShowSchedules(next(rig.ids), name), m.Schedules).schedules[0]
        assert (counts.fired_count, counts.skipped_count, counts.missed_count) == (len(instants), 0, 0)


def instant_of(planned: object) -> int:
    return int(datetime.fromisoformat(str(planned)).timestamp() * 1000)
