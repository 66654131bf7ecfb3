"""tools/release.py: what is built from a commit is the same everywhere, and whole.

It must not install anything; `make release` does.
"""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from needs import need

ROOT = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## [Unreleased]

- New.

## [1.10.0] - 2026-02-01

### Added

- Ten.

## [1.1.0] - 2026-01-01

- One.
"""


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # set back afterwards
    import release

    return release


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files as they are now, committed to a repository beside them: they may be no checkout of their own."""
    need("git")
    for name, value in {"GIT_DIR": tmp_path / "git", "GIT_WORK_TREE": ROOT, "GIT_CONFIG_GLOBAL": "/dev/null"}.items():
        monkeypatch.setenv(name, str(value))
    author = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for words in (["init", "-q"], ["add", "--all"], [*author, "commit", "-q", "--message=now"]):
        subprocess.run(["git", *words], cwd=ROOT, check=True)


@pytest.mark.usefixtures("commit")
def test_build_is_the_same_elsewhere_and_from_the_source_distribution_and_has_every_file(
    release: ModuleType, tmp_path: Path
):
    wheel, sdist = release.build_twice(tmp_path, tmp_path / "dist")
    release.check_whole(wheel, sdist)
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(tmp_path / wheel.name, "w") as less:
        for entry in archive.infolist():
            if not entry.filename.endswith("man7/opsq-json.7"):
                less.writestr(entry, archive.read(entry))
    with pytest.raises(SystemExit, match=r"man/opsq-json\.7 is missing"):
        release.check_whole(tmp_path / wheel.name, sdist)
    with tarfile.open(sdist) as archive:
        assert not any("/.ci/" in name for name in archive.getnames())


@pytest.mark.usefixtures("commit")
def test_build_that_differs_is_refused(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def built(source: Path, kind: str, target: Path) -> Path:
        target.mkdir(exist_ok=True)
        file = target / f"opsq-1.{kind}.tar.gz"
        with tarfile.open(file, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(f"content-{target.name}"))
        return file

    monkeypatch.setattr(release, "_build", built)
    with pytest.raises(SystemExit, match="has other bytes"):
        release.build_twice(tmp_path, tmp_path / "dist")


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("1.1.0", "# opsq 1.1.0\n\n- One.\n"),
        ("1.10.0", "# opsq 1.10.0\n\n### Added\n\n- Ten.\n"),
        ("Unreleased", "# opsq Unreleased\n\n- New.\n"),
        ("1.1", ""),
    ],
)
def test_notes_are_the_section_of_the_version(release: ModuleType, version: str, notes: str):
    assert release.notes_of(CHANGELOG, version) == notes
