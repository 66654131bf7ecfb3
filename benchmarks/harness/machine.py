"""The machine that was measured: processors, kernel, versions, and the disk under the working folder.

It names no host, user or path, so that results can be published.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import apsw

from harness.pairs import median


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader has to know to place the numbers. `fsync_s` is the median of a 4 KiB append and its fdatasync."""

    cores: int
    cpu: str
    kernel: str
    python: str
    sqlite: str
    disk: str
    fsync_s: float
    revision: str

    @property
    def line(self) -> str:
        """All of it in one line."""
        return (
            f"{self.cores} cores {self.cpu} · {self.kernel} · Python {self.python} · SQLite {self.sqlite} · "
            f"{self.disk}, fsync {self.fsync_s * 1e3:.2f} ms · opsq {self.revision}"
        )

    @property
    def slug(self) -> str:
        """The machine as part of a file name."""
        words = f"{platform.system()} {self.cores}x {self.cpu}".lower()
        return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", words)).strip("-")[:60]


def look_at_machine(work_dir: Path) -> Machine:
    """Describe this machine and the file system of `work_dir` (a writable folder)."""
    return Machine(
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        cpu=_cpu(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        sqlite=apsw.sqlite_lib_version(),
        disk=file_system(work_dir),
        fsync_s=_fsync_s(work_dir),
        revision=_revision(),
    )


def file_system(path: Path) -> str:
    """The name of the file system that holds `path`, `unknown` if the system does not tell."""
    listed = [line.split() for line in Path("/proc/mounts").read_text().splitlines()] if _is_linux() else _mounts()
    here = path.resolve()
    inside = [(mount, kind) for _, mount, kind, *_ in listed if here.is_relative_to(mount)]
    return max(inside, key=lambda found: len(found[0]))[1] if inside else "unknown"


def _is_linux() -> bool:
    return sys.platform == "linux"


def _mounts() -> list[list[str]]:
    printed = subprocess.run(["mount"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(\S+) on (.+) \((\w+)", printed, re.MULTILINE)
    return [list(entry) for entry in found]


def _cpu() -> str:
    if _is_linux():
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return names[0] if names else platform.machine()
    asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or platform.machine()


def _fsync_s(work_dir: Path) -> float:
    path = work_dir / "fsync"
    sync = getattr(os, "fdatasync", os.fsync)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        taken = []
        for _ in range(100):
            os.write(descriptor, b"x" * 4096)
            started = time.perf_counter()
            sync(descriptor)
            taken.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return median(taken)


def _revision() -> str:
    here = Path(__file__).parent
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--tags"], cwd=here, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unversioned"
