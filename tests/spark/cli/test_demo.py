"""`opsq demo --spark`: the main job with DataFrames on real input, told so that a log of it can be read.

And nothing left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.jvm import DEADLINE_S
from waiting import wait_until

PROGRAM = str(Path(sys.executable).with_name("opsq"))


def folders() -> set[str]:
    """What demos have left in the folder for temporary files."""
    return {name for name in os.listdir("/tmp") if name.startswith("opsq-demo-")}


@pytest.mark.usefixtures("java")
def test_demo_with_spark_tells_in_a_log_what_was_done_and_leaves_nothing(runtime_dir: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPSQ_")}
    environ["OPSQ_STATE_DIR"] = str(runtime_dir / "untouched")
    before, log = folders(), runtime_dir / "log"
    with log.open("wb") as out:
        words = [PROGRAM, "demo", "--spark", "--consumers", "2"]
        ran = subprocess.run(
            words, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, timeout=DEADLINE_S
        )
    assert (ran.returncode, ran.stderr) == (0, b"")
    text = log.read_text()
    assert not {"\x1b", "\r", "\t"} & set(text)
    lines = [line.rstrip() for line in text.splitlines()]
    assert sum("Starting Spark" in line for line in lines) == 1
    assert "a direct count without Spark agrees" in text
    headings = [line.split() for line in lines if line.startswith(("tenant", "Fairness", "consumer"))]
    assert [heading[:2] for heading in headings] == [
        ["tenant", "done"],
        ["tenant", "wait"],
        ["Fairness:", "Jain's"],
        ["tenant", "of"],
        ["consumer", "done"],
    ]
    assert lines[-1].endswith("nothing is left behind.")
    born = folders() - before
    wait_until(lambda: not born & folders(), 300, "this demo, and those that ran beside it, have left nothing")
    assert not (runtime_dir / "untouched").exists()
