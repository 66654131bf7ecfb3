"""The report: one table on the terminal, and the same rows as JSON and Markdown files.

It must not judge: verdicts come from the rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.machine import Machine
from harness.rows import Row, written

_COLUMNS = ("what", "ours", "rival", "ratio", "must", "verdict")
_STYLES = {"met": "green", "short": "bold red", "failed": "bold red", "reported": "dim"}


def print_table(rows: Sequence[Row], machine_line: str) -> None:
    """Print the rows on stdout, as a table for people; off a terminal without colour and 160 columns wide."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table(caption=machine_line, caption_justify="left", show_lines=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in {"what", "verdict"} else "right", overflow="fold")
    for row in rows:
        *cells, verdict = _cells(row)
        table.add_row(*cells, f"[{_STYLES[verdict]}]{verdict}[/]")
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"  {row.what}: {row.note}", style="dim", markup=False)


def write_results(folder: Path, date: str, machine: Machine, rows: Sequence[Row], *, is_quick: bool) -> Path:
    """Write `<date>-<machine>.json` and `.md` into `folder` and return the path of the second.

    A quick run is marked as such in its name: its sizes are smaller, so it never replaces a full one.
    """
    folder.mkdir(exist_ok=True)
    stem = f"{date}-{machine.slug}{'-quick' if is_quick else ''}"
    stored = {
        "date": date,
        "is_quick": is_quick,
        "machine": asdict(machine),
        "rows": [row.as_dict() for row in rows],
    }
    json_text = json.dumps(stored, ensure_ascii=False, indent=1)
    (folder / f"{stem}.json").write_text(json_text + "\n", encoding="utf-8")
    path = folder / f"{stem}.md"
    path.write_text(_markdown(date, machine, rows, is_quick=is_quick), encoding="utf-8")
    return path


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "-" if row.ratio is None else f"{row.ratio:.3g}×" if row.ratio < 1000 else f"{row.ratio:,.0f}×"
    rival = "-" if row.rival is None else f"{written(row.rival, row.unit)} ({row.rival_name})"
    return row.what, written(row.ours, row.unit), rival, ratio, row.must.text, row.verdict


def _markdown(date: str, machine: Machine, rows: Sequence[Row], *, is_quick: bool) -> str:
    lines = [
        f"# Benchmarks, {date}{' (quick)' if is_quick else ''}",
        "",
        machine.line,
        "",
        "Medians; rivals took turns with ours in the same run; a ratio is the median over the pairs, as described.",
        "",
        "| what | ours | rival | ratio | must | verdict | ratio reads | spread of ours |",
        "|---|---:|---:|---:|---:|---|---|---|",
    ]
    for row in rows:
        ours = row.samples.get("ours", [])
        spread = f"{written(min(ours), row.unit)} … {written(max(ours), row.unit)}" if len(ours) > 1 else ""
        lines.append(f"| {' | '.join((*_cells(row), row.ratio_reads, spread))} |".replace("  ", " "))
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, "", *notes, ""] if notes else [*lines, ""])
