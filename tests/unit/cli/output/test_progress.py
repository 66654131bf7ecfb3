"""What is typed about programs, and what it means.

How many at once, which end means what, and what a person sees of it.
"""

from __future__ import annotations

import signal
from typing import cast

import pytest

from opsq.cli.caller import Caller
from opsq.cli.output import progress
from opsq.cli.output.progress import WorkViewer, described
from opsq.cli.program_options import jobs_count
from opsq.documents.readable import brief, clean
from opsq.errors import UsageError
from opsq.runner.exit_policy import parse_exit_policy
from opsq.runner.progress import PoolProgress

# --- how many at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (None, 8),
        ("3", 3),
        ("50%", 4),
        ("100%", 8),
        ("150%", 12),
        ("1%", 1),
        ("+1", 9),
        ("-1", 7),
        ("-8", 1),
        ("-100", 1),
        ("+0", 8),
    ],
)
def test_jobs_are_a_count_or_follow_the_cores(text: str | None, count: int):
    assert jobs_count(text, 8) == count


@pytest.mark.parametrize("text", ["0", "0%", "many", "+50%", "1.5", "", "5000", "--1", "٣"])
def test_jobs_that_are_no_number_of_programs_are_refused(text: str):
    with pytest.raises(UsageError, match="--jobs"):
        jobs_count(text, 8)


# --- which end means what ---------------------------------------------------------------------------------------------


def test_without_lists_0_completes_and_all_else_is_retried():
    verdicts = parse_exit_policy(None, None, None)
    assert [verdicts.of(0, None), verdicts.of(1, None), verdicts.of(None, 9)] == ["complete", "retry", "retry"]
    assert not verdicts.names(127, None)


def test_lists_name_statuses_ranges_and_signals():
    verdicts = parse_exit_policy("0, 3", "75,127", "64-66,SIGSEGV,kill")
    found = [verdicts.of(status, None) for status in (0, 3, 75, 63, 64, 66, 67)]
    assert found == ["complete", "complete", "retry", "retry", "bury", "bury", "retry"]
    assert [verdicts.of(None, number) for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM)] == [
        "bury",
        "bury",
        "retry",
    ]
    assert verdicts.names(127, None)
    assert not verdicts.names(126, None)


def test_other_is_all_that_no_list_names():
    verdicts = parse_exit_policy(None, "75,SIGKILL", "other")
    assert [verdicts.of(0, None), verdicts.of(75, None), verdicts.of(None, signal.SIGKILL)] == [
        "complete",
        "retry",
        "retry",
    ]
    assert [verdicts.of(1, None), verdicts.of(None, signal.SIGSEGV)] == ["bury", "bury"]
    assert not verdicts.names(127, None)


def test_list_that_has_0_takes_it_from_success():
    assert parse_exit_policy(None, "0", None).of(0, None) == "retry"
    assert parse_exit_policy("3", None, None).of(0, None) == "retry"


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        (("0,3", "3", None), "--complete-on and --retry-on both name 3"),
        (("3", None, "1-9"), "--complete-on and --bury-on both name 3"),
        ((None, "SIGSEGV", "SEGV"), "--retry-on and --bury-on both name SIGSEGV"),
        (("256", None, None), "'256' is not an exit status"),
        (("", None, None), "'' is not an exit status"),
        ((None, "9-3", None), "runs backwards"),
        ((None, "SIGNONE", None), "no signal 'SIGNONE'"),
        (("SIGTERM", None, None), "'SIGTERM' is not an exit status"),
        ((None, "other", None), "no signal 'other'"),
    ],
)
def test_lists_that_contradict_or_name_nothing_are_refused(lists: tuple[str | None, str | None, str | None], told: str):
    with pytest.raises(UsageError) as raised:
        parse_exit_policy(*lists)
    assert told in raised.value.message


# --- what a person sees -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain\ttext ü", "plain\ttext ü"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("10 %\r20 %\r30 %\r", "30 %"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b(Bx\x9b2Jy\x07", "x2Jy"),
        ("a\x1b", "a"),
        ("\\xff", "\\xff"),
    ],
)
def test_line_of_a_program_is_shown_without_what_moves_the_cursor(said: str, shown: str):
    assert clean(said) == shown


def test_view_names_what_runs_in_few_words():
    view = PoolProgress(3, [(7, {"tenant": "a"}), (8, {}), (9, {})], 5, 2, 60, None)
    assert described(view) == "3 running, 60 operations, 2 failed; on 7 (tenant=a) and 8 and 1 more"


# --- lines of programs ------------------------------------------------------------------------------------------------


@pytest.fixture
def viewer(monkeypatch: pytest.MonkeyPatch) -> WorkViewer:
    """One whose output is kept."""
    monkeypatch.setattr(progress, "OutputThread", Kept)
    return WorkViewer(Caller({}, frozenset()))


class Kept:
    """Stands for an output thread."""

    is_congested = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def err_lines(self, content: bytes, write: object = None) -> None:
        self.lines += content.decode().splitlines()


def lines_of(viewer: WorkViewer) -> list[str]:
    """What was said so far."""
    return cast("Kept", viewer._output).lines


def test_lines_of_two_programs_are_not_mixed_however_they_come(viewer: WorkViewer):
    for name, piece in (("7/0", b"a"), ("7/1", b"x\ny"), ("7/0", b"b\nc"), ("7/1", b"z\n"), ("7/0", b""), ("7/1", b"")):
        viewer.said(name, piece)
    assert lines_of(viewer) == ["7/1: x", "7/0: ab", "7/1: yz", "7/0: c"]


def test_long_line_is_cut_and_nothing_of_it_is_lost(viewer: WorkViewer):
    viewer.said("7/0", b"x" * 20_000)
    viewer.said("7/0", b"y\n")
    assert [len(line) - len("7/0: ") for line in lines_of(viewer)] == [8192, 8192, 20_000 - 2 * 8192 + 1]


def test_unfinished_lines_that_are_never_ended_are_told_in_the_end_instead_of_kept(
    viewer: WorkViewer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(progress, "_PARTIAL_LIMIT_COUNT", 2)
    for index in range(4):
        viewer.said(f"7/{index}", b".")
    assert lines_of(viewer) == ["7/0: .", "7/1: ."]


def test_brief_keeps_the_first_line_and_the_last_ones():
    """What a program said may be long, and may be made to do harm."""
    said = "\n".join(["exit status 3: \x1b[2Jfirst", *map(str, range(1000)), "why\x07"])
    assert brief(said) == "exit status 3: first\n…\n998\n999\nwhy"
    assert brief("short") == "short"
    long = brief("x" * 10_000 + "why")
    assert len(long) <= 310
    assert long.endswith("why")
