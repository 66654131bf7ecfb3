"""Writes metadata and the end of a submission as text, for every verb that prints them.

It must not print, nor know what a verb shows.
"""

from __future__ import annotations

import json

from opsq.cli.options import values
from opsq.wire.messages import SubmissionState


def named(submission_id: int, title: str | None) -> str:
    """A submission as sentences name it: its id, and behind it its title if it has one."""
    return f"{submission_id} ({title})" if title else str(submission_id)


def ending(state: SubmissionState) -> str:
    """How a submission has ended, with the recorded reason: the predicate of a sentence about it."""
    verb = "has" if state.state in {"failed", "expired"} else "is"
    return f"{verb} {state.state}" + (f": {state.reason}" if state.reason else ".")


def pairs_text(metadata: dict[str, int | str]) -> str:
    """Metadata as people write it: KEY=VALUE words."""
    return " ".join(f"{key}={value_text(value)}" for key, value in metadata.items())


def value_text(value: int | str) -> str:
    """A metadata value in the form that `values.value` reads back."""
    if isinstance(value, int):
        return str(value)
    if values.value(value if not value.startswith('"') else "x") != value or " " in value:
        return json.dumps(value, ensure_ascii=False)
    return value
