"""The verb results: the results of a submission in chunk order, byte exact, in constant memory."""

from __future__ import annotations

import sys

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.result_writer import JsonSink, ResultStream, write_output
from opsq.content.output_file import is_stdout
from opsq.documents.shape import ErrorShape
from opsq.documents.submissions import ResultsDocument
from opsq.errors import OpsqError
from opsq.ids import SubmissionId
from opsq.options.chunk_options import Dialect
from opsq.options.conditions import submission
from opsq.options.option import argument, option, options
from opsq.options.result_options import Shaping

NAMED_COUNT = 20
"""At most this many chunks are named."""


def results(
    caller: Caller,
    submission_id: SubmissionId = argument("ID", "The submission.", submission),
    output: str | None = option("-o, --output FILE", "Write to this file: beside it first, then renamed; - is stdout."),
    shaping: Shaping = options(Shaping),
    dialect: Dialect = options(Dialect),
    follow: bool = option("-f, --follow", "Do not wait for the end: write each result as soon as it is next in order."),
    skip_dead: bool = option("--skip-dead", "Leave out chunks that died or were skipped, instead of stopping there."),
    skip_bad: bool = option("--skip-bad", "Leave out chunks whose results cannot be read, and name them on stderr."),
) -> None:
    """Write the results of a submission to stdout, in chunk order.

    Exits 5 and writes nothing while the submission is not finished (unless --follow), and 1 at the first dead or
    skipped chunk.
    """
    if is_stdout(output):
        output = None
    with LastingConnection(caller) as daemon:
        stream = ResultStream(daemon, submission_id, is_following=follow, is_skipping=skip_dead, skips_bad=skip_bad)
        if caller.is_json and output is None:
            _print_all(caller, stream)
            return
        written_bytes = write_output(stream, output, shaping.as_shaping(dialect.as_dialect()))
        _name_bad(stream)
        if output is not None:
            caller.document(ResultsDocument(str(submission_id), stream.state, written_bytes, output))


def _name_bad(stream: ResultStream) -> None:
    if bad := stream.bad:
        more = f" and {len(bad) - NAMED_COUNT} more" if len(bad) > NAMED_COUNT else ""
        named = ", ".join(bad[:NAMED_COUNT])
        print(f"opsq: left out, since their results cannot be read: {named}{more}", file=sys.stderr, flush=True)


def _print_all(caller: Caller, stream: ResultStream) -> None:
    """Print one JSON document with all results as they come; it can be parsed also when they stop early."""
    sink = JsonSink()
    failure: OpsqError | None = None
    try:
        for results, folder in stream.pages():
            sink.write(results, stream.store, folder)
    except OpsqError as error:
        failure = error
    _name_bad(stream)
    sink.end({"state": stream.state} | ({} if failure is None else {"error": ErrorShape.of(failure)}))
    if failure is not None:
        raise caller.report_error(failure)
