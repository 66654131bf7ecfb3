"""Attempts on every screen: text says which one it is, from 1; what programs read is how many there were before."""

import re

import pytest

from waiting import wait_until

DEADLINE_S = 180
OURS = ["-s", "OldestFirst", "--max-chunks", "1", "--until-empty"]


@pytest.fixture
def subject(queue):
    """A chunk whose first attempt failed, whose second was lost, and whose third runs; the id of its submission."""
    submission = queue.submit_lines(1, "--backoff", "0", "--max-attempts", "2")
    script = ["sh", "-c", "echo $OPSQ_ATTEMPT $0 > before; exit 3", "{attempt}"]
    failed = queue("consume", *OURS, "--json", "--", *script)
    assert f"{submission}/0 (stdin, bytes 0-1) failed (attempt 1 of 2, again at once): exit status 3" in failed.err
    assert (queue.folder / "before").read_text() == "0 0\n"
    assert failed.documents[0]["attempt"] == 0
    queue.reserve("--lease", "0.1")
    wait_until(lambda: len(queue.ok("history", "list").lines) == 2, DEADLINE_S, "the lease has ended")
    return submission


def column(text, name, heading):
    """The last word under a heading that is set to the right."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    at = next(number for number, line in enumerate(lines) if re.search(rf"\b{heading}\b", line))
    end = lines[at].index(heading) + len(heading)
    return next(line[:end].split()[-1] for line in lines[at + 1 :] if name in line)


def shown(queue, submission):
    """Which attempt each screen of text shows, for the one that runs and for the first, that failed."""
    wide = {"columns": 200}
    return {
        "show --running": queue.ok("show", submission, "--running").lines[0].split("\t")[1],
        "show --running, drawn": column(
            queue.on_terminal("show", submission, "--running", **wide).text, "0", "attempt"
        ),
        "top": column(queue.ok("top").text, f"{submission}/0", "attempt"),
    }, {
        "show": attempt_line(queue.ok("show", submission).lines),
        "show, drawn": column(queue.on_terminal("show", submission, **wide).text, "failed", "attempt"),
        "show of a chunk": attempt_line(queue.ok("show", f"{submission}/0").lines),
        "history": next(line.split("\t")[3] for line in queue.ok("history", "list").lines if "\tfailed\t" in line),
        "history, drawn": column(queue.on_terminal("history", "list", **wide).text, "failed", "attempt"),
    }


def attempt_line(lines):
    """The number in the first line about an attempt."""
    return next(line for line in lines if line.startswith("attempt\t")).split()[3]


def test_attempts_count_from_1_in_text_and_from_0_for_programs_everywhere(queue, subject):
    offered = queue.ok("explain", "OldestFirst", "--analyze")
    assert f"offer: {subject}/0 arm 1 attempt 3\n" in offered.out.decode()
    drawn = queue.on_terminal("explain", "OldestFirst", "--analyze", columns=200).text
    assert column(drawn, f"{subject}/0", "attempt") == "3"
    assert queue.ok("explain", "OldestFirst", "--analyze", "--json").json["offers"][0]["attempt"] == 2

    reserved = queue.ok("reserve", "--json").json["chunks"][0]
    runs, failed = shown(queue, subject)
    assert set(runs.values()) == {"3"}, runs
    assert set(failed.values()) == {"1"}, failed
    documents = {
        "reserve": reserved["attempt"],
        "show --running": queue.ok("show", subject, "--running", "--json").json["running"][0]["attempt"],
        "top": queue.ok("top", "--json").json["running"][0]["attempt"],
    }
    assert set(documents.values()) == {2}, documents
    events = {
        "show": queue.ok("show", subject, "--json").json["attempts"],
        "show of a chunk": queue.ok("show", f"{subject}/0", "--json").json["events"],
        "history": queue.ok("history", "list", "--oldest-first", "--json").json["events"],
        "history export": queue.ok("history", "export").documents,
    }
    for name, found in events.items():
        assert [event["attempt"] for event in found] == [0, 1], name
    queue.ok("release", reserved["handle"])


def test_losses_are_attempts_but_only_failures_count_against_the_limit(queue, subject):
    died = queue("consume", *OURS, "--json", "--log-dir", "logs", "--", "sh", "-c", "echo sorry >&2; exit 3")
    assert "failed (attempt 3, failure 2 of 2, dead): exit status 3: sorry" in died.err
    assert died.documents[0]["attempt"] == 2
    assert (queue.folder / "logs" / subject / "0.2.log").read_text() == "sorry\n"
    assert [attempt_line(queue.ok(*verb, f"{subject}/0").lines) for verb in (["show"], ["dead", "show"])] == ["1", "1"]
    lines = [line.split("\t") for line in queue.ok("history", "list", "--oldest-first").lines]
    assert [(event, attempt) for _, event, _, attempt, *_ in lines] == [
        ("failed", "1"),
        ("lost", "2"),
        ("failed", "3"),
        ("dead", "3"),
    ]
    [listed] = queue.ok("dead", "list", "--json").json["chunks"]
    assert (listed["attempts"], listed["lost"]) == (2, 1)
    assert queue.ok("dead", "list").text.split("\t")[1:3] == ["2", "1"]
