"""Rows as a terminal of any width shows them: what fits beside the first column is a table, the rest is below each row.

No word is broken that fits a line, and nothing is cut. It must not decide what is shown; it loads rich, so only what
draws may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
_INDENT = 4


class Rows:
    """Rows under headings.

    Args:
        right: the columns that hold numbers.
    """

    def __init__(self, columns: Sequence[str], *, title: str = "", right: Iterable[str] = ()) -> None:
        self._columns = columns
        self._title = title
        self._right = frozenset(right)
        self._rows: list[list[Text]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Add a row: a cell for each column."""
        self._rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines for a width."""
        beside = self._beside(options.max_width)
        below = [at for at in range(len(self._columns)) if at not in beside]
        if self._title:
            yield Text(self._title, style="bold")
        yield self._line([Text(name, style="bold underline") for name in self._columns], beside)
        for row in self._rows:
            yield self._line(row, beside)
            for line in _packed([_labelled(self._columns[at], row[at]) for at in below if row[at]], options.max_width):
                yield Padding(line, (0, 0, 0, _INDENT))

    def _beside(self, width: int) -> dict[int, int]:
        """The columns of the table itself and how wide each is: the first, and whichever of the others fit behind."""
        found: dict[int, int] = {}
        taken = 0
        for at, name in enumerate(self._columns):
            cells = [row[at].plain for row in self._rows]
            own = max(map(cell_len, [name, *cells]))
            is_first = not found
            if is_first or (taken + _GAP + own <= width and not any("\n" in cell for cell in cells)):
                taken += own if is_first else _GAP + own
                found[at] = own
        return found

    def _line(self, row: Sequence[Text], beside: dict[int, int]) -> Text:
        line = Text(overflow="fold")
        for at, width in beside.items():
            if line or at:
                line.append(" " * _GAP)
            blank = " " * (width - cell_len(row[at].plain))
            is_right = self._columns[at] in self._right
            line.append(blank if is_right else "").append_text(row[at]).append("" if is_right else blank)
        line.rstrip()
        return line


def _labelled(name: str, cell: Text) -> Text:
    return Text.assemble((f"{name}: ", "dim"), cell) if name else cell


def _packed(items: Sequence[Text], width: int) -> Iterator[Text]:
    """Lines of items: several in a line while they fit, and what is longer than a line by itself."""
    line = Text(overflow="fold")
    for item in items:
        is_single = "\n" not in item.plain and "\n" not in line.plain
        if line and is_single and cell_len(line.plain) + _GAP + cell_len(item.plain) + _INDENT <= width:
            line.append(" " * _GAP)
        elif line:
            yield line
            line = Text(overflow="fold")
        line.append_text(item)
    if line:
        yield line


def details() -> Table:
    """An empty table of names and values, without headings; long values go on below themselves."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, overflow="fold")
    table.add_column(overflow="fold")
    return table
