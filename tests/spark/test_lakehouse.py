"""The example that streams results into a Delta table, killed in the midst: each row is there once."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

import opsq
from opsq.settings import Settings
from spark.jvm import DEADLINE_S
from spark.streaming import LATE_WORKER, LATE_WORKERS_LIMIT
from waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "lakehouse.py"
CHUNKS_COUNT, ROWS_PER_CHUNK, KILLS_COUNT = 40, 5, 3
POINTS = ["checkpoint/offsets", "table", "table/_delta_log", "checkpoint/commits"]
"""What a micro-batch makes, in this order: its plan, a file of rows, its commit to the table, the note of its end."""
WANTED = list(range(CHUNKS_COUNT * ROWS_PER_CHUNK))


class Program:
    """Runs the example, in a session of its own, and looks at its table.

    Args:
        daemon: has the submission.
        submission_id: whose results it takes.
        folder: where its checkpoint and its table are.
    """

    def __init__(self, daemon: Settings, submission_id: int, folder: Path) -> None:
        self.table, self.checkpoint = folder / "table", folder / "checkpoint"
        self._environ = os.environ | {"OPSQ_STATE_DIR": str(daemon.state_dir)}
        words = [submission_id, "n BIGINT, square BIGINT", self.checkpoint, self.table, 1]
        self._line = [sys.executable, str(EXAMPLE), *map(str, words)]

    def start(self) -> subprocess.Popen[str]:
        """Start it, as the leader of a group to which its JVM belongs."""
        return subprocess.Popen(
            self._line,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self) -> str:
        """Run it to its end; what it prints."""
        for _ in range(LATE_WORKERS_LIMIT):
            with self.start() as program:
                out, err = program.communicate(timeout=DEADLINE_S)
            if LATE_WORKER not in err:
                break
        assert program.returncode == 0, err
        return out

    def kill_at(self, kind: str, count: int) -> None:
        """Start it, and kill it and its JVM once there are so many files more of a kind that each micro-batch makes."""
        for _ in range(LATE_WORKERS_LIMIT):
            wanted_count = self._count(kind) + count
            with self.start() as program:
                try:
                    wait_until(partial(self._is_there, program, kind, wanted_count), DEADLINE_S, f"{count} of {kind}")
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
                _, err = program.communicate(timeout=DEADLINE_S)
            if LATE_WORKER not in err:
                break
        assert program.returncode == -signal.SIGKILL, err

    def rows(self) -> list[int]:
        """What the table has, sorted."""
        found = DeltaTable(self.table).to_pyarrow_table().to_pydict()
        assert found["square"] == [n * n for n in found["n"]]
        return sorted(found["n"])

    def told(self) -> str:
        """What the checkpoint and the table say of each micro-batch."""
        logs = [*sorted(self.checkpoint.glob("*/[0-9]*")), *sorted(self.table.glob("_delta_log/*.json"))]
        return "\n".join(f"{path.parent.name}/{path.name}: {path.read_text()[-600:]}" for path in logs)

    def _is_there(self, program: subprocess.Popen[str], kind: str, wanted_count: int) -> bool:
        return self._count(kind) >= wanted_count or program.poll() is not None

    def _count(self, kind: str) -> int:
        return len(list((self.table.parent / kind).glob("[0-9p]*")))


def squares(number: int) -> bytes:
    """The result of a chunk, as Parquet."""
    ids = range(number * ROWS_PER_CHUNK, (number + 1) * ROWS_PER_CHUNK)
    out = io.BytesIO()
    pq.write_table(pa.table({"n": list(ids), "square": [n * n for n in ids]}), out)
    return out.getvalue()


def complete(queue: opsq.Queue, count: int) -> None:
    """Complete so many chunks more, one after the other, so that each is a micro-batch."""
    for _ in range(count):
        with queue.consumer("OldestFirst") as consumer:
            for chunk in consumer.chunks():
                chunk.complete(squares(chunk.index))
                break


def test_results_are_in_the_table_once_however_often_the_query_is_killed_while_work_goes_on(
    java: None, daemon: Settings, queue: opsq.Queue, tmp_path: Path
) -> None:
    submission = queue.submit([b"%d" % number for number in range(CHUNKS_COUNT)])
    program = Program(daemon, submission.id, tmp_path)
    chance = random.Random()
    for _ in range(KILLS_COUNT):
        complete(queue, CHUNKS_COUNT // (KILLS_COUNT + 1))
        program.kill_at(chance.choice(POINTS), chance.randint(1, 5))
    complete(queue, CHUNKS_COUNT // (KILLS_COUNT + 1))
    out = program.run()
    assert program.rows() == WANTED, program.told()
    assert out == f"{len(WANTED)} rows\n"


def test_one_of_two_drivers_that_write_the_same_micro_batch_is_refused(tmp_path: Path) -> None:
    def write(table: DeltaTable | Path, number: int) -> None:
        this_batch = CommitProperties(app_transactions=[Transaction("query", number)])
        write_deltalake(table, pa.table({"n": [number]}), mode="append", commit_properties=this_batch)

    write(tmp_path, 0)
    first, second = DeltaTable(tmp_path), DeltaTable(tmp_path)
    write(first, 1)
    with pytest.raises(CommitFailedError):
        write(second, 1)
