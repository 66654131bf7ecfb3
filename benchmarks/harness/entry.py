"""How one benchmark file is run: its options, its working folder, its rivals looked for first, its exit status.

It must not know any benchmark by name; `run.py` does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.machine import file_system, look_at_machine
from harness.report import print_table
from harness.rows import Row
from rivals.programs import Rival, RivalMissingError

Size = TypeVar("Size")

EXIT_SHORT = 1
EXIT_MISSING = 2

_ON_DISK = Path("/var/tmp")  # noqa: S108  # only the parent of a private, randomly named folder


@dataclass(frozen=True, slots=True)
class Context:
    """What a benchmark is given: an empty folder on a real disk, and how much to do."""

    work_dir: Path
    is_quick: bool
    is_soak: bool = False

    @property
    def pairs(self) -> int:
        """How many times each side runs."""
        return 3 if self.is_quick else 5

    def size(self, full: Size, quick: Size) -> Size:
        """The size (or sizes) to use: `full`, or `quick` under --quick."""
        return quick if self.is_quick else full

    def folder(self, name: str) -> Path:
        """A new, empty folder called `name`; one of that name from before is removed."""
        path = self.work_dir / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        return path

    def say(self, text: str) -> None:
        """Tell on stderr what is being done."""
        print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One family of rows: its name, what it shows, the rivals that it cannot do without, and how it is measured."""

    name: str
    shows: str
    measure: Callable[[Context], Iterator[Row]]
    needs: Sequence[Rival] = ()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that one file and the whole run share."""
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes and fewer runs; bounds are judged all the same"
    )
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: the temporary folder)")


def disk_folder(chosen: Path | None) -> Path:
    """Where working folders are made: as chosen, else the temporary folder, or /var/tmp if that lives in memory."""
    if chosen is not None:
        return chosen
    usual = Path(tempfile.gettempdir())
    return _ON_DISK if file_system(usual) in {"tmpfs", "ramfs"} else usual


def main(benchmark: Benchmark) -> None:
    """Run one benchmark from its own file and leave the process: 0 all met, 1 a row is short, 2 a rival is missing."""
    parser = argparse.ArgumentParser(description=benchmark.shows)
    add_options(parser)
    parser.add_argument("--soak", action="store_true", help="an hour of what is measured for minutes (full_load)")
    parser.add_argument(
        "--rows", type=Path, help="append the rows to this file, as JSON lines, instead of printing the table"
    )
    chosen = parser.parse_args()
    try:
        for program in benchmark.needs:
            program.find()
    except RivalMissingError as missing:
        print(f"{benchmark.name}: {missing}", file=sys.stderr)
        raise SystemExit(EXIT_MISSING) from None
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="opsq-bench-", dir=disk_folder(chosen.dir)) as work_dir:
        context = Context(Path(work_dir), chosen.quick, chosen.soak)
        machine = None if chosen.rows else look_at_machine(context.work_dir)
        for row in benchmark.measure(context):
            rows.append(row)
            if chosen.rows:
                with chosen.rows.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row.as_dict(), ensure_ascii=False) + "\n")
        if machine:
            print_table(rows, machine.line)
    raise SystemExit(EXIT_SHORT if any(row.verdict in {"short", "failed"} for row in rows) else 0)
