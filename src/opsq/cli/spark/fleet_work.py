"""The steps that Spark verbs share, and their common options: checks, submitting rows, processing on a fleet.

It must not decide how a verb ends: each verb does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET

from opsq.cli.caller import Caller
from opsq.cli.program_options import Consuming
from opsq.cli.spark.data_sets import Chunking, Reading, daemon_options
from opsq.cli.spark.job import Session, SparkJobs
from opsq.cli.spark.spark_documents import SparkTaskShape
from opsq.client.sync.producer import Producer
from opsq.documents.shape import ErrorShape
from opsq.errors import UsageError, WorkFailed
from opsq.options.option import COUNT, argument, option, options, positive_duration
from opsq.options.submission_options import Rules
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.process.spawn import check_program as check
from opsq.wire.messages import Explain, Explained

if TYPE_CHECKING:
    from opsq.client.sync.submission import Submission
    from opsq.spark.fleet.driver import FleetSummary
    from opsq.spark.fleet.tasks import TaskSummary

RECONNECT_S = 30.0
"""How long the daemon may be unreachable before the work is given up."""

INPUTS = argument("INPUT...", "Paths or URLs that Spark reads.")
COMMAND = argument("COMMAND...", "The program and its arguments, behind --.")
TASKS = option("-t, --tasks N", "Consumers on the executors.", COUNT, shown="one per core")
DEADLINE = option(
    "--deadline D", "Start no chunk after this long; end when running programs have ended.", positive_duration
)
FLEET_PROGRAMS = options(
    Consuming, jobs=option("-j, --jobs N|N%|+N|-N", "Concurrent programs in each task.", shown="1")
)


def check_places(session: Session, places: Iterable[str]) -> None:
    """Check that a Spark Connect server understands paths as they are meant.

    Raises:
        UsageError: one is relative, and would be resolved in the server's folder.
    """
    if not session.is_remote:
        return
    for place in places:
        if "://" not in place and not os.path.isabs(place):
            raise UsageError(
                f"{place} is a relative path, and the Spark Connect server runs in a folder of its own.",
                hint="Give an absolute path or a URL that the server and its executors see.",
            )


def check_program(program: str, session: Session) -> None:
    """Check that executors on this machine find a program, before Spark starts and rows are read.

    Raises:
        CommandNotFound: there is none.
        CommandNotExecutable: it cannot be run.
    """
    if session.master.startswith("local") and "{" not in program:  # a word with a field differs for each chunk
        check(program)


@contextlib.contextmanager
def spark_producer(caller: Caller, strategy: str | None = None) -> Iterator[Producer]:
    """A producer whose daemon answers and accepts the strategy, if given: only the daemon knows named strategies."""
    producer = Producer(caller.connect, reconnect_s=RECONNECT_S)
    try:
        if strategy is not None:
            producer.link.call(Explain(producer.link.next_id(), strategy), Explained)
        yield producer
    finally:
        producer.close()


def fleet_options(caller: Caller, programs: Consuming, separator: bytes) -> ConsumeOptions:
    """How programs run in a task: one at a time by default, since a task is a slot already."""
    options = programs.as_options(caller, separator)
    return options if programs.jobs else options._replace(jobs=1)


def submit_rows(
    caller: Caller,
    jobs: SparkJobs,
    inputs: list[str],
    reading: Reading,
    chunking: Chunking,
    rules: Rules,
    producer: Producer,
) -> Submission:
    """Submit the rows of a data set as chunks."""
    return jobs.run(
        "reading", lambda: chunking.submit(reading.frame(jobs.spark, inputs), rules, daemon_options(caller), producer)
    )


def process(
    caller: Caller,
    jobs: SparkJobs,
    command: list[str],
    options: ConsumeOptions,
    tasks: int | None,
    deadline_s: float | None,
) -> FleetSummary:
    """Process chunks with consumers on the executors until none is left, or the deadline.

    Args:
        options: which chunks, and how programs run.
        tasks: the number of consumers; None: one per core.
    """
    from opsq.spark.fleet.driver import cores_of, ended_early, plan_fleet, run_fleet
    from opsq.spark.fleet.watch import FleetWatch
    from opsq.spark.source.source_options import DaemonOptions

    plan = plan_fleet(DaemonOptions(**daemon_options(caller)), options, command=command, deadline_s=deadline_s)
    watch = FleetWatch(plan.daemon, options.submission_id)
    summary = jobs.run(
        "working", lambda: run_fleet(jobs.spark, plan, tasks or cores_of(jobs.spark), watch), lambda: watch.latest
    )
    if warning := ended_early(summary):
        caller.report_error(WorkFailed(warning))
    return summary


def shapes(summary: FleetSummary) -> list[SparkTaskShape]:
    """What each task did, for a JSON document."""

    def shape(task: TaskSummary) -> SparkTaskShape:
        failure = task.failure()
        counts = (task.completed, task.failed, task.dead, task.released, round(task.seconds, 3))
        return SparkTaskShape(task.task, task.host, *counts, error=UNSET if failure is None else ErrorShape.of(failure))

    return list(map(shape, summary.tasks))
