"""Help, errors, manual and README use the words of the field: turns of phrase that no engineer would write are refused.

It reads what users read; docstrings and comments of code that is not a verb are left to reviewers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.cli.verb_table import GROUPS, HELP, VERBS, function_of
from opsq.units import counted, format_number

ROOT = Path(__file__).parents[3]
BANNED = {
    # Bookish or literal translations, with what to write.
    r"so many (?:\w+ )?(?:chunks|records|rows|bytes|consumers) a": "chunks per …",
    r"whoever": "name who it is",
    r"anew": "again, or: start over",
    r"begin anew": "start over",
    r"see to it": "ensure",
    r"in vain": "failed",
    r"of late": "recent",
    r"not begun": "not started",
    r"lies in": "is in, is stored in",
    r"may stand": "may appear",
    r"in the way of": "say it directly",
    # Words of the house for what the field has a word for.
    r"ruling": "administration",
    r"held back": "throttled, blocked",
    r"hold back": "throttle, block",
    r"work(?:s|ed)? (?:\w+ )?chunks off": "process chunks",
    r"just ending": "being finalized; retry",
    r"is to be told": "is reported",
    r"taken up again": "reclaimed",
    r"a mistake (?:of ours|in opsq)": "internal error (bug)",
    r"a full length": "a full lease",
    r"show it all at work": "run a demonstration",
    r"until when": "how long",
    r"exclude each other": "cannot be combined",
    r"behind a verb": "after a verb",
    r"(?:shows|lists) those that are": "shows the known ones",
    r"(?:is|are|was|were) told(?! to)": "gets a message, is notified",
    r"how many at most": "maximum",
    r"in upper or lower case": "ignoring case",
    r"all that is known of": "everything about",
    r"give (?:dead chunks|them|that work) up": "give up on",
    r"instant of death": "time of death",
    r"as the name of the file ends": "from the file name",
    r"is no (?:strategy|metadata (?:key|value)|maximum|serialisation|list of|mode)": "is not a …",
    r"(?:it|that) is wanted": "is expected",
    r"its verdict already": "already has a verdict",
    r"has been cut since": "has been truncated",
    r"mended": "fixed, or: worked around",
    r"stored nowhere": "is not stored",
}
_PATTERN = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)


def literals(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstrings; what an f-string has between its fields is a text of its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.value


def texts() -> Iterator[tuple[str, str]]:
    """What users read, by where it is."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield str(path.relative_to(ROOT)), "\n".join(literals(path))
    for path in [ROOT / "README.md", *sorted((ROOT / "man").iterdir())]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    yield "opsq --help", HELP
    for name in VERBS:
        for full in [f"{name} {part}" for part in GROUPS.get(name, ())] or [name]:
            yield f"opsq {full} --help", function_of(full).__doc__ or ""


@pytest.mark.parametrize(("where", "text"), [pytest.param(*each, id=each[0]) for each in texts()])
def test_text_has_none_of_the_banned_words(where: str, text: str):
    """Each has a plain word in its place, named in the list."""
    found = {match[0].lower() for match in _PATTERN.finditer(" ".join(text.split()))}
    assert not found, f"{where}: {', '.join(sorted(found))}"


def test_banned_words_are_found():
    """The pattern sees a phrase across lines and in any case."""
    assert _PATTERN.search("Whoever asks")
    assert _PATTERN.search("So many records a chunk.")
    assert not _PATTERN.search("So many that it fails")


NOUNS = (
    "attempt|byte|character|chunk|column|connection|consumer|deliver(?:y|ie)|event|file|instant|line|operation|pair|"
    "program|record|result|row|schedule|second|submission|task|token|value"
)
_COUNT = re.compile(rf"\{{([^{{}}:!]+)\}} (?:{NOUNS})s\b")


def counts(path: Path) -> list[str]:
    """What stands before a plural in the templates and f-strings of a module; names of constants are more than 1."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    return [name for line in lines for name in _COUNT.findall(line) if not name.rpartition(".")[2].strip("_").isupper()]


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_of_things_are_written_by_one_function(path: Path):
    """So that nothing has 1 chunks."""
    assert counts(path) == []


@pytest.mark.parametrize(
    ("number", "noun", "text"), [(1, "chunk", "1 chunk"), (0, "chunk", "0 chunks"), (2, "delivery", "2 deliveries")]
)
def test_number_of_things(number: int, noun: str, text: str):
    """One is singular."""
    assert counted(number, noun) == text


@pytest.mark.parametrize(("number", "text"), [(1e6, "1000000"), (0.05, "0.05"), (1 << 53, "9007199254740992")])
def test_number_has_no_exponent(number: float, text: str):
    """As people write it."""
    assert format_number(number) == text
