"""How an input is split into chunks.

The options, declared once for the verbs that take an input, and the rule they make.

It must not read the input.
"""

from __future__ import annotations

from typing import NamedTuple

from opsq.cli.options import values
from opsq.cli.options.option import COUNT, option, option_set
from opsq.content.splitter import DEFAULT_CHUNK_BYTES, Splitting


@option_set
class Cutting(NamedTuple):
    """Where chunks end; each field is an option."""

    size: int | None = option(
        "-b, --bytes SIZE", "Whole records up to this size per chunk; 1M by default.", values.size
    )
    lines: int | None = option("-l, --lines N", "Records per chunk.", COUNT)
    delimiter: bytes | None = option(
        "-d, --delimiter TEXT",
        "What ends a record, with escapes such as \\t or \\x1e; a line end by default.",
        values.delimiter,
    )
    null: bool = option("-0, --null", "A NUL byte ends a record.")
    per_file: bool = option("--per-file", "Each file is one chunk.")
    csv_header: bool = option("--csv-header", "CSV: repeat the header in each chunk, and keep quoted line ends.")

    def as_splitting(self) -> Splitting:
        """The rule that they make.

        Raises:
            UsageError: two exclude each other.
        """
        values.exclude(bytes=self.size, lines=self.lines, per_file=self.per_file)
        values.exclude(delimiter=self.delimiter, null=self.null, per_file=self.per_file)
        end = b"\0" if self.null else self.delimiter or b"\n"
        if self.per_file:
            return Splitting("file", 1, csv_header=self.csv_header)
        if self.lines is not None:
            return Splitting("records", self.lines, end, self.csv_header)
        return Splitting("bytes", self.size or DEFAULT_CHUNK_BYTES, end, self.csv_header)
