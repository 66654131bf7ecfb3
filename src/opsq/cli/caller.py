"""What a verb gets: the global options, the settings, a connection, and output for people, scripts and programs.

People on a terminal get rich tables and progress, pipes get plain lines, `--json` gets documents; this file makes that
choice once. Rich is loaded only when something is drawn.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from opsq.cli.daemon_address import connect, is_addressed, settings_of
from opsq.cli.output.error_report import Exit, error_text
from opsq.cli.output.folding import folded
from opsq.client.core.missing_shards import MissingShards
from opsq.printable import printable
from opsq.settings import Settings
from opsq.units import format_instant

if TYPE_CHECKING:
    from rich.console import Console

    from opsq.cli.output.rows import Rows
    from opsq.client.sync.connection import Connection
    from opsq.documents.shape import Shape
    from opsq.errors import OpsqError
    from opsq.wire.messages import Claim, Finding


class Caller:
    """The person or script behind a command line.

    Args:
        options: the values of the global options, by name.
        by_flag: which of them were given on the command line itself.
    """

    def __init__(self, options: Mapping[str, Any], by_flag: frozenset[str]) -> None:
        self.is_json = bool(options.get("json"))
        self.is_quiet = bool(options.get("quiet"))
        self._is_utc = bool(options.get("utc"))
        self._options = options
        self._by_flag = by_flag
        self._missing = MissingShards(self._warn_of_missing)
        self.is_drawing = False
        """A verb draws a screen, which lines on stderr would spoil."""

    @cached_property
    def settings(self) -> Settings:
        """The settings as flags, environment and files give them."""
        return settings_of(self._options, self._by_flag)

    def settings_with(self, flags: Mapping[str, object], kept: Mapping[str, str] | None = None) -> Settings:
        """The settings, also with those flags of a verb that are settings and were given on the command line.

        Args:
            kept: see `opsq.settings.load`.
        """
        given = {name: flag for name, flag in flags.items() if name in self._by_flag}
        return settings_of(self._options, self._by_flag, given, kept=kept)

    def settings_in(self, environ: Mapping[str, str]) -> Settings:
        """The settings as they would be with other variables."""
        return settings_of(self._options, self._by_flag, environ=environ)

    @property
    def target(self) -> str:
        """The address that `connect` dials."""
        return self.settings.address if is_addressed(self.settings) else self.settings.socket

    @property
    def target_source(self) -> str:
        """Which setting chose `target`."""
        return self.settings.source("address" if is_addressed(self.settings) else "socket")

    def connect(self, *, reconnect_s: float = 0.0, name: str = "", claim: Claim | None = None) -> Connection:
        """A greeted connection to the daemon; the verb closes it."""
        connection = connect(self.settings, reconnect_s=reconnect_s, name=name, claim=claim)
        connection.on_missing = self._missing
        return connection

    def _warn_of_missing(self, text: str) -> None:
        if not self.is_drawing:
            self.warn(text)

    # --- output ---

    @cached_property
    def is_rich(self) -> bool:
        """Whether stdout is a terminal and neither JSON nor silence was asked for."""
        return sys.stdout.isatty() and not self.is_json

    def drawn(self) -> Caller:
        """The same caller with tables drawn off a terminal too, without colours and 80 columns wide."""
        import copy

        caller = copy.copy(self)
        caller.is_rich = True
        return caller

    @cached_property
    def console(self) -> Console:
        """Stdout, drawn by rich."""
        from opsq.cli.output.console import SafeConsole

        return SafeConsole(highlight=False)

    def document(self, document: object) -> None:
        """Print a JSON document, if JSON was asked for."""
        if self.is_json:
            from opsq.cli.output.json_output import print_json

            print_json(document)

    def conclude(self, document: Shape, failure: OpsqError | None) -> None:
        """Print the last document of a verb; a failure becomes its `error`, is reported and ends the verb."""
        if failure is None:
            self.document(document)
            return
        if self.is_json:
            from opsq.documents.shape import ErrorShape

            self.document(replace(document, error=ErrorShape.of(failure)))
        raise self.report_error(failure)

    def changed(self, count: int) -> None:
        """Print how many things the verb has changed, if JSON was asked for."""
        if self.is_json:
            from opsq.documents.submissions import ChangedDocument

            self.document(ChangedDocument(count))

    def lines(self, lines: Sequence[str]) -> None:
        """Print plain lines on stdout, unless JSON was asked for."""
        if not self.is_json and lines:
            sys.stdout.write("".join(f"{printable(line, keep=_TAB)}\n" for line in lines))

    @property
    def is_remarking(self) -> bool:
        """Whether remarks are printed."""
        return sys.stderr.isatty() and not self.is_quiet and not self.is_json

    def remark(self, text: str) -> None:
        """Print a remark on stderr for a person on a terminal; scripts get nothing, "" is nothing."""
        if text and self.is_remarking:
            sys.stderr.write(folded(printable(text, keep="\n"), sys.stderr) + "\n")

    def warn(self, text: str) -> None:
        """Print on stderr, for scripts too, what may not be meant; "" is nothing."""
        if text and not self.is_quiet:
            print(folded(f"opsq: {printable(text)}", sys.stderr), file=sys.stderr, flush=True)

    def report_error(self, failure: OpsqError) -> Exit:
        """Report on stderr what went wrong; returns what ends the verb with that status."""
        print(folded(error_text(failure), sys.stderr), file=sys.stderr, flush=True)
        return Exit(failure.exit_status)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        title: str = "",
        right: frozenset[str] = frozenset(),
    ) -> None:
        """Print rows: a table on a terminal, else one line a row with tabs between the fields.

        Args:
            right: the columns that hold numbers.
        """
        if self.is_json:
            return
        if not self.is_rich:
            self.lines(["\t".join(_field(value) for value in row) for row in rows])
            return
        from opsq.cli.output.rows import details

        drawn = self.new_table(columns, title=title, right=right) if any(columns) else details()
        for row in rows:
            drawn.add_row(*("" if value is None else _text(value) for value in row))
        self.console.print(drawn)

    def new_table(self, columns: Sequence[str], *, title: str = "", right: frozenset[str] = frozenset()) -> Rows:
        """An empty table in the house style."""
        from opsq.cli.output.rows import Rows

        return Rows(columns, title=title, right=right)

    def instant(self, wall_ms: int) -> str:
        """An instant in a table: to the second on a terminal, in the zone that a `heading` names; else RFC 3339."""
        if not self.is_rich:
            return format_instant(wall_ms)
        from opsq.cli.output.instants import second

        return second(wall_ms, is_utc=self._is_utc)

    def named_instant(self, wall_ms: int | None) -> str | None:
        """An instant that no heading is above: on a terminal with its zone."""
        if wall_ms is None:
            return None
        return self.reworded(format_instant(wall_ms))

    def heading(self, name: str) -> str:
        """The heading of a column of instants; it names their zone."""
        if not self.is_rich:
            return name
        from opsq.cli.output.instants import zone

        return f"{name} ({zone(is_utc=self._is_utc)})"

    def reworded(self, text: str) -> str:
        """Text with its instants as this reader has them."""
        if not self.is_rich:
            return text
        from opsq.cli.output.instants import reworded

        return reworded(text, is_utc=self._is_utc)

    def held_back(self, subject: str, findings: Sequence[Finding]) -> list[str]:
        """What holds a subject back, in sentences."""
        from opsq.findings import held_back

        return list(map(self.reworded, held_back(subject, findings)))

    @contextlib.contextmanager
    def progress(self, unit: str = "chunks") -> Iterator[Any]:
        """Progress on stderr: bars on a terminal, else nothing.

        Args:
            unit: chunks, rows or bytes; empty: nothing is counted.

        Yields:
            A rich `Progress`, or None off a terminal.
        """
        if not sys.stderr.isatty() or self.is_quiet or self.is_json:
            yield None
            return
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from opsq.cli.output.console import SafeConsole

        counts = [DownloadColumn(binary_units=True)] if unit == "bytes" else [MofNCompleteColumn()] if unit else []
        columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeElapsedColumn())
        with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as progress:
            yield progress


def _field(value: object) -> str:
    """A value in a line of fields; tabs, line ends and other controls are escaped."""
    return "" if value is None else printable(str(value))


_TAB = "\t"
_CELL_CHARACTERS, _CELL_LINES = 4000, 20


def _text(value: object) -> Any:
    from rich.text import Text

    from opsq.documents.readable import brief

    return value if isinstance(value, Text) else Text(brief(str(value), _CELL_CHARACTERS, _CELL_LINES))
