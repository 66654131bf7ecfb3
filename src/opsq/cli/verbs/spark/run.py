"""The verb spark run: reads a data set, processes it as chunks, and writes the results.

The steps themselves are in `cli.spark.fleet_work`; this file decides their order and reports how they ended.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import is_addressed
from opsq.cli.program_options import Consuming
from opsq.cli.spark.data_sets import RULES, Chunking, Reading, Writing, daemon_options
from opsq.cli.spark.fleet_work import (
    DEADLINE,
    FLEET_PROGRAMS,
    TASKS,
    check_places,
    check_program,
    fleet_options,
    process,
    shapes,
    spark_producer,
    submit_rows,
)
from opsq.cli.spark.job import Interrupted, Session, opened
from opsq.cli.spark.spark_documents import SparkRunDocument
from opsq.content.manifest import input_note
from opsq.daemon.temporary_daemon import DaemonUse
from opsq.documents.shape import ErrorShape
from opsq.errors import NotFinished, OpsqError, TimedOut, UsageError, WorkFailed
from opsq.options.option import argument, option, options
from opsq.options.submission_options import Rules
from opsq.spark.source.result_fetch import FINAL_STATES
from opsq.units import counted
from opsq.wire.messages import SubmissionState

if TYPE_CHECKING:
    from opsq.client.sync.submission import Submission
    from opsq.spark.fleet.driver import FleetSummary

_SHOWN_DEAD_COUNT = 3


def run(
    caller: Caller,
    words: list[str] = argument(
        "INPUT -- COMMAND...", "Paths or URLs that Spark reads; after -- the program and its arguments."
    ),
    reading: Reading = options(Reading),
    chunking: Chunking = options(Chunking),
    rules: Rules = RULES,
    programs: Consuming = FLEET_PROGRAMS,
    writing: Writing = options(Writing),
    session: Session = options(Session),
    strategy: str = option(
        "-s, --strategy STRATEGY", "Which chunks come first; see `opsq explain`.", default="OldestFirst"
    ),
    tasks: int | None = TASKS,
    deadline_s: float | None = DEADLINE,
    keep: bool = option("--keep", "Keep the submission and its content in the queue after success."),
) -> None:
    """Read a data set, submit its rows as chunks, run a program for each on the executors, and write the results.

    Results keep the order in which Spark reads the rows. Without a daemon, one is started, and stopped at the end.
    """
    inputs, command = _split(words)
    rules.as_fields()  # refused before Spark starts
    check_program(command[0], session)
    place = writing.place(is_there=session.is_remote)
    check_places(session, [*reading.paths(inputs), place])
    options = fleet_options(caller, programs, b"\n")
    with (
        _daemon(caller) as is_temporary,
        spark_producer(caller, strategy) as producer,
        opened(caller, session, is_reporting=programs.progress) as jobs,
    ):
        jobs.run("reading", lambda: writing.schema(jobs.spark))  # refused before anything is submitted
        submission = submit_rows(caller, jobs, inputs, reading, chunking, rules, producer)
        summary: FleetSummary | None = None
        rows_count: int | None = None
        failure: OpsqError | None = None
        try:
            options = options._replace(strategy=strategy, submission_id=submission.id, until="empty")
            summary = process(caller, jobs, command, options, tasks, deadline_s)
            failure = missing_results(submission, deadline_s)
            if failure is None or (writing.skip_dead and isinstance(failure, WorkFailed)):
                rows_count = jobs.run(
                    "writing", lambda: writing.write(jobs.spark, submission.id, daemon_options(caller))
                )
        except Interrupted:
            _report_left(caller, submission.state(), is_temporary=is_temporary)
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
    caller.remark(f"{counted(rows_count or 0, 'row')} are in {place}.")


@contextlib.contextmanager
def _daemon(caller: Caller) -> Iterator[bool]:
    """Make sure that a daemon runs; yields whether it is a temporary one that ends with this command."""
    settings = caller.settings
    if is_addressed(settings) or settings.source("socket") == "--socket":
        yield False
        return
    daemon_use = DaemonUse(settings)
    try:
        yield daemon_use.enter().is_temporary
    finally:
        with contextlib.suppress(OpsqError):  # it ends by itself when unused
            daemon_use.leave()


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    at = words.index("--") if "--" in words else len(words)
    inputs, command = words[:at], words[at + 1 :]
    if not inputs or not command:
        what = "an INPUT before --" if command else "-- and a program after its inputs"
        raise UsageError(
            f"opsq spark run needs {what}.",
            hint="For example: opsq spark run events.parquet -o out.parquet -- jq -c '{id, n: (.text | length)}'",
        )
    return inputs, command


def removes(submission: Submission, *, keep: bool) -> bool:
    """Whether a successful run removes its submission: not one that existed before under the same key."""
    return submission.is_new and not keep


def missing_results(submission: Submission, deadline_s: float | None) -> OpsqError | None:
    """Why results are missing; None: all exist."""
    state = submission.state()
    if state.completed_count == state.chunks_count:
        return None
    if not state.dead_count:
        left = (
            f"{counted(state.chunks_count - state.completed_count, 'chunk')} of {state.chunks_count} are not completed."
        )
        if deadline_s:
            return TimedOut(f"The deadline came first: {left}")
        return NotFinished(
            f"The strategy takes no more of them: {left}", hint=f"`opsq explain {state.submission_id}` shows why."
        )
    lines = [f"{state.dead_count} of {counted(state.chunks_count, 'chunk')} died."]
    lines += [
        f"Chunk {state.submission_id}/{chunk.index}{input_note(found)}: {chunk.reason.strip()}"
        for chunk, found in submission.first_dead(_SHOWN_DEAD_COUNT)
    ]
    return WorkFailed(
        "\n".join(lines),
        hint=f"`opsq dead list {state.submission_id}` shows why, `opsq dead requeue` gives new attempts.",
    )


def way_on(state: SubmissionState, *, is_temporary: bool) -> str:
    """How to continue with what is left in the queue."""
    first, number = ("After `opsq start`, " if is_temporary else ""), state.submission_id
    writes = f"`opsq spark results {number} -o DIR{' --skip-dead' if state.dead_count else ''}` writes existing results"
    if state.state in FINAL_STATES:
        return f"{first}{writes}, `opsq rm {number}` removes it."
    return (
        f"{first}`opsq spark consume --submission {number} -- COMMAND` continues, then {writes}; "
        f"`opsq cancel {number}` cancels it."
    )


def _report_left(caller: Caller, state: SubmissionState, *, is_temporary: bool) -> None:
    done = f"{state.completed_count} of {counted(state.chunks_count, 'chunk')} are done."
    if not caller.is_quiet:  # without a terminal too: the id is printed nowhere else
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
        tasks=[] if summary is None else shapes(summary),
        rows=msgspec.UNSET if rows_count is None else rows_count,
        error=msgspec.UNSET if failure is None else ErrorShape.of(failure),
    )
