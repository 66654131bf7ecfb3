"""The Spark part of the verb demo: the same input as a DataFrame, submitted, processed, read back and checked.

It does what a notebook would do; it must not take a short cut that users do not have.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opsq.cli.caller import Caller
from opsq.cli.demo_stage import Direct, Speech, direct_count, private_daemon, private_folder, sources
from opsq.cli.output.installation_documents import DemoDocument
from opsq.cli.spark.job import Session, opened
from opsq.cli.spark.report_tables import Asked, write_report
from opsq.errors import WorkFailed
from opsq.units import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from opsq.spark.fleet.driver import FleetSummary

STRATEGY = "OldestFirst"
FILES_PER_CHUNK = 20


def demo_spark(caller: Caller, *, tasks: int, is_kept: bool) -> None:
    """Convert Python's own source files to upper case on Spark's executors, and check the results."""
    say = Speech(caller)
    paths = sources()
    with private_folder(say, is_kept=is_kept) as folder, private_daemon(caller, say, folder) as private:
        if not private.is_remarking:  # else `opened` prints it
            say.step("Starting Spark …")
        session = Session(f"local[{tasks}]")
        with opened(private, session, is_short=True) as jobs:
            say.step(f"Spark {jobs.spark.version} is ready.")
            began = time.monotonic()
            state_dir = str(folder / "state")
            submission_id = jobs.run("reading", lambda: _submit(jobs.spark, paths, state_dir))
            say.step(
                f"Submitted {len(paths)} source files of Python as a DataFrame of paths and contents: submission "
                f"{submission_id}."
            )
            summary = jobs.run("working", lambda: _consume(jobs.spark, submission_id, tasks, state_dir))
            at_work = ", ".join(f"{counted(task.completed, 'chunk')} in task {task.task}" for task in summary.tasks)
            say.step(f"Executors converted them to upper case, as consumers with the strategy {STRATEGY}: {at_work}.")
            found = jobs.run("reading", lambda: _read(jobs.spark, submission_id, state_dir))
            elapsed_s = time.monotonic() - began
            wanted = direct_count(map(Path, paths), is_upper=True)
            if wanted != found:
                raise WorkFailed(f"The results are wrong: {found} instead of {wanted}.", hint="Please report this.")
            count = f"{counted(wanted.lines_count, 'line')}, SHA-256 {wanted.digest[:8]}…"
            say.step(f"The results are a DataFrame, and a direct count without Spark agrees: {count}.")
            if not (caller.is_json or caller.is_quiet):
                say.step("What happened to the chunks, as `opsq spark report --by tenant` reports it:")
                caller.lines([""])
                write_report(private, Asked(by="tenant", tables=True), session, jobs)
                caller.lines([""])
        rate = summary.completed / summary.seconds
    caller.document(
        DemoDocument(
            len(paths), wanted.size_bytes, wanted.lines_count, summary.completed, elapsed_s, rate, is_right=True
        )
    )
    say.step(
        f"Done in {time.monotonic() - say.began:.1f} s."
        + ("" if is_kept else " The daemon has stopped; nothing is left behind.")
    )


def _submit(spark: SparkSession, paths: list[str], state_dir: str) -> int:
    from opsq.spark import write

    def contents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            read = [Path(path.as_py()).read_bytes() for path in batch.column(0)]
            yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(read, pa.binary())], ["path", "content"])

    # Spark's own readers skip names that start with an underscore, as many of these do.
    files = spark.createDataFrame([(path,) for path in paths], "path string").mapInArrow(
        contents, "path string, content binary"
    )
    return write(files, state_dir=state_dir, rows_per_chunk=FILES_PER_CHUNK, metadata={"tenant": "demo"})


def _consume(spark: SparkSession, submission_id: int, tasks: int, state_dir: str) -> FleetSummary:
    from opsq.spark import consume

    def capitals(table: pa.Table) -> pa.Table:
        import pyarrow as pa

        contents = [content.as_py().upper() for content in table.column("content")]
        return table.set_column(1, "content", pa.array(contents, pa.binary()))

    return consume(
        spark,
        function=capitals,
        strategy=STRATEGY,
        submission=submission_id,
        tasks=tasks,
        progress=False,
        state_dir=state_dir,
    )


def _read(spark: SparkSession, submission_id: int, state_dir: str) -> Direct:
    """Count the results, file by file in the order of their names."""
    from opsq.spark import results

    lines_count = size_bytes = 0
    digest = hashlib.sha256()
    for row in sorted(results(spark, submission_id, state_dir=state_dir).collect(), key=lambda row: str(row.path)):
        content = bytes(row.content)
        lines_count += content.count(b"\n")
        size_bytes += len(content)
        digest.update(content)
    return Direct(lines_count, size_bytes, digest.hexdigest())
