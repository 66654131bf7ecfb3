"""The verb spark consume: programs process chunks on the executors of Spark."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.program_options import Consuming, Records
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
from opsq.cli.spark.job import Interrupted, Session, opened
from opsq.cli.spark.spark_documents import SparkConsumeDocument
from opsq.errors import WorkFailed
from opsq.ids import SubmissionId
from opsq.options.conditions import submission
from opsq.options.option import option, options
from opsq.units import counted


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
        "--until-idle", "End as soon as no chunk can be reserved, not only when none can come any more."
    ),
) -> None:
    """Run a program for each chunk on Spark's executors: each task of one job is a consumer until no chunk is left."""
    check_program(command[0], session)
    options = fleet_options(caller, programs, records.as_separator())._replace(
        strategy=strategy, submission_id=submission_id, until="idle" if until_idle else "empty"
    )
    with spark_producer(caller, strategy) as producer:
        if submission_id is not None:
            producer.submission(submission_id).state()
        with opened(caller, session, is_reporting=programs.progress) as jobs:
            try:
                summary = process(caller, jobs, command, options, tasks, deadline_s)
            except Interrupted:
                caller.remark("The work was cancelled; chunks that had started are released.")
                raise
    document = SparkConsumeDocument(
        summary.completed, summary.failed, summary.dead, summary.released, round(summary.seconds, 3), shapes(summary)
    )
    failure = WorkFailed(f"{counted(summary.dead, 'chunk')} died.", hint="`opsq dead list` says why.")
    caller.conclude(document, failure if summary.dead else None)
