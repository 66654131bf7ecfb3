"""Owns the cron job of examples/ as cron runs it, at an instant that a test chooses.

It must not give the job more of an environment than cron does, but for where the program and its queue are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NIGHTLY = Path(__file__).parents[1] / "examples/nightly.sh"
PROGRAM = Path(sys.executable).with_name("opsq")
DEADLINE_S = 180
TONIGHT = 1_792_888_200
"""02:30 in the night in which Berlin sets its clocks back; an hour later it is 02:30 again."""
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


class Cron:
    """Runs the job at an instant.

    Args:
        state_dir: of its queue; not the default one, which is that of the user who runs the tests.
        place: a folder for what is on its PATH, its input and its output.
    """

    def __init__(self, state_dir: Path, place: Path) -> None:
        self.place, self.now, self.job = place, TONIGHT, place / "nightly.sh"
        shutil.copy(NIGHTLY, self.job)
        for name in ("bin", "reports", "out"):
            (place / name).mkdir()
        (place / "bin/opsq").symlink_to(PROGRAM)
        self.program("date", f'TZ={BERLIN} exec {sys.executable} -c "{DATE}" "$1"')
        (place / "reports/1.csv").write_bytes(b"b\na\nb\n")
        (place / "reports/2.csv").write_bytes(b"c\n")
        self.environ = {"HOME": "/nonexistent", "LOGNAME": "alice", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"} | {
            "OPSQ_BIN": str(place / "bin"),
            "OPSQ_STATE_DIR": str(state_dir),
        }

    def program(self, name: str, script: str) -> None:
        """Put a program in front of that of the system."""
        path = self.place / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def edit(self, old: str, new: str) -> None:
        """Write the job with other words in the place of some."""
        text = NIGHTLY.read_text(encoding="utf-8")
        assert text.count(old) == 1
        self.job.write_text(text.replace(old, new), encoding="utf-8")

    def start(self, reports: str = "reports", **options: Any) -> subprocess.Popen[str]:
        """Start the job; `options` are those of a process."""
        words = [str(self.job), str(self.place / reports), str(self.place / "out")]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environ = self.environ | {"NOW": str(self.now)}
        return subprocess.Popen(words, env=environ, cwd="/", text=True, start_new_session=True, **pipes, **options)

    def run(self, reports: str = "reports", **options: Any) -> tuple[int, str, str]:
        """Status, stdout and stderr of the job; cron mails the last two."""
        process = self.start(reports, **options)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert "Traceback" not in err
        return process.returncode, out, err

    @property
    def results(self) -> dict[str, bytes]:
        """What there is, by file."""
        return {path.name: path.read_bytes() for path in sorted((self.place / "out").iterdir())}


DATE = "import os, sys, time; print(time.strftime(sys.argv[1][1:], time.localtime(int(os.environ['NOW']))))"
SILENCE = (0, "", "")
"""What a run gives that needs no mail."""
