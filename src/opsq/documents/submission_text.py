"""Writes metadata, attempts, running chunks and the end of a submission as text, for the terminal and for the page.

It must not print, nor know what is shown where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from opsq.content.manifest import input_note
from opsq.strategy.tree import parse_value
from opsq.units import format_duration, format_span, signal_name
from opsq.wire.messages import SubmissionState

if TYPE_CHECKING:
    from opsq.content.manifest import InputRange
    from opsq.documents.submissions import BackoffShape, RunningShape

_DEATH = re.compile(r"Chunk (\d+)(?= is dead)")
"""The reason that the engine records of a submission that a dead chunk has ended."""


def named(submission_id: int, title: str | None) -> str:
    """A submission as sentences name it: its id, and behind it its title if it has one."""
    return f"{submission_id} ({title})" if title else str(submission_id)


def ending(state: SubmissionState, inputs: Callable[[int], InputRange | None] | None = None) -> str:
    """How a submission has ended, with the recorded reason: the predicate of a sentence about it.

    Args:
        inputs: finds the input of a chunk of it, by index; None: nothing is known of them.
    """
    verb = "has" if state.state in {"failed", "expired"} else "is"
    return f"{verb} {state.state}" + (f": {reason_text(state, inputs)}" if state.reason else ".")


def reason_text(state: SubmissionState, inputs: Callable[[int], InputRange | None] | None) -> str:
    """The recorded reason, with the input of the dead chunk that it names; see `ending`."""
    if inputs is None or state.state != "failed":
        return state.reason
    return _DEATH.sub(lambda found: f"{found[0]}{input_note(inputs(int(found[1])))}", state.reason, count=1)


def pairs_text(metadata: dict[str, int | str]) -> str:
    """Metadata as people write it: KEY=VALUE words."""
    return " ".join(f"{key}={value_text(value)}" for key, value in metadata.items())


def value_text(value: int | str) -> str:
    """A metadata value in the form that `parse_value` reads back."""
    if isinstance(value, int):
        return str(value)
    if parse_value(value if not value.startswith('"') else "x") != value or " " in value:
        return json.dumps(value, ensure_ascii=False)
    return value


def span_text(seconds: float) -> str:
    """A setting in seconds, as people give it: `5m`, `0.5s`."""
    return format_duration(float(f"{seconds:g}"))


def backoff_text(backoff: BackoffShape) -> str:
    """The delays between attempts: `1s × 2 up to 5m`."""
    return f"{span_text(backoff.base_s)} × {backoff.factor:g} up to {span_text(backoff.max_s)}"


def nth(before_count: int) -> int:
    """Which attempt it is, as people count: from 1. JSON, variables and Python have how many there were before."""
    return before_count + 1


def ended(exit_status: int | None, signal: int | None) -> str:
    """How a program ended, in a word."""
    if signal is not None:
        return signal_name(signal)
    return "" if exit_status is None else f"exit {exit_status}"


def host_of(chunk: RunningShape) -> str:
    """Host and process of its consumer; "" if that is unknown, or how the consumer is called anyway."""
    host = f"{chunk.host}-{chunk.pid}" if chunk.pid else chunk.host
    return "" if chunk.consumer.startswith(host) else host


def description_of(chunk: RunningShape) -> str:
    """Title and metadata of its submission."""
    return "  ".join(filter(None, (chunk.title, pairs_text(chunk.metadata))))


def span_of(chunk: RunningShape) -> str:
    """For how long it has run."""
    return f"{'≥ ' if chunk.is_at_least else ''}{format_span(chunk.run_s)}"
