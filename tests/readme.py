"""The code blocks of the README, in the order of the page. Whoever adds one names it here, and a test runs it."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"(?s)^```{language}\n(.*?)^```", README, re.MULTILINE)


SHELL = SHELL_ROUND, SHELL_LOOP, SHELL_STRATEGIES, SHELL_SHARDS, SHELL_HTTP = _blocks("sh")
PYTHON = PYTHON_ROUND, PYTHON_TESTING, PYTHON_WORK, PYTHON_RUN, PYTHON_OUTBOX, PYTHON_SPARK = _blocks("python")
