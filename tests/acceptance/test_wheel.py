"""The wheel carries the package, its types, and every man page and completion to where shells and man look for them.

It must not build in the repository itself: a copy of what the build reads is enough.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
READ_BY_THE_BUILD = ("pyproject.toml", "README.md", "LICENSE", "src", "examples", "tools/build_hook.py")
PAPERS = {
    "man/opsq.1": "man/man1/opsq.1",
    "man/opsq.toml.5": "man/man5/opsq.toml.5",
    "man/opsq-protocol.7": "man/man7/opsq-protocol.7",
    "completions/opsq.bash": "bash-completion/completions/opsq",
    "completions/opsq.zsh": "zsh/site-functions/_opsq",
    "completions/opsq.fish": "fish/vendor_completions.d/opsq.fish",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Copy what the build reads, without papers."""
    folder = tmp_path / "source"
    for name in READ_BY_THE_BUILD:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, place)
    return folder


def names_in_wheel(source: Path, target: Path) -> set[str]:
    """Build a wheel and list its files, those of the data folder by their place under the prefix's `share`."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    outcome = subprocess.run(build, cwd=source, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    [wheel] = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name.rpartition(".data/data/share/")[2] for name in archive.namelist()}


def test_papers_go_where_shells_and_man_look(source: Path, tmp_path: Path):
    """Each man page lands in its section, each completion under the name that its shell loads."""
    for paper in PAPERS:
        (source / paper).parent.mkdir(exist_ok=True)
        (source / paper).write_text("paper\n")
    assert set(PAPERS.values()) <= names_in_wheel(source, tmp_path)


def test_examples_are_in_the_package_as_they_are(source: Path, tmp_path: Path):
    """From the source distribution too, from which whoever has no wheel installs."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    names_in_wheel(Path(str(sdist).removesuffix(".tar.gz")), tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {
            entry.filename.removeprefix("opsq/examples/"): (
                archive.read(entry),
                bool(entry.external_attr >> 16 & 0o111),
            )
            for entry in archive.infolist()
            if entry.filename.startswith("opsq/examples/")
        }
    examples = REPOSITORY / "examples"
    assert found == {
        str(path.relative_to(examples)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in examples.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_build_without_papers_carries_the_typed_package(source: Path, tmp_path: Path):
    """A tree whose papers are not generated yet still builds."""
    names = names_in_wheel(source, tmp_path)
    assert {"opsq/version.py", "opsq/py.typed", "opsq/spark/log4j2.properties", "pyspark_opsq/__init__.py"} <= names
    assert not names & set(PAPERS.values())
    page = Path("opsq/gateway/page")
    assert {str(page / "templates/base.html"), str(page / "static/page.css"), str(page / "static/page.js")} <= names
