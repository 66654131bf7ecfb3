"""Logs of what programs say: what happens where they cannot be written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opsq.runner.pool_options import Logs
from opsq.runner.stderr_logs import StderrLogs


def test_log_that_cannot_be_written_is_told_once_and_keeps_nobody_from_working(tmp_path: Path) -> None:
    told: list[str] = []
    logs = StderrLogs(Logs(str(tmp_path / "logs")), told.append)
    (tmp_path / "logs/7").write_text("in the place of the folder of a submission")
    chunk: Any = SimpleNamespace(submission_id=7, index=0, attempt=0)
    for log in (logs.log(chunk), logs.log(chunk)):
        log.write(b"first\n")
        log.write(b"second\n")
        log.close(is_completed=True)
    [text] = told
    assert "and no more is logged" in text
