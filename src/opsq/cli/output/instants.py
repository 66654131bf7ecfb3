"""Instants for people: to the second, of one zone, which a screen names once.

This file must not decide where they are shown; JSON and pipes have them in UTC (`json_output.instant`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_WORDED = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def zone(*, is_utc: bool) -> str:
    """What the zone is called."""
    return "UTC" if is_utc else f"{datetime.now().astimezone():%Z}"


def second(wall_ms: int, *, is_utc: bool) -> str:
    """An instant as `--not-before` reads it back; with its own offset where that differs from today's."""
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    if is_utc:
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    moment = moment.astimezone()
    is_todays = moment.utcoffset() == datetime.now().astimezone().utcoffset()
    return moment.replace(tzinfo=None if is_todays else moment.tzinfo).isoformat(" ")


def reworded(text: str, *, is_utc: bool) -> str:
    """Sentences of the daemon, which does not know the reader's zone and writes UTC, with its instants named here."""

    def here(found: re.Match[str]) -> str:
        moment = datetime.fromisoformat(found[0])
        return f"{moment if is_utc else moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"

    return _WORDED.sub(here, text)
