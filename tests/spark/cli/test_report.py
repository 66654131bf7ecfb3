"""`opsq spark report` as a shell meets it: over a queue at work, one that is stopped, and a folder."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

import opsq
from opsq.cli.caller import Caller
from opsq.cli.spark.report_tables import _draw
from opsq.settings import Settings
from opsq.spark.report.rows import ReportSummary
from spark.jvm import DEADLINE_S
from spark.report.test_page import figures

PROGRAM = str(Path(sys.executable).with_name("opsq"))
LOCAL = ("--master", "local[2]")


def run(state_dir: object, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `opsq spark report` with that state folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPSQ_")}
    line = [PROGRAM, "--state-dir", str(state_dir), "spark", "report", *words]
    return subprocess.run(
        line, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )


def work_off(settings: Settings) -> None:
    """Two tenants: one has six chunks that complete, the other four of which one fails twice and dies."""
    with opsq.connect(state_dir=settings.state_dir, name="worker") as queue:
        queue.submit([b"good"] * 6, metadata={"tenant": "acme"})
        queue.submit(
            [b"good"] * 3 + [b"bad"],
            metadata={"tenant": "zeta"},
            max_attempts=2,
            backoff=(0.0, 1.0, 0.0),
            on_dead="keep",
        )
        for chunk in queue.consume():
            if chunk.data == b"bad":
                chunk.fail("no such host")
            else:
                chunk.complete(b"")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--from", "/nowhere"), 3, "/nowhere has no history in Parquet"),
        (("--by", "no key"), 2, "'no key' is not a key"),
        (("--step", "0.5"), 2, "--step 0.5: give whole seconds"),
        (("--since", "yesterday"), 2, "--since yesterday"),
        ((), 4, "opsq start"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    runtime_dir: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    ran = run(runtime_dir / "state", *words)
    assert ran.returncode == status, ran.stderr
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_queue_in_which_nothing_has_happened_is_told_before_spark_starts(daemon: Settings) -> None:
    ran = run(daemon.state_dir)
    assert ran.returncode == 3
    assert "no events" in ran.stderr


def test_tables_on_a_terminal_fit_80_columns_and_cut_no_number() -> None:
    names = ["252265274856701952", "252265274856701953", None]
    drawn_on = io.StringIO()
    caller = Caller({}, frozenset())
    caller.__dict__.update(is_rich=True, console=Console(width=80, file=drawn_on, highlight=False))
    found = figures(*names).report
    times = dict.fromkeys(
        (name for name in ReportSummary.__struct_fields__ if name.endswith("_s") and "_p" in name), 47 * 60 + 59.0
    )
    large = [
        replace(row, completed=12_345_678, failed=98_765, per_s=54_321.0, busy_s=86_399.0 * 30, **times)
        for row in found.values
    ]
    consumers = [
        replace(row, consumer="worker-17.example.org/31337", completed=12_345_678, failed=98_765)
        for row in found.consumers
    ]
    _draw(caller, replace(found, values=large, consumers=consumers))
    drawn = drawn_on.getvalue()
    assert max(map(len, drawn.splitlines())) <= 80
    assert all(
        told in drawn
        for told in (*names[:2], "(none)", "12345678", "47m 59s", "54,321/s", "Jain's index 0.87", "exit 3")
    )
    assert "…" not in drawn
