"""Faults need things that break: a disk that is soon full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A small disk is a tmpfs, which only Linux has; on macOS a sync is a call that is not recorded.
collect_ignore = [] if sys.platform == "linux" else ["test_disk_full.py", "test_nightly_disk_full.py", "power"]

DISK_MB = 8
DISK_INODES = 256


@pytest.fixture
def small_disk(
    request: pytest.FixtureRequest, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path | None]:
    """A disk of 8 MB, which daemons may fill to its last byte.

    Whoever may not mount runs the test once more inside a user namespace, where anybody may; then there is nothing left
    to do (None).
    """
    monkeypatch.setenv("OPSQ_MIN_FREE_BYTES", "0")
    disk = runtime_dir / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        inner = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        run = subprocess.run(
            ["unshare", "--map-root-user", "--mount", *inner],
            capture_output=True,
            text=True,
            cwd=request.config.rootpath,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        yield None
        return
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,nr_inodes={DISK_INODES}", "tmpfs", str(disk)], check=True
    )
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
