"""Everything at once: chunks that fail, executors, tasks and a worker that are killed, the daemon killed and restarted.

And every row is there once.

Programs stop at gates, every 50 chunks, until the test opens them: so each fault comes while chunks are in flight,
whatever the speed of the machine, and no test waits for an instant.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opsq
from daemons import kill
from opsq.daemon import lifecycle
from opsq.ids import mask_indexes
from opsq.settings import Settings
from opsq.wire.messages import History, HistoryFilter, HistoryRows
from spark.clusters import Cluster, executor_of, is_alive, parent_of
from spark.jvm import DEADLINE_S
from waiting import wait_until

PROGRAM = str(Path(sys.executable).with_name("opsq"))
ROWS_PER_CHUNK = 20
CHUNKS_PER_GATE = 50
TASKS_COUNT = 2
RETRYABLE, HOPELESS = 75, 65
FAILING = 25
"""Which chunk of each hundred fails at first: one far from the gates, so that no fault takes its first attempt."""

# One chunk in a hundred fails at first (75), and with `hopeless` there, another one in a hundred does each time (65). A
# run takes a while, since a consumer reserves a quarter of a second ahead: with short ones a task would take all that
# is left.
SCRIPT = f"""
cd FOLDER
gate=$((OPSQ_CHUNK / {CHUNKS_PER_GATE}))
if [ ! -e open-$gate ]; then
    : > at-$gate-$$
    while [ ! -e open-$gate ]; do sleep 0.05; done
fi
sleep 0.02
case $((OPSQ_CHUNK % 100)) in
{FAILING}) if [ "$OPSQ_ATTEMPT" -eq 0 ]; then echo no answer >&2; exit {RETRYABLE}; fi ;;
3) if [ -e hopeless ]; then echo no such word >&2; exit {HOPELESS}; fi ;;
esac
exec cat
"""

# A fleet of functions in a session of its own, as a user's program would have it. A chunk that fails does so once.
FLEET = f"""
import json, os, sys, time
import opsq.spark

master, state_dir, folder, conf = sys.argv[1:]

def doubled(table):
    import pyarrow.compute as pc

    chunk = table.column("id")[0].as_py() // {ROWS_PER_CHUNK}
    gate = os.path.join(folder, f"open-{{chunk // {CHUNKS_PER_GATE}}}")
    if not os.path.exists(gate):
        open(os.path.join(folder, f"at-{{chunk // {CHUNKS_PER_GATE}}}-{{os.getpid()}}"), "w").close()
        while not os.path.exists(gate):
            time.sleep(0.05)
    time.sleep(0.02)
    if chunk % 100 == {FAILING}:
        try:
            os.close(os.open(os.path.join(folder, f"failed-{{chunk}}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            raise OSError("no answer")
    return table.append_column("double", pc.multiply(table.column("id"), 2))

spark = opsq.spark.build_session(master, conf=json.loads(conf))
frame = spark.range(0, int(os.environ["ROWS"]), 1, 2)
options = {{"stateDir": state_dir, "rowsPerChunk": "{ROWS_PER_CHUNK}", "idempotencyKey": "fleet"}}
frame.write.format("opsq").mode("append").options(**options).save()
summary = opsq.spark.consume(spark, function=doubled, strategy="OldestFirst", tasks={TASKS_COUNT}, state_dir=state_dir)
with opsq.connect(state_dir=state_dir) as queue:
    submission_id = queue.find("fleet").id
rows = spark.read.format("opsq").options(stateDir=state_dir).load(str(submission_id)).collect()
spark.stop()
print(json.dumps([[row.id, row.double] for row in rows]))
"""


class Gates:
    """Where programs stop: those of every `CHUNKS_PER_GATE` chunks, until their gate is opened.

    Args:
        folder: where they look for open gates, and note that they wait.
        queue: tells how far the work is.
    """

    def __init__(self, folder: Path, queue: opsq.Queue) -> None:
        self._folder = folder
        self._queue = queue
        self.seen: set[int] = set()
        """All that ever waited."""
        self.open(0)

    def stand_at(self, number: int) -> list[int]:
        """Wait until every task has a program there, and see to it that the daemon counts what comes before as done.

        The programs.

        Chunks that were lost or have failed may not be done: a task begins them again only after the one that stands
            here.
        """

        def waiting() -> list[int]:
            found = [int(path.name.rpartition("-")[2]) for path in self._folder.glob(f"at-{number}-*")]
            alive = [pid for pid in found if is_alive(pid)]
            return alive if len(alive) == TASKS_COUNT else []

        programs = wait_until(waiting, DEADLINE_S, f"{TASKS_COUNT} programs stand at gate {number}")
        self.seen |= set(programs)
        total = self._queue.status().total
        assert total.reserved_count >= TASKS_COUNT
        assert total.completed_count + total.dead_count >= (number - 0.5) * CHUNKS_PER_GATE
        return programs

    def open(self, number: int) -> None:
        """Let them go on, and all that come later."""
        (self._folder / f"open-{number}").touch()

    def open_all(self) -> None:
        """Let everything go on, when a test has failed."""
        for number in range(100):
            self.open(number)


@pytest.fixture
def gates(runtime_dir: Path, queue: opsq.Queue) -> Iterator[Gates]:
    """The gates of this test, of which none is left closed."""
    gates = Gates(runtime_dir, queue)
    yield gates
    gates.open_all()


@contextlib.contextmanager
def started(words: list[str], **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of ours that is ended if the test fails while it runs."""
    variables = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"} | environ
    with subprocess.Popen(
        words, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
            raise


def dataset(folder: Path, chunks_count: int) -> Path:
    """A Parquet file of so many chunks."""
    path = folder / "in.parquet"
    ids = list(range(chunks_count * ROWS_PER_CHUNK))
    pq.write_table(pa.table({"id": ids, "text": [f"row {number}" for number in ids]}), path)
    return path


def line(daemon: Settings, cluster: Cluster, source: Path, output: Path, folder: Path, *more: str) -> list[str]:
    """`opsq spark run` of the script over a data set."""
    words = [
        PROGRAM,
        "--state-dir",
        daemon.state_dir,
        "spark",
        "run",
        "--json",
        "--master",
        cluster.url,
        "--tasks",
        str(TASKS_COUNT),
    ]
    words += ["--rows-per-chunk", str(ROWS_PER_CHUNK), "--retry-on", str(RETRYABLE), "--bury-on", str(HOPELESS)]
    words += [str(source), "--output", str(output), *more]
    for key, value in cluster.settings.items():
        words += ["--conf", f"{key}={value}"]
    return [*words, "--", "sh", "-c", SCRIPT.replace("FOLDER", str(folder))]


def rows_of(output: Path) -> list[dict[str, Any]]:
    """What was written, in its order."""
    return [json.loads(text) for path in sorted(output.glob("part-*")) for text in path.read_text().splitlines()]


def check_rows(output: Path, wanted: list[int]) -> None:
    """See to it that these rows are there, each once, with what belongs to them."""
    rows = rows_of(output)
    counts = Counter(row["id"] for row in rows)
    assert [number for number in wanted if not counts[number]] == [], "lost"
    assert [number for number, count in counts.items() if count > 1] == [], "twice"
    assert set(counts) == set(wanted)
    assert all(row["text"] == f"row {row['id']}" for row in rows)


def events_of(queue: opsq.Queue, submission_id: int, event: str) -> Counter[int]:
    """By chunk, how often something happened to it."""
    found: Counter[int] = Counter()
    place: int | None = 0
    while place is not None:
        where = HistoryFilter(submission_id=submission_id, events=[event])
        page = queue.link.call(History(queue.link.next_id(), where, place, 10_000), HistoryRows)
        for row in page.rows:
            found.update(mask_indexes(row.block, row.mask))
        place = page.next_after
    return found


def is_any_program_left(folder: Path) -> bool:
    """Whether a shell runs the script of this test, or what it left."""
    told = subprocess.run(["ps", "-ww", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return f"cd {folder}\n" in told or f"cd {folder} " in told


def kill_executor(pid: int) -> None:
    """Kill the JVM under which a program or a Python worker runs, and wait until that has gone too."""
    os.kill(executor_of(pid), signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 300, "what ran under the dead executor is gone")


def kill_task(pid: int) -> None:
    """Kill the Python worker that runs a program, and wait until the program has gone too."""
    os.kill(parent_of(pid), signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 300, "the program of the dead task is gone")


def crash_daemon(daemon: Settings, meanwhile: Callable[[], object]) -> None:
    """Kill the daemon, do something while it is away, and start it again."""
    kill(daemon)
    meanwhile()
    assert lifecycle.start(daemon).status == "started"


def test_every_row_is_there_once_whatever_died_on_the_way(
    daemon: Settings, queue: opsq.Queue, cluster: Cluster, gates: Gates, runtime_dir: Path
) -> None:
    chunks_count = 5 * CHUNKS_PER_GATE
    source, output = dataset(runtime_dir, chunks_count), runtime_dir / "out.json"
    with started(line(daemon, cluster, source, output, runtime_dir, "--keep")) as pipeline:
        kill_executor(gates.stand_at(1)[0])
        gates.open(1)
        kill_task(gates.stand_at(2)[0])
        gates.open(2)
        programs = gates.stand_at(3)

        def end_programs() -> None:
            gates.open(3)
            wait_until(lambda: not any(map(is_alive, programs)), 300, "programs have ended while the daemon is away")

        crash_daemon(daemon, end_programs)
        programs = gates.stand_at(4)
        lifecycle.restart(daemon)
        cluster.workers[0].send_signal(signal.SIGKILL)
        wait_until(lambda: sum(map(is_alive, programs)) == 1, 300, "the program of the dead worker is gone")
        gates.open(4)
        out, err = pipeline.communicate(timeout=DEADLINE_S)
    assert pipeline.returncode == 0, err.decode()
    document = json.loads(out)
    assert (document["state"], document["chunks"], document["completed"], document["dead"]) == (
        "completed",
        chunks_count,
        chunks_count,
        0,
    )
    assert document["rows"] == chunks_count * ROWS_PER_CHUNK
    assert [task["task"] for task in document["tasks"]] == [0, 1]
    check_rows(output, list(range(chunks_count * ROWS_PER_CHUNK)))
    assert [row["id"] for row in rows_of(output)] == list(
        range(chunks_count * ROWS_PER_CHUNK)
    )  # in the order of the input, too

    [state] = queue.submissions()
    assert (state.state, state.completed_count) == ("completed", chunks_count)
    completed, failed, lost = (
        events_of(queue, state.submission_id, event) for event in ("completed", "failed", "lost")
    )
    assert completed == Counter(range(chunks_count))
    assert set(failed) == {number for number in range(chunks_count) if number % 100 == FAILING}
    assert lost
    assert not any(map(is_alive, gates.seen))
    wait_until(lambda: not is_any_program_left(runtime_dir), 300, "no program is left")


def test_chunks_that_die_are_named_and_the_others_are_there_once_and_a_second_run_gives_the_rest(
    daemon: Settings, queue: opsq.Queue, cluster: Cluster, gates: Gates, runtime_dir: Path
) -> None:
    chunks_count = 3 * CHUNKS_PER_GATE
    source, output = dataset(runtime_dir, chunks_count), runtime_dir / "out.json"
    (runtime_dir / "hopeless").touch()
    words = line(
        daemon, cluster, source, output, runtime_dir, "--on-dead", "keep", "--skip-dead", "--idempotency-key", "night"
    )
    with started(words) as pipeline:
        kill_executor(gates.stand_at(1)[0])
        gates.open(1)
        gates.stand_at(2)
        crash_daemon(daemon, lambda: gates.open(2))
        out, err = pipeline.communicate(timeout=DEADLINE_S)
    assert pipeline.returncode == 1, err.decode()
    document = json.loads(out)
    hopeless = [number for number in range(chunks_count) if number % 100 == 3]
    assert (document["chunks"], document["completed"], document["dead"]) == (
        chunks_count,
        chunks_count - len(hopeless),
        len(hopeless),
    )
    submission_id = document["submission_id"]
    for number in hopeless:
        assert f"Chunk {submission_id}/{number}: exit status {HOPELESS}: no such word" in document["error"]["message"]
    assert f"opsq dead list {submission_id}" in document["error"]["hint"]
    numbers = range(chunks_count * ROWS_PER_CHUNK)
    check_rows(output, [number for number in numbers if number // ROWS_PER_CHUNK not in hopeless])

    (runtime_dir / "hopeless").unlink()
    requeue = [PROGRAM, "--state-dir", daemon.state_dir, "dead", "requeue", submission_id]
    requeued = subprocess.run(requeue, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S)
    assert requeued.returncode == 0, requeued.stderr.decode()
    again = subprocess.run(
        [*words[: words.index("--")], "--overwrite", "--keep", *words[words.index("--") :]],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert again.returncode == 0, again.stderr.decode()
    assert sum(task["completed"] for task in json.loads(again.stdout)["tasks"]) == len(hopeless)
    check_rows(output, list(numbers))
    assert events_of(queue, int(submission_id), "completed") == Counter(range(chunks_count))
    wait_until(lambda: not is_any_program_left(runtime_dir), 300, "no program is left")


def test_functions_on_executors_give_every_row_once_whatever_died_on_the_way(
    daemon: Settings, queue: opsq.Queue, cluster: Cluster, gates: Gates, runtime_dir: Path
) -> None:
    chunks_count = 4 * CHUNKS_PER_GATE
    program = runtime_dir / "fleet.py"
    program.write_text(FLEET)
    words = [
        sys.executable,
        str(program),
        cluster.url,
        daemon.state_dir,
        str(runtime_dir),
        json.dumps(cluster.settings),
    ]
    with started(words, ROWS=str(chunks_count * ROWS_PER_CHUNK)) as fleet:
        kill_executor(gates.stand_at(1)[0])
        gates.open(1)
        function = gates.stand_at(2)[0]
        kill_task(parent_of(function))  # between them stands the fork server
        wait_until(lambda: not is_alive(function), 300, "the function of the dead task is gone")
        gates.open(2)
        gates.stand_at(3)
        crash_daemon(daemon, lambda: gates.open(3))
        out, err = fleet.communicate(timeout=DEADLINE_S)
    assert fleet.returncode == 0, err.decode()
    rows = json.loads(out)
    assert sorted(number for number, _ in rows) == list(range(chunks_count * ROWS_PER_CHUNK))
    assert all(double == 2 * number for number, double in rows)
    [state] = queue.submissions()
    assert state.state == "completed"
    completed, failed, lost = (
        events_of(queue, state.submission_id, event) for event in ("completed", "failed", "lost")
    )
    assert completed == Counter(range(chunks_count))
    assert set(failed) == {number for number in range(chunks_count) if number % 100 == FAILING}
    assert lost
