"""When the submissions of a schedule come, and what happens between them.

It must not ask the daemon.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from opsq.errors import UsageError
from opsq.options import values
from opsq.options.option import duration, option, option_set
from opsq.units import parse_duration

OF_ONE_SUBMISSION = ("not_before_at", "after", "on_failed", "unique", "unique_until", "idempotency_key", "keep_s")
"""Fields of the rules of a submission that a schedule, which makes many, cannot have."""


def _yes_or_no(origin: str, text: str) -> bool:
    if text not in {"yes", "no"}:
        raise UsageError(f"{origin} {text}: write {origin}, or {origin}=no.")
    return text == "yes"


@option_set
class Timing(NamedTuple):
    """Each field is an option; None: it was not given."""

    zone: str | None = option("--tz ZONE", "The time zone of WHEN, such as Europe/Amsterdam.", shown="UTC")
    jitter_s: float | None = option("--jitter D", "Delay each submission by up to this long.", duration)
    overlap: Literal["skip", "queue", "allow", "cancel"] | None = option(
        "--overlap skip|queue|allow|cancel",
        "If the previous submission is unfinished: skip this one (default), queue it, allow both, or cancel that.",
    )
    catch_up: str | None = option(
        "--catch-up HOW[=D]",
        "What to catch up on after downtime: none, last (default) or all; with =D nothing older than that.",
    )
    from_at: int | None = option("--from INSTANT", "Plan nothing before this instant.", values.instant)
    until_at: int | None = option("--until INSTANT", "Plan nothing from this instant on.", values.instant)
    pauses_on_failure: bool | None = option(
        "--pause-on-failure [=no]", "Pause the schedule if a submission fails; =no undoes this.", _yes_or_no
    )

    def as_fields(self) -> dict[str, Any]:
        """The fields of a `Schedule` that they give; what is not said is left out.

        Raises:
            UsageError: there is no such way to catch up.
        """
        given: dict[str, Any] = {
            "zone": self.zone,
            "jitter_s": self.jitter_s,
            "overlap": self.overlap,
            "from_at": self.from_at,
            "until_at": self.until_at,
            "pauses_on_failure": self.pauses_on_failure,
        }
        fields = {name: field for name, field in given.items() if field is not None}
        return fields if self.catch_up is None else fields | _catch_up(self.catch_up)


def _catch_up(text: str) -> dict[str, Any]:
    how, equals, bound = text.partition("=")
    if how not in ("none", "last", "all") or (equals and how == "none"):
        raise UsageError(f"--catch-up {text}: write none, last, all, last=2h or all=1d.")
    try:
        return {"catch_up": how, "catch_up_s": parse_duration(bound) if equals else None}
    except ValueError as error:
        raise UsageError(f"--catch-up {text}: {error}.") from error
