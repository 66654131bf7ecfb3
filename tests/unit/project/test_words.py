"""Words that no native writer uses in a manual stay out of what users read: help, errors, hints, pages, documents.

It reads every text in the sources that is not a docstring, and the docstrings that become help or error messages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq import errors
from opsq.errors import OpsqError

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "opsq"
PAGES = [*sorted((ROOT / "man").glob("opsq*.[157]")), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
INSTEAD = {
    r"in vain": "failed, or without success",
    r"anew": "again, or start over",
    r"whoever": "name them",
    r"meanwhile": "while …",
    r"so many": "the number",
    r"so long|for so long": "how long",
    r"sees? to it": "make sure",
    r"(was|were|is|are|been|be) told": "reported",
    r"telling": "reporting",
    r"(is|are|was|were|not|been|has|have) begun": "started",
    r"(is|are|was|were|be|been|never) held back|holds? back": "blocked, throttled",
    r"of late": "recently, or recent failures",
    r"just ending": "being finalized",
    r"mistake (in|of) (opsq|ours)": "internal error (bug)",
    r"look again": "retry",
    r"taken? up again": "reclaimed",
    r"lies (in|there|at|under|beside|before|behind|on)": "is (stored) in",
    r"gone on (with|after)": "continued",
    r"work (is|was) gone on": "work continues",
}
"""A pattern, and what to write instead."""
FOUND = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in INSTEAD), re.IGNORECASE)


def texts(path: Path) -> Iterator[str]:
    """The texts of a module that may be shown: string constants that are not docstrings, and parts of f-strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value
    if path.parent.parent.name == "verbs" or path.parent.name == "verbs":
        yield from (
            ast.get_docstring(node) or ""
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_page_uses_the_words_of_the_field(path: Path):
    """See `INSTEAD` for what to write."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    assert [text[max(0, hit.start() - 40) : hit.end() + 20] for hit in FOUND.finditer(text)] == []


def test_texts_of_the_sources_use_the_words_of_the_field():
    """Help, messages, hints, log lines."""
    found = [
        (str(path.relative_to(ROOT)), text)
        for path in sorted(SRC.rglob("*.py"))
        for text in texts(path)
        if FOUND.search(text)
    ]
    assert found == []


def test_messages_of_errors_use_the_words_of_the_field():
    """The docstring of an error is its default message."""
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, OpsqError)]
    assert [cls.__name__ for cls in classes if FOUND.search(cls.__doc__ or "")] == []
