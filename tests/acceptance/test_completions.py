"""Each completion script in its own shell.

Silent when opsq is missing, and with a daemon it completes verbs, options and ids.

A shell that is missing is skipped, and in CI a failure, with its name and how to install it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pexpect
import pytest

from needs import need

if TYPE_CHECKING:
    from acceptance.conftest import Opsq

PROGRAM = Path(sys.executable).with_name("opsq")
SCRIPTS = Path(__file__).parents[2] / "completions"
SHELLS = ("bash", "zsh", "fish")
DEADLINE_S = 180


def environ(folder: Path, path: str, **more: str) -> dict[str, str]:
    """All the variables that a shell gets."""
    return {"HOME": str(folder), "PATH": path, "TERM": "dumb", "LC_ALL": "C.UTF-8", **more}


def bare_path() -> str:
    """A PATH on which opsq is not."""
    assert shutil.which("opsq", path="/usr/bin:/bin") is None
    return "/usr/bin:/bin"


def load_line(shell: str, folder: Path) -> str:
    """What an rc file says to load the script."""
    script = SCRIPTS / f"opsq.{shell}"
    if shell != "zsh":
        return f"source {script}"
    (folder / "zfunc").mkdir(exist_ok=True)
    shutil.copy(script, folder / "zfunc/_opsq")
    return f"fpath=({folder}/zfunc $fpath); autoload -Uz compinit; compinit -u -D"


BARE = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}


class Terminal:
    """A shell on a terminal, with its script loaded."""

    def __init__(self, shell: str, folder: Path, environ: dict[str, str]) -> None:
        self.shell = shell
        arguments = [*BARE[shell], "-i"]
        self._terminal = pexpect.spawn(
            need(shell),
            arguments,
            env=environ,
            cwd=str(folder),
            encoding="utf-8",
            timeout=DEADLINE_S,
            dimensions=(50, 200),
        )
        self._terminal.sendline(f"PS1='rea''dy> '; {load_line(shell, folder)}")
        self._terminal.expect_exact("ready> ")

    def complete(self, line: str, expected: str) -> None:
        """Type a line and Tab; the line must become `expected`."""
        self._terminal.send(f"{line}\t")
        self._terminal.expect_exact(expected)
        self.clear()

    def clear(self) -> str:
        """Empty the line; what was said since the last time."""
        self._terminal.send("\x15echo do''ne\r")
        self._terminal.expect_exact("done")
        said = str(self._terminal.before)
        self._terminal.expect_exact("ready> ")
        return said

    def say(self, line: str) -> str:
        """Type a line and Tab; what was said."""
        self._terminal.send(f"{line}\t")
        return self.clear()

    def close(self) -> None:
        """End the shell."""
        self._terminal.close(force=True)


class Fish:
    """The shell fish, asked by its own way: its terminal waits for answers that only a real one gives."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ

    def complete(self, line: str, expected: str) -> None:
        """Have a line completed; there must be one candidate, and it must make the line `expected`."""
        [candidate] = self.say(line).splitlines()
        assert " ".join([*line.split(" ")[:-1], candidate.partition("\t")[0]]) == expected.rstrip()

    def say(self, line: str) -> str:
        """The candidates for a line, one a line."""
        command = [need("fish"), *BARE["fish"], "-c", f"{load_line('fish', self._folder)}; complete -C '{line}'"]
        done = subprocess.run(
            command, env=self._environ, cwd=self._folder, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def close(self) -> None:
        """Nothing is open."""


Open = Callable[..., Terminal | Fish]


@pytest.fixture
def open_shell(runtime_dir: Path) -> Iterator[Open]:
    """Opens a shell with its script loaded: `open_shell(shell, path, **variables)`; it is gone afterwards."""
    opened: list[Terminal | Fish] = []

    def open_(shell: str, path: str, **variables: str) -> Terminal | Fish:
        variables = environ(runtime_dir, path, **variables)
        opened.append(Fish(runtime_dir, variables) if shell == "fish" else Terminal(shell, runtime_dir, variables))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_script_loads_silently_when_opsq_is_missing(shell: str, runtime_dir: Path):
    """A shell that starts after opsq was removed complains of nothing."""
    command = [need(shell), *BARE[shell], "-c", load_line(shell, runtime_dir)]
    done = subprocess.run(
        command, env=environ(runtime_dir, bare_path()), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_says_nothing_when_opsq_is_missing(shell: str, open_shell: Open):
    """What only the daemon knows is not there; that is no reason to complain."""
    said = open_shell(shell, bare_path()).say("opsq wait ")
    assert "not found" not in said
    assert "rror" not in said


@pytest.mark.parametrize("shell", SHELLS)
def test_verbs_options_and_their_values_are_completed(shell: str, open_shell: Open):
    """No daemon is needed for what is the same everywhere."""
    opened = open_shell(shell, f"{PROGRAM.parent}:/usr/bin:/bin")
    opened.complete("opsq wai", "opsq wait ")
    opened.complete("opsq submit --in-p", "opsq submit --in-place")
    opened.complete("opsq submit --on-dead ke", "opsq submit --on-dead keep")
    opened.complete("opsq consume -s Ol", "opsq consume -s OldestFirst")
    opened.complete("opsq reserve --strategy Cus", "opsq reserve --strategy CustomPriority")
    opened.complete("opsq explain Ol", "opsq explain OldestFirst")
    opened.complete("opsq dead req", "opsq dead requeue")
    opened.complete("opsq --quiet backu", "opsq --quiet backup")


@pytest.mark.parametrize("shell", SHELLS)
def test_ids_and_metadata_keys_come_from_the_daemon_that_is_meant(shell: str, open_shell: Open, queue: Opsq):
    """The daemon of the environment, unless the line names another."""
    submission = queue.submit_lines(2, "-m", "tenant=acme")
    path = f"{PROGRAM.parent}:/usr/bin:/bin"
    opened = open_shell(shell, path, OPSQ_STATE_DIR=str(queue.state_dir))
    opened.complete("opsq wait ", f"opsq wait {submission}")
    opened.complete("opsq cancel ", f"opsq cancel {submission}")
    opened.complete("opsq status --by te", "opsq status --by tenant")
    opened.complete("opsq submit -m te", "opsq submit -m tenant=")
    opened.complete(f"opsq explain {submission[:5]}", f"opsq explain {submission}")
    assert submission not in opened.say("opsq rm ")
    other = open_shell(shell, path)
    assert submission not in other.say("opsq wait ")
    other.complete(f"opsq --state-dir {queue.state_dir} show ", f"opsq --state-dir {queue.state_dir} show {submission}")


def test_candidates_are_asked_without_typer_and_tell_what_they_are(queue: Opsq):
    """`opsq completion KIND` is on the way of the hot verbs; a tab leads to a description."""
    submission = queue.submit_lines(2, "-m", "tenant=acme")
    assert queue.ok("completion", "ids").text == f"{submission}\topen 0/2 tenant=acme"
    assert queue.ok("completion", "open", "--", "opsq", "cancel").text.startswith(submission)
    assert queue.ok("completion", "ended").text == ""
    assert queue.ok("completion", "keys").text == "tenant"
    queue.reserve()
    assert queue.ok("completion", "consumers").text.endswith("\tholds 1")
    code = (
        "import sys; sys.argv[1:] = ['completion', 'ids']\nfrom opsq.__main__ import "
        "run\nrun(sys.argv[1:])\nprint(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=queue.environ, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert submission in done.stdout
    assert not {"typer", "rich"} & set(done.stdout.split())


def test_strategies_are_offered_without_a_daemon_those_of_the_settings_too(opsq: Opsq):
    """One that takes something ends in its parenthesis.

    What `opsq explain` takes has ids besides, if a daemon can be asked.
    """
    folder = opsq.folder / "config/opsq"
    folder.mkdir(parents=True)
    (folder / "opsq.toml").write_text('[strategies]\nfast = "NewestFirst"\n')
    opsq.environ["XDG_CONFIG_HOME"] = str(folder.parent)
    offered = dict(line.split("\t") for line in opsq.ok("completion", "strategies").lines)
    assert {"Random", "OldestFirst", "Fair(", "SelectOnly(", "OrElse(", "fast"} <= set(offered)
    assert offered["fast"] == "NewestFirst"
    assert opsq.ok("completion", "explained").lines == opsq.ok("completion", "strategies").lines
    opsq.ok("start")
    submission = opsq.submit_lines(1)
    assert opsq.ok("completion", "explained").lines[-1].startswith(submission)


def test_candidates_of_a_daemon_that_is_not_there_are_none(opsq: Opsq):
    """The exit status tells it, and nothing else does."""
    ran = opsq("completion", "ids")
    assert (ran.status, ran.out, ran.err) == (4, b"", "")


def test_candidates_come_from_the_daemon_that_the_line_names(queue: Opsq):
    """Also when bash has cut the line at = and :."""
    submission = queue.submit_lines(1)
    elsewhere = {"OPSQ_STATE_DIR": str(queue.folder / "elsewhere")}
    for words in (
        ["--state-dir", str(queue.state_dir)],
        [f"--state-dir={queue.state_dir}"],
        ["--state-dir", "=", str(queue.state_dir)],
    ):
        ran = queue("completion", "ids", "--", *words, "wait", environ=elsewhere)
        assert ran.text.startswith(submission), words
