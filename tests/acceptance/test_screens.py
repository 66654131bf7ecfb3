"""Every table and panel at 80 and at 120 columns: no word is broken, nothing is cut, one zone is named.

What a screen says is taken from a terminal so wide that nothing has to be wrapped there; a narrower one must say the
same words, each in one piece unless it is longer than the line.
"""

import io
import re
import sys
import time

import pyte
import pytest

from opsq.cli.app import run
from opsq.cli.output.error_report import report_error
from opsq.errors import OpsqError

WIDE = 2000
SPAN = r"[\d.]+[smhd](\s+\d+[smhd])?"
ROWS = 250
NIGHT = "nightly-transcode-of-the-archive-of-the-north"
HOST = "gpu-worker-0017.rack-42.datacentre-frankfurt.example.internal-48213"
REASON = (
    "ffmpeg: /data/archive/north/2026/11/28/recording-00004711.mkv: Invalid data found when processing input;\n"
    '  File "/opt/transcode/segments.py", line 211, in segments_of\n'
    "ValueError: the segment at 00:41:07 has no keyframe, and the decoder gave up after 3 concealed errors in a row\n"
)
METADATA = ["-m", f"job={NIGHT}", "-m", "tenant=acme-broadcasting-and-media-services", "-m", "priority_class=7"]
READABLE = {"default", "red", "magenta"}
"""What of the sixteen colours has contrast enough on black and on white, in the palettes that terminals come with."""


@pytest.fixture
def busy(queue):
    """A queue with something for each screen."""
    submission = queue.submit_lines(70, "--max-attempts", "1", *METADATA)
    again = queue.submit_lines(5, "--max-attempts", "5", *METADATA, "--unique", "the-archive-of-the-north-2026-11-28")
    queue.submit_lines(1, "--title", "Transcode the archive of the north, nightly, for the broadcasters", *METADATA)
    later = queue.ok("submit", queue.file("in", b"a\nb\n"), "-m", "tenant=later", "--at", "2049-07-01T08:00Z").text
    (queue.folder / "reason").write_text(REASON)
    for subject in (submission, submission, again):
        words = ["-j", "1", "--until-idle", "--max-chunks", "1", "--name", HOST, "--submission", subject]
        queue("consume", "-q", *words, "--", "sh", "-c", f"cat {queue.folder}/reason >&2; exit 187")
    queue.ok("reserve", "--strategy", f"SelectOnly(submission={again})")
    queue.ok("pause", "tenant=acme-broadcasting-and-media-services")
    queue.ok("limit", "tenant=later", "--concurrency", "1000000000")
    queue.ok("weight", "tenant=later", "3.5")
    queue.ok("token", "create", "the-operators-of-the-archive", "--role", "operator")
    queue.ids = {"ID": submission, "AGAIN": again, "LATER": later}
    return queue


SCREENS = {
    "status": ["status"],
    "status by": ["status", "--by", "tenant"],
    "list": ["list"],
    "show": ["show", "ID"],
    "show again": ["show", "AGAIN"],
    "show a chunk": ["show", "ID/0"],
    "show --running": ["show", "AGAIN", "--running"],
    "dead list": ["dead", "list"],
    "dead show": ["dead", "show", "ID/0"],
    "history": ["history", "list"],
    "history of one": ["history", "list", "ID"],
    "limits": ["limits"],
    "audit": ["audit"],
    "token list": ["token", "list"],
    "config": ["config"],
    "doctor": ["doctor"],
    "explain work": ["explain", "ID/3"],
    "explain later": ["explain", "LATER"],
    "explain a strategy": ["explain", "-a", "Fair(tenant)"],
    "submit --dry-run": ["submit", "in", "--dry-run", *METADATA],
}


class Tty(io.StringIO):
    """A terminal that a verb of this process writes to: a new process for each screen would take minutes."""

    def isatty(self):
        return True


def drawn(queue, words, columns):
    """What a verb writes to a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**queue.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}.items():
            patch.setenv(name, value)
        patch.chdir(queue.folder)
        patch.setattr(sys, "stdout", tty := Tty())
        patch.setattr(sys, "stderr", tty)
        time.tzset()
        try:
            run(words)
        except OpsqError as error:
            report_error(error, words)
    time.tzset()
    return tty.getvalue()


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def screen_of(text, columns):
    """What the terminal shows in the end."""
    screen = pyte.Screen(columns, ROWS)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(text)
    return screen


def words_of(text):
    """The words of a screen; ages, which change meanwhile, are all alike, or left out."""
    text = re.sub(rf"\((now|in\s+{SPAN}|{SPAN}\s+ago)\)", "", text)
    words = {word.strip(":(),.;") for word in text.split()}
    return {re.sub(r"^\d{1,8}(\.\d+)?(ms|s|m|h|d|)$", "#", word) for word in words if word}


def named(queue, words):
    return [re.sub("AGAIN|LATER|ID", lambda found: queue.ids[found[0]], word) for word in words]


def test_screens_say_the_same_at_every_width(busy):
    problems = []
    for name, words in SCREENS.items():
        wide = words_of(plain(drawn(busy, named(busy, words), WIDE)))
        assert len(wide) > 5, name
        for columns in (80, 120):
            screen = screen_of(drawn(busy, named(busy, words), columns), columns)
            text = "\n".join(screen.display)
            print(f"--- {name}, {columns}", *(line.rstrip() for line in text.split("\n") if line.strip()), sep="\n")
            found = words_of(text)
            long = [word for word in wide if len(word) > columns - 24]
            problems += [(name, columns, "is broken or cut", word) for word in wide - found - {*long}]
            pieces = [word for word in found - wide if not any(word in whole for whole in long)]
            problems += [(name, columns, "is nowhere else", word) for word in pieces]
            cells = [cell for line in screen.buffer.values() for cell in line.values()]
            colours = {cell.fg for cell in cells} | {cell.bg for cell in cells}
            problems += [(name, columns, "is hard to read", colour) for colour in colours - READABLE]
    assert not problems, "\n".join(map(str, problems))


def test_times_are_of_one_zone_that_is_named(busy):
    busy.environ["TZ"] = "XST-5:45"
    for name in ("list", "show", "dead list", "dead show", "history", "audit", "token list", "explain later"):
        local = plain(drawn(busy, named(busy, SCREENS[name]), 200))
        assert "XST" in local, name
        assert not re.search(r"\d\dT\d\d:|UTC", local), name
        utc = plain(drawn(busy, [*named(busy, SCREENS[name]), "--utc"], 200))
        assert "UTC" in utc, name
        assert "XST" not in utc, name
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", utc), name


SENTENCES = [
    ["dead", "requeue", "ID/1"],
    ["results", "AGAIN"],
    ["wait", "ID", "-q"],
    ["cancel", "ID"],
    ["resume", "tenant=nobody"],
    ["limit", "a-key-that-no-submission-of-this-queue-has-ever-had", "--lift"],
    ["run", "in", "cat"],
    ["submit", "in", "--delay", "5x"],
    ["explain", "OldestFirst(tenant)"],
    ["dead", "show", "ID/1"],
    ["run", "in", "--", "cat in"],
    ["wait", "--state", "scheduled", "-m", "tenant=nobody"],
]


@pytest.mark.parametrize("columns", [40, 80])
def test_sentences_break_between_words_and_commands_stay_whole(busy, columns):
    for words in [named(busy, each) for each in SENTENCES]:
        whole = drawn(busy, words, WIDE).strip()
        told = drawn(busy, words, columns)
        print(told)
        assert told.split() == whole.split(), words
        for line in told.split("\n"):
            assert len(line) <= columns or " " not in re.sub("`[^`]*`", "", line).strip(), (words, line)
            assert line.count("`") % 2 == 0, (words, line)


def test_explanation_goes_on_below_its_own_beginning(busy):
    first, *rest = screen_of(drawn(busy, ["explain", busy.ids["LATER"]], 60), 60).display
    assert first.startswith("● ")
    headline = first.index("Submission")
    assert rest[0][:headline].strip() == ""
    assert rest[0][headline] != " "


def test_state_of_a_submission_stays_in_sight_above_its_failures(queue):
    submission = queue.submit_lines(9, "--max-attempts", "2", "--backoff", "90m,2,100h")
    queue("consume", "-q", "--until-idle", "-j", "1", "--", "false")
    text = "\n".join(screen_of(drawn(queue, ["show", submission], 80), 80).display)
    assert text.count("reason: exit status 1") == 5
    assert "There may be more: `opsq history list" in text
    assert len(queue.ok("show", submission, "--json").json["attempts"]) == 9
    assert "90m × 2 up to 100h" in text
    assert "reservation    10m" in text


def test_status_says_only_what_there_is_to_say(queue):
    text = plain(drawn(queue, ["status"], 80))
    assert ".sock, chosen by " in text
    assert "not folded" not in text


def test_what_holds_work_back_stands_above_the_bar_that_waits(busy, terminal):
    for words in (["wait", busy.ids["AGAIN"]], ["submit", "in", "--wait", *METADATA]):
        shown = terminal(*words)
        shown.wait("has been paused", "ends the pause.", "━━━")
        lines = [line for line in shown.lines if line]
        print(*lines, sep="\n")
        bar = next(at for at, line in enumerate(lines) if "━━━" in line)
        assert bar == len(lines) - 1
        assert not [line for line in lines if "━" in line and "opsq:" in line]
        assert "opsq: Submission" in shown.text
        shown.type("\x03")
        assert shown.ended() == 130
        shown.wait("Only the wait has ended")
        assert "━" not in shown.text


def test_bar_is_gone_after_ctrl_c(queue, terminal):
    queue.file("in", b"line\n" * 9)
    shown = terminal("run", "in", "--lines", "1", "-o", "out", "-j", "2", "--", "sleep", "100")
    shown.wait("2 running")
    shown.type("\x03\x03")
    assert shown.ended() == 130
    shown.wait("the same command continues")
    assert "━" not in shown.text
