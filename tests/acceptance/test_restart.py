"""opsq restart: another process, the same queue; verbs that wait go on with it.

`wait` is in test_wait.py, `submit --wait-for-room` in test_room.py, and what Spark runs in tests/spark/fleet.
"""

import contextlib
import json
import signal
import socket
import subprocess

import pytest

from waiting import wait_until

DEADLINE_S = 180


def test_restart_is_another_process_with_the_same_submissions(queue):
    submission = queue.submit_lines(1)
    before = queue.ok("status", "--json").json["pid"]
    document = queue.ok("restart", "--json").json
    assert document["status"] == "started"
    assert document["pid"] != before
    assert queue.ok("show", submission, "--json").json["state"] == "open"


def test_restart_starts_when_none_runs(opsq):
    opsq.ok("restart")
    assert opsq.ok("status", "--json").json["state"] == "running"


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_restart_keeps_what_the_daemon_was_started_with(opsq):
    address, store = free_address(), opsq.folder / "elsewhere"
    started = opsq("start", "--listen", address, environ={"OPSQ_STORE": f"file://{store}"})
    assert started.status == 0, started.err
    for _ in range(2):  # what was kept is kept again
        opsq.ok("restart")
        assert opsq.ok("status", "--address", address, "--token-file", str(opsq.state_dir / "token"), "--json").json
    opsq.ok("submit", "--bytes", "1M", opsq.file("large", b"x" * 2_000_000))
    assert any(path.is_dir() for path in store.iterdir())
    assert not (opsq.state_dir / "content").exists()


def loopbacks():
    """The addresses of this machine for itself; containers may have none of IPv6."""
    found = ["127.0.0.1:0"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        found.append("[::1]:0")
    return found


@pytest.mark.parametrize("listen", loopbacks())
def test_restart_keeps_the_port_that_the_system_has_chosen(opsq, listen):
    opsq.ok("start", "--listen", listen)
    before = opsq.ok("status", "--json").json["settings"]["listen"]
    assert before.startswith(listen.removesuffix("0"))  # an address that an option takes
    opsq.ok("restart")
    assert opsq.ok("status", "--json").json["settings"]["listen"] == before


@pytest.mark.parametrize(
    ("managed", "command"),
    [
        ('SYSTEMD_EXEC_PID=$$ exec "$@"', "systemctl "),
        ('SYSTEMD_EXEC_PID=1 exec "$@"', ""),
    ],
)
def test_daemon_of_a_service_manager_is_restarted_by_that_alone(opsq, managed, command):
    start = ["/bin/sh", "-c", managed, "sh", *opsq.program, "start", "--foreground"]
    with subprocess.Popen(start, env=opsq.environ, stderr=subprocess.DEVNULL) as daemon:
        wait_until(lambda: opsq("status").status == 0, DEADLINE_S, "a daemon")
        ran = opsq("restart")
        assert ran.status == (5 if command else 0), ran
        assert f"Run: {command}" in ran.err or not command
        if command:
            daemon.terminate()
        assert daemon.wait(DEADLINE_S) == 0


def test_option_of_a_restart_is_stronger_than_what_is_kept(opsq):
    address = free_address()
    opsq.ok("start", "--listen", address)
    opsq.ok("restart", "--listen", "")
    assert opsq("status", "--address", address, "--token-file", str(opsq.state_dir / "token")).status == 4


def test_restart_of_a_daemon_that_was_stopped_keeps_nothing(opsq):
    address = free_address()
    opsq.ok("start", "--listen", address)
    opsq.ok("stop")
    opsq.ok("restart")
    assert opsq("status", "--address", address, "--token-file", str(opsq.state_dir / "token")).status == 4


def test_results_are_followed_on(queue):
    submission = queue.submit_lines(2)
    first, second = queue.ok("reserve", "-n", "2", "-s", "OldestFirst").lines
    with queue.running("results", "--follow", submission) as process:
        queue.ok("complete", first, "-r", "-", stdin=b"r0\n")
        assert process.stdout.readline() == b"r0\n"
        queue.ok("restart")
        queue.ok("complete", second, "-r", "-", stdin=b"r1\n")
        assert process.communicate() == (b"r1\n", b"")
    assert process.returncode == 0


def test_status_is_watched_on(queue):
    before = queue.ok("status", "--json").json["pid"]
    with queue.running("status", "--watch", "--json", "--interval", "0.1") as process:
        assert json.loads(process.stdout.readline())["pid"] == before
        after = queue.ok("restart", "--json").json["pid"]
        assert after in (json.loads(line)["pid"] for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (130, b"")


def test_reserve_waits_on(queue):
    with queue.running("reserve", "--wait", "10m") as process:
        wait_until_parked(queue)
        queue.ok("restart")
        wait_until_parked(queue)
        submission = queue.submit_lines(1)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.decode().startswith(submission)


def test_submit_waits_on_and_writes_the_results(queue):
    queue.file("in", b"a\n")
    with queue.running("submit", "in", "--wait", "-o", "out") as process:
        queue.wait_until_seen()
        wait_until(lambda: queue.ok("list").text, DEADLINE_S, "the submission")
        queue.ok("restart")
        queue.ok("complete", queue.reserve(), "-r", "-", stdin=b"A\n")
        _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert (queue.folder / "out").read_bytes() == b"A\n"


def test_consume_works_on(queue):
    """What ran meanwhile is completed afterwards, and what came afterwards is taken too."""
    first = queue.submit_lines(1)
    with queue.running("consume", "-s", "OldestFirst", "--max-chunks", "2", "--", "sh", "-c", WAITS) as process:
        wait_until((queue.folder / "begun").exists, DEADLINE_S, "the program")
        queue.ok("restart")
        second = queue.submit_lines(1)
        (queue.folder / "go").touch()
        process.communicate()
    assert process.returncode == 0
    assert [queue.ok("results", each).out for each in (first, second)] == [b"0\n", b"0\n"]
    assert queue.ok("history", "list", "--event", "failed", "--event", "lost").out == b""


def test_run_goes_on(queue):
    queue.file("in", b"a\n")
    with queue.running("run", "in", "--", "sh", "-c", WAITS) as process:
        wait_until((queue.folder / "begun").exists, DEADLINE_S, "the program")
        queue.ok("restart")
        (queue.folder / "go").touch()
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"a\n", b"")


WAITS = "touch begun; until [ -e go ]; do sleep 0.1; done; cat"


def wait_until_parked(queue):
    """Wait until a call waits in the daemon."""
    wait_until(lambda: queue.ok("status", "--json").json["parked"], DEADLINE_S, "a parked call")
