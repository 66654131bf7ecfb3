"""What Spark and Arrow say of an error, in one line: of pages of Java the first that says something.

This file must not import PySpark, nor decide what becomes of the error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LINE_LIMIT = 600
_CONDITION = re.compile(r"^\[[A-Z_.]+\] ")


def first_line(text: str) -> str:
    """The first line that says something, without the name of the condition."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    first = _CONDITION.sub("", lines[0]) if lines else "it said nothing."
    if first.endswith(":") and len(lines) > 1:  # py4j: "An error occurred while calling x.", then ": the exception"
        first = f"{first} {lines[1]}"
    if first.startswith("An error occurred while calling") and len(lines) > 1:
        first = lines[1].removeprefix(": ")
    return first.rstrip("; ")[:LINE_LIMIT]


def line_of(error: Exception) -> str:
    """The first line of an error of Arrow or Python, to be followed by a full stop; its class if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
