"""The text form of strategies: `parse`, the exact inverse of `str`. An error points at its column and says what was expected."""

from __future__ import annotations

import difflib
import re

from opsq.errors import InvalidStrategy
from opsq.strategy.tree import NODES, Strategy

_NAME = re.compile(r"[A-Za-z]+")


def parse(text: str) -> Strategy:
    """Read a strategy, such as `OldestFirst`; blanks around names do not matter.

    Raises:
        InvalidStrategy: with the column, counted from 1, and what was expected there.
    """
    start = len(text) - len(text.lstrip())
    match = _NAME.match(text, start)
    if match is None:
        raise _error(text, start, f"expected a strategy, one of {', '.join(NODES)}")
    node = NODES.get(match[0])
    if node is None:
        close = difflib.get_close_matches(match[0], NODES, n=1, cutoff=0.5)
        raise _error(
            text,
            start,
            f"{match[0]!r} is no strategy" + (f"; did you mean {close[0]}?" if close else f"; expected one of {', '.join(NODES)}"),
        )
    rest = match.end() + len(text[match.end() :]) - len(text[match.end() :].lstrip())
    if rest < len(text):
        raise _error(text, rest, f"expected the end after {match[0]}")
    return node()


def _error(text: str, index: int, expected: str) -> InvalidStrategy:
    return InvalidStrategy(f"Strategy {text!r}, column {index + 1}: {expected}.")
