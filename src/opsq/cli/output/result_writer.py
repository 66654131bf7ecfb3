"""Writes the results of submissions in chunk order, as bytes or as a JSON list, in constant memory.

It must not decide which submission is meant, or report how it ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec

from opsq.client.core.result_pages import ResultCursor
from opsq.content.chunk_reader import input_of
from opsq.content.content_store import Store
from opsq.content.manifest import decode
from opsq.content.output_file import STDOUT, open_output
from opsq.content.result_joiner import Result, content_of, join_results
from opsq.content.result_shaping import ResultShaping
from opsq.content.store_kinds import open_store
from opsq.documents.shape import text_or_base64
from opsq.documents.submission_text import ending
from opsq.documents.submissions import ResultShape
from opsq.errors import NotFinished, OpsqError, WorkFailed
from opsq.ids import SubmissionId
from opsq.wire.messages import ResultRows, Show, Shown

if TYPE_CHECKING:
    from opsq.cli.lasting_connection import LastingConnection
    from opsq.client.sync.connection import Connection


class Sink(Protocol):
    """Where results go."""

    def write(self, results: Iterable[Result], store: Store, folder: str) -> None:
        """Write results; those that are tuples are in `folder` of `store`."""


class ByteSink:
    """Writes results as they are."""

    def __init__(self, out: BinaryIO, shaping: ResultShaping) -> None:
        self._out = out
        self._shaping = shaping
        self.written_bytes = 0

    def write(self, results: Iterable[Result], store: Store, folder: str) -> None:
        """See `Sink`."""
        self.written_bytes += join_results(self._shaping.apply(results, store, folder), store, folder, self._out)


class JsonSink:
    """Writes the beginning of a JSON document, whose first field is the list of results."""

    def __init__(self) -> None:
        self._comma = b""
        self.written_bytes = 0
        sys.stdout.buffer.write(b'{"results":[')

    def write(self, results: Iterable[Result], store: Store, folder: str) -> None:
        """See `Sink`."""
        for result in results:
            content = content_of(result, store, folder)
            self.written_bytes += len(content)
            sys.stdout.buffer.write(self._comma + msgspec.json.encode(ResultShape(**text_or_base64(content))))
            self._comma = b","

    def end(self, rest: object) -> None:
        """Write the other fields: an object that is not empty."""
        sys.stdout.buffer.write(b"]," + msgspec.json.encode(rest)[1:] + b"\n")
        sys.stdout.buffer.flush()


class ResultStream:
    """The results of one submission in chunk order, page by page.

    Args:
        daemon: a connection that nobody else uses at the same time.
        is_following: wait for chunks that are not completed yet, instead of refusing.
        is_skipping: leave out chunks that will never be completed, instead of stopping there.
        skips_bad: leave out chunks whose results cannot be read, instead of stopping there.
    """

    def __init__(
        self,
        daemon: Connection | LastingConnection,
        submission_id: SubmissionId,
        *,
        is_following: bool,
        is_skipping: bool,
        skips_bad: bool = False,
    ) -> None:
        self._daemon = daemon
        self._submission_id = submission_id
        self._bad: list[int] = []
        self._cursor = ResultCursor(
            submission_id,
            is_following=is_following,
            skip_dead=is_skipping,
            on_bad=self._bad.append if skips_bad else None,
        )
        self._sizes: dict[str, int] = {}
        self.store = open_store(daemon.welcome.store)
        self.is_following = is_following
        self.state = ""
        """The state of the submission, as of the last page."""

    def pages(self) -> Iterator[tuple[Iterator[Result], str]]:
        """The results of each page, and the folder in the store that contains the large ones.

        Raises:
            NotFound: there is no such submission.
            NotFinished: it has not ended, and `is_following` is off.
            WorkFailed: a chunk will never be completed, and `is_skipping` is off. What came before has been given.
        """
        cursor, folder = self._cursor, ""
        while not cursor.is_done:
            page = self._daemon.call(cursor.request(self._daemon.next_id()), ResultRows)
            self.state = page.state
            if page.content:  # only the first page has it
                folder = decode(page.content).folder
            yield self._worded(page, folder), folder

    def write(self, out: BinaryIO, shaping: ResultShaping) -> int:
        """Write all results to `out`; returns how many bytes. When they stop early, what came before is written."""
        written_bytes = 0
        for results, folder in self.pages():
            given = Given(results)
            shaped = shaping.apply(given, self.store, folder)
            if self.is_following:  # each result is wanted at once
                for result in shaped:
                    written_bytes += join_results([result], self.store, folder, out)
            else:
                written_bytes += join_results(shaped, self.store, folder, out)
            if given.failure is not None:
                raise given.failure
        return written_bytes

    @property
    def bad(self) -> list[str]:
        """The chunks that were left out since their results cannot be read."""
        return [f"{self._submission_id}/{index}" for index in self._bad]

    def _is_there(self, result: Result, folder: str) -> bool:
        """Whether the store has all of a result."""
        if not isinstance(result, tuple):
            return True
        name, offset, length = result
        if self._sizes.get(name, -1) < offset + length:  # it may have grown
            try:
                self._sizes[name] = self.store.size_bytes(f"{folder}/{name}")
            except OpsqError:
                return False
        return offset + length <= self._sizes[name]

    def _worded(self, page: ResultRows, folder: str) -> Iterator[Result]:
        """The results of a page; an error has a hint for the user."""
        cursor = self._cursor
        try:
            for result in cursor.take(page):
                if cursor.on_bad is not None and not self._is_there(result, folder):
                    cursor.on_bad(cursor.index)
                else:
                    yield result
        except NotFinished as error:
            error.hint = (
                f"`opsq wait {self._submission_id}` waits for its end; --follow writes the results as they come."
            )
            raise
        except WorkFailed:
            raise self._lacking() from None

    def _lacking(self) -> WorkFailed:
        """The error for a chunk without a result: how its submission has ended, and what can be done."""
        state = self._daemon.call(Show(self._daemon.next_id(), self._submission_id), Shown).submission
        inputs = partial(input_of, self.store, self._cursor.content)
        why = "" if state.state == "completed" else f"its submission {ending(state, inputs)}"
        error = self._cursor.lacking(inputs(self._cursor.index), why)
        error.hint = "--skip-dead leaves such chunks out."
        if state.dead_count:
            error.hint = (
                f"`opsq dead list {self._submission_id}` says why, and "
                f"`opsq dead requeue {self._submission_id}` tries again; {error.hint}"
            )
        return error


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


def write_output(stream: ResultStream, path: str | None, shaping: ResultShaping | None = None) -> int:
    """Write all results to what `open_output` opens, None being stdout; returns how many bytes."""
    with open_output(STDOUT if path is None else path) as out:
        return stream.write(out, shaping or ResultShaping())
