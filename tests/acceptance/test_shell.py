"""How the program behaves between others: loops, pipes, terminals, signals, odd environments."""

import json

import pyte
import pytest

LOOP = """
t=handles
while opsq reserve -n 10 > "$t"; do
  while read -r h; do
    opsq read "$h" | tr a-z A-Z | opsq complete "$h" --result - || opsq fail "$h"
  done < "$t"
done
"""


def test_loop_of_the_readme_works_through_everything(queue):
    submission = queue.ok("submit", "-", "-l", "1", stdin=b"a\nb\nc\n").text
    ran = queue.shell(LOOP)
    assert (ran.out, ran.err) == (b"", "")
    assert queue.ok("results", submission).out == b"A\nB\nC\n"


def test_stdout_is_json_even_when_the_command_line_is_wrong(opsq):
    for words in (
        ["submit", "--json", "--bogus"],
        ["--json"],
        ["--json", "ls"],
        ["show", "--json"],
        ["reserve", "--json", "-n", "x"],
    ):
        ran = opsq(*words)
        assert ran.status == 2, words
        assert ran.json["error"]["exit"] == 2


def test_every_verb_answers_in_json_when_no_daemon_is_there(opsq):
    opsq.file("in", b"x")
    handle = "1/0@1.0.1.1"
    words = {
        "status": [],
        "submit": ["in"],
        "wait": ["1"],
        "results": ["1"],
        "show": ["1"],
        "list": [],
        "cancel": ["1"],
        "rm": ["1"],
        "dead": ["list"],
        "consume": ["--", "cat"],
        "reserve": [],
        "read": ["1/0"],
        "complete": [handle],
        "fail": [handle],
        "release": [handle],
        "extend": [handle],
        "explain": ["Random"],
        "check": [],
        "backup": ["copy"],
        "vacuum": [],
    }
    for verb, arguments in words.items():
        ran = opsq("--json", verb, *arguments)
        assert ran.status == 4, ran
        assert ran.json["error"]["code"] == "unreachable"


@pytest.mark.parametrize(
    ("theirs", "ours"), [("ls", "list"), ("ps", "top"), ("retry", "dead requeue"), ("sumbit", "submit")]
)
def test_unknown_verb_names_ours(opsq, theirs, ours):
    ran = opsq(theirs)
    assert ran.status == 2
    assert f"opsq {ours}`" in ran.err


def test_global_options_stand_before_or_behind_the_verb(queue):
    queue.environ.pop("OPSQ_STATE_DIR")
    where = ["--state-dir", str(queue.state_dir)]
    for words in (
        ["--json", *where, "list"],
        ["list", "--json", *where],
        [*where, "list", "--json"],
        ["--json", *where, "dead", "list"],
    ):
        assert queue.ok(*words).json
    assert queue(*where, "--json", "reserve").json["error"]["code"] == "nothing_free"
    assert queue("list", "--socket", "/tmp/x", "--address", "h:1").status == 2


def test_closed_pipe_ends_silently(queue):
    for _ in range(3):
        queue.submit_lines(1)
    ran = queue.shell("opsq list | head -1; opsq reserve -n 3 | head -1; opsq config | true")
    assert ran.err == ""
    assert len(ran.lines) == 2


def test_full_device_is_never_a_success(queue):
    queue.submit_lines(1)
    assert queue.shell("opsq list > /dev/full").status == 6


def test_closed_stdout_harms_nothing(queue):
    """A socket must not take the place of stdout, and be written to."""
    submission = queue.submit_lines(1)
    assert queue.shell("opsq list >&-").status == 0
    assert queue.shell("opsq reserve >&- 2>&-").status == 0
    assert queue.ok("show", submission, "--json").json["reserved"] == 1


def test_progress_leaves_no_escapes_off_a_terminal(queue):
    """The fixture looks at stderr; here stdout, also where a colour is forced."""
    environ = {"FORCE_COLOR": "1", "GITHUB_ACTIONS": "true", "PY_COLORS": "1"}
    for words in (["list"], ["status"], ["--help"], ["submit", "--help"], ["explain", "Random"]):
        assert b"\x1b" not in queue(*words, environ=environ).out


def test_bug_is_exit_70_and_its_traceback_is_in_the_log(queue):
    """A file of ours that is broken stands for a bug."""
    broken = queue.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import opsq.ids\nopsq.ids.parse_submission_id = lambda text: 1 / 0\n")
    ran = queue("show", "1", "--json", environ={"PYTHONPATH": str(broken)})
    assert ran.status == 70
    assert ran.json["error"]["code"] == "bug"
    assert "opsq.log" in ran.err
    assert "ZeroDivisionError" in (queue.state_dir / "opsq.log").read_text()


def test_what_the_encoding_of_a_terminal_lacks_is_replaced(queue):
    latin = {"PYTHONIOENCODING": "latin-1"}
    assert b"?Z, or @SECONDS" in queue("submit", "--help", environ=latin).out
    queue.ok("submit", "-", "-m", "name=ü…", stdin=b"x")
    listed = queue("list", environ=latin)
    assert (listed.status, listed.err) == (0, "")
    assert b"name=\xfc?" in listed.out


def test_invalid_utf8_in_a_name_is_exit_2(queue):
    ran = queue.shell("printf x | opsq submit - -m \"k=$(printf '\\377')\"")
    assert ran.status == 2


def test_progress_and_tables_are_for_terminals_and_fit_80_columns(queue):
    submission = queue.submit_lines(
        1, "-m", "a_rather_long_key=and a rather long value that goes on and on for a while"
    )
    for words in (["list"], ["show", submission], ["config"], ["doctor"], ["explain", "Random"], ["submit", "--help"]):
        ran = queue.on_terminal(*words)
        assert ran.status == 0, words
        screen = pyte.HistoryScreen(200, 50, history=1000)
        pyte.ByteStream(screen).feed(ran.out)
        assert max(len(line.rstrip()) for line in screen.display) <= 80, words


def test_terminal_is_told_what_pipes_are_not(queue):
    submission = queue.submit_lines(1)
    assert b"is cancelled" in queue.on_terminal("cancel", submission).out
    assert b"No chunk" in queue.on_terminal("reserve").out
    assert b"is cancelled" not in queue.on_terminal("cancel", "--quiet", submission).out


def test_version_and_help(opsq):
    assert opsq.ok("--version").text.startswith("opsq ")
    shown = opsq.ok("--help").text
    assert "--json" in shown
    assert "at least once" in shown
    assert opsq("").status == 2
    assert opsq().status == 2
    assert json.loads(opsq("--json").out)["error"]["exit"] == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["submit", "in", "-m", "tenant=\udc80"], "metadata"),
        (["submit", "in", "--unique", "\udc80"], "unique_key"),
        (["submit", "in", "--priority", str(1 << 70)], "priority"),
        (["submit", "in", "--max-attempts", str(1 << 40)], "--max-attempts"),
        (["cancel", "1", "--reason", "\udc80"], "reason"),
        (["limit", "tenant", "--concurrency", str(1 << 40)], "concurrency"),
        (["reserve", "-n", str(1 << 40)], "count"),
        (["explain", "SelectOnly(tenant=\udc80)"], "strategy"),
        (["history", "prune", "--keep", str(1 << 70)], "keep_count"),
        (["backup", "\udc80"], "path"),
    ],
)
def test_value_out_of_bounds_is_refused_by_its_name(queue, words, named):
    (queue.folder / "in").write_bytes(b"a\n")
    ran = queue(*words)
    assert ran.status == 2, ran
    assert named in ran.err
    assert "is not possible" in ran.err or "give a number from" in ran.err
