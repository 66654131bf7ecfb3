"""Text as roff, in which man pages are written; it must not know what pages say."""

from __future__ import annotations

import re

_CHARACTERS = {
    "\\": "\\e",
    "-": "\\-",
    "…": "\\&...",
    "×": "\\(mu",
    "–": "\\(en",
    "±": "\\(+-",
    "≥": "\\(>=",
    "’": "\\(cq",
    "^": "\\(ha",
}


def roff(text: str) -> str:
    """Text so that roff prints it as it is; what stands in backquotes becomes bold."""
    escaped = "".join(_CHARACTERS.get(each, each) for each in text)
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped)


def sentence(text: str) -> str:
    """A line of text; it must not look like a request."""
    line = roff(" ".join(text.split()))
    return f"\\&{line}" if line.startswith((".", "'")) else line
