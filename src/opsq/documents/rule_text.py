"""Writes pauses, limits and weights as text, for the terminal and for the page.

It must not print, nor know what is shown where.
"""

from __future__ import annotations

from opsq.documents.submission_text import pairs_text, value_text
from opsq.units import format_rate
from opsq.wire.messages import LimitState, PauseState


def pause_kind(state: PauseState) -> str:
    """Which kind of pause it is."""
    return "pause by operator" if state.by_operator else "pause"


def pause_target(state: PauseState) -> str:
    """What a pause holds back."""
    return pairs_text(state.metadata) or "everything"


def limit_target(state: LimitState) -> str:
    """What a limit is for."""
    return f"each {state.key}" if state.value is None else f"{state.key}={value_text(state.value)}"


def limit_bounds(state: LimitState) -> str:
    """What a limit allows."""
    bounds = [] if state.concurrency is None else [f"{state.concurrency} at once"]
    if state.rate_per_s is not None:
        burst = "" if state.burst is None else f" burst {state.burst}"
        bounds.append(format_rate(state.rate_per_s, state.rate_span_s) + burst)
    return ", ".join(bounds)


def limit_use(state: LimitState) -> str:
    """How much of it is used now; "" where that is not counted."""
    now = "" if state.reserved_count is None else str(state.reserved_count)
    if state.reserved_count and state.value is None and state.busiest is not None:
        now += f" ({value_text(state.busiest)})"
    return now
