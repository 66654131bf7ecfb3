"""A dry run refuses what the run would: every option of every verb that has --dry-run, with values that are no good.

Options that name the daemon are left out: a dry run asks the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons import running
from opsq.__main__ import run
from opsq.cli.verb_table import GROUPS, VERBS, function_of
from opsq.options.option import GLOBAL, Option, declared
from opsq.settings import Settings

Told = tuple[int, str]
NAMES = [f"{name} {part}".strip() for name in VERBS for part in GROUPS.get(name, ("",))]
OPTIONS = {name: declared(function_of(name)).options for name in NAMES if not name.startswith("spark")}
DRY = {name: options for name, options in OPTIONS.items() if "dry_run" in options}
BEFORE = {"submit": ["submit", "in"], "consume": ["consume", "--until-idle", "-j1"]}
BEHIND = {"consume": ["--", "true"]}
BAD = [
    "",
    "nonsense",
    "-1",
    "0",
    "9" * 25,
    "1e400",
    "99999999999d",
    "a=b=c",
    "=",
    "x\ny",
    "k" * 3000,
    "1970-01-02",
    "in",
]
"""What some option or other does not take."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A daemon with nothing in its queue."""
    with running(tmp_path_factory.mktemp("dry") / "s") as settings:
        yield settings


@pytest.fixture
def told(
    daemon: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Told]:
    """Runs a command line in a folder with a file `in`: the exit status, and what was said of a failure."""
    monkeypatch.setenv("OPSQ_STATE_DIR", daemon.state_dir)
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(b"a\n" * 4)

    def result(*words: str) -> Told:
        capfd.readouterr()
        status = run(words)
        return status, capfd.readouterr().err if status else ""

    return result


def flags() -> Iterator[tuple[str, Option]]:
    """Each option with a value of each verb with a dry run."""
    for name, options in DRY.items():
        for each, option in options.items():
            if option.flags and not option.is_flag and each not in GLOBAL:
                yield name, option


def test_verbs_with_a_dry_run_are_known():
    """So that none is left out by a slip."""
    assert set(DRY) == {"submit", "consume", "cancel", "rm", "dead requeue", "dead drop"}


@pytest.mark.parametrize(
    ("name", "option"), [pytest.param(*each, id=f"{each[0]} {each[1].flags[-1]}") for each in flags()]
)
def test_bad_value_is_refused_alike_with_and_without_dry_run(told: Callable[..., Told], name: str, option: Option):
    """With the same exit status, in the same words."""
    before, behind = BEFORE.get(name, name.split()), BEHIND.get(name, [])
    for value in BAD:
        words = [*before, f"{option.flags[-1]}={value}", *behind]
        assert told(*before, "--dry-run", *words[len(before) :]) == told(*words), value


@pytest.mark.parametrize(
    "words",
    [
        ["in", "--weight", "tenant=2"],
        ["in", "-m", "a=1", "-m", "a=2"],
        ["in", "-m", "submission=1"],
        ["in", *(word for number in range(65) for word in ("-m", f"k{number}=1"))],
        ["in", "--after", "1"],
        ["in", "--after", "1:begun"],
        ["in", "--on-failed-dependency", "run"],
        ["in", "--unique", "k", "--idempotency-key", "k"],
        ["in", "--unique-until", "start"],
        ["in", "--keep", "1h"],
        ["in", "--idempotency-key", "k", "--keep", "9000d"],
        ["in", "--delay", "1h", "--at", "2100-01-01"],
        ["in", "--delay", "2h", "--expires", "1h"],
        ["in", "--bytes", "1T"],
        ["in", "--bytes", "1", "--lines", "1"],
        ["large", "--per-file"],
        ["in", "--attach", "attached"],
        ["in", "--csv-header", "large"],
        ["nothing"],
        ["."],
        [],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_submission_that_cannot_be_is_refused_alike_with_and_without_dry_run(
    told: Callable[..., Told], words: list[str]
):
    """Also by what only the daemon knows."""
    with open("large", "wb") as file:
        file.truncate(65 << 20)
    Path("attached").write_bytes(bytes(2 << 20))
    real = told("submit", *words)
    assert real[0] != 0
    assert told("submit", "--dry-run", *words) == real


@pytest.mark.parametrize(
    "command", [["nosuchprogram"], ["./in"], ["true", "{nonsense"], ["--each", "--", "echo", "{in}"]]
)
def test_program_that_cannot_run_is_refused_alike_with_and_without_dry_run(
    told: Callable[..., Told], command: list[str]
):
    """Before any chunk is there."""
    words = command if "--" in command else ["--", *command]
    assert told("consume", "--dry-run", *words) == told("consume", "--until-idle", *words)


def test_dry_run_knows_whose_key_it_is(told: Callable[..., Told]):
    """A submission that has the key already is compared as it would be."""
    assert told("submit", "in", "--idempotency-key", "known") == (0, "")
    Path("other").write_bytes(b"b\n")
    for words, status in ((["in"], 0), (["in", "-m", "a=1"], 5), (["other"], 5)):
        real = told("submit", *words, "--idempotency-key", "known")
        assert real[0] == status
        assert told("submit", "--dry-run", *words, "--idempotency-key", "known") == real


def test_dry_run_submits_nothing(told: Callable[..., Told], capfd: pytest.CaptureFixture[str]):
    """However it is asked."""
    run(["list"])
    before = capfd.readouterr().out
    assert told("submit", "in", "--dry-run", "--idempotency-key", "new", "-m", "a=1") == (0, "")
    capfd.readouterr()
    run(["list"])
    assert capfd.readouterr().out == before
