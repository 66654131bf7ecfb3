"""Makes the output of programs safe to show: without control sequences, and short enough to read.

It must not print; JSON has such text in full.
"""

from __future__ import annotations

import re

from opsq.printable import printable

BRIEF_CHARACTERS = 300
BRIEF_LINES = 4
_SEQUENCES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])?")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def clean(line: str) -> str:
    """A line without control sequences, what else does not print escaped; of text that returns overwrite, the last."""
    shown = _SEQUENCES.sub("", line.rstrip("\r").rpartition("\r")[2])
    return printable(_CONTROLS.sub("", shown), keep="\t")


def readable(text: str) -> str:
    """Lines, each `clean`."""
    return "\n".join(map(clean, text.split("\n")))


def brief(text: str, characters: int = BRIEF_CHARACTERS, lines: int = BRIEF_LINES) -> str:
    """The first line and the last ones, `clean`, since those name the cause; an ellipsis replaces the lines between."""
    first, *rest = readable(text).split("\n")
    if len(rest) >= lines:
        rest = ["…", *rest[-(lines - 1) :]]
    kept = "\n".join([first, *rest])
    if len(kept) <= characters:
        return kept
    head = characters // 3
    return f"{kept[:head]} … {kept[head - characters :]}"
