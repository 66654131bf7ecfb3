"""`opsq spark run` on a cluster while everything fails: 1 % of the chunks, an executor, a task, the daemon twice.

No row is lost or twice.

Each fault comes when the daemon counts a given number of chunks as done, with others in flight. What happened, and how
the chunks stood, is reported second by second; the last lines compare what went in with what came out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import opsq
from harness import Benchmark, Context, Row, at_least, at_most, main, reported
from opsq.wire.messages import History, HistoryFilter, HistoryRows
from ours import cli
from ours.cluster import Cluster, cluster, processes
from ours.daemon import environment

_ROWS_PER_CHUNK = 100
_LOOK_S = 0.2
_TELL_S = 10.0
_AWAY_S = 3.0
"""How long the daemon that was killed stays away."""
_END_S = 30.0

# The first attempt of every hundredth chunk fails; a program takes as long as a call to a service might. Faults come at
# round counts, so that few of these chunks, if any, lose that attempt to a fault.
_SCRIPT = (
    'sleep 0.05; if [ $((OPSQ_CHUNK % 100)) -eq 57 ] && [ "$OPSQ_ATTEMPT" -eq 0 ]; '
    "then echo no answer >&2; exit 75; fi; exec cat"
)


class _Fault(NamedTuple):
    """What is done when a share of the chunks is completed."""

    share: float
    name: str
    do: Callable[[], object]


class _Pipeline:
    """One run of the command, watched.

    Args:
        context: of the benchmark.
        state_dir: of the daemon, which runs.
        at: the cluster.
        source: the rows.
        output: where the results are to be.
        chunks_count: how many chunks the rows are.
    """

    def __init__(
        self, context: Context, state_dir: Path, at: Cluster, source: Path, output: Path, chunks_count: int
    ) -> None:
        self._context = context
        self._state_dir = state_dir
        self._cluster = at
        self._chunks_count = chunks_count
        self._began_at = time.monotonic()
        self._words = [
            cli.program(),
            "spark",
            "run",
            str(source),
            "--output",
            str(output),
            "--rows-per-chunk",
            str(_ROWS_PER_CHUNK),
        ]
        self._words += ["--master", at.url, "--tasks", "2", "--retry-on", "75", "--keep", "--quiet"]
        for key, value in at.settings.items():
            self._words += ["--conf", f"{key}={value}"]
        self._words += ["--", "sh", "-c", _SCRIPT]
        self.faults_count = 0
        """How many came while chunks were in flight."""

    @property
    def taken_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at

    def run(self, queue: opsq.Queue) -> None:
        """Start it, do the faults in their turn, and wait for its end.

        Raises:
            RuntimeError: it failed; the message holds what it said.
        """
        faults = [
            _Fault(0.2, "SIGKILL to the JVM of an executor", self._kill_executor),
            _Fault(0.4, f"SIGKILL to the daemon, started again after {_AWAY_S:.0f} s", self._crash_daemon),
            _Fault(0.6, "SIGKILL to the Python worker of a task", self._kill_task),
            _Fault(0.8, "opsq restart", self._restart_daemon),
        ]
        tell_at = 0.0
        environ = environment(self._state_dir) | {"SPARK_LOCAL_IP": "127.0.0.1"}
        self.tell("opsq spark run starts", queue)
        with subprocess.Popen(
            self._words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as child:
            try:
                while child.poll() is None:
                    time.sleep(_LOOK_S)
                    counts = queue.status().total
                    if (
                        faults
                        and counts.reserved_count
                        and counts.completed_count >= faults[0].share * self._chunks_count
                    ):
                        fault = faults.pop(0)
                        self.tell(f"{fault.name}: now", queue)
                        fault.do()
                        self.faults_count += 1
                        self.tell(f"{fault.name}: done", queue)
                    elif self.taken_s >= tell_at:
                        tell_at = self.taken_s + _TELL_S
                        self.tell("", queue)
            except BaseException:
                child.terminate()
                raise
            said = child.stderr.read().decode(errors="replace") if child.stderr else ""
        self.tell(f"opsq spark run has ended with exit status {child.returncode}", queue)
        if child.returncode or said:  # a quiet command that succeeds says nothing
            raise RuntimeError(f"opsq spark run exited {child.returncode}: {said}")

    def tell(self, what: str, queue: opsq.Queue) -> None:
        """A line of the timeline."""
        counts = queue.status().total
        waiting = (
            f"waiting {counts.waiting_count:6}, in back-off {counts.delayed_count:3},"
            f" reserved {counts.reserved_count:3}"
        )
        told = f"{self.taken_s:6.1f} s  done {counts.completed_count:6}, {waiting}, dead {counts.dead_count:3}"
        self._context.say(f"{told}  {what}".rstrip())

    def _kill_executor(self) -> None:
        os.kill(self._cluster.executors()[0], signal.SIGKILL)

    def _kill_task(self) -> None:
        os.kill(self._cluster.task_at_work(), signal.SIGKILL)

    def _crash_daemon(self) -> None:
        os.kill(int((self._state_dir / "opsq.lock").read_text()), signal.SIGKILL)
        time.sleep(_AWAY_S)
        cli.run(self._state_dir, "start")

    def _restart_daemon(self) -> None:
        cli.run(self._state_dir, "restart")


def measure(context: Context) -> Iterator[Row]:
    """Run it, and compare what went in with what came out."""
    from pyarrow import parquet

    rows_count = context.size(1_000_000, 100_000)
    chunks_count = rows_count // _ROWS_PER_CHUNK
    folder, state_dir = context.folder("spark"), context.folder("opsq")
    source, output = folder / "in.parquet", folder / "out.parquet"
    _write_rows(source, rows_count)
    cli.run(state_dir, "start")
    try:
        with cluster(folder) as at, opsq.connect(state_dir=state_dir) as queue:
            pipeline = _Pipeline(context, state_dir, at, source, output, chunks_count)
            pipeline.run(queue)
            taken_s = pipeline.taken_s
            [state] = queue.submissions()
            events = {
                event: _events_count(queue, state.submission_id, event)
                for event in ("completed", "failed", "lost", "dead")
            }
        left_count = _programs_left()
    finally:
        cli.run(state_dir, "stop")
    told = ", ".join(f"{count} {event}" for event, count in events.items())
    context.say(
        f"the submission is {state.state}: {state.completed_count} of {state.chunks_count} chunks;"
        f" in its history: {told}"
    )
    came = Counter(parquet.read_table(output, columns=["id"]).column("id").to_pylist())
    lost_count = sum(number not in came for number in range(rows_count))
    twice_count = sum(count > 1 for count in came.values())
    context.say(
        f"{rows_count} rows went in, {came.total()} came out, {len(came)} of them distinct:"
        f" {lost_count} lost, {twice_count} twice"
    )
    what = f"opsq spark run, {rows_count:,} rows in {chunks_count:,} chunks, while all fails"
    yield Row(f"{what}: rows lost", "rows", lost_count, at_most(0, "rows"))
    yield Row(f"{what}: rows twice", "rows", twice_count, at_most(0, "rows"))
    yield Row(f"{what}: faults while chunks were in flight", "", pipeline.faults_count, at_least(4, ""))
    yield Row(
        f"{what}: attempts that failed", "", events["failed"], at_least(chunks_count // 100 - pipeline.faults_count, "")
    )
    yield Row(f"{what}: attempts lost with their consumer", "", events["lost"], at_least(1, ""))
    yield Row(f"{what}: programs left behind", "", left_count, at_most(0, ""))
    yield Row(f"{what}: start to exit", "s", taken_s, reported())


def _write_rows(path: Path, count: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"id": range(count), "text": [f"row {number}" for number in range(count)]}),
        path,
        row_group_size=100_000,
    )


def _events_count(queue: opsq.Queue, submission_id: int, event: str) -> int:
    found = 0
    place: int | None = 0
    while place is not None:
        where = HistoryFilter(submission_id=submission_id, events=[event])
        page = queue.link.call(History(queue.link.next_id(), where, place, 10_000), HistoryRows)
        found += sum(row.mask.bit_count() for row in page.rows)
        place = page.next_after
    return found


def _programs_left() -> int:
    """How many programs still run, half a minute later at most: what is ending may take a moment."""
    end = time.monotonic() + _END_S
    while True:
        count = sum(_SCRIPT in one.words for one in processes())
        if not count or time.monotonic() > end:
            return count
        time.sleep(_LOOK_S)


BENCHMARK = Benchmark("spark_faults", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
