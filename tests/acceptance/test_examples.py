"""Each file of examples/ and each block of the README runs as its reader would run it, and does what it says.

It must not change what it runs, but for the place of the program in units, which is said in each test.
"""

from __future__ import annotations

import concurrent.futures
import configparser
import gzip
import os
import plistlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import readme
from needs import need
from users import ALICE, BOB, PATH, need_users, run_as
from waiting import wait_until

if TYPE_CHECKING:
    from acceptance.conftest import Opsq

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAM = Path(sys.executable).with_name("opsq")
DEADLINE_S = 180


def run(opsq: Opsq, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of the test, with `opsq` on its PATH."""
    environ = opsq.environ | {"PATH": f"{PROGRAM.parent}:/usr/bin:/bin"} | variables
    return subprocess.run(
        words,
        env=environ,
        cwd=opsq.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def broken_tr(opsq: Opsq) -> Path:
    """A folder with a program `tr` that reads its input and fails."""
    folder = opsq.folder / "bin"
    folder.mkdir()
    (folder / "tr").write_text("#!/bin/sh\ncat > /dev/null\necho out of letters >&2\nexit 1\n")
    (folder / "tr").chmod(0o755)
    return folder


def access_log(count: int) -> bytes:
    """A log of a web server; every tenth line is an error."""
    line = '10.0.0.{0} - - [27/Nov/2026:08:00:00 +0000] "GET /{0} HTTP/1.1" {1} 17'
    return "".join(line.format(i, 500 if i % 10 == 0 else 200) + "\n" for i in range(count)).encode()


# --- README -----------------------------------------------------------------------------------------------------------


def test_readme_in_five_lines_of_shell(opsq: Opsq):
    """The first block of the first screen."""
    log = access_log(40_000)
    opsq.file("access.log", log)
    done = run(opsq, "sh", "-eu", "-c", readme.SHELL_ROUND)
    assert (done.returncode, done.stderr) == (0, "")
    errors = [line for line in log.splitlines(keepends=True) if b'" 500 ' in line]
    assert (opsq.folder / "errors.log").read_bytes() == b"".join(errors)
    assert done.stdout.startswith("OldestFirst")


def test_readme_in_ten_lines_of_python(queue: Opsq):
    """The second block of the first screen; what its comment says is printed."""
    done = run(queue, sys.executable, "-c", readme.PYTHON_ROUND)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b'A\\n'\nb'B\\n'\n"


def test_readme_clock_of_a_test(opsq: Opsq):
    """No daemon runs; what the comment says is printed."""
    done = run(opsq, sys.executable, "-c", readme.PYTHON_TESTING)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2026-01-01T02:30:00.000Z\n"


def test_readme_loop_in_full(queue: Opsq):
    """reserve, read, complete in a shell, until nothing is left."""
    submission = queue.ok("submit", "--lines", "1", "-", stdin=b"a\nb c\n\xff\0\nlast").text
    done = run(queue, "sh", "-eu", "-c", readme.SHELL_LOOP)
    assert (done.returncode, done.stderr) == (0, "")
    assert queue.ok("results", submission).out == b"A\nB C\n\xff\0\nLAST"


def test_readme_strategies_and_rules(queue: Opsq):
    """Consume by a composed strategy, explain, limit, pause, resume; `$id` is a submission that waits."""
    previews = queue.ok("submit", "-m", "kind=preview", "-", stdin=b"a\n").text
    waiting = queue.ok("submit", "-m", "tenant=acme", "--delay", "1h", "-", stdin=b"b\n").text
    done = run(queue, "sh", "-eu", "-c", readme.SHELL_STRATEGIES, id=waiting)
    assert done.returncode == 0
    # The hour is not over, and nobody has a key customer yet: both are said.
    not_due, no_match = done.stderr.splitlines()
    assert "1 submission not due yet" in not_due
    assert "No submission matches customer=acme now" in no_match
    assert queue.ok("results", previews).out == b"A\n"
    assert f"Submission {waiting}" in done.stdout
    assert "tenant=acme" in done.stdout


def test_readme_with_several_daemons(opsq: Opsq):
    """Two daemons, a submission and a consumer over both of them."""
    opsq.file("access.log", access_log(100))
    try:
        done = run(opsq, "sh", "-eu", "-c", readme.SHELL_SHARDS)
        addresses = ",".join(f"{opsq.folder}/{name}/opsq.sock" for name in "ab")
        results = run(opsq, PROGRAM, "results", done.stdout.split()[0], "--address", addresses)
    finally:
        for name in "ab":
            run(opsq, PROGRAM, "stop", "--state-dir", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert results.stdout.split() == ["100"]


def test_readme_over_http(queue: Opsq):
    """A submission, records and metrics by curl; `$id` is a submission that has ended, `$record` one that was taken."""
    need("curl")
    queue.file("access.log", access_log(100))
    submission = queue.ok("submit", "access.log").text
    queue.ok("consume", "--until-empty", "--", "wc", "-l")
    with queue.running("gateway", "--listen", "127.0.0.1:0") as process:
        place = process.stdout.readline().decode().strip().removeprefix("http://")
        for path, body in (("record", {"payload": "mine"}), ("record", None)):
            reply = httpx.request("POST" if body else "GET", f"http://{place}/{path}", json=body, trust_env=False)
        script = readme.SHELL_HTTP.replace("localhost:7480", place)
        script = 'curl() { command curl --fail --silent --show-error "$@"; echo; }\n' + script
        done = run(queue, "sh", "-eu", "-c", script, id=submission, record=reply.json()["id"])
    assert (done.returncode, done.stderr) == (0, "")
    for part in ('"created":true', '"state":"completed"', "100", '"payload":"hey!"', "opsq_chunks{"):
        assert part in done.stdout


def test_readme_has_no_block_that_no_test_runs():
    """Whoever adds one names it, and a test runs it."""
    names = [name for name in vars(readme) if name.startswith(("SHELL_", "PYTHON_"))]
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in names if f"readme.{name}" not in tests] == []
    assert len(re.findall("(?m)^```", readme.README)) // 2 == len(readme.SHELL) + len(readme.PYTHON)


# --- shell ------------------------------------------------------------------------------------------------------------


def test_run_counts_failures_in_plain_and_compressed_logs_and_leaves_nothing(opsq: Opsq):
    """run.sh: a stream through `opsq run`, without a daemon."""
    log = access_log(9000)
    opsq.file("access.log", log)
    opsq.file("access.log.1.gz", gzip.compress(log[: log.index(b"10.0.0.60 ")]))
    done = run(opsq, str(EXAMPLES / "run.sh"), "access.log", "access.log.1.gz")
    assert (done.returncode, done.stderr) == (0, "")
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == 900
    assert sorted(found[:6]) == [["2", f"/{number}"] for number in range(0, 60, 10)]
    assert opsq("status").status == 4


def test_pipeline_counts_words_and_leaves_nothing(opsq: Opsq):
    """pipeline.sh: the whole round."""
    opsq.file("a.txt", b"the cat The dog\n" * 5000)
    opsq.file("b.txt", b"the end\n" * 3000)
    done = run(opsq, str(EXAMPLES / "pipeline.sh"), "a.txt", "b.txt")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["13000", "the"],
        ["5000", "cat"],
        ["5000", "dog"],
        ["3000", "end"],
    ]
    assert opsq.ok("list").out == b""


def test_pipeline_with_a_file_that_is_not_there_ends_with_the_status_of_submit(opsq: Opsq):
    """pipeline.sh: an error ends the script."""
    done = run(opsq, str(EXAMPLES / "pipeline.sh"), "missing.txt")
    assert done.returncode == 2
    assert "missing.txt" in done.stderr


def test_pipeline_whose_program_fails_names_the_dead_chunk(opsq: Opsq):
    """pipeline.sh: wait says that the work failed, and dead list says why."""
    opsq.file("a.txt", b"the cat\n")
    path = f"{broken_tr(opsq)}:{PROGRAM.parent}:/usr/bin:/bin"
    done = run(opsq, str(EXAMPLES / "pipeline.sh"), "a.txt", PATH=path, OPSQ_SUBMIT_MAX_ATTEMPTS="1")
    assert done.returncode == 1
    assert "/0\t1\t0\t" in done.stderr
    assert "out of letters" in done.stderr


def test_fan_out_lists_each_folder_once(opsq: Opsq):
    """fan_out.sh and folder.py: every file below a folder, each folder by a submission of its own."""
    for at, folder in enumerate(("tree", "tree/a", 'tree/a/"b', "tree/c")):
        (opsq.folder / folder).mkdir()
        (opsq.folder / folder / "file").write_bytes(b"x" * at)
    done = run(opsq, str(EXAMPLES / "fan_out.sh"), "tree")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["0 tree/file", "1 tree/a/file", '2 tree/a/"b/file', "3 tree/c/file"]
    assert len(opsq.ok("list").lines) == 4


def test_join_waits_for_all_parts(opsq: Opsq):
    """join.sh: the last submission works on the results of all others."""
    for number in range(4):
        opsq.file(f"{number}.txt", b"line\n" * (number + 1))
    done = run(opsq, str(EXAMPLES / "join.sh"), *(f"{number}.txt" for number in range(4)))
    assert (done.returncode, done.stdout) == (0, "10\n")
    assert "is blocked by 1 condition." in done.stderr
    assert {one["state"] for one in opsq.ok("list", "--json").json["submissions"]} == {"completed"}


def test_approval_publishes_what_somebody_has_approved_and_nothing_else(opsq: Opsq):
    """approval.sh: the draft is there at once; what it names decides about the rest."""
    opsq.file("a.txt", b"b\na\nb\n")
    approved, dropped = (run(opsq, str(EXAMPLES / "approval.sh"), "a.txt") for _ in range(2))
    assert (approved.returncode, approved.stderr) == (0, "")
    draft, resume, cancel = re.findall(r"(draft-\d+)\..*: opsq (.+); .*: opsq (.+)", approved.stdout)[0]
    assert (opsq.folder / draft).read_bytes() == b"a\nb\n"
    publishing = ("consume", "--until-empty", "-s", "SelectOnly(step=publish)", "--", "sort", "-u")
    assert "has been paused" in opsq(*publishing).err
    published = cancel.split()[-1]
    assert opsq.ok("show", published, "--json").json["state"] == "open"
    opsq.ok(*resume.split())
    opsq.ok(*re.findall(r"cancel \d+", dropped.stdout)[0].split())
    opsq.ok(*publishing)
    assert opsq.ok("results", published).out == b"a\nb\n"
    states = [one["state"] for one in opsq.ok("list", "--json", "-m", "step=publish").json["submissions"]]
    assert sorted(states) == ["cancelled", "completed"]


def test_loop_completes_what_works(queue: Opsq):
    """loop.sh: results come out in input order."""
    submission = queue.ok("submit", "--lines", "1", "-", stdin=b"a\nb\nc\n").text
    done = run(queue, str(EXAMPLES / "loop.sh"))
    assert (done.returncode, done.stderr) == (0, "")
    assert queue.ok("results", submission).out == b"A\nB\nC\n"


def test_loop_fails_what_does_not_work(queue: Opsq):
    """loop.sh: a program that ends with an error completes nothing."""
    submission = queue.submit_lines(1, "--max-attempts", "1")
    done = run(queue, str(EXAMPLES / "loop.sh"), PATH=f"{broken_tr(queue)}:{PROGRAM.parent}:/usr/bin:/bin")
    assert done.returncode == 0
    assert queue.ok("dead", "list", submission, "--json").json["chunks"][0]["reason"] == "ended with 1"


def test_server_in_shell_sorts_each_chunk(queue: Opsq):
    """server.sh: as its first lines say it is run."""
    submission = queue.ok("submit", "--lines", "2", "-", stdin=b"b\na\n\xff\n\0\nlast").text
    done = run(
        queue, "opsq", "consume", "-j2", "--until-empty", "--server", "frames", "--", str(EXAMPLES / "server.sh")
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert queue.ok("results", submission).out == b"a\nb\n\0\n\xff\nlast\n"


def test_server_in_shell_says_what_does_not_work(queue: Opsq):
    """server.sh: a sort that fails fails its chunk and not the server."""
    submission = queue.submit_lines(1, "--max-attempts", "1")
    (queue.folder / "bin").mkdir()
    (queue.folder / "bin/sort").write_text("#!/bin/sh\ncat\nexit 2\n")
    (queue.folder / "bin/sort").chmod(0o755)
    words = ["opsq", "consume", "--until-empty", "--server", "frames", "--", str(EXAMPLES / "server.sh")]
    assert run(queue, *words, PATH=f"{queue.folder}/bin:{PROGRAM.parent}:/usr/bin:/bin").returncode == 1
    assert queue.ok("dead", "list", submission, "--json").json["chunks"][0]["reason"] == "exit status 2: 0"


# --- Python -----------------------------------------------------------------------------------------------------------


def test_producer_and_consumer_square_numbers_in_input_order(queue: Opsq):
    """producer.py and consumer.py: what is no number dies and is told, the rest comes out."""
    queue.file("in.txt", b"".join(b"%d\n" % i for i in range(200)) + b"x\n")
    words = [sys.executable, str(EXAMPLES / "producer.py"), "in.txt", "out.txt"]
    with subprocess.Popen(words, env=queue.environ, cwd=queue.folder, stderr=subprocess.PIPE) as producer:
        wait_until(lambda: queue.ok("list", "--state", "open").out, DEADLINE_S, "the submission")
        assert run(queue, sys.executable, str(EXAMPLES / "consumer.py")).returncode == 0
        _, err = producer.communicate(timeout=DEADLINE_S)
    assert producer.returncode == 1
    assert b"chunk 2 died: invalid literal" in err
    assert (queue.folder / "out.txt").read_bytes() == b"".join(b"%d\n" % (i * i) for i in range(200))


def test_readme_in_a_consumer_and_a_producer_of_operations(queue: Opsq):
    """The blocks of the section on Python: the sum that the comment says is printed."""
    queue.file("work.py", readme.PYTHON_WORK.encode())
    with subprocess.Popen(
        [sys.executable, "-c", readme.PYTHON_RUN], env=queue.environ, stdout=subprocess.PIPE
    ) as producer:
        wait_until(lambda: queue.ok("list", "--state", "open").out, DEADLINE_S, "the submission")
        done = run(queue, sys.executable, "work.py")
        assert (done.returncode, done.stderr) == (0, "")
        out, _ = producer.communicate(timeout=DEADLINE_S)
    assert f"# {out.decode().strip()}" in readme.PYTHON_RUN


def test_operations_and_orders_make_a_round(queue: Opsq):
    """operations.py and orders.py: the totals come back; the producer may come later."""
    words = [sys.executable, str(EXAMPLES / "orders.py"), "2500"]
    with subprocess.Popen(words, env=queue.environ, stdout=subprocess.PIPE) as producer:
        wait_until(lambda: queue.ok("list", "--state", "open").out, DEADLINE_S, "the submission")
        done = run(queue, sys.executable, str(EXAMPLES / "operations.py"))
        assert (done.returncode, done.stderr) == (0, "3 chunks completed, 0 attempts failed\n")
        out, _ = producer.communicate(timeout=DEADLINE_S)
    assert int(out) == sum(number % 7 * 3 for number in range(2500))


def test_operations_bury_what_is_no_order(queue: Opsq):
    """operations.py: it says so, and which operation it was."""
    submission = queue.ok(
        "submit", "-", stdin=b'{"id": 1, "price": 2, "count": 3}\n{"id": 2, "price": 2, "count": -1}\n'
    ).text
    done = run(queue, sys.executable, str(EXAMPLES / "operations.py"))
    assert done.returncode == 1
    assert "failed for good: order 2 has a negative count (operation 2 of 2)" in done.stderr
    assert "order 2 has a negative count" in queue.ok("dead", "list", submission).out.decode()


def test_server_in_python_counts_words_and_fails_what_is_no_text(queue: Opsq):
    """server.py: as its first lines say it is run."""
    options = ["--lines", "1", "--max-attempts", "1", "--on-dead", "keep", "-m", "kind=log"]
    submission = queue.ok("submit", *options, "-", stdin=b"a b a\n\xff\nc\n").text
    words = [
        "opsq",
        "consume",
        "-j2",
        "--until-empty",
        "--server",
        "frames",
        "--",
        sys.executable,
        str(EXAMPLES / "server.py"),
    ]
    assert run(queue, *words).returncode == 1
    assert (
        queue.ok("dead", "list", submission, "--json")
        .json["chunks"][0]["reason"]
        .startswith(f"exit status 1: {submission}/1, attempt 1: ")
    )
    counted = queue("results", "--skip-dead", submission).out
    assert counted == b'{"kind": "log", "words": {"a": 2, "b": 1}}\n{"kind": "log", "words": {"c": 1}}\n'


def test_embedded_queue_in_a_users_test(opsq: Opsq):
    """test_consumer.py: no daemon is there, and none is needed."""
    for name in ("consumer.py", "test_consumer.py"):
        shutil.copy(EXAMPLES / name, opsq.folder)
    done = run(opsq, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_consumer.py")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_clock_of_a_users_test(opsq: Opsq):
    """test_schedule.py: nights pass as the test says."""
    shutil.copy(EXAMPLES / "test_schedule.py", opsq.folder)
    done = run(opsq, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_schedule.py")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


# --- service managers -------------------------------------------------------------------------------------------------


def unit(name: str) -> configparser.ConfigParser:
    """A unit of systemd."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep capitals
    parser.read_string((EXAMPLES / "systemd" / name).read_text(encoding="utf-8"))
    return parser


def command_of(name: str) -> list[str]:
    """What a service runs, with the program of this test in its place."""
    words = shlex.split(unit(name)["Service"]["ExecStart"])
    assert words[0] == "/usr/local/bin/opsq"
    return [str(PROGRAM), *words[1:]]


UNITS = sorted(path.name for path in (EXAMPLES / "systemd").iterdir())


def test_units_are_what_systemd_understands(opsq: Opsq):
    """systemd-analyze, where there is one, finds nothing; elsewhere they parse."""
    programs = {"/usr/local/bin/opsq": str(PROGRAM), "/usr/local/libexec/work": "/bin/cat"}
    paths = []
    for name in UNITS:
        text = (EXAMPLES / "systemd" / name).read_text(encoding="utf-8")
        for ours, here in programs.items():
            text = text.replace(ours, here)
        paths.append(opsq.file(name, text.encode()))
        assert unit(name).sections()[0] == "Unit"
    if shutil.which("systemd-analyze"):
        done = run(opsq, "systemd-analyze", "verify", "--man=no", *(f"./{path}" for path in paths))
        assert (
            done.returncode,
            [line for line in done.stderr.splitlines() if line.startswith(tuple(UNITS)) or "/opsq" in line],
        ) == (0, [])


def test_notifier_that_is_set_up_wrongly_is_not_started_again():
    """Exit status 2 is opsq.toml; of anything else the next start may be better."""
    service = unit("opsq-notify.service")["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")


def test_service_says_that_it_is_ready_and_drains_when_it_is_stopped(opsq: Opsq):
    """opsq.service: Type=notify, and SIGTERM."""
    service = unit("opsq.service")["Service"]
    assert service["Type"] == "notify"
    assert service["Environment"] == "OPSQ_STATE_DIR=%S/opsq"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(DEADLINE_S)
        manager.bind(str(opsq.folder / "notify"))
        environ = opsq.environ | {"NOTIFY_SOCKET": str(opsq.folder / "notify")}
        with subprocess.Popen(command_of("opsq.service"), env=environ, stderr=subprocess.DEVNULL) as daemon:
            assert manager.recv(4096).startswith(b"READY=1")
            assert opsq.ok("status", "--json").json["pid"] == daemon.pid
            daemon.send_signal(signal.SIGTERM)
            assert manager.recv(4096).startswith(b"STOPPING=1")
            assert daemon.wait(DEADLINE_S) == 0


PLACE = "/var/lib/opsq"
"""What %S/opsq of the service is, with its default socket in it."""


def activated(
    listener: socket.socket, command: list[str], python: str = sys.executable, **options: Any
) -> subprocess.Popen[bytes]:
    """A daemon to which a service manager has passed a socket as descriptor 3, for this very process."""
    script = "import os, sys; os.dup2(int(sys.argv[1]), 3)"
    script += "; os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); os.execv(sys.argv[2], sys.argv[2:])"
    words = [python, "-c", script, str(listener.fileno()), *command]
    return subprocess.Popen(words, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL, **options)


def test_socket_unit_starts_the_daemon_at_the_place_where_clients_look(opsq: Opsq):
    """opsq.socket: one inherited descriptor."""
    place = unit("opsq.socket")["Socket"]["ListenStream"]
    assert place == f"{PLACE}/opsq.sock"
    opsq.state_dir.mkdir(mode=0o700)
    path = opsq.state_dir / Path(place).name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        with activated(listener, command_of("opsq.service"), env=opsq.environ) as daemon:
            assert opsq.ok("status", "--json").json["pid"] == daemon.pid
            opsq.ok("stop")
            assert daemon.wait(DEADLINE_S) == 0
    assert path.exists()


def test_socket_unit_works_on_a_machine_where_nothing_is_made_yet(runtime_dir: Path):
    """Its folder and its socket are made by root, as systemd would; the daemon and its users are others."""
    python = need_users()
    settings = unit("opsq.socket")["Socket"]
    runtime_dir.chmod(0o755)
    folder = runtime_dir / "opsq"
    in_place = {"opsq": str(ALICE), PLACE: str(folder)}
    words = shlex.split(settings["ExecStartPre"])
    words = ["=".join(in_place.get(part, part) for part in word.split("=")) for word in words]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        subprocess.run(words, check=True)
        path = folder / Path(settings["ListenStream"]).name
        listener.bind(str(path))
        assert settings["SocketUser"] == unit("opsq.service")["Service"]["User"] == "opsq"
        os.chown(path, ALICE, -1)
        os.chmod(path, int(settings["SocketMode"], 8))
        listener.listen()
        command = [python, "-P", "-m", "opsq", *command_of("opsq.service")[1:]]
        environ = {"PYTHONPATH": PATH, "OPSQ_STATE_DIR": str(folder)}
        with activated(listener, command, python, env=environ, user=ALICE, group=ALICE, extra_groups=[]) as daemon:
            for uid in (ALICE, 0):
                done = run_as(uid, folder, "submit", "-", stdin=b"a\n")
                assert done.returncode == 0, done.stderr
                done = run_as(uid, folder, "consume", "--until-empty", "--", "cat")
                assert done.returncode == 0, done.stderr
            assert run_as(BOB, folder, "status").returncode == 7
            assert run_as(ALICE, folder, "stop").returncode == 0
            assert daemon.wait(DEADLINE_S) == 0
    found = {str(each.relative_to(folder)): each.lstat().st_uid for each in folder.rglob("*")}
    assert set(found.values()) == {ALICE}, found
    assert folder.stat().st_mode & 0o777 == 0o700


def test_consumer_service_works_until_it_is_stopped(queue: Opsq):
    """opsq-consumer.service: SIGTERM ends it as asked."""
    submission = queue.submit_lines(20)
    words = [
        {"%N": "opsq-consumer", "/usr/local/libexec/work": "/bin/cat"}.get(word, word)
        for word in command_of("opsq-consumer.service")
    ]
    with subprocess.Popen(words, env=queue.environ, stdin=subprocess.DEVNULL) as consumer:
        queue.ok("wait", submission)
        [shown] = queue.ok("status", "--json").json["consumers"]
        assert shown["consumer"].startswith("opsq-consumer-")
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(DEADLINE_S) == 0


def test_agent_of_launchd_runs_the_daemon(opsq: Opsq):
    """org.opsq.daemon.plist: its program is started as launchd would, and ends by SIGTERM."""
    agent = plistlib.loads((EXAMPLES / "launchd/org.opsq.daemon.plist").read_bytes())
    assert agent["Label"] == "org.opsq.daemon"
    assert agent["ExitTimeOut"] > 30  # the setting drain_s
    program, *words = agent["ProgramArguments"]
    assert program == "/usr/local/bin/opsq"
    with subprocess.Popen([PROGRAM, *words], env=opsq.environ, stderr=subprocess.DEVNULL) as daemon:
        wait_until(lambda: opsq("status").status == 0, DEADLINE_S, "the daemon answers")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_S) == 0


# --- HTTP -------------------------------------------------------------------------------------------------------------

ADDRESS = "127.0.0.1:7480"
"""Where the units serve; tests take a free port."""


def get(url: str, path: str) -> tuple[int, str]:
    """What there is at a path."""
    reply = httpx.get(f"{url}{path}", timeout=DEADLINE_S, trust_env=False)
    return reply.status_code, reply.text


def gateway_words(words: list[str]) -> list[str]:
    """The command of a unit, with a free port."""
    assert words.count(ADDRESS) == 1
    return [word.replace(ADDRESS, "127.0.0.1:0") for word in words]


def test_gateway_service_says_that_it_serves_and_drains_when_it_is_stopped(queue: Opsq):
    """opsq-gateway.service: Type=notify, WatchdogSec=, and SIGTERM."""
    service = unit("opsq-gateway.service")["Service"]
    assert (service["Type"], service["User"]) == ("notify", unit("opsq.service")["Service"]["User"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(DEADLINE_S)
        manager.bind(str(queue.folder / "notify"))
        said = {
            "NOTIFY_SOCKET": str(queue.folder / "notify"),
            "WATCHDOG_USEC": str(int(service["WatchdogSec"]) * 10**6),
        }
        words = gateway_words(command_of("opsq-gateway.service"))
        with subprocess.Popen(words, env=queue.environ | said, stdout=subprocess.PIPE, text=True) as gateway:
            assert manager.recv(4096) == b"READY=1"
            assert gateway.stdout is not None
            url = gateway.stdout.readline().strip()
            assert get(url, "/readyz") == (200, "running\n")
            assert [manager.recv(4096) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            with concurrent.futures.ThreadPoolExecutor() as threads:
                parked = threads.submit(get, url, "/record?wait=3600")
                wait_until(lambda: "\nopsq_parked_calls 1" in get(url, "/metrics")[1], DEADLINE_S, "it is parked")
                gateway.send_signal(signal.SIGTERM)
                assert parked.result() == (204, "")
            while (told := manager.recv(4096)) != b"STOPPING=1":
                assert told == b"WATCHDOG=1"
            assert gateway.wait(DEADLINE_S) == 0


def test_gateway_socket_unit_hands_over_its_address(queue: Opsq):
    """opsq-gateway.socket: one inherited descriptor, where the service alone would listen."""
    assert unit("opsq-gateway.socket")["Socket"]["ListenStream"] == ADDRESS
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with activated(listener, command_of("opsq-gateway.service"), env=queue.environ) as gateway:
            assert get(url, "/readyz") == (200, "running\n")
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(DEADLINE_S) == 0
    assert ADDRESS in command_of("opsq-gateway.service")


def test_notifier_of_the_service_delivers_and_ends_when_it_is_stopped(queue: Opsq):
    """opsq-notify.service: what opsq.toml names is run, and SIGTERM ends it with 0."""
    got, config = queue.folder / "got", queue.folder / "config" / "opsq"
    config.mkdir(parents=True)
    (config / "opsq.toml").write_text(f'[on]\npaused = ["sh", "-c", "echo $OPSQ_EVENT_TEXT > {got}"]\n')
    queue.environ["XDG_CONFIG_HOME"] = str(config.parent)
    queue.ok("notify", "--once")
    with subprocess.Popen(command_of("opsq-notify.service"), env=queue.environ) as notifier:
        queue.ok("pause", "tenant=a", "--quiet")
        wait_until(lambda: got.exists() and "paused" in got.read_text())
        notifier.send_signal(signal.SIGTERM)
        assert notifier.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_service_exposes_little(opsq: Opsq, name: str):
    """systemd-analyze, where there is one that can judge files, finds at most 2.5 of 10."""
    text = (EXAMPLES / "systemd" / name).read_text(encoding="utf-8")
    for line in (
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@system-service",
    ):
        assert line in text.splitlines()
    if "--threshold" in run(opsq, "/bin/sh", "-c", "systemd-analyze --help || true").stdout:
        path = opsq.file(name, text.encode())
        done = run(opsq, "systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", f"./{path}")
        assert done.returncode == 0, done.stdout + done.stderr


def test_agent_of_launchd_runs_the_gateway(queue: Opsq):
    """org.opsq.gateway.plist: its program is started as launchd would, and ends by SIGTERM."""
    agent = plistlib.loads((EXAMPLES / "launchd/org.opsq.gateway.plist").read_bytes())
    assert agent["Label"] == "org.opsq.gateway"
    program, *words = agent["ProgramArguments"]
    assert program == "/usr/local/bin/opsq"
    words = gateway_words([str(PROGRAM), *words])
    with subprocess.Popen(words, env=queue.environ, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        assert get(gateway.stdout.readline().strip(), "/healthz") == (200, "ok\n")
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(DEADLINE_S) == 0


# --- all of them ------------------------------------------------------------------------------------------------------


def test_every_example_is_run_by_a_test_says_what_it_shows_and_is_in_its_place():
    """Whoever adds an example adds its test."""
    others = [Path(__file__).with_name(f"test_{name}.py") for name in ("machines", "monitoring", "nightly", "outbox")]
    others.append(Path(__file__).parents[1] / "spark/test_examples_spark.py")
    here = "".join(path.read_text(encoding="utf-8") for path in [Path(__file__), *others])
    found = Counter(path.suffix for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert found == {".sh": 8, ".py": 17, ".service": 4, ".socket": 2, ".plist": 2, ".json": 1, ".yml": 1, "": 1}
    for path in EXAMPLES.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.name in here, f"no test runs {path.name}"
            lines = path.read_text(encoding="utf-8").splitlines()
            told = next(line for line in lines if not line.startswith(("#!", "<")))
            is_told = len(told.split()) > 5 or path.suffix == ".json"  # which has no comments
            assert is_told, f"{path.name} does not say in its first line what it shows"
            assert os.access(path, os.X_OK) == path.read_bytes().startswith(b"#!"), path
