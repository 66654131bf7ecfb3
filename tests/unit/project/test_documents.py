"""Documents for who changes opsq: short, true to the tree, without references to what the repository does not hold.

The manual has its own tests in `test_docs.py`, the README in `tests/acceptance`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "opsq"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
SOURCES = [
    path
    for folder in ("src", "tests", "benchmarks", "tools", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
ELSEWHERE = re.compile(r"§ ?\d|\bdesign \d|\bdesign:|test_case_\d|\b[Cc]ase \d+:|\bissue #?\d")
"""What refers to documents that only the authors had."""


def named(text: str) -> list[str]:
    """What stands in backticks, outside of blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_a_document_lead_somewhere(document: Path):
    """To files of the repository; addresses of the web are left alone."""
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_lines_of_a_document_fit_on_a_screen(document: Path):
    """Rows of tables, links and figures aside, at most 120 characters."""
    lines = document.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|") and "](" not in line] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions.md", "docs/testing.md"])
def test_files_that_a_document_names_exist(name: str):
    """Below the repository or the package; a name of the pattern tests/x/test_VERB.py is a pattern."""
    words = [word for word in named((ROOT / name).read_text(encoding="utf-8")) if re.fullmatch(r"[a-z][\w./-]+", word)]
    paths = [word for word in words if "/" in word or word.endswith((".py", ".md"))]
    assert len(paths) > 10
    missing = [
        path
        for path in paths
        if not re.search("[A-Z]{4}|000M|-N", path)
        and not any((root / each).exists() for root in (ROOT, SRC, ROOT / "man") for each in (path, f"{path}.py"))
        and not list(SRC.rglob(path))
        and not list((ROOT / "tests").rglob(path))
    ]
    assert missing == []


def test_architecture_is_short_and_has_a_drawing():
    """Three pages are read; thirty are not."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1200
    assert text.count("┌") >= 3


def test_architecture_names_files_of_every_room():
    """A row of its table is a room, and what the row names is in it."""
    rows = re.findall(r"(?m)^\| `([\w/]+)/` \| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    rooms = {room.partition("/")[0] for room, _ in rows}
    assert rooms == {path.parent.name for path in SRC.glob("*/__init__.py")}
    for room, what in rows:
        assert (SRC / room).is_dir()
        for name in re.findall(r"`([a-z_]+)/?`", what):
            assert (SRC / room / name).is_dir() or (SRC / room / f"{name}.py").is_file(), f"{room} has no {name}"


def test_every_word_of_the_glossary_is_in_the_code():
    """In names or in prose, as singular or plural; `until empty` is `until_empty` there."""
    rows = re.findall(r"(?m)^\| ([^|]+) \| ", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    words = [word for row in rows for word in row.split(", ") if word.strip("- ") and row != "word"]
    assert len(words) > 70
    text = "\n".join(path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")).casefold()
    assert [
        word for word in words if not re.search(rf"{word.replace(' ', '[ _-]')}|{word.replace(' ', '')}", text)
    ] == []


def test_sources_refer_to_nothing_that_the_repository_does_not_hold():
    """Numbers of sections and cases of documents elsewhere help nobody."""
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES if path != Path(__file__)}
    assert {path: found for path, text in texts.items() if (found := ELSEWHERE.findall(text))} == {}
