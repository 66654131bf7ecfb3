"""What is typed about rules: the pairs that a pause names, the value that a limit holds for, rates and weights.

It must not ask the daemon.
"""

from __future__ import annotations

import re

from opsq.errors import UsageError
from opsq.options import values
from opsq.options.option import argument, option
from opsq.units import parse_duration
from opsq.wire.messages import RATE_MAX_PER_S, RATE_MIN_PER_S

PAIRS = argument("[KEY=VALUE...]", "Submissions that have every pair, now or later; submission=ID is one submission.")


ALL = option("--all", "Every submission.")


OPERATOR = option("--operator", "As an operator: only `resume --operator` ends such a pause.")


def rule_metadata(verb: str, pairs: list[str], *, every: bool) -> dict[str, int | str]:
    """The pairs that a pause names; none for every submission.

    Raises:
        UsageError: neither pairs nor --all were given, or both, or a pair is none.
    """
    if every and pairs:
        raise UsageError(f"--all and {pairs[0]} cannot be combined.")
    if not every and not pairs:
        raise UsageError(f"opsq {verb} needs KEY=VALUE, or --all.", hint=f"`opsq {verb} --help` explains it.")
    found: dict[str, int | str] = {}
    for pair in pairs:
        key, value = key_and_value(pair)
        if value is None:
            raise UsageError(f"{pair}: write KEY=VALUE, or --all for everything.")
        if key in found:
            raise UsageError(f"The key {key} is given twice; a submission has one value per key.")
        found[key] = value
    return found


def key_and_value(text: str) -> tuple[str, int | str | None]:
    """A key, and a value of it if one was given."""
    key, equals, value = text.partition("=")
    return values.check_key(key), values.value(value) if equals else None


def rate(origin: str, text: str) -> tuple[float, float]:
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
    if not rate_per_s > 0 or not re.match(r"[0-9.]", number):
        raise UsageError(f"{origin} {text}: write a number and a time, such as 10/s, 100/m or 5/15m.")
    if not RATE_MIN_PER_S <= rate_per_s <= RATE_MAX_PER_S:
        raise UsageError(f"{origin} {text}: a rate is between 1/30d and 1000000000/s.")
    return rate_per_s, seconds


def weight_of(origin: str, text: str) -> float:
    """A weight.

    Raises:
        UsageError: it is not between 0.001 and 1000.
    """
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{origin} {text}: that is not a number.") from None
    if not 0.001 <= number <= 1000:
        raise UsageError(f"{origin} {text}: a weight is between 0.001 and 1000.")
    return number


def weights_of(pairs: list[str]) -> dict[str, float]:
    """Weights from `KEY=N` words, as `opsq submit --weight` takes them.

    Raises:
        UsageError: a word is none, or names its key twice.
    """
    found: dict[str, float] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--weight {pair}: write KEY=N.")
        if values.check_key(key) in found:
            raise UsageError(f"--weight gives the key {key} twice.")
        found[key] = weight_of(f"--weight {key}", text)
    return found
