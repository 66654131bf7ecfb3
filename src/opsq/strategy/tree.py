"""The nodes of a strategy, as plain immutable values.

`str` gives the text form that travels and that `text.parse` reads back.

Nothing here knows SQL or submissions. Trees may also be made by hand: `MaxSimultaneous("tenant", 5, Fair("tenant"))`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from msgspec import Struct

from opsq.errors import InvalidStrategy

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
KEY_HINT = "A key starts with a letter or _ and continues with letters, digits, _, . or -, at most 64 in all"
BARE = re.compile(r"[A-Za-z0-9_.:/@+-]+")
INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
MAX_DEPTH = 16
MAX_ARMS = 64
_INSIDE = frozenset({"first", "second", "inner"})
"""The fields of nodes that are strategies."""

Value = int | str


def is_integer(text: str) -> bool:
    """Whether a bare word is an integer of 64 bits; anything else is text."""
    return len(text) <= 20 and INTEGER.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63


def parse_value(text: str) -> Value:
    """A metadata value as people type it: an integer, a JSON string if it starts with a quote, else the text itself.

    Raises:
        ValueError: it starts with a quote and is not a JSON string.
    """
    if is_integer(text):
        return int(text)
    if not text.startswith('"'):
        return text
    try:
        decoded = json.loads(text)
    except ValueError:
        decoded = None
    if not isinstance(decoded, str):
        raise ValueError(f"{text} starts with a quote but is not a JSON string")
    return decoded


def parse_pairs(words: Iterable[str]) -> dict[str, Value]:
    """Metadata from `KEY=VALUE` words.

    Raises:
        ValueError: a word is none, or names the key of another one.
    """
    found: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r:.80} is not KEY=VALUE")
        if KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r:.80} is not a key. {KEY_HINT}")
        if key in found:
            raise ValueError(f"the key {key} is given twice; a submission has one value per key")
        found[key] = parse_value(text)
    return found


def format_value(value: Value) -> str:
    """A metadata value as it is written: integers and simple words bare, other text as a JSON string."""
    if isinstance(value, int):
        return str(value)
    if BARE.fullmatch(value) and not is_integer(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def is_value(value: object) -> bool:
    """Whether something can be a metadata value: an integer of 64 bits, or text that UTF-8 can say."""
    if isinstance(value, str):
        return not any("\ud800" <= sign <= "\udfff" for sign in value)
    return type(value) is int and -(1 << 63) <= value < 1 << 63


class Percent(Struct, frozen=True):
    """A maximum that follows the count of connected consumers: rounded up, at least 1, updated once a second."""

    percent: int

    def __post_init__(self) -> None:
        if type(self.percent) is not int or not 1 <= self.percent <= 100:
            raise InvalidStrategy(f"{self.percent}% is not a maximum: it must be 1% to 100%.")

    def __str__(self) -> str:
        return f"{self.percent}%"


Max = int | Percent


class Strategy(Struct, frozen=True):
    """In which order, and under which conditions, a consumer wants chunks: base of all nodes."""

    def __str__(self) -> str:
        default = self.__struct_defaults__[-1:]  # that of `inner`, the last field of a node that has one
        parts = [str(child) for child in self.children() if child not in default]
        argument = self._argument()
        if argument:
            parts.insert(0, argument)
        return f"{type(self).__name__}({', '.join(parts)})" if parts else type(self).__name__

    def children(self) -> tuple[Strategy, ...]:
        """The strategies inside this one."""
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name in _INSIDE)

    def _argument(self) -> str:
        """What stands before the strategies inside."""
        return ", ".join(str(getattr(self, name)) for name in self.__struct_fields__ if name not in _INSIDE)

    def arms_count(self) -> int:
        """How many arms it compiles to."""
        return sum(child.arms_count() for child in self.children()) or 1

    def depth(self) -> int:
        """How deep it is nested, itself included."""
        return 1 + max((child.depth() for child in self.children()), default=0)

    def __post_init__(self) -> None:
        """Check the key, the value, the maximum, the strategies inside, the depth and the count of arms."""
        names = self.__struct_fields__
        key = getattr(self, "key", None)
        if "key" in names and (not isinstance(key, str) or KEY.fullmatch(key) is None):
            raise InvalidStrategy(
                f"{key!r} is not a metadata key.",
                hint="Keys begin with a letter or _ and have at most 64 of A-Z a-z 0-9 _ . -",
            )
        value = getattr(self, "value", None)
        if "value" in names and not is_value(value):
            raise InvalidStrategy(f"{value!r} is not a metadata value: an integer of 64 bits, or text.")
        maximum = getattr(self, "max", None)
        if (
            "max" in names
            and not isinstance(maximum, Percent)
            and (type(maximum) is not int or not 1 <= maximum < 1 << 31)
        ):
            raise InvalidStrategy(f"{maximum!r} is not a maximum: a count from 1, or a percentage of the consumers.")
        for child in self.children():
            if not isinstance(child, Strategy):
                raise InvalidStrategy(f"{child!r} is not a strategy.", hint="`parse` reads the text form of one.")
        if self.children():
            if self.depth() > MAX_DEPTH:
                raise InvalidStrategy(f"The strategy is nested {self.depth()} deep; the limit is {MAX_DEPTH}.")
            if self.arms_count() > MAX_ARMS:
                raise InvalidStrategy(
                    f"The strategy has {self.arms_count()} arms; the limit is {MAX_ARMS}.",
                    hint="Each PreferDistinct doubles the arms inside it.",
                )


class Random(Strategy, frozen=True):
    """A shuffled deck of all open submissions, cut at a random place; every submission has one turn a lap.

    The default.
    """


class OldestFirst(Strategy, frozen=True):
    """All chunks of the oldest submission, then of the next: finishes work in the order in which it came."""


class NewestFirst(Strategy, frozen=True):
    """All chunks of the newest submission, then of the one before.

    While newer work keeps coming, older work starves.
    """


class CustomPriority(Strategy, frozen=True):
    """The highest priority first; among equals the oldest. While higher priorities keep coming, lower ones starve."""


class Fair(Strategy, frozen=True):
    """Each value of a key has its share of what is handed out, by weight.

    Inside a value, chunks come in the order of `inner`.
    """

    key: str
    inner: Strategy = OldestFirst()


class SelectOnly(Strategy, frozen=True):
    """Only submissions with this metadata pair."""

    key: str
    value: Value
    inner: Strategy = Random()

    def _argument(self) -> str:
        return f"{self.key}={format_value(self.value)}"


class PreferDistinct(Strategy, frozen=True):
    """First values of a key with fewer than `max` chunks reserved, then all: spreads work, lets no consumer idle."""

    key: str
    max: Max = 1
    inner: Strategy = Random()

    def arms_count(self) -> int:
        """Twice as many as inside: gated, then not."""
        return 2 * self.inner.arms_count()


class MaxSimultaneous(Strategy, frozen=True):
    """Never brings a value of a key above `max` reserved chunks.

    Under the key `submission` a chunk that waits for its retry counts.
    """

    key: str
    max: Max = 1
    inner: Strategy = Random()


class OrElse(Strategy, frozen=True):
    """What the first has, and only when that has nothing, what the second has."""

    first: Strategy
    second: Strategy


NODES: dict[str, type[Strategy]] = {
    node.__name__: node
    for node in (
        Random,
        OldestFirst,
        NewestFirst,
        CustomPriority,
        Fair,
        SelectOnly,
        PreferDistinct,
        MaxSimultaneous,
        OrElse,
    )
}
"""Every node by its name in the text form."""
