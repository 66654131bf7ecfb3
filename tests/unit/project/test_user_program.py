"""Type checkers, in their strictest modes, take a user's program, and find each keyword in it that is misspelt.

They see the installed package from a folder of the user's, not the sources with their settings.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from needs import lack

PROGRAM = Path(__file__).with_name("user_program.py")


def mypy(folder: Path) -> str:
    """What mypy says of all files of a folder."""
    command = [sys.executable, "-m", "mypy", "--strict", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def pyright(folder: Path) -> str:
    """What pyright says; basedpyright is that, from PyPI."""
    if find_spec("basedpyright") is None:
        lack("basedpyright: make venv")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def misspelt(text: str) -> Iterator[str]:
    """The program once for each of its keywords, without the second letter of that.

    `timing={"zone": …}` and the like are keywords, too.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        places: list[tuple[int, int, str]] = []
        if isinstance(node, ast.keyword) and node.arg is not None:
            places = [(node.lineno, node.col_offset, node.arg)]
        if isinstance(node, ast.keyword) and node.arg == "timing" and isinstance(node.value, ast.Dict):
            keys = [key for key in node.value.keys if isinstance(key, ast.Constant)]
            places += [(key.lineno, key.col_offset + 1, str(key.value)) for key in keys]
        for lineno, at, name in places:
            line = lines[lineno - 1]
            changed = line[:at] + name[0] + name[2:] + line[at + len(name) :]
            yield "".join([*lines[: lineno - 1], changed, *lines[lineno:]])


@pytest.mark.parametrize("check", [mypy, pyright])
def test_program_of_a_user_is_clean_and_every_misspelt_keyword_is_found(check: Callable[[Path], str], tmp_path: Path):
    """Each file but the first has one; in one run, as checkers look at the whole package first."""
    texts = [PROGRAM.read_text(), *misspelt(PROGRAM.read_text())]
    files = [tmp_path / f"p{number}.py" for number, _ in enumerate(texts)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    assert len(files) > 50
    found = check(tmp_path)
    clean = [file for file in files if not re.search(rf"\b{file.name}:\d+.* error: ", found)]
    assert clean[:1] == files[:1], found
    assert [difference(file) for file in clean[1:]] == []


def difference(file: Path) -> str:
    """The line that is not in the program."""
    known = PROGRAM.read_text().splitlines()
    return next(line for line in file.read_text().splitlines() if line not in known)
