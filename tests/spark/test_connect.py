"""Spark Connect: a server on loopback, clients that are processes of their own.

And the whole data plane between them, as a user has it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opsq
import opsq.spark
from daemons import running
from opsq.cli.spark.job import spark_failure
from opsq.errors import CommandNotFound, InputUnreadable, UsageError
from opsq.settings import Settings
from opsq.spark.session.spark_session import is_connect, shown
from spark.conftest import terminated_at_work
from spark.jvm import DEADLINE_S, Jvm
from spark.streaming import LATE_WORKER, LATE_WORKERS_LIMIT
from waiting import wait_until

PROGRAM = str(Path(sys.executable).with_name("opsq"))
CLIENT = str(Path(__file__).with_name("connect_client.py"))


class Server(NamedTuple):
    """A server of Spark Connect: two cores, three attempts of a task, and a log of its events."""

    url: str
    folder: Path

    def logs(self) -> str:
        """All that it has written down, also of what it was asked for."""
        return "".join(path.read_text() for path in (*(self.folder / "events").iterdir(), self.folder / "server.log"))


@pytest.fixture(scope="module")
def server(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The one server of these tests."""
    folder = tmp_path_factory.mktemp("connect")
    (folder / "events").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.local.dir": folder / "local",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    line = [
        str(Path(jvm.home, "bin", "spark-submit")),
        "--master",
        "local[2,3]",
        "--driver-java-options",
        jvm.flags,
    ]
    for key, value in conf.items():
        line += ["--conf", f"{key}={value}"]
    line += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": jvm.home}
    log = folder / "server.log"
    with log.open("wb") as out:
        child = subprocess.Popen(line, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def answers() -> bool:
        assert child.poll() is None, log.read_text()
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, DEADLINE_S, "the server answers")
        yield Server(f"sc://127.0.0.1:{port}", folder)
    finally:
        child.terminate()
        child.wait(300)


@pytest.fixture
def client(server: Server) -> Callable[..., Any]:
    """Calls a function of `connect_client` in a process of its own."""

    def client(name: str, *, is_own: bool = False, **arguments: Any) -> Any:
        line = [sys.executable, CLIENT, server.url, "own" if is_own else "", name, json.dumps(arguments)]
        for _ in range(LATE_WORKERS_LIMIT):
            ran = subprocess.run(
                line, env=without_java(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
            )
            if LATE_WORKER not in ran.stderr:
                break
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    return client


@pytest.fixture
def rows(runtime_dir: Path) -> Path:
    """A Parquet file of 1000 rows in ten row groups."""
    path = runtime_dir / "in.parquet"
    pq.write_table(
        pa.table({"id": list(range(1000)), "text": [f"row {n}" for n in range(1000)]}), path, row_group_size=100
    )
    return path


def without_java() -> dict[str, str]:
    """The environment of a machine that has no Java."""
    return os.environ | {"JAVA_HOME": "/nonexistent", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def run(state_dir: object, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `opsq spark` with that state folder, without Java."""
    line = [PROGRAM, "--state-dir", str(state_dir), "spark", *words]
    return subprocess.run(
        line, env=without_java(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )


# --- from Python ------------------------------------------------------------------------------------------------------


def test_rows_of_every_type_go_to_the_queue_to_executors_and_back(client: Callable[..., Any], daemon: Settings) -> None:
    told = client("every_type", reach={"stateDir": daemon.state_dir})
    assert told["equal"] == {"plain": True, "schema": True, "same": True, "results": True}
    assert (told["rows"], told["chosen"]) == (100, ["text", "_chunk"])
    assert (told["completed"] >= 12, told["tasks"], told["cores"]) == (True, 2, 2)


def test_fleet_runs_programs_and_functions_of_the_client(client: Callable[..., Any], daemon: Settings) -> None:
    told = client("fleet", reach={"stateDir": daemon.state_dir})
    assert [task for task, _ in told["by task"]] == [0, 1]
    assert sum(completed for _, completed in told["by task"]) == told["completed"]
    assert told["lines"] == [[n, f"line {n}"] for n in range(60)]
    assert told["dead"] == 1
    found = {n for n, _ in told["doubles"]}
    assert all(m == 2 * n for n, m in told["doubles"])
    assert 7 not in found
    assert len(found) >= 15
    [warned] = told["warned"]
    assert warned.startswith("1 of ")
    assert "have no result" in warned


def test_row_that_always_kills_its_function_leaves_nineteen_done(client: Callable[..., Any], daemon: Settings) -> None:
    told = client("deadly", reach={"stateDir": daemon.state_dir})
    assert told == {"completed": 19, "failed": 2, "dead": 1, "rows": 19}


def test_fleet_is_ended_from_another_thread_by_its_tag(client: Callable[..., Any], daemon: Settings) -> None:
    [told] = client("interrupted", reach={"stateDir": daemon.state_dir})
    assert told.startswith("WorkFailed: Spark ended the job of the fleet")


def test_streams_are_written_and_read(client: Callable[..., Any], daemon: Settings, runtime_dir: Path) -> None:
    told = client("streams", reach={"stateDir": daemon.state_dir}, folder=str(runtime_dir / "streams"))
    assert told == {"completed": 10, "results": list(range(40)), "chunks": list(range(12))}


def test_every_error_reaches_the_client_in_words(client: Callable[..., Any], daemon: Settings) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{nobody.getsockname()[1]}"
        told = client("errors", reach={"stateDir": daemon.state_dir}, nowhere=nowhere, token="a-token-that-nobody-sees")
    wanted = {
        "wrong option": "'rowperchunk' is not a known option of a write. Did you mean rowsPerChunk?",
        "wrong value": "rowsPerChunk",
        "overwrite": "append",
        "key taken": "opsq.errors.Conflict: ",
        "no daemon for a write": f"No daemon answers at {nowhere}",
        "no daemon for a read": f"No daemon answers at {nowhere}",
        "no daemon for a stream": f"No daemon answers at {nowhere}",
        "unknown": "Submission 252265274856701952 is not known.",
        "not finished": "has no result yet to take the columns from.",
        "dead": "this row is no good",
        "other columns": "opsq.errors.",
        "results not finished": "NotFinished: ",
        "fleet without a daemon": f"Unreachable: From {socket.gethostname()}: No daemon answers at {nowhere}",
        "no program": "There is no command 'no-such-program'",
    }
    assert {name: told[name][:400] for name, text in wanted.items() if text not in told[name]} == {}
    assert "nothing" not in told.values()
    assert "a-token-that-nobody-sees" not in json.dumps(told)


@pytest.mark.parametrize("is_own", [False, True], ids=["session of opsq", "session of the user"])
def test_token_is_in_no_plan_and_no_log_of_the_server(
    client: Callable[..., Any], server: Server, runtime_dir: Path, is_own: bool
) -> None:
    with running(runtime_dir, listen="127.0.0.1:0") as settings, opsq.connect(state_dir=runtime_dir) as queue:
        address, token = queue.status().settings["listen"], Path(settings.token_file).read_text().strip()
        mark = f"mark_{is_own}"
        told = client(
            "with_token", is_own=is_own, reach={"address": address, "token": token}, folder=str(runtime_dir), mark=mark
        )
    assert told["rows"] == list(range(10))
    wait_until(lambda: mark in server.logs(), 300, "the log has all that was asked for")
    logs = server.logs()
    assert address in logs  # options are written down, so the next line says something
    assert token not in logs
    assert token not in told["shown"]


class Frames:
    """A session of which nothing is known but that it is not of this process; keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    @property
    def read(self) -> Frames:
        return self

    def format(self, name: str) -> Frames:
        return self

    def options(self, **options: str) -> Frames:
        self.asked.append(options)
        return self

    def load(self, path: str) -> str:
        return f"frame of {path}"


def test_results_are_left_to_a_server_whose_daemon_cannot_be_reached_from_here(runtime_dir: Path) -> None:
    spark: Any = Frames()
    for options in ({"state_dir": str(runtime_dir)}, {"address": "127.0.0.1:1", "token": "x"}, {}):
        found: Any = opsq.spark.results(spark, 252265274856701952, **options)
        assert found == "frame of 252265274856701952"
    assert spark.asked == [{"stateDir": str(runtime_dir)}, {"address": "127.0.0.1:1", "token": "x"}, {}]


# --- from a shell -----------------------------------------------------------------------------------------------------


def test_run_needs_no_java_here_and_gives_every_row_once_in_order(
    server: Server, runtime_dir: Path, rows: Path
) -> None:
    output, state_dir = runtime_dir / "out.json", runtime_dir / "state"
    words = [
        "run",
        str(rows),
        "--master",
        server.url,
        "--rows-per-chunk",
        "64",
        "--conf",
        "spark.sql.session.timeZone=UTC",
    ]
    ran = run(state_dir, *words, "-o", str(output), "--json", "--", "sed", "s/row/line/")
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    document = json.loads(ran.stdout)
    assert (document["state"], document["completed"], document["rows"]) == ("completed", document["chunks"], 1000)
    assert len(document["tasks"]) == 2
    lines = [line for path in sorted(output.glob("part-*")) for line in path.read_text().splitlines()]
    assert [json.loads(line) for line in lines] == [{"id": n, "text": f"line {n}"} for n in range(1000)]
    with opsq.Queue.open(state_dir) as queue:
        assert list(queue.submissions()) == []


def test_steps_one_by_one_and_the_report_of_them(
    server: Server, daemon: Settings, runtime_dir: Path, rows: Path
) -> None:
    there = ("--master", server.url)
    submitted = run(daemon.state_dir, "submit", str(rows), *there, "--rows-per-chunk", "100", "--where", "id < 300")
    assert (submitted.returncode, submitted.stderr) == (0, "")
    number = submitted.stdout.strip()
    consumed = run(daemon.state_dir, "consume", *there, "--submission", number, "--tasks", "1", "--json", "--", "cat")
    assert (consumed.returncode, consumed.stderr, json.loads(consumed.stdout)["failed"]) == (0, "", 0)
    output = runtime_dir / "out.csv"
    written = run(daemon.state_dir, "results", number, *there, "-o", str(output), "--json")
    assert (written.returncode, written.stderr, json.loads(written.stdout)["rows"]) == (0, "", 300)
    again = run(daemon.state_dir, "results", number, *there, "-o", str(output))
    assert (again.returncode, "already exists" in again.stderr) == (2, True), again.stderr
    report = run(daemon.state_dir, "report", *there, "--json")
    assert (report.returncode, report.stderr) == (0, "")
    assert json.loads(report.stdout)["total"]["completed"] == json.loads(consumed.stdout)["completed"]


def test_interrupted_run_ends_its_programs_on_the_server_and_gives_chunks_back(
    server: Server, daemon: Settings, queue: opsq.Queue, runtime_dir: Path, rows: Path
) -> None:
    words = [
        PROGRAM,
        "--state-dir",
        daemon.state_dir,
        "spark",
        "run",
        str(rows),
        "--master",
        server.url,
        "--rows-per-chunk",
        "500",
    ]
    words += ["--tasks", "1", "-o", str(runtime_dir / "out")]
    terminated_at_work(words, runtime_dir, gone_s=300)
    [state] = list(queue.submissions())
    wait_until(lambda: not queue.submission(state.submission_id).state().reserved_count, 300, "the chunk is given back")
    assert queue.submission(state.submission_id).state().state == "open"


def test_doctor_looks_at_the_client_and_the_server_and_leaves_nothing(
    server: Server, daemon: Settings, queue: opsq.Queue
) -> None:
    ran = run(daemon.state_dir, "doctor", "--master", f"{server.url}/", "--json")
    found = {finding["check"]: finding for finding in json.loads(ran.stdout)["findings"]}
    assert all(finding["ok"] for finding in found.values()), found
    assert found["server"]["detail"] == "its master is local[2,3], and 2 tasks run at once"
    assert "came back" in found["round trip"]["detail"]
    assert {"grpcio", "zstandard"} < set(found)
    assert "java" not in found
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(queue.submissions()) == []


def test_server_that_refuses_a_setting_is_told_of(server: Server, daemon: Settings, rows: Path) -> None:
    ran = run(daemon.state_dir, "submit", str(rows), "--master", server.url, "--conf", "spark.executor.memory=2g")
    assert ran.returncode == 2
    assert "does not let a session set spark.executor.memory to '2g'" in ran.stderr
    assert "Only settings of SQL belong to a session" in ran.stderr


def test_path_that_the_server_does_not_have_is_told_of_as_such(
    server: Server, daemon: Settings, runtime_dir: Path
) -> None:
    ran = run(daemon.state_dir, "submit", str(runtime_dir / "none.parquet"), "--master", server.url)
    assert ran.returncode == InputUnreadable.exit_status
    assert "give a path that it sees" in ran.stderr


def test_nobody_there_is_told_at_once(daemon: Settings, rows: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"sc://127.0.0.1:{nobody.getsockname()[1]}"
        ran = run(daemon.state_dir, "submit", str(rows), "--master", f"{place}/;user_id=somebody")
    assert ran.returncode == 4
    assert f"No Spark Connect server answers at {place}." in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("submit", "in.parquet", "--master", "sc://127.0.0.1:1"), "in.parquet is a relative path"),
        (("run", "/in.parquet", "-o", "out", "--master", "sc://127.0.0.1:1", "--", "cat"), "out is a relative path"),
        (
            ("submit", "/in.parquet", "--master", "sc://127.0.0.1:1/;token"),
            "sc://127.0.0.1:1 is not an address of Spark Connect",
        ),
    ],
)
def test_what_a_server_would_take_for_something_else_is_refused(
    daemon: Settings, words: tuple[str, ...], message: str
) -> None:
    ran = run(daemon.state_dir, *words)
    assert (ran.returncode, message in ran.stderr) == (2, True), ran.stderr


def test_packages_of_the_client_that_lack_are_named_with_their_extra(daemon: Settings) -> None:
    code = "import sys; sys.modules['grpc'] = sys.modules['zstandard'] = None; from opsq.__main__ import main; main()"
    words = ["--state-dir", daemon.state_dir, "spark", "submit", "/in.parquet", "--master", "sc://127.0.0.1:1"]
    ran = subprocess.run([sys.executable, "-c", code, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ran.returncode == CommandNotFound.exit_status
    assert "grpc, zstandard is not installed" in ran.stderr
    assert "pip install 'opsq[spark-connect]'" in ran.stderr


def test_server_without_opsq_is_told_of() -> None:
    failure = spark_failure(
        Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: opsq. Make sure …"), is_there=True
    )
    assert isinstance(failure, UsageError)
    assert failure.message == "opsq is not installed in the Python of the server of Spark Connect and of its executors."
    other = spark_failure(
        Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure …"), is_there=True
    )
    assert "delta" in other.message


def test_master_is_shown_without_its_parameters() -> None:
    assert (is_connect("sc://h:1/;token=x"), is_connect("local[2]")) == (True, False)
    assert [shown(master) for master in ("sc://h:1/;token=x", "sc://h:1/", "local[2]")] == [
        "sc://h:1",
        "sc://h:1",
        "local[2]",
    ]
