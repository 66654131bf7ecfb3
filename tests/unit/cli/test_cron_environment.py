"""What `opsq doctor --cron` makes of a shell: each lack is named with a line for the crontab, and nothing else is."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from opsq.cli import cron_environment
from opsq.cli.caller import Caller
from opsq.cli.cron_environment import PATH, examine
from opsq.daemon.doctor_access import Fact

Examine = Callable[..., dict[str, Fact]]


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Examine:
    """Examines an environment that has what cron gives, and other variables; `opsq` is in a folder of its own."""
    place = tmp_path / "home/bin"
    place.mkdir(parents=True)
    (place / "opsq").write_text("#!/bin/sh\n")
    (place / "opsq").chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(place / "opsq")])
    for name in list(os.environ):
        if name.startswith(("OPSQ_", "XDG_")):
            monkeypatch.delenv(name)
    home = pwd.getpwuid(os.geteuid()).pw_dir
    monkeypatch.setenv("HOME", home)

    def of(*programs: str, **variables: str) -> dict[str, Fact]:
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        environ = {"HOME": home, "PATH": f"{place}:{PATH}", **variables}
        return {fact.check: fact for fact in examine(Caller({}, frozenset()), programs, environ)}

    return of


def wrong(found: dict[str, Fact]) -> set[str]:
    return {name for name, fact in found.items() if not fact.is_ok}


def test_program_outside_of_crons_path_is_wrong_and_its_folder_goes_into_the_crontab(
    facts: Examine, tmp_path: Path
) -> None:
    found = facts("sort")
    assert wrong(found) == {"program opsq"}
    assert found["program opsq"].advice == f"Begin the crontab with: PATH={tmp_path}/home/bin:{PATH}"
    assert found["program sort"].advice == ""


def test_one_line_has_the_folders_of_all_programs(facts: Examine, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tool").write_text("#!/bin/sh\n")
    (other / "tool").chmod(0o755)
    found = facts("tool", PATH=f"{tmp_path}/home/bin:{other}:{PATH}")
    line = f"PATH={tmp_path}/home/bin:{other}:{PATH}"
    assert [found[f"program {name}"].advice.partition(": ")[2] for name in ("opsq", "tool")] == [line, line]


def test_other_program_of_the_same_name_is_wrong_and_both_are_named(facts: Examine, tmp_path: Path) -> None:
    (tmp_path / "home/bin/sort").write_text("#!/bin/sh\n")
    (tmp_path / "home/bin/sort").chmod(0o755)
    found = facts("sort")["program sort"]
    assert not found.is_ok
    assert f"{tmp_path}/home/bin/sort here" in found.detail
    assert "cron takes /usr/bin/sort" in found.detail


def test_missing_program_is_wrong_and_whole_paths_are_not(
    facts: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = facts("nosuchprogram", "/usr/bin/env", "home/bin/opsq", "/nowhere/x")
    assert wrong(found) == {
        "program opsq",
        "program nosuchprogram",
        "program home/bin/opsq",
        "program /nowhere/x",
    }
    assert f"Write {tmp_path}/home/bin/opsq:" in found["program home/bin/opsq"].advice


def test_variables_of_opsq_are_wrong_and_so_is_the_queue_that_they_choose(facts: Examine, tmp_path: Path) -> None:
    found = facts(OPSQ_STATE_DIR=f"{tmp_path}/a queue")
    assert {"variables", "queue"} < wrong(found)
    assert found["variables"].advice == f"In the crontab: OPSQ_STATE_DIR='{tmp_path}/a queue'"
    assert f"{tmp_path}/a queue here" in found["queue"].detail


def test_variables_that_do_not_choose_the_queue_are_named_alone_and_no_secret_is_shown(facts: Examine) -> None:
    found = facts(OPSQ_SUBMIT_MAX_ATTEMPTS="3", OPSQ_TOKEN="secret-words")
    assert wrong(found) == {"program opsq", "variables"}
    assert found["variables"].detail == "set here, not by cron: OPSQ_SUBMIT_MAX_ATTEMPTS, OPSQ_TOKEN"
    assert "secret-words" not in str(found)


def test_other_home_is_a_variable_too(facts: Examine, tmp_path: Path) -> None:
    assert f"HOME={tmp_path}" in facts(HOME=str(tmp_path))["variables"].advice


def test_what_harms_nobody_is_told_and_not_wrong(facts: Examine) -> None:
    found = facts(LANG="de_DE.UTF-8", XDG_RUNTIME_DIR="/run/user/7", TZ="Asia/Tokyo")
    assert wrong(found) == {"program opsq"}
    assert "LANG=de_DE.UTF-8" in found["locale"].advice
    assert "XDG_RUNTIME_DIR=/run/user/7" in found["session"].advice
    assert "TZ=Asia/Tokyo here" in found["time zone"].detail
    assert os.environ["TZ"] == "Asia/Tokyo"


@pytest.mark.parametrize("is_there", [True, False])
def test_mail_is_told_by_whether_there_is_a_sendmail(
    facts: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    monkeypatch.setattr(cron_environment, "SENDMAIL", str(tmp_path) if is_there else f"{tmp_path}/none")
    assert ("MAILTO" in facts()["mail"].detail) == is_there


def test_user_whom_cron_does_not_know_is_told_at_once(facts: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> NoReturn:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert wrong(facts("sort")) == {"user"}


def test_folders_of_macos_are_told_there_only(facts: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("folders" in facts()) == (sys.platform == "darwin")
    monkeypatch.setattr(cron_environment.sys, "platform", "darwin")
    assert "Full Disk Access" in facts()["folders"].advice


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("UTC0", []),
        (
            "CET-1CEST,M3.5.0,M10.5.0/3",
            ["2026-03-29 02:00 to 03:00 left out", "2026-10-25 02:00 to 03:00 twice"],
        ),
        (
            "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
            ["2026-04-05 01:30 to 02:00 twice", "2026-10-04 02:00 to 02:30 left out"],
        ),
    ],
)
def test_changes_of_the_clocks_within_a_year_are_named(
    monkeypatch: pytest.MonkeyPatch, rule: str, changes: list[str]
) -> None:
    with monkeypatch.context() as inside:
        inside.setenv("TZ", rule)
        time.tzset()
        found = list(cron_environment._changes(1_767_225_600))  # 2026 begins
    time.tzset()
    assert found == changes
