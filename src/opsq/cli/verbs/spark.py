"""The verbs about Spark: submit a data set as chunks, work them off on executors, write the results, all of it in one line, and a check."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import is_remote
from opsq.cli.options import values
from opsq.cli.options.program_options import Consuming, Records, positive_duration
from opsq.cli.output.json_output import ErrorShape
from opsq.cli.spark.data_sets import Chunking, Reading, Writing, daemon_options
from opsq.cli.spark.job import Interrupted, Session, SparkJobs, looking_at, opened
from opsq.cli.spark.report import Asked, report
from opsq.cli.spark.spark_documents import (
    SparkConsumeDocument,
    SparkResultsDocument,
    SparkRunDocument,
    SparkSubmitDocument,
    SparkTaskShape,
)
from opsq.client.sync.producer import Producer
from opsq.content.manifest import decode as decode_content
from opsq.daemon.temporary_daemon import DaemonUse
from opsq.errors import NotFinished, OpsqError, TimedOut, UsageError, WorkFailed
from opsq.ids import parse_submission_id
from opsq.runner.polled_consumer import Until
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.process.spawn import find_program
from opsq.spark.source.result_fetch import FINAL_STATES
from opsq.wire.messages import Describe, Described, Explain, Explained, SubmissionState

if TYPE_CHECKING:
    from opsq.client.sync.submission import Submission
    from opsq.spark.fleet.driver import FleetSummary

RECONNECT_S = 30.0
"""How long a daemon that goes away may take to come back, before the work is given up."""
_TOLD_DEAD_COUNT = 3

Inputs = Annotated[list[str], typer.Argument(metavar="INPUT", help="Paths or URLs that Spark reads.")]
Command = Annotated[list[str], typer.Argument(metavar="CMD", help="The program and its arguments, behind --.")]
Tasks = Annotated[
    int | None,
    typer.Option(
        "--tasks", "-t", min=1, metavar="N", help="So many consumers on the executors; by default one a core."
    ),
]
Strategy = Annotated[
    str, typer.Option("--strategy", "-s", metavar="STRATEGY", help="Which chunks come first; see `opsq explain`.")
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="D", help="Begin no chunk after this long; end when what runs has ended."),
]


class FleetConsuming(Consuming):
    """How programs are run in each task of a fleet."""

    __slots__ = ()

    jobs: Annotated[
        str | None,
        typer.Option("--jobs", "-j", metavar="N|N%|+N|-N", help="Programs at once in each task; 1 by default."),
    ]


def spark_submit(caller: Caller, inputs: Inputs, reading: Reading, chunking: Chunking, session: Session) -> None:
    """Submit the rows of a data set as chunks; prints the id of the submission alone."""
    check_places(session, reading.paths(inputs))
    with _producer(caller) as producer, opened(caller, session) as jobs:
        submission = _submit(caller, jobs, inputs, reading, chunking, producer)
        described = producer.link.call(Describe(producer.link.next_id(), [submission.id]), Described).submissions[0]
    content = decode_content(described.content)
    caller.document(
        SparkSubmitDocument(str(submission.id), submission.is_new, content.chunks_count, content.total_bytes)
    )
    caller.lines([str(submission.id)])


def spark_consume(
    caller: Caller,
    command: Command,
    programs: FleetConsuming,
    records: Records,
    session: Session,
    strategy: Strategy = "Random",
    submission: Annotated[
        str | None,
        typer.Option(
            "--submission", metavar="ID", help="Take chunks of this submission only, in the order of --strategy."
        ),
    ] = None,
    tasks: Tasks = None,
    deadline: Deadline = None,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle", help="End as soon as nothing can be reserved, not when nothing can come any more."
        ),
    ] = False,
) -> None:
    """Run a program for each chunk, on the executors of Spark: each task of one job is a consumer until nothing is left."""
    submission_id = None if submission is None else parse_submission_id(submission)
    _check_program(command[0], session)
    options = _options(caller, programs, records.as_separator())
    with _producer(caller, strategy) as producer:
        if submission_id is not None:
            producer.submission(submission_id).state()
        with opened(caller, session, is_reporting=programs.progress) as jobs:
            until: Until = "idle" if until_idle else "empty"
            try:
                summary = _work(
                    caller, jobs, command, options, strategy, submission_id, tasks, deadline, until, producer
                )
            except Interrupted:
                caller.remark("The work was cancelled; chunks that were begun are given back.")
                raise
    document = SparkConsumeDocument(
        summary.completed, summary.failed, summary.dead, summary.released, round(summary.seconds, 3), _shapes(summary)
    )
    failure = WorkFailed(f"{values.counted(summary.dead, 'chunk')} died.", hint="`opsq dead list` says why.")
    caller.conclude(document, failure if summary.dead else None)


def spark_results(
    caller: Caller,
    submission: Annotated[str, typer.Argument(metavar="ID", help="The submission.")],
    writing: Writing,
    session: Session,
) -> None:
    """Write the results of a submission as a data set, in the order of its chunks; it must have ended."""
    submission_id, place = parse_submission_id(submission), writing.place(is_there=session.is_remote)
    check_places(session, [place])
    with _producer(caller) as producer:
        _check_ended(producer.submission(submission_id).state())
        with opened(caller, session) as jobs:
            rows_count = jobs.run("writing", lambda: writing.write(jobs.spark, submission_id, daemon_options(caller)))
    caller.document(SparkResultsDocument(str(submission_id), place, rows_count))
    caller.remark(f"{values.counted(rows_count, 'row')} are in {place}.")


def spark_run(
    caller: Caller,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT -- CMD", help="Paths or URLs that Spark reads; behind -- the program and its arguments."
        ),
    ],
    reading: Reading,
    chunking: Chunking,
    programs: FleetConsuming,
    writing: Writing,
    session: Session,
    strategy: Strategy = "OldestFirst",
    tasks: Tasks = None,
    deadline: Deadline = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the submission and its content in the queue when all is well.")
    ] = False,
) -> None:
    """Read a data set, submit its rows as chunks, run a program for each on the executors, and write the results: the whole pipeline.

    Results come in the order in which Spark reads the rows. Without a daemon, one is started, and stopped at the end.
    """
    inputs, command = _split(words)
    _check_program(command[0], session)
    place = writing.place(is_there=session.is_remote)
    check_places(session, [*reading.paths(inputs), place])
    options = _options(caller, programs, b"\n")
    with (
        _daemon(caller) as is_temporary,
        _producer(caller, strategy) as producer,
        opened(caller, session, is_reporting=programs.progress) as jobs,
    ):
        jobs.run("reading", lambda: writing.check(jobs.spark))
        submission = _submit(caller, jobs, inputs, reading, chunking, producer)
        summary: FleetSummary | None = None
        rows_count: int | None = None
        failure: OpsqError | None = None
        try:
            summary = _work(caller, jobs, command, options, strategy, submission.id, tasks, deadline, "empty", producer)
            failure = lacking(submission, deadline)
            if failure is None or (writing.skip_dead and isinstance(failure, WorkFailed)):
                rows_count = jobs.run(
                    "writing", lambda: writing.write(jobs.spark, submission.id, daemon_options(caller))
                )
        except Interrupted:
            _tell_left(caller, submission.state(), is_temporary=is_temporary)
            raise
        except OpsqError as error:
            failure = error
        state = submission.state()
        if failure is None and removes(submission, keep=keep):
            submission.remove()
    document = _run_document(state, summary, place, rows_count, failure)
    caller.document(document)
    if failure is not None:
        failure.hint = f"{failure.hint} {way_on(state, is_temporary=is_temporary)}".lstrip()
        raise caller.report_error(failure)
    caller.remark(f"{values.counted(rows_count or 0, 'row')} are in {place}.")


def spark_report(caller: Caller, what: Asked, session: Session) -> None:
    """Tell what the history says: waiting and run times, throughput, retries, dead letters, how busy consumers were, what was fair."""
    report(caller, what, session)


def spark_doctor(caller: Caller, session: Session) -> None:
    """Look whether Spark can be used from here: versions, Java, ports, and one row to the daemon and back; exits 5 if not."""
    from opsq.cli.spark.doctor import examine

    examine(caller, session)


def check_places(session: Session, places: Iterable[str]) -> None:
    """See to it that a server of Spark Connect understands a path as it is meant.

    Raises:
        UsageError: one is relative, and would begin where the server was started.
    """
    if not session.is_remote:
        return
    for place in places:
        if "://" not in place and not os.path.isabs(place):
            raise UsageError(
                f"{place} is a relative path, and the server of Spark Connect stands in a folder of its own.",
                hint="Give a path from / on, or a URL, that the server and its executors see.",
            )


def _check_program(program: str, session: Session) -> None:
    """See to it that executors on this machine find a program, before Spark starts and rows are read.

    Raises:
        CommandNotFound: there is none.
        CommandNotExecutable: it cannot be run.
    """
    if session.master.startswith("local") and "{" not in program:  # a word with a field in it is another for each chunk
        find_program(program, os.environ.get("PATH", os.defpath))


def _check_ended(state: SubmissionState) -> None:
    """See to it that results are asked of what has ended, before Spark starts.

    Raises:
        NotFinished: it has not.
    """
    if state.state not in FINAL_STATES:
        done = f"{state.completed_count} of {values.counted(state.chunks_count, 'chunk')} are done"
        raise NotFinished(
            f"Submission {state.submission_id} has not ended: {done}.",
            hint=f"`opsq wait {state.submission_id}` waits for it.",
        )


# --- the steps --------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _producer(caller: Caller, strategy: str | None = None) -> Iterator[Producer]:
    """A producer whose daemon answers, and understands the strategy if there is one: only it knows the named ones."""
    producer = Producer(caller.connect, reconnect_s=RECONNECT_S)
    try:
        if strategy is not None:
            producer.link.call(Explain(producer.link.next_id(), strategy), Explained)
        yield producer
    finally:
        producer.close()


@contextlib.contextmanager
def _daemon(caller: Caller) -> Iterator[bool]:
    """A daemon to work with; whether it is one that goes with us."""
    settings = caller.settings
    if is_remote(settings) or settings.source("socket") == "--socket":
        yield False
        return
    daemon_use = DaemonUse(settings)
    try:
        yield daemon_use.enter().is_temporary
    finally:
        with contextlib.suppress(OpsqError):  # it ends by itself when nobody uses it
            daemon_use.leave()


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    at = words.index("--") if "--" in words else len(words)
    inputs, command = words[:at], words[at + 1 :]
    if not inputs or not command:
        what = "an INPUT in front of --" if command else "-- and a program behind its inputs"
        raise UsageError(
            f"opsq spark run needs {what}.",
            hint="For example: opsq spark run events.parquet -o out.parquet -- jq -c '{id, n: (.text | length)}'",
        )
    return inputs, command


def _options(caller: Caller, programs: FleetConsuming, separator: bytes) -> ConsumeOptions:
    """How programs run in a task: one at a time, unless more were asked for; a task is a slot already."""
    options = programs.as_options(caller, separator)
    return options if programs.jobs else options._replace(jobs=1)


def _submit(
    caller: Caller, jobs: SparkJobs, inputs: list[str], reading: Reading, chunking: Chunking, producer: Producer
) -> Submission:
    return jobs.run(
        "reading", lambda: chunking.submit(reading.frame(jobs.spark, inputs), daemon_options(caller), producer)
    )


def _work(
    caller: Caller,
    jobs: SparkJobs,
    command: list[str],
    options: ConsumeOptions,
    strategy: str,
    submission_id: int | None,
    tasks: int | None,
    deadline: str | None,
    until: Until,
    producer: Producer,
) -> FleetSummary:
    from opsq.spark.fleet.driver import cores_of, ended_early, plan_fleet, run_fleet
    from opsq.spark.source.source_options import DaemonOptions

    plan = plan_fleet(
        DaemonOptions(**daemon_options(caller)),
        command=command,
        strategy=strategy,
        submission=submission_id,
        until=until,
        deadline_s=positive_duration("--deadline", deadline),
        options=options,
    )
    looking = looking_at(producer, submission_id)
    summary = jobs.run("working", lambda: run_fleet(jobs.spark, plan, tasks or cores_of(jobs.spark)), looking)
    if told := ended_early(summary):
        caller.report_error(WorkFailed(told))
    return summary


# --- how it ended -----------------------------------------------------------------------------------------------------------------


def removes(submission: Submission, *, keep: bool) -> bool:
    """Whether a run that went well leaves nothing behind: not what was there before it, under the same key."""
    return submission.is_new and not keep


def lacking(submission: Submission, deadline: str | None) -> OpsqError | None:
    """Why results are lacking; None: all are there."""
    state = submission.state()
    if state.completed_count == state.chunks_count:
        return None
    if not state.dead_count:
        left = f"{values.counted(state.chunks_count - state.completed_count, 'chunk')} of {state.chunks_count} are not completed."
        if deadline:
            return TimedOut(f"The deadline came first: {left}")
        return NotFinished(
            f"The strategy takes no more of them: {left}", hint=f"`opsq explain {state.submission_id}` tells why."
        )
    lines = [f"{state.dead_count} of {values.counted(state.chunks_count, 'chunk')} died."]
    for number, letter in enumerate(submission.dead()):
        if number == _TOLD_DEAD_COUNT:
            break
        lines.append(f"Chunk {state.submission_id}/{letter.index}: {letter.reason.strip()}")
    return WorkFailed(
        "\n".join(lines),
        hint=f"`opsq dead list {state.submission_id}` tells why, `opsq dead requeue` gives new attempts.",
    )


def way_on(state: SubmissionState, *, is_temporary: bool) -> str:
    """How to go on with what is left in the queue."""
    first, number = ("After `opsq start`, " if is_temporary else ""), state.submission_id
    writes = f"`opsq spark results {number} -o DIR{' --skip-dead' if state.dead_count else ''}` writes what there is"
    if state.state in FINAL_STATES:
        return f"{first}{writes}, `opsq rm {number}` removes it."
    return f"{first}`opsq spark consume --submission {number} -- CMD` goes on, then {writes}; `opsq cancel {number}` gives it up."


def _tell_left(caller: Caller, state: SubmissionState, *, is_temporary: bool) -> None:
    done = f"{state.completed_count} of {values.counted(state.chunks_count, 'chunk')} are done."
    if not caller.is_quiet:  # off a terminal too: the id is said nowhere else
        print(f"{done} {way_on(state, is_temporary=is_temporary)}", file=sys.stderr, flush=True)


def _run_document(
    state: SubmissionState, summary: FleetSummary | None, place: str, rows_count: int | None, failure: OpsqError | None
) -> SparkRunDocument:
    return SparkRunDocument(
        state="completed" if failure is None else "failed",
        submission_id=str(state.submission_id),
        chunks=state.chunks_count,
        completed=state.completed_count,
        failed=0 if summary is None else summary.failed,
        dead=state.dead_count,
        seconds=0.0 if summary is None else round(summary.seconds, 3),
        output=place,
        tasks=[] if summary is None else _shapes(summary),
        rows=msgspec.UNSET if rows_count is None else rows_count,
        error=msgspec.UNSET if failure is None else ErrorShape.of(failure),
    )


def _shapes(summary: FleetSummary) -> list[SparkTaskShape]:
    found = []
    for task in summary.tasks:
        failure = task.failure()
        counts = (task.completed, task.failed, task.dead, task.released, round(task.seconds, 3))
        found.append(
            SparkTaskShape(
                task.task, task.host, *counts, error=msgspec.UNSET if failure is None else ErrorShape.of(failure)
            )
        )
    return found
