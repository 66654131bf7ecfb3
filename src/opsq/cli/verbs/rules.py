"""The verbs about rules that hold for every strategy and consumer: pause, resume, limit, limits, weight."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.output.json_output import instant
from opsq.cli.output.strategy_documents import RulesDocument
from opsq.cli.output.submission_documents import ChangedDocument
from opsq.cli.output.submission_text import pairs_text, value_text
from opsq.client.core.rules import caller_name
from opsq.errors import NotFound, UsageError
from opsq.units import format_rate, format_span, parse_duration
from opsq.wire.messages import (
    Changed,
    Limit,
    LimitState,
    Pause,
    PauseState,
    Resume,
    RulesState,
    ShowRules,
    Unlimit,
    Weight,
    WeightState,
)

Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Submissions that have every pair, now or later; submission=ID is one submission."
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every submission.")]
Operator = Annotated[
    bool, typer.Option("--operator", help="As an operator: only `resume --operator` ends such a pause.")
]


def pause(caller: Caller, pairs: Pairs = None, every: All = False, operator: Operator = False) -> None:
    """Hand out nothing more of some submissions, until resume; what is reserved goes on.

    It holds for every strategy and consumer, also after a restart, and also for submissions that come later.
    """
    metadata = _metadata("pause", pairs, every=every)
    with caller.connect() as daemon:
        count = daemon.call(Pause(daemon.next_id(), metadata, operator, caller_name()), Changed).count
    caller.document(ChangedDocument(count))
    caller.remark(f"Paused: {_on(metadata)}." if count else f"It was paused already: {_on(metadata)}.")


def resume(caller: Caller, pairs: Pairs = None, every: All = False, operator: Operator = False) -> None:
    """End a pause, named by the same pairs; exits 3 if there is none, 7 when an operator set it and --operator is missing."""
    metadata = _metadata("resume", pairs, every=every)
    with caller.connect() as daemon:
        count = daemon.call(Resume(daemon.next_id(), metadata, operator), Changed).count
    if not count:
        raise NotFound(f"No pause names just this: {_on(metadata)}.", hint="`opsq limits` lists pauses.")
    caller.document(ChangedDocument(count))
    caller.remark(f"Resumed: {_on(metadata)}.")


def limit(
    caller: Caller,
    what: Annotated[str, typer.Argument(metavar="KEY[=VALUE]", help="One value of a key, or each value of it.")],
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, metavar="N", help="So many chunks at once.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", "-r", metavar="N/D", help="So many chunks in this time: 10/s, 100/m, 5/15m.")
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(
            "--burst", min=1, metavar="N", help="With --rate: so many at once after a pause; by default one second's."
        ),
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="End the limit.")] = False,
) -> None:
    """Bound how many chunks of a value are reserved at once, or how many start in a time; for every strategy and consumer.

    It replaces the limit for the same KEY or KEY=VALUE. Where several hold for a chunk, all of them do.
    """
    values.exclude(lift=lift, concurrency=concurrency)
    values.exclude(lift=lift, rate=rate)
    values.exclude(lift=lift, burst=burst)
    key, value = _key_and_value(what)
    if not lift and concurrency is None and rate is None:
        raise UsageError("opsq limit needs --concurrency, --rate or --lift.", hint="`opsq limit --help` explains it.")
    if burst is not None and rate is None:
        raise UsageError("--burst belongs to --rate.")
    rate_per_s, rate_span_s = (None, 1.0) if rate is None else parse_rate(rate)
    with caller.connect() as daemon:
        if lift:
            request: Unlimit | Limit = Unlimit(daemon.next_id(), key, value)
        else:
            request = Limit(daemon.next_id(), key, value, concurrency, rate_per_s, burst, caller_name(), rate_span_s)
        try:
            count = daemon.call(request, Changed).count
        except NotFound as error:
            error.message = f"There is no limit of {what}."
            raise
    caller.document(ChangedDocument(count))
    caller.remark(
        f"The limit of {what} was lifted."
        if lift
        else f"The limit holds from now on; {what} keeps what it has reserved."
    )


def limits(caller: Caller) -> None:
    """List pauses, limits and weights: rule, on what, how much, how much now, by whom, since when.

    Now is how many chunks are reserved of the value of the limit, or of the one that has most.
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


def weight(
    caller: Caller,
    pair: Annotated[str, typer.Argument(metavar="KEY=VALUE", help="The value.")],
    number: Annotated[float, typer.Argument(metavar="N", help="0.001 to 1000; 1 is what each value has.")],
) -> None:
    """Give a value of a key a weight in Fair: with 3 it is served three times as often as one with 1; from its next turn on."""
    key, value = _key_and_value(pair)
    if value is None:
        raise UsageError(f"{pair}: write KEY=VALUE.")
    with caller.connect() as daemon:
        count = daemon.call(Weight(daemon.next_id(), key, value, weight_of(pair, number)), Changed).count
    caller.document(ChangedDocument(count))
    caller.remark(f"{pair} has the weight {number:g} in Fair({key}) from its next turn on.")


# --- what people type -------------------------------------------------------------------------------------------------------------


def parse_rate(text: str) -> tuple[float, float]:
    """Chunks per second, and the time in seconds for which they were given, from `10`, `10/s`, `100/m`, `5/15m`.

    Raises:
        UsageError: it is none of these, or out of range.
    """
    number, slash, span = text.partition("/")
    seconds = 1.0
    try:
        seconds = parse_duration(span if span[:1].isdigit() else f"1{span or '?'}") if slash else 1.0
        rate_per_s = float(number) / seconds
    except (ValueError, ZeroDivisionError):
        rate_per_s = 0.0
    if not 0 < rate_per_s <= 1e9 or not re.match(r"[0-9.]", number):
        raise UsageError(f"--rate {text}: write a number and a time, such as 10/s, 100/m or 5/15m.")
    return rate_per_s, seconds


def weight_of(origin: str, number: float) -> float:
    """A weight, if it is one.

    Raises:
        UsageError: it is not between 0.001 and 1000.
    """
    if not 0.001 <= number <= 1000:
        raise UsageError(f"{origin}: a weight lies between 0.001 and 1000, and {number:g} does not.")
    return number


def weights_of(pairs: list[str]) -> dict[str, float]:
    """Weights from `KEY=N` words, as `opsq submit --weight` takes them.

    Raises:
        UsageError: a word is none, or names its key twice.
    """
    found: dict[str, float] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"--weight {pair}: write KEY=N.") from None
        if values.check_key(key) in found:
            raise UsageError(f"--weight gives the key {key} twice.")
        found[key] = weight_of(f"--weight {pair}", number)
    return found


def _metadata(verb: str, pairs: list[str] | None, *, every: bool) -> dict[str, int | str]:
    if every and pairs:
        raise UsageError(f"--all and {pairs[0]} exclude each other.")
    if not every and not pairs:
        raise UsageError(f"opsq {verb} needs KEY=VALUE, or --all.", hint=f"`opsq {verb} --help` explains it.")
    found: dict[str, int | str] = {}
    for pair in pairs or []:
        key, value = _key_and_value(pair)
        if value is None:
            raise UsageError(f"{pair}: write KEY=VALUE, or --all for everything.")
        if key in found:
            raise UsageError(f"The key {key} is given twice; a submission has one value per key.")
        found[key] = value
    return found


def _key_and_value(text: str) -> tuple[str, int | str | None]:
    key, equals, value = text.partition("=")
    return values.check_key(key), values.value(value) if equals else None


# --- what they read ---------------------------------------------------------------------------------------------------------------


def _on(metadata: dict[str, int | str]) -> str:
    return pairs_text(metadata) or "everything"


def _pause_row(state: PauseState, *, is_short: bool) -> list[object]:
    kind = "pause by operator" if state.by_operator else "pause"
    return [kind, _on(state.metadata), "", "", state.by_name, _since(state.paused_at, is_short=is_short)]


def _limit_row(state: LimitState, *, is_short: bool) -> list[object]:
    on = f"each {state.key}" if state.value is None else f"{state.key}={value_text(state.value)}"
    bounds = [] if state.concurrency is None else [f"{state.concurrency} at once"]
    if state.rate_per_s is not None:
        bounds.append(
            format_rate(state.rate_per_s, state.rate_span_s)
            + (f" burst {state.burst}" if state.burst is not None else "")
        )
    now = "" if state.reserved_count is None else str(state.reserved_count)
    if state.reserved_count and state.value is None and state.busiest is not None:
        now += f" ({value_text(state.busiest)})"
    return ["limit", on, ", ".join(bounds), now, state.by_name, _since(state.limited_at, is_short=is_short)]


def _weight_row(state: WeightState) -> list[object]:
    return ["weight", f"{state.key}={value_text(state.value)}", f"{state.weight:g}", "", "", ""]


def _since(wall_ms: int, *, is_short: bool) -> str:
    """An instant; on a terminal, how long ago it was."""
    if not is_short:
        return instant(wall_ms) or ""
    return f"{format_span(max(values.now_ms() - wall_ms, 0) / 1000)} ago"
