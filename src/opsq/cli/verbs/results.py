"""The verb results: the results of a submission in chunk order, byte exact, in constant memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec
import typer

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import call_alive
from opsq.cli.output.json_documents import text_or_base64
from opsq.cli.output.json_shapes import ErrorShape, ResultsDocument, ResultShape
from opsq.cli.output.submission_text import ending
from opsq.client.core.result_pages import ResultCursor
from opsq.content.content_store import open_store
from opsq.content.manifest import decode
from opsq.content.result_joiner import Result, atomic_output, join_results
from opsq.errors import NotFinished, OpsqError, WorkFailed
from opsq.ids import SubmissionId, parse_submission_id
from opsq.wire.messages import ResultRows, Show, Shown

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection


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
        if output is not None:
            written_bytes = write_output(stream, output)
            caller.document(ResultsDocument(str(submission_id), stream.state, written_bytes, output))
        elif caller.is_json:
            _print_all(caller, stream)
        else:
            sys.stdout.flush()
            with open(1, "wb", buffering=0, closefd=False) as out:
                stream.write(out)


class ResultStream:
    """The results of one submission in chunk order, page by page.

    Args:
        daemon: a connection that nobody else uses meanwhile.
        is_following: wait for chunks that are not completed yet, instead of refusing.
        is_skipping: leave out chunks that will never be completed, instead of stopping there.
    """

    def __init__(
        self, daemon: Connection, submission_id: SubmissionId, *, is_following: bool, is_skipping: bool
    ) -> None:
        self._daemon = daemon
        self._submission_id = submission_id
        self._cursor = ResultCursor(submission_id, is_following=is_following, skip_dead=is_skipping)
        self._store = open_store(daemon.welcome.store)
        self.is_following = is_following
        self.state = ""
        """The state of the submission, as of the last page."""

    def pages(self) -> Iterator[tuple[Iterator[Result], str]]:
        """The results of each page, and the folder in the store in which the large ones lie.

        Raises:
            NotFound: there is no such submission.
            NotFinished: it has not ended, and `is_following` is off.
            WorkFailed: a chunk will never be completed, and `is_skipping` is off. What came before has been given.
        """
        cursor, folder = self._cursor, ""
        while not cursor.is_done:
            page = call_alive(self._daemon, cursor.request(self._daemon.next_id()), ResultRows)
            self.state = page.state
            if page.content:  # only the first page has it
                folder = decode(page.content).folder
            yield self._told(page), folder

    def write(self, out: BinaryIO) -> int:
        """Write all results to `out`; returns how many bytes. When they stop early, what came before is written."""
        written_bytes = 0
        for results, folder in self.pages():
            given = Given(results)
            if self.is_following:  # each result is wanted at once
                for result in given:
                    written_bytes += join_results([result], self._store, folder, out)
            else:
                written_bytes += join_results(given, self._store, folder, out)
            if given.failure is not None:
                raise given.failure
        return written_bytes

    def read(self, result: Result, folder: str) -> bytes:
        """The bytes of one result."""
        if isinstance(result, tuple):
            name, offset, length = result
            return self._store.read_range(f"{folder}/{name}", offset, length)
        return bytes(result)

    def _told(self, page: ResultRows) -> Iterator[Result]:
        """The results of a page; an error says what a user can do."""
        try:
            yield from self._cursor.take(page)
        except NotFinished as error:
            error.hint = (
                f"`opsq wait {self._submission_id}` waits for its end; --follow writes the results as they come."
            )
            raise
        except WorkFailed as error:
            self._explain(error)
            raise

    def _explain(self, error: WorkFailed) -> None:
        """Say of a chunk without a result how its submission has ended, and what can be done."""
        state = self._daemon.call(Show(self._daemon.next_id(), self._submission_id), Shown).submission
        error.hint = "--skip-dead leaves such chunks out."
        if state.state != "completed":
            error.message = f"{error.message.partition(':')[0]}: its submission {ending(state)}"
        if state.dead_count:
            error.hint = (
                f"`opsq dead list {self._submission_id}` tells why, and `opsq dead requeue {self._submission_id}` tries again; "
                + error.hint
            )


class Given:
    """Results up to where they stop, and then why."""

    def __init__(self, results: Iterator[Result]) -> None:
        self._results = results
        self.failure: OpsqError | None = None

    def __iter__(self) -> Iterator[Result]:
        try:
            yield from self._results
        except OpsqError as error:
            self.failure = error


def write_output(stream: ResultStream, path: str) -> int:
    """Write all results to the file `path`, which is either whole or unchanged; returns how many bytes."""
    with atomic_output(path) as out:
        return stream.write(out)


def _print_all(caller: Caller, stream: ResultStream) -> None:
    """One JSON document with all results, printed as they come; it can be parsed also when they stop early."""
    out = sys.stdout.buffer
    out.write(b'{"results":[')
    failure: OpsqError | None = None
    comma = b""
    try:
        for results, folder in stream.pages():
            for result in results:
                out.write(comma + msgspec.json.encode(ResultShape(**text_or_base64(stream.read(result, folder)))))
                comma = b","
    except OpsqError as error:
        failure = error
    out.write(b'],"state":' + msgspec.json.encode(stream.state))
    if failure is not None:
        out.write(b',"error":' + msgspec.json.encode(ErrorShape.of(failure)))
    out.write(b"}\n")
    out.flush()
    if failure is not None:
        raise caller.report_error(failure)
