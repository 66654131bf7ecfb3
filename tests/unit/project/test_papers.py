"""The generator of man pages and completions.

It says what is stale, keeps what was written by hand, and gives the same output every time.

It must not change a file of the repository; what it writes goes into a copy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the modules of tools/ be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


@pytest.fixture
def papers(tools: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The generator, working on a copy."""
    import papers

    for name in ("man", "completions", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.setattr(papers, "ROOT", tmp_path)
    return papers


def test_papers_are_fresh():
    """`make docs` passes: nobody changed an option without running tools/papers.py."""
    done = subprocess.run([sys.executable, str(ROOT / "tools/papers.py"), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_changed_option_part_is_stale_and_written_anew(
    papers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """What is generated cannot be kept by hand."""
    page = tmp_path / "man/opsq-wait.1"
    fresh = page.read_text()
    page.write_text(fresh.replace("Give up after this long", "Give up at once"))
    assert papers.main(["--check"]) == 1
    assert "man/opsq-wait.1 is stale" in capsys.readouterr().err
    assert papers.main([]) == 0
    assert page.read_text() == fresh


def test_hand_written_part_is_left_alone(papers: ModuleType, tmp_path: Path):
    """The generator owns its parts and nothing else."""
    page = tmp_path / "man/opsq-wait.1"
    text = page.read_text().replace("nothing is polled", "nobody polls")
    page.write_text(text)
    assert papers.main(["--check"]) == 0
    assert papers.main([]) == 0
    assert page.read_text() == text


def test_missing_page_is_stale_and_gets_a_beginning(
    papers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A new verb has a page from the first run on."""
    page = tmp_path / "man/opsq-dead.1"
    page.unlink()
    assert papers.main(["--check"]) == 1
    assert "man/opsq-dead.1 is stale" in capsys.readouterr().err
    assert papers.main([]) == 0
    assert "opsq\\-dead \\- list dead chunks" in page.read_text()
    assert papers.main(["--check"]) == 0


def test_page_of_a_verb_that_is_not_there_is_complained_of(
    papers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A verb that was removed leaves no page behind."""
    (tmp_path / "man/opsq-ponder.1").write_text("")
    assert papers.main(["--check"]) == 1
    assert "opsq-ponder.1" in capsys.readouterr().err


def test_page_without_a_generated_part_is_refused(papers: ModuleType, tmp_path: Path):
    """Options cannot be lost by deleting a marker."""
    page = tmp_path / "man/opsq-wait.1"
    page.write_text(page.read_text().replace('.\\" generated: options\n', ""))
    with pytest.raises(SystemExit, match="options"):
        papers.main([])


def test_unknown_argument_is_a_usage_error(papers: ModuleType):
    """A misspelt --check writes nothing."""
    assert papers.main(["--chek"]) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a-b", "a\\-b"),
        ("\\t", "\\et"),
        ("see `opsq list`", "see \\fBopsq list\\fR"),
        (".profile is read", "\\&.profile is read"),
        ("'tis", "\\&'tis"),
    ],
)
def test_text_becomes_roff_that_prints_it(papers: ModuleType, text: str, expected: str):
    """Nothing in a help text can become a request or an escape."""
    assert papers.sentence(text) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_of_every_verb_is_in_each_completion(tools: None, shell: str):
    """A script that leaves something out is worse than none."""
    from command_line import read

    script = (ROOT / "completions" / f"opsq.{shell}").read_text()
    line = read()
    for command in line.commands:
        assert command.name.split()[-1] in script
        for flag in command.flags + line.flags:
            assert flag.names[-1] in script or f"-l {flag.names[-1][2:]} " in script, (command.name, flag.names)
