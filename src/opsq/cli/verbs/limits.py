"""The verb limits: lists pauses, limits and weights, which every strategy and consumer obeys."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.documents import rule_text
from opsq.documents.strategies import RulesDocument
from opsq.documents.submission_text import value_text
from opsq.options import values
from opsq.units import format_instant, format_number, format_span
from opsq.wire.messages import (
    LimitState,
    PauseState,
    RulesState,
    ShowRules,
    WeightState,
)


def limits(caller: Caller) -> None:
    """List pauses, limits and weights: rule, target, value, current use, by whom, since when.

    Current use is how many chunks of the value are reserved, or of the value with the most.
    """
    with caller.connect() as daemon:
        state = daemon.call(ShowRules(daemon.next_id()), RulesState)
    caller.document(RulesDocument.from_state(state))
    is_short = caller.is_rich
    rows = [_pause_row(one, is_short=is_short) for one in state.pauses]
    rows += [_limit_row(one, is_short=is_short) for one in state.limits]
    rows += [_weight_row(one) for one in state.weights]
    if not rows:
        caller.remark("There are no pauses, limits or weights.")
        return
    caller.table(("rule", "on", "bound", "now", "by", "since"), rows)


def _pause_row(state: PauseState, *, is_short: bool) -> list[object]:
    since = _since(state.paused_at, is_short=is_short)
    return [rule_text.pause_kind(state), rule_text.pause_target(state), "", "", state.by_name, since]


def _limit_row(state: LimitState, *, is_short: bool) -> list[object]:
    bounds, now = rule_text.limit_bounds(state), rule_text.limit_use(state)
    since = _since(state.limited_at, is_short=is_short)
    return ["limit", rule_text.limit_target(state), bounds, now, state.by_name, since]


def _weight_row(state: WeightState) -> list[object]:
    return ["weight", f"{state.key}={value_text(state.value)}", format_number(state.weight), "", "", ""]


def _since(wall_ms: int, *, is_short: bool) -> str:
    """An instant; on a terminal, how long ago it was."""
    if not is_short:
        return format_instant(wall_ms)
    return f"{format_span(max(values.now_ms() - wall_ms, 0) / 1000)} ago"
