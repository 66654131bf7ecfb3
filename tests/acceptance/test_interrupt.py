"""Ctrl-C in every verb that can take long: exit 130, off a terminal nothing on stderr, nothing half done.

People are told how to go on.
"""

import os
import signal
import subprocess
import sys

import pytest

from waiting import wait_until


def interrupted(process):
    """Send what Ctrl-C sends, and give back the status and what was said."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    return process.returncode, out, err


@pytest.mark.parametrize("verb", ["wait", "results --follow", "reserve --wait 60", "status --watch --interval 60"])
def test_waiting_verbs_end_with_130_and_quietly(queue, verb):
    words = verb.split()
    if verb.startswith(("wait", "results")):
        submission = queue.submit_lines(1)
        words.append(submission)
    with queue.running(*words) as process:
        queue.wait_until_seen()
        if verb.startswith("status"):
            assert process.stdout.readline() == b"state\trunning\n"
        status, _, err = interrupted(process)
    assert (status, err) == (130, b"")


def test_person_who_ends_a_wait_is_told_that_the_work_goes_on_and_how_to_wait_again(queue):
    submission = queue.submit_lines(1)
    ran = queue.interrupted_on_terminal("wait", submission)
    assert (ran.status, ran.out) == (130, b"")
    assert f"submission {submission} continues. `opsq wait {submission}` waits again" in ran.err
    assert f"`opsq results {submission}` writes the results" in ran.err
    assert queue.ok("show", "--json", submission).json["state"] == "open"
    ran = queue.interrupted_on_terminal("wait", submission, queue.submit_lines(1))
    assert ran.status == 130
    assert "the submissions continue. The same command waits again." in ran.err


def test_person_who_ends_the_wait_of_a_submit_is_told_what_brings_the_results(queue):
    queue.file("in", b"a\n")
    ran = queue.interrupted_on_terminal("submit", "in", "--wait", "-o", "some results")
    submission = ran.text
    assert ran.status == 130
    assert f"`opsq results {submission} -o 'some results'` writes the results" in ran.err
    assert not (queue.folder / "some results").exists()


def test_interrupted_submit_leaves_nothing(queue):
    """The input has not ended when the signal comes; some of it has been written."""
    content = queue.state_dir / "content"
    with subprocess.Popen(
        [*queue.program, "submit", "-"],
        env=queue.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write(b"some line\n" * 1_000_000)
        process.stdin.flush()
        wait_until(lambda: len(os.listdir(content)) > 2, what="content is written")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")
    assert sorted(os.listdir(content)) == ["store-id", "store-owner"]
    assert queue.ok("list").out == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_or_terminated_demo_leaves_nothing(opsq, number):
    with opsq.running("demo") as process:
        folder = process.stdout.readline().decode().rpartition(" in ")[2].strip().rstrip(".")
        assert os.path.exists(folder)
        os.killpg(process.pid, number)  # a terminal sends it to all of them
        process.communicate()
    assert process.returncode == 128 + number
    assert not os.path.exists(folder)


@pytest.mark.parametrize(
    "frame",
    [
        ("importlib._bootstrap>", "_find_and_load"),
        ("importlib._bootstrap>", "cb"),
        ("msgspec/_utils.py", "get_class_annotations"),
        ("/typing.py", "__hash__"),
    ],
)
@pytest.mark.parametrize("after", ["opsq.__main__", "opsq.client.sync.connection"])
def test_interrupt_where_it_may_be_swallowed_ends_with_130_and_quietly(queue, frame, after):
    """What loads modules and what makes decoders may lose an exception, print it, or crash."""
    program = f"""
import os, signal, sys

def look(frame, event, _):
    code = frame.f_code
    found = code.co_filename[-len({frame[0]!r}):], code.co_name
    if event == "call" and found == {frame!r} and {after!r} in sys.modules:
        sys.setprofile(None)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            pass

sys.argv = ["opsq", "reserve", "--wait", "60"]
from opsq.__main__ import main
sys.setprofile(look)
main()
"""
    ran = subprocess.run([sys.executable, "-c", program], env=queue.environ, capture_output=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")
