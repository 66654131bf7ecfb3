"""The verb spark results: the results of a submission become a data set."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.spark.data_sets import Writing, daemon_options
from opsq.cli.spark.fleet_work import check_places, spark_producer
from opsq.cli.spark.job import Session, opened
from opsq.cli.spark.spark_documents import SparkResultsDocument
from opsq.errors import NotFinished
from opsq.ids import SubmissionId
from opsq.options.conditions import submission
from opsq.options.option import argument, options
from opsq.spark.source.result_fetch import FINAL_STATES
from opsq.units import counted
from opsq.wire.messages import SubmissionState


def results(
    caller: Caller,
    submission_id: SubmissionId = argument("ID", "The submission.", submission),
    writing: Writing = options(Writing),
    session: Session = options(Session),
) -> None:
    """Write the results of a submission as a data set, in the order of its chunks; it must have ended."""
    place = writing.place(is_there=session.is_remote)
    check_places(session, [place])
    with spark_producer(caller) as producer:
        _check_ended(producer.submission(submission_id).state())
        with opened(caller, session) as jobs:
            rows_count = jobs.run("writing", lambda: writing.write(jobs.spark, submission_id, daemon_options(caller)))
    caller.document(SparkResultsDocument(str(submission_id), place, rows_count))
    caller.remark(f"{counted(rows_count, 'row')} are in {place}.")


def _check_ended(state: SubmissionState) -> None:
    """Check that a submission has ended, before Spark starts.

    Raises:
        NotFinished: it has not.
    """
    if state.state not in FINAL_STATES:
        done = f"{state.completed_count} of {counted(state.chunks_count, 'chunk')} are done"
        raise NotFinished(
            f"Submission {state.submission_id} has not ended: {done}.",
            hint=f"`opsq wait {state.submission_id}` waits for it.",
        )
