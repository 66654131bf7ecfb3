"""When a schedule is due, in zones whose clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from opsq.errors import UsageError
from opsq.queue.schedules.plan import Plan

ZONES = ["UTC", "Europe/Amsterdam", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"]
EXPRESSIONS = ["30 2 * * *", "*/30 * * * *", "0 0 1 * *", "15 1,2,3 * * SUN", "0 */3 * * *", "0 12 L * *"]


def ms(*fields: int, zone: str = "UTC") -> int:
    return int(datetime(*fields, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type,misc]


def text(instant: int | None) -> str:
    assert instant is not None
    return datetime.fromtimestamp(instant / 1000, UTC).strftime("%F %T")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("when", EXPRESSIONS)
def test_ten_years_of_instants_are_those_of_one_cronsim_that_runs_on(when: str, zone: str) -> None:
    plan, start, end = Plan(when, zone, 0), ms(2020, 1, 1), ms(2030 if "*/" not in when else 2021, 1, 1)
    theirs = CronSim(when, datetime.fromtimestamp(start / 1000, UTC).astimezone(ZoneInfo(zone)))
    instant = start
    while instant < end:
        expected = int(next(theirs).timestamp()) * 1000
        found = plan.after(instant)
        assert found == expected, (text(instant), text(expected), text(found))
        assert plan.after(found - 1) == found
        instant = found


def test_time_that_is_left_out_in_spring_comes_when_the_clock_goes_on() -> None:
    plan = Plan("30 2 * * *", "Europe/Amsterdam", 0)
    assert text(plan.after(ms(2026, 3, 28, 12))) == "2026-03-29 01:00:00"
    assert text(plan.after(ms(2026, 3, 29, 1))) == "2026-03-30 00:30:00"


def test_time_that_comes_twice_in_autumn_comes_once_also_if_asked_for_between() -> None:
    plan = Plan("30 2 * * *", "Europe/Amsterdam", 0)
    assert text(plan.after(ms(2026, 10, 24, 12))) == "2026-10-25 00:30:00"
    assert text(plan.after(ms(2026, 10, 25, 1, 15))) == "2026-10-26 01:30:00"


def test_every_counts_from_its_anchor_and_knows_no_clock_on_the_wall() -> None:
    plan = Plan("every 1h30m", "Europe/Amsterdam", ms(2026, 3, 28, 23, 10))
    assert text(plan.after(ms(2026, 3, 29, 0, 40))) == "2026-03-29 02:10:00"
    assert text(plan.after(ms(2026, 3, 28, 23, 10) - 1)) == "2026-03-28 23:10:00"


@pytest.mark.parametrize("name", ["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"])
def test_names_are_those_of_cron(name: str) -> None:
    assert Plan(name, "UTC", 0).after(ms(2026, 1, 1, 0, 30)) is not None


@pytest.mark.parametrize(
    "when",
    [
        "",
        "x",
        "* * * *",
        "61 * * * *",
        "0 0 30 2 *",
        "@reboot",
        "every",
        "every 0s",
        "every soon",
        "every 1h 2h",
        "\x00",
    ],
)
def test_what_is_no_time_is_refused_and_named(when: str) -> None:
    with pytest.raises(UsageError) as caught:
        Plan(when, "UTC", 0).check()
    assert caught.value.details["when"] == when


@pytest.mark.parametrize("zone", ["", "Europe/Nowhere", "../../etc/passwd", "/etc/localtime", "a\x00b", "Europe"])
def test_what_is_no_zone_is_refused_and_named(zone: str) -> None:
    with pytest.raises(UsageError) as caught:
        Plan("@daily", zone, 0)
    assert caught.value.details == {"zone": zone}


def test_there_is_none_after_the_last_year_of_the_calendar() -> None:
    assert Plan("@yearly", "UTC", 0).after(ms(9998, 6, 1)) is None
    assert Plan("every 1s", "UTC", 0).after(ms(9998, 12, 31, 23, 59, 59)) is None
