"""Breaks sentences between words where a terminal would break them anywhere; commands in backticks stay whole.

It must not change what a pipe or a file gets, and must stay cheap to import.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

_WORD = re.compile(r"( *)((?:`[^`]*`|\S)+)")
"""Blanks and the word behind them; a command in backticks belongs to one word."""


def folded(text: str, stream: TextIO) -> str:
    """The text in lines that fit the terminal `stream`; as it is, if that is none."""
    width = _columns(stream)
    return text if width is None else "\n".join(_filled(line, width) for line in text.split("\n"))


def _columns(stream: TextIO) -> int | None:
    """How wide a terminal is; None: it is none, or does not know."""
    if not stream.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or None
    except (OSError, ValueError):
        return None


def _filled(line: str, width: int) -> str:
    if _cells(line) <= width:
        return line
    filled, taken = "", 0
    for gap, word in _WORD.findall(line):
        cells = _cells(word)
        if filled and taken + len(gap) + cells > width:
            filled, taken = f"{filled}\n{word}", cells
        else:
            filled, taken = f"{filled}{gap}{word}", taken + len(gap) + cells
    return filled


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
