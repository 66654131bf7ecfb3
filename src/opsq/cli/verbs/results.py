"""The verb results: the results of a submission in chunk order, byte exact, in constant memory."""

from __future__ import annotations

from typing import Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.output.json_output import ErrorShape
from opsq.cli.output.result_writer import JsonSink, ResultStream, write_output
from opsq.cli.output.submission_documents import ResultsDocument
from opsq.errors import OpsqError
from opsq.ids import parse_submission_id


def results(
    caller: Caller,
    submission: Annotated[str, typer.Argument(metavar="ID", help="The submission.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file: beside it first, then renamed."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Do not wait for the end: write each result as soon as its turn has come."),
    ] = False,
    skip_dead: Annotated[
        bool, typer.Option("--skip-dead", help="Leave out chunks that died or were skipped, instead of stopping there.")
    ] = False,
) -> None:
    """Write the results of a submission to stdout, in chunk order.

    Exits 5 and writes nothing while the submission is not finished (unless --follow), and 1 at the first dead or skipped chunk.
    """
    submission_id = parse_submission_id(submission)
    with caller.connect() as daemon:
        stream = ResultStream(daemon, submission_id, is_following=follow, is_skipping=skip_dead)
        if caller.is_json and output is None:
            _print_all(caller, stream)
            return
        written_bytes = write_output(stream, output)
        if output is not None:
            caller.document(ResultsDocument(str(submission_id), stream.state, written_bytes, output))


def _print_all(caller: Caller, stream: ResultStream) -> None:
    """Print one JSON document with all results as they come; it can be parsed also when they stop early."""
    sink = JsonSink()
    failure: OpsqError | None = None
    try:
        for results, folder in stream.pages():
            sink.write(results, stream.store, folder)
    except OpsqError as error:
        failure = error
    sink.end({"state": stream.state} | ({} if failure is None else {"error": ErrorShape.of(failure)}))
    if failure is not None:
        raise caller.report_error(failure)
