"""How results become one output.

The options, declared once for the verbs that write results. It must not write them.
"""

from __future__ import annotations

from typing import NamedTuple

from opsq.content.csv_records import CsvDialect
from opsq.content.result_shaping import ResultShaping
from opsq.options.option import option, option_set


@option_set
class Shaping(NamedTuple):
    """What is done to results; each field is an option."""

    header_once: bool = option(
        "--header-once", "Results are CSV with a header: write the first, and leave the same header out of the others."
    )
    end_lines: bool = option("--end-lines", "Add a line end to each result that lacks one.")

    def as_shaping(self, dialect: CsvDialect | None) -> ResultShaping:
        """What they say of results in that dialect, by default the usual one."""
        header = (dialect or CsvDialect()) if self.header_once else None
        return ResultShaping(header_once=header, ends_lines=self.end_lines)
