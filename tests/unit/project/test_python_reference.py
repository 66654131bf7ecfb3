"""What the package promises to Python programs: typed, exported, and said in docstrings, of which a page is made."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import opsq

ROOT = Path(__file__).parents[3]
QUIET = {
    *("affordable_jobs", "as_fields", "as_frame", "close", "cursor", "fileno", "floor_bytes", "follows", "next_poll_s"),
    *("register", "stop", "tracing", "want"),
}
"""What raises nothing."""
UNITS = {"s": "second", "bytes": "bytes", "at": "1970|moment|instant"}
"""How the name of an argument ends, and what its description must have."""


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """What reads the package, of the tools."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import python_reference
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return python_reference


def refers(doc: str) -> bool:
    """Whether it says that another one tells the rest."""
    return re.search(r"\bsee `[\w.]+`|arguments are those of `|those of `\w+`", doc, re.IGNORECASE) is not None


def test_types_in_public_signatures_are_exported(reference: ModuleType):
    known = reference.exported()
    missing = {f"{one.name}: {name}" for one in reference.promised() for name in reference.types_of(one) - known}
    assert missing == set()


def test_no_public_signature_takes_keywords_that_are_not_typed(reference: ModuleType):
    """`**options: Any` would let a misspelt one through."""
    untyped = {
        one.name
        for one in reference.promised()
        for parameter in inspect.signature(one.function).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD and not str(parameter.annotation).startswith("Unpack[")
    }
    assert untyped == set()


def test_public_docstrings_say_what_is_raised(reference: ModuleType):
    silent = {
        one.name
        for one in reference.promised()
        if not (one.is_property or one.name.endswith(".__init__") or one.name.rpartition(".")[2] in QUIET)
        and "Raises:" not in one.doc
        and not refers(one.doc)
    }
    assert silent == set()


def test_public_docstrings_refer_to_what_is_there(reference: ModuleType):
    for one in reference.promised():
        for name in re.findall(r"\bsee `([A-Z]\w+)\.(\w+)`", one.doc, re.IGNORECASE):
            owner: Any = getattr(opsq, name[0], None)
            if owner is None:
                owner = getattr(sys.modules[one.function.__module__], name[0])
            assert hasattr(owner, name[1]), f"{one.name}: {'.'.join(name)}"


def test_public_docstrings_say_the_units_of_arguments(reference: ModuleType):
    unsaid = set()
    for one in reference.promised():
        for name in inspect.signature(one.function).parameters:
            unit = UNITS.get(name.rpartition("_")[2]) if "_" in name else None
            if unit is None or one.is_property or one.name.endswith(".__init__") or refers(one.doc):
                continue
            entry = re.search(rf"^ +{name}: (.*(?:\n {{8,}}.*)*)", one.doc, re.MULTILINE)
            told = entry[1] if entry else "".join(re.findall(rf"[^.]*`{name}`[^.]*", one.doc))
            if not re.search(unit, told):
                unsaid.add(f"{one.name}: {name}")
    assert unsaid == set()


def test_page_has_every_promised_name(reference: ModuleType):
    text = (ROOT / "man/opsq-python.7").read_text(encoding="utf-8").replace("\\-", "-")
    for one in reference.promised():
        name = one.name.split(".")[-2 if one.name.endswith(".__init__") else -1]
        assert rf"\fB{name}\fR" in text, one.name
    for kind, name in reference.classes().items():
        assert f".SH {name}\n" in text or rf"\fB{kind.__name__}\fR" in text, name
