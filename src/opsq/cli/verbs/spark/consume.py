"""The verb spark consume: programs process chunks on the executors of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.program_options import Consuming, Records
from opsq.cli.spark.job import Interrupted, Session, opened
from opsq.cli.spark.spark_documents import (
    SparkConsumeDocument,
)
from opsq.errors import WorkFailed
from opsq.runner.polled_consumer import Until

if TYPE_CHECKING:
    pass
from opsq.cli.options.conditions import submission
from opsq.cli.options.option import option, options
from opsq.cli.spark.fleet_work import (
    COMMAND,
    DEADLINE,
    FLEET_PROGRAMS,
    TASKS,
    check_program,
    fleet_options,
    process,
    shapes,
    spark_producer,
)
from opsq.ids import SubmissionId


def consume(
    caller: Caller,
    command: list[str] = COMMAND,
    programs: Consuming = FLEET_PROGRAMS,
    records: Records = options(Records),
    session: Session = options(Session),
    strategy: str = option("-s, --strategy STRATEGY", "Which chunks come first; see `opsq explain`.", default="Random"),
    submission_id: SubmissionId | None = option(
        "--submission ID", "Take chunks of this submission only, in the order of --strategy.", submission
    ),
    tasks: int | None = TASKS,
    deadline_s: float | None = DEADLINE,
    until_idle: bool = option(
        "--until-idle", "End as soon as nothing can be reserved, not when nothing can come any more."
    ),
) -> None:
    """Run a program for each chunk, on the executors of Spark: each task of one job is a consumer until nothing is left."""
    check_program(command[0], session)
    options = fleet_options(caller, programs, records.as_separator())
    with spark_producer(caller, strategy) as producer:
        if submission_id is not None:
            producer.submission(submission_id).state()
        with opened(caller, session, is_reporting=programs.progress) as jobs:
            until: Until = "idle" if until_idle else "empty"
            try:
                summary = process(
                    caller, jobs, command, options, strategy, submission_id, tasks, deadline_s, until, producer
                )
            except Interrupted:
                caller.remark("The work was cancelled; chunks that were started are given back.")
                raise
    document = SparkConsumeDocument(
        summary.completed, summary.failed, summary.dead, summary.released, round(summary.seconds, 3), shapes(summary)
    )
    failure = WorkFailed(f"{values.counted(summary.dead, 'chunk')} died.", hint="`opsq dead list` says why.")
    caller.conclude(document, failure if summary.dead else None)
