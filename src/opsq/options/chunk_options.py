"""How an input is split into chunks.

The options, declared once for the verbs that take an input, and the rule they make.

It must not read the input.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from opsq.content.csv_records import CsvDialect
from opsq.content.splitter import DEFAULT_CHUNK_BYTES, Splitting
from opsq.options import values
from opsq.options.option import COUNT, option, option_set


@option_set
class Dialect(NamedTuple):
    """How CSV is written; each field is an option."""

    csv_delimiter: bytes | None = option(
        "--csv-delimiter BYTE", "The character between CSV fields.", values.delimiter, shown="a comma"
    )
    csv_quote: bytes | None = option("--csv-quote BYTE", "The quote character of CSV.", values.delimiter, shown='"')
    csv_escape: bytes | None = option(
        "--csv-escape BYTE",
        "What takes the meaning of the byte behind it, such as \\; by default only a doubled quote stands for one.",
        values.delimiter,
    )

    def as_dialect(self) -> CsvDialect | None:
        """What they say; None: nothing."""
        given = {"delimiter": self.csv_delimiter, "quote": self.csv_quote, "escape": self.csv_escape}
        parts = {name: part for name, part in given.items() if part is not None}
        return CsvDialect(**parts) if parts else None


_DIALECT = Dialect._field_defaults


@option_set
class Cutting(NamedTuple):
    """Where chunks end; each field is an option."""

    size: int | None = option("-b, --bytes SIZE", "Whole records up to this size per chunk.", values.size, shown="1M")
    lines: int | None = option("-l, --lines N", "Records per chunk.", COUNT)
    delimiter: bytes | None = option(
        "-d, --delimiter TEXT",
        "What ends a record, with escapes such as \\t or \\x1e.",
        values.delimiter,
        shown="a line end",
    )
    null: bool = option("-0, --null", "A NUL byte ends a record.")
    per_file: bool = option("--per-file", "Each file is one chunk.")
    as_is: bool = option("--as-is", "Take compressed files (.gz, .bz2, .xz, .zst) as they are, not as what they hold.")
    crlf: Literal["keep", "strip"] = option(
        "--crlf keep|strip", "Keep carriage returns before line ends, or leave them out.", default="keep"
    )
    csv: bool = option("--csv", "Records are CSV records, which may have line ends in quotes.")
    csv_header: bool = option("--csv-header", "CSV with a header, which is repeated in each chunk.")
    csv_delimiter: bytes | None = _DIALECT["csv_delimiter"]
    csv_quote: bytes | None = _DIALECT["csv_quote"]
    csv_escape: bytes | None = _DIALECT["csv_escape"]

    def as_splitting(self) -> Splitting:
        """The rule that they make.

        Raises:
            UsageError: two cannot be combined.
        """
        values.exclude(bytes=self.size, lines=self.lines, per_file=self.per_file)
        values.exclude(delimiter=self.delimiter, null=self.null, per_file=self.per_file)
        end = b"\0" if self.null else self.delimiter or b"\n"
        dialect = self.dialect or (CsvDialect() if self.csv else None)
        by: Literal["bytes", "records", "file"] = "bytes"
        count = self.size or DEFAULT_CHUNK_BYTES
        if self.per_file:
            by, count = "file", 1
        elif self.lines is not None:
            by, count = "records", self.lines
        return Splitting(by, count, end, self.csv_header, dialect, not self.as_is, self.crlf == "strip")

    @property
    def dialect(self) -> CsvDialect | None:
        """How the input is written as CSV, as far as it is said."""
        return Dialect(self.csv_delimiter, self.csv_quote, self.csv_escape).as_dialect()
