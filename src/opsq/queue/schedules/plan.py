"""The planned instants of a schedule: a cron expression in a time zone, or every so often.

It must not know what happens at an instant, nor what time it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from opsq.errors import UsageError
from opsq.units import parse_duration

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EVERY_MIN_S = 1.0
END_MS = 253_370_764_800_000
"""Later instants are not planned: no calendar shows them."""


class Plan:
    """The instants of a schedule, in milliseconds since 1970 UTC.

    A cron expression that names hours and minutes keeps to the clock on the wall, as cron does: an instant that a
    change of the clock leaves out comes as soon as the clock goes on, and one that it repeats comes once. One with `*`
    for its minutes or hours, and `every`, keep to the time that passes.

    Args:
        when: five fields as in cron(8), six with seconds in front, a name such as `@daily`, or `every 15m`.
        zone: in which the fields are meant, such as Europe/Amsterdam.
        anchor: from which `every` counts.

    Raises:
        UsageError: a zone or a duration that there is not.
    """

    def __init__(self, when: str, zone: str, anchor: int) -> None:
        self._anchor = anchor
        self._every_ms = 0
        self._zone = _zone(zone)
        self._fields = NAMED.get(when.strip().lower(), when)
        if when.split()[:1] == ["every"]:
            self._every_ms = _every_ms(when)

    def check(self) -> None:
        """Look for a first instant.

        Raises:
            UsageError: an expression that there is not, or one without an instant.
        """
        if self.after(self._anchor) is None:
            raise UsageError(cause="never_planned", when=self._fields)

    def after(self, instant: int) -> int | None:
        """The first planned instant after this one; None: there is none any more. Cost: 30 µs for a cron expression."""
        return next(self.instants(instant), None)

    def instants(self, after: int) -> Iterator[int]:
        """All planned instants after this one, in order. Cost: 15 µs for a further one of a cron expression."""
        if self._every_ms:
            first = self._anchor + ((after - self._anchor) // self._every_ms + 1) * self._every_ms
            yield from range(first, END_MS, self._every_ms)
            return
        from cronsim import CronSim, CronSimError  # a daemon without schedules starts without it

        try:
            for found in CronSim(self._fields, datetime.fromtimestamp(after // 1000, UTC).astimezone(self._zone)):
                planned = int(found.timestamp()) * 1000
                if planned >= END_MS:
                    return
                if planned > after:  # a repeated hour is seen from its second time, too
                    after = planned
                    yield planned
        except CronSimError as error:
            raise UsageError(cause="bad_schedule", when=self._fields, why=str(error)) from error
        except (OverflowError, ValueError):
            pass  # beyond the last year of the calendar


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(cause="unknown_zone", zone=name) from error


def _every_ms(when: str) -> int:
    words = when.split()
    try:
        seconds = parse_duration(words[1]) if len(words) == 2 else 0.0
    except ValueError as error:
        raise UsageError(cause="bad_schedule", when=when, why=str(error)) from error
    if seconds < EVERY_MIN_S:
        raise UsageError(cause="bad_schedule", when=when, why=f"the shortest is every {EVERY_MIN_S:g}s")
    return int(seconds * 1000)
