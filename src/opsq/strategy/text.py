"""The text form of strategies: `parse`, the exact inverse of `str`.

An error points at its column and says what was expected.

    strategy := NAME | NAME "(" argument {"," argument} ")"
    NAME     := one of the nodes of tree.py
    argument := strategy | key | key "=" value | max
    max      := count | count "%"
    value    := bare word | JSON string        (a bare word that is an integer of 64 bits is one, anything else is text)

Blanks between the parts do not matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opsq.errors import InvalidStrategy
from opsq.strategy.tree import BARE, KEY, MAX_DEPTH, NODES, Max, Percent, Strategy, Value, is_integer

_BLANKS = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z]+")
_OWN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_KEY_LIKE = re.compile(r"[A-Za-z0-9_.-]+")
_DIGITS = re.compile(r"[0-9]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def parse(text: str, named: dict[str, str] | None = None) -> Strategy:
    """Read a strategy, such as `PreferDistinct(tenant, 1, OldestFirst)`.

    Args:
        named: strategies of the configuration, usable by name as a whole.

    Raises:
        InvalidStrategy: with the column, counted from 1, and what was expected there.
    """
    named = named or {}
    if text.strip() in named:
        return parse(named[text.strip()])
    reader = _Reader(text, named)
    strategy = reader.strategy(1)
    reader.end()
    return strategy


def check_named(named: Mapping[str, str]) -> None:
    """Make sure that strategies of a configuration can be used by their names.

    Raises:
        InvalidStrategy: a name is none, or that of a node, or its text cannot be parsed; the message says which.
    """
    for name, text in named.items():
        if _OWN_NAME.fullmatch(name) is None:
            raise InvalidStrategy(
                f"{name!r} is not a name for a strategy.",
                hint="Names begin with a letter or _ and have at most 64 of A-Z a-z 0-9 _ . -",
            )
        if name in NODES:
            raise InvalidStrategy(f"{name} is a strategy of the language, so no other can have that name.")
        try:
            parse(text)
        except InvalidStrategy as error:
            raise InvalidStrategy(f"The strategy named {name}: {error.message}", hint=error.hint) from error


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str, named: Mapping[str, str]) -> None:
        self._text = text
        self._named = named
        self._at = 0

    def strategy(self, depth: int) -> Strategy:
        start = self._skip()
        if depth > MAX_DEPTH:
            raise self._error(f"expected no more than {MAX_DEPTH} levels")
        own = _OWN_NAME.match(self._text, start)
        if own is not None and own[0] not in NODES:
            raise self._unknown(own[0], start)
        name = self._match(_NAME, f"a strategy, one of {', '.join(NODES)}")
        node = NODES[name]
        has_arguments = self._accept("(")
        if not node.__struct_fields__:
            if has_arguments:
                raise self._error(f"{name} takes no arguments", self._at - 1)
            return node()
        if not has_arguments:
            raise self._error(f"expected '(' after {name}")
        try:
            strategy = node(*_arguments(self, node, depth))
        except InvalidStrategy as error:
            if error.message.startswith("Strategy "):
                raise
            raise self._error(error.message.rstrip("."), start, error.hint) from None
        self.expect(")")
        return strategy

    def _unknown(self, name: str, start: int) -> InvalidStrategy:
        if name in self._named:
            return self._error(
                f"{name!r} is a strategy named in the settings: it stands alone and cannot be nested", start
            )
        import difflib

        ours = [*NODES, *self._named] if start == 0 else list(NODES)
        by_lower = {one.lower(): one for one in ours}
        close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
        expected = f"did you mean {by_lower[close[0]]}?" if close else f"expected one of {', '.join(ours)}"
        return self._error(f"{name!r} is not a strategy; {expected}", start)

    def end(self) -> None:
        if self._skip() < len(self._text):
            raise self._error("expected the end")

    def key(self) -> str:
        start = self._skip()
        key = self._match(_KEY_LIKE, "a metadata key")
        if KEY.fullmatch(key) is None:
            raise self._error(
                "expected a metadata key, which begins with a letter or _ and has at most 64 of A-Z a-z 0-9 _ . -",
                start,
            )
        return key

    def maximum(self) -> Max:
        start = self._skip()
        digits = self._match(_DIGITS, "a count, or a percentage such as 50%")
        count = int(digits[:20])  # more digits are too many in any case
        if self._text[self._at : self._at + 1] == "%":
            self._at += 1
            if not 1 <= count <= 100:
                raise self._error("expected a percentage from 1% to 100%", start)
            return Percent(count)
        if not 1 <= count < 1 << 31:
            raise self._error("expected a count from 1", start)
        return count

    def value(self) -> Value:
        start = self._skip()
        if self._text[start : start + 1] == '"':
            quoted = self._match(_QUOTED, "the closing quote of a JSON string")
            try:
                return str(json.loads(quoted))
            except ValueError:
                raise self._error("expected a JSON string", start) from None
        word = self._match(BARE, "a value: a bare word, or a JSON string in double quotes")
        return int(word) if is_integer(word) else word

    def inner(self, depth: int) -> tuple[Strategy, ...]:
        """The strategy after a comma, if there is one."""
        return (self.strategy(depth + 1),) if self._accept(",") else ()

    def _skip(self) -> int:
        match = _BLANKS.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self._text, self._skip())
        if match is None:
            raise self._error(f"expected {expected}")
        self._at = match.end()
        return match[0]

    def _accept(self, sign: str) -> bool:
        if self._text[self._skip() : self._at + 1] != sign:
            return False
        self._at += 1
        return True

    def expect(self, sign: str) -> None:
        if not self._accept(sign):
            raise self._error(f"expected {sign!r}")

    def _error(self, expected: str, index: int | None = None, hint: str = "") -> InvalidStrategy:
        column = (self._at if index is None else index) + 1
        return InvalidStrategy(
            f"Strategy {self._text!r}, column {column}: {expected}{'' if expected.endswith('?') else '.'}", hint=hint
        )


def _arguments(reader: _Reader, node: type[Strategy], depth: int) -> Iterator[Any]:
    """Read the arguments of a node, in the order of its fields."""
    for number, name in enumerate(node.__struct_fields__):
        if name == "inner":
            yield from reader.inner(depth)
            continue
        if number:
            reader.expect("=" if name == "value" else ",")
        match name:
            case "key":
                yield reader.key()
            case "value":
                yield reader.value()
            case "max":
                yield reader.maximum()
            case _:
                yield reader.strategy(depth + 1)
