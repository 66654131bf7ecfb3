"""The options by which an input is cut into chunks, declared once for the verbs that take one, and the rule that they make.

It must not read the input.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from opsq.cli.options import values
from opsq.content.splitter import DEFAULT_CHUNK_BYTES, Splitting


class Cutting(NamedTuple):
    """Where chunks end; each field is an option."""

    size: Annotated[
        str | None,
        typer.Option("--bytes", "-b", metavar="SIZE", help="Whole records up to this size a chunk; 1M by default."),
    ] = None
    lines: Annotated[int | None, typer.Option("--lines", "-l", min=1, metavar="N", help="So many records a chunk.")] = (
        None
    )
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            "-d",
            metavar="TEXT",
            help="What ends a record, with escapes such as \\t or \\x1e; a line end by default.",
        ),
    ] = None
    null: Annotated[bool, typer.Option("--null", "-0", help="A NUL byte ends a record.")] = False
    per_file: Annotated[bool, typer.Option("--per-file", help="Each file is one chunk.")] = False
    csv_header: Annotated[
        bool, typer.Option("--csv-header", help="CSV: repeat the header in each chunk, and keep quoted line ends.")
    ] = False

    def as_splitting(self) -> Splitting:
        """The rule that they make.

        Raises:
            UsageError: a value is not possible, or two exclude each other.
        """
        values.exclude(bytes=self.size, lines=self.lines, per_file=self.per_file)
        values.exclude(delimiter=self.delimiter, null=self.null, per_file=self.per_file)
        end = b"\0" if self.null else b"\n" if self.delimiter is None else values.delimiter(self.delimiter)
        if self.per_file:
            return Splitting("file", 1, csv_header=self.csv_header)
        if self.lines is not None:
            return Splitting("records", self.lines, end, self.csv_header)
        return Splitting(
            "bytes",
            DEFAULT_CHUNK_BYTES if self.size is None else values.size("--bytes", self.size),
            end,
            self.csv_header,
        )
