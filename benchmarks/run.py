"""`make bench`: runs the benchmarks one after the other, prints one table, and writes it to `results/`.

Each benchmark is a file beside this one and runs in a process of its own, so none finds another's memory or caches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import plot
from harness.entry import EXIT_MISSING, EXIT_SHORT, add_options, disk_folder
from harness.machine import look_at_machine
from harness.report import print_table, write_results
from harness.rows import Row

_HERE = Path(__file__).parent
_NAMES = (
    "insert",
    "reserve",
    "strategies",
    "adversaries",
    "prefer_distinct",
    "backlog",
    "limits",
    "parked",
    "strategies_memory",
    "billion",
    "throughput",
    "pipelined",
    "one_at_a_time",
    "latency",
    "waits",
    "memory",
    "idle",
    "schedules",
    "dependants",
    "shards",
    "waits_over_shards",
    "scale_model",
    "full_load",
    "cold_start",
    "submit_file",
    "verbs",
    "consume",
    "programs",
    "server",
    "rounds",
    "python_consumer",
    "each_operation",
    "consume_memory",
    "records",
    "outbox",
    "replication",
    "spark_data",
    "spark_chunks",
    "spark_shapes",
    "spark_first",
    "spark_report",
    "spark_faults",
    "floor",
)
"""The files, in the order of the table."""


def main() -> None:
    """Run what was chosen and leave the process: 0 all met, 1 a row is short or failed, 2 a rival is missing."""
    parser = argparse.ArgumentParser(description="Measure opsq against its rivals.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run (default: all): {', '.join(_NAMES)}")
    add_options(parser)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw what was measured of backlogs in there")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(_NAMES)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}")
    disk = disk_folder(chosen.dir)
    rows: list[Row] = []
    statuses: set[int] = set()
    with tempfile.TemporaryDirectory(prefix="opsq-bench-", dir=disk) as folder:
        Path(folder).chmod(0o711)  # PostgreSQL runs as a user of its own
        machine = look_at_machine(Path(folder))
        print(machine.line, file=sys.stderr)
        for name in chosen.names or _NAMES:
            print(f"{name}:", file=sys.stderr, flush=True)
            status, measured = _run_one(name, Path(folder), is_quick=chosen.quick)
            rows += measured
            statuses.add(status)
    print_table(rows, machine.line)
    date = time.strftime("%Y-%m-%d")
    if chosen.plots:
        plot.write(chosen.plots / "reserve", [row.as_dict() for row in rows], date, machine.line)
    # A partial run is printed and not stored: what is stored can be compared from date to date.
    if not chosen.names:
        path = write_results(_HERE / "results", date, machine, rows, is_quick=chosen.quick)
        plot.write(path.with_suffix(""), [row.as_dict() for row in rows], date, machine.line)
        print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    raise SystemExit(EXIT_MISSING if EXIT_MISSING in statuses else EXIT_SHORT if statuses - {0} else 0)


def _run_one(name: str, folder: Path, *, is_quick: bool) -> tuple[int, list[Row]]:
    out = folder / f"{name}.rows"
    command = [sys.executable, str(_HERE / f"{name}.py"), "--rows", str(out), "--dir", str(folder)]
    status = subprocess.run([*command, "--quick"] if is_quick else command, check=False).returncode
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    rows = [Row.from_dict(json.loads(line)) for line in lines]
    is_explained = any(row.verdict in {"short", "failed"} for row in rows)
    if status == EXIT_MISSING:
        rows.append(Row.of_failure(name, "a rival is missing, see above"))
    elif not rows or (status != 0 and not (status == EXIT_SHORT and is_explained)):
        rows.append(Row.of_failure(name, f"ended with exit status {status} before it had measured everything"))
    return status, rows


if __name__ == "__main__":
    main()
